"""Wider networks (Neyshabur et al. 2015); expected sharpness against KL (Neyshabur et al. 2017).

One hidden layer on MNIST. Its width grows at a fixed number of images; the number of images grows
at a fixed width, with true and with random labels. All training ends at the same loss.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from lowland.sweep.grid import Grid
from lowland.sweep.trial import trials
from lowland_studies.claims import Test, correlated, falls, larger_part, on, rises, stronger
from lowland_studies.evidence import Runs
from lowland_studies.panels import Against, Scatter
from lowland_studies.study import Claim, Study

_WIDTH, _IMAGES = 64, 100  # the width where images grow in number, and the other way round
_ORIGINAL_WIDTH, _ORIGINAL_IMAGES = 1024, 5000
_ONE_WIDTH: dict[str, Any] = {"width": [_WIDTH, _ORIGINAL_WIDTH]}
_ONE_SIZE: dict[str, Any] = {"per_class": [_IMAGES, _ORIGINAL_IMAGES]}
_COMPARED = ("kl", "path_norm", "spectral_norms")


def _grid(
    widths: list[int],
    noisy_widths: list[int],
    images: list[int],
    seeds: int,
    at: tuple[int, int] = (_WIDTH, _IMAGES),
    **others: Any,
) -> Grid:
    width, per_class = at

    def some(**axes: Any) -> Grid:
        function = "lowland_studies.field.width.trial:trial"
        return trials(function, max_epochs=1000, seed=range(seeds), **others, **axes)

    return (
        some(width=widths, per_class=per_class, label_noise=0.0)
        + some(width=noisy_widths, per_class=per_class, label_noise=0.05)
        + some(width=width, per_class=images, label_noise=[0.0, 1.0])
    )


def _wider(noise: float, test: Test) -> Test:
    """The test where the width varies."""
    return on({**_ONE_SIZE, "label_noise": noise}, test)


def _more_images(runs: Runs) -> Runs:
    """The networks with one width, true or random labels, and from few images to many."""
    return runs.where(**_ONE_WIDTH, label_noise=[0.0, 1.0])


def _random_beside_true(runs: Runs) -> Runs:
    """The networks with random labels, each beside that with true labels."""
    own = _more_images(runs)
    true = {(r["per_class"], r["seed"]): r for r in own.where(label_noise=0.0).rows}
    rows = []
    for row in own.where(label_noise=1.0).rows:
        if other := true.get((row["per_class"], row["seed"])):
            beside = {f"{name} with true labels": other[name] for name in _COMPARED}
            ratios = {f"ratio of {name}": row[name] / other[name] for name in _COMPARED}
            rows.append(row | beside | ratios)
    return replace(runs, rows=tuple(rows))


def _larger(name: str) -> Test:
    return on(_random_beside_true, larger_part(name, f"{name} with true labels", 1.0))


def _ever_larger(name: str) -> Test:
    return on(_random_beside_true, rises(f"ratio of {name}", "per_class"))


def kl_per_image(runs: Runs) -> np.ndarray:
    """The logarithm of KL over the number of images, at an expected sharpness of 0.1."""
    return np.log10(runs.column("kl") / runs.column("samples"))


def _labels(row: dict[str, Any]) -> str:
    return f"{row['samples']:,} images, {'random' if row['label_noise'] else 'true'}"


_labels.__name__ = "labels"
_OF_2015 = "Neyshabur et al. 2015"
_OF_2017 = "Neyshabur et al. 2017"
_WIDER: dict[str, Any] = {"label_noise": 0.0, **_ONE_SIZE}
_GROWING: dict[str, Any] = {**_ONE_WIDTH, "label_noise": [0.0, 1.0]}

STUDY = Study(
    "width",
    "More hidden units at equal training error; expected sharpness against KL as the data grow",
    grid=_grid([8, 32, 64, 128], [8, 128], [20, 60, 200], 4),
    quick=_grid([8, 128], [8, 128], [10, 40], 3),
    original=_grid(
        *([8, 64, 512, 4096], [8, 4096], [500, 1500, 5400], 4),
        at=(_ORIGINAL_WIDTH, _ORIGINAL_IMAGES),
        data="mnist",
    ),
    panels=(
        Against(
            "width",
            {"test": "test_error", "training": "train_error"},
            "error",
            log="x",
            where=_WIDER,
            title="1,000 images",
        ),
        Against(
            "width",
            {"path norm": "path_norm", "spectral norms": "spectral_norms", "|w|": "weight_norm"},
            "norms",
            log="xy",
            where=_WIDER,
            title="1,000 images",
        ),
        Against("width", {"": "kl"}, "KL at equal sharpness", log="xy", where=_WIDER),
        Scatter(
            "curve/kl",
            "curve/sharpness",
            "KL",
            "expected sharpness",
            by=_labels,
            log="xy",
            line=False,
            where=_GROWING,
            title="64 hidden units",
        ),
        Scatter(
            kl_per_image,
            "test_error",
            "log$_{10}$ (KL / images)",
            "test error",
            by=_labels,
            where=_GROWING,
            title="64 hidden units",
        ),
        Scatter(
            "keskar_sharpness",
            "test_error",
            "Keskar's sharpness",
            "test error",
            by=_labels,
            where=_GROWING,
            title="64 hidden units",
        ),
    ),
    claims=(
        Claim(
            "At equal training error, the test error falls as hidden units are added.",
            f"{_OF_2015}: it falls on, far beyond the width at which all labels are fitted",
            _wider(0.0, falls("test_error", "width")),
        ),
        Claim(
            "With 5 % random labels it falls as well.",
            f"{_OF_2015}: noise on labels does not make wide networks overfit",
            _wider(0.05, falls("test_error", "width")),
        ),
        Claim(
            "At equal expected sharpness, KL is larger with random labels than with true ones.",
            f"{_OF_2017}: it is",
            _larger("kl"),
        ),
        Claim(
            "The more images, the more so.",
            f"{_OF_2017}: with random labels KL grows with the data",
            _ever_larger("kl"),
        ),
        Claim(
            "KL over the number of images, at equal expected sharpness, goes with the test error.",
            f"{_OF_2017}: expected sharpness and KL together explain it",
            on(_more_images, correlated(kl_per_image, "test_error")),
        ),
        Claim(
            "It goes with the test error more closely than Keskar's sharpness does.",
            f"{_OF_2017}: sharpness alone does not explain it",
            on(_more_images, stronger(kl_per_image, "keskar_sharpness", "test_error")),
        ),
        *(
            Claim(
                f"The {words} of networks with random labels outgrows that with true ones.",
                f"{_OF_2017}: the difference grows with the training set",
                _ever_larger(name),
            )
            for name, words in (
                ("path_norm", "path norm"),
                ("spectral_norms", "product of spectral norms"),
            )
        ),
        *(
            Claim(text, "not in the paper", _wider(0.0, test), kind="ours")
            for text, test in (
                ("The path norm falls with the width.", falls("path_norm", "width")),
                ("Keskar's sharpness falls with the width.", falls("keskar_sharpness", "width")),
                ("The trace falls with the width.", falls("trace", "width")),
                (
                    "KL at equal expected sharpness falls with the width.",
                    falls("kl", "width"),
                ),
            )
        ),
    ),
    differences=(
        "Networks 784-H-10 of 8 to 128 hidden units on 1,000 images of MNIST; the paper of 2015 "
        "has up to 4,000 units on all of MNIST and CIFAR-10.",
        "64 hidden units on 200 to 2,000 images of MNIST; the paper of 2017 has VGG on CIFAR-10. "
        "Original: up to 4,096 units on 50,000 images, and 1,024 units on up to 54,000.",
        "Training ends at a loss of 0.01; in the paper of 2017 at a margin of 10 or zero error.",
        "Norms are not divided by the margin: at one training loss it hardly differs.",
    ),
)
