"""CIFAR-10 in its Python version: pickles of bytes, read without trusting them."""

import io
import pickle
from pathlib import Path

import numpy as np

from lowland.data.folder import check_published, locate, missing
from lowland.data.sampling import Samples
from lowland.errors import InputError
from lowland.reading import content

FOLDER = "cifar-10-batches-py"
PUBLISHED_COUNT = 10_000  # in each file
LARGEST = 32_000_000  # bytes of a file: a published one has 31 million
# md5 as torchvision publishes them.
PUBLISHED = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def read(name: str, data_dir: str | Path | None) -> tuple[Samples, Samples, Path, int]:
    """Training and test samples, the folder they are from, and how many training batches it has.

    Any of the five training batches will do: each is a random fifth, and one is often enough.
    """
    *train_files, test_file = PUBLISHED
    training = f"{FOLDER}/data_batch_1 (and as many of _2 to _5 as you like)"
    root = locate(name, data_dir, [training, f"{FOLDER}/{test_file}"])
    folder = root / FOLDER
    present = [folder / file for file in train_files if (folder / file).is_file()]
    absent = [] if present else [training]
    if not (folder / test_file).is_file():
        absent.append(f"{FOLDER}/{test_file}")
    if absent:
        raise missing(name, root, absent)

    images, labels = zip(*map(_batch, present), strict=True)
    train = np.concatenate(images), np.concatenate(labels)
    return train, _batch(folder / test_file), folder, len(present)


def _batch(path: Path) -> Samples:
    """The images (N, 3, 32, 32) and labels (N,) of one file."""
    try:
        data = content(path, LARGEST)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; download it anew") from error
    try:
        images, labels = _parse(data)
    except InputError as error:
        raise InputError(f"{path} {error}; download it anew") from error
    except Exception as error:  # damaged pickles raise nearly anything, as pickle's manual says
        raise InputError(f"{path} is damaged or cut short ({error}); download it anew") from error
    if len(labels) == PUBLISHED_COUNT:
        check_published(path, data, PUBLISHED[path.name])
    return images, labels


def _parse(content: bytes) -> Samples:
    """The same from the bytes of the file; errors leave out its name."""
    # latin1 gives one character for each byte of a string that Python 2 pickled.
    batch = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    match batch:
        case {
            "data": _Noted(
                state=(
                    _,
                    (int(count), 3072),
                    _Noted(arguments=("u1", *_)),
                    False,  # not in Fortran's order
                    (str() | bytes()) as pixels,
                )
            ),
            "labels": [*labels],
        } if (
            len(labels) == count > 0
            and len(pixels) == count * 3072
            and all(label in range(10) for label in labels)
        ):
            buffer = pixels.encode("latin1") if isinstance(pixels, str) else pixels
            images = np.frombuffer(buffer, np.uint8).reshape(count, 3, 32, 32)
            return images, np.array(labels, dtype=np.int64)
    raise InputError(
        "is no CIFAR-10 batch: expected a dictionary with 'data', bytes of shape (N, 3072), and "
        "'labels', N numbers from 0 to 9"
    )


class _Noted:
    """Stands in for an array or its dtype: keeps what the pickle says about it, runs nothing."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle._Unpickler):
    """Gives plain values, and ``_Noted`` for arrays.

    A pickle can call whatever it can name, and even NumPy's own unpickling trusts what it is told
    about memory; so this one can name only ``_Noted``. It is the one in Python itself: that in C
    takes gigabytes for twenty bytes that name a high place in its memo.
    """

    def find_class(self, module: str, name: str) -> type[_Noted]:
        """What a pickle gets for a name: a note if an array is made of it, an error otherwise."""
        match module, name:
            case ("numpy", "ndarray" | "dtype"):
                return _Noted
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"):
                return _Noted  # before NumPy 2 and since
            case _:
                raise InputError(
                    f"was refused: a CIFAR-10 batch has no use for {module}.{name}, and running "
                    "it could be dangerous"
                )
