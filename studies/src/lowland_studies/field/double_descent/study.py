"""Double descent (Belkin et al. 2019, Nakkiran et al. 2020): the gap across width.

One hidden layer on digits, a fifth of whose labels are random, trained for many epochs. Networks
that are wide enough fit all of them; the narrowest ones that do are at the interpolation threshold.
That test loss rises towards it and falls beyond it is the papers' claim. What the two determinants
of Feng & Tu and other measures do there is a question of ours.
"""

from lowland.sweep.trial import trials
from lowland_studies.claims import correlated, falls, on, rises
from lowland_studies.evidence import Runs
from lowland_studies.panels import Against
from lowland_studies.study import Claim, Study

_NOISE = 0.2
_FITTED = 0.01  # a training error below which all labels count as fitted

_DETERMINANTS = {
    "sharp": "the sharp part",
    "flat": "the flat part",
    "total_w": "T_w, the spread of dual weights",
    "total_g": "T_g, the spread of gradients",
}
_MEASURES = {
    "trace": "the trace",
    "largest_eigenvalue": "the largest eigenvalue",
    "expected_sharpness": "expected sharpness",
    "keskar_sharpness": "Keskar's sharpness",
    "normalized_sharpness": "normalized sharpness",
    "weight_norm": "the norm of all weights",
    "path_norm": "the path norm",
    "description_length": "the description length",
}


def _first_below(runs: Runs, error: float) -> int:
    """The least width whose training error, in the mean over seeds, is below a number."""
    errors = {width: part.column("train_error").mean() for width, part in runs.by("width").items()}
    return min((width for width, mean in errors.items() if mean < error), default=max(errors))


def up_to_the_threshold(runs: Runs) -> Runs:
    """From where networks fit more than the true labels to where they fit all."""
    first, last = _first_below(runs, _NOISE), _first_below(runs, _FITTED)
    return runs.where(width=[width for width in runs.by("width") if first <= width <= last])


def beyond_the_threshold(runs: Runs) -> Runs:
    """From where networks fit all labels."""
    threshold = _first_below(runs, _FITTED)
    return runs.where(width=[width for width in runs.by("width") if width >= threshold])


_BELKIN = "Belkin et al.: it does"
_NAKKIRAN = "Nakkiran et al.: it does, the more so with label noise"


def _question(column: str, words: str) -> tuple[Claim, Claim]:
    """Whether a number follows the gap: over all widths, and in its fall beyond the threshold."""
    return (
        Claim(
            f"Over all widths, {words} goes with the gap.",
            "not in the papers",
            correlated(column, "gap", at_least=0.0),
            kind="ours",
        ),
        Claim(
            f"Beyond the threshold, {words} falls with the width.",
            "not in the papers",
            on(beyond_the_threshold, falls(column, "width")),
            kind="ours",
        ),
    )


_TRIAL = "lowland_studies.field.double_descent.trial:trial"

STUDY = Study(
    "double-descent",
    "The gap, its two determinants and measures across width, with random labels",
    grid=trials(
        _TRIAL,
        width=[2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128],
        per_class=30,
        label_noise=_NOISE,
        max_epochs=1500,
        seed=range(6),
    ),
    quick=trials(
        _TRIAL,
        width=[2, 4, 6, 8, 16, 64],
        per_class=20,
        label_noise=_NOISE,
        max_epochs=1000,
        seed=range(3),
    ),
    original=trials(
        _TRIAL,
        data="mnist5k",
        inputs=784,
        width=[4, 16, 64, 256, 1024, 4096, 16384, 64000],
        per_class=400,
        label_noise=[0.0],
        max_epochs=6000,
        seed=range(3),
    ),
    panels=(
        Against("width", {"test": "test_error", "training": "train_error"}, "error", log="x"),
        Against("width", {"gap": "gap", "test loss": "test_loss"}, "loss", log="x"),
        Against("width", {"sharp part": "sharp", "flat part": "flat"}, "parts of the gap", log="x"),
        Against("width", {"$T_g$": "total_g", "$T_w$": "total_w"}, "spreads", log="xy"),
        Against(
            "width",
            {
                "trace": "trace",
                "largest eigenvalue": "largest_eigenvalue",
                "normalized sharpness": "normalized_sharpness",
            },
            "curvature",
            log="xy",
        ),
        Against("width", {"path norm": "path_norm", "|w|": "weight_norm"}, "norms", log="x"),
    ),
    claims=(
        Claim(
            "Beyond the threshold, the test error falls with the width.",
            _BELKIN,
            on(beyond_the_threshold, falls("test_error", "width")),
        ),
        Claim(
            "Beyond the threshold, the test loss falls with the width.",
            _BELKIN,
            on(beyond_the_threshold, falls("test_loss", "width")),
        ),
        Claim(
            "Up to the threshold, the test error rises with the width.",
            _NAKKIRAN,
            on(up_to_the_threshold, rises("test_error", "width")),
        ),
        Claim(
            "Up to the threshold, the test loss rises with the width.",
            _NAKKIRAN,
            on(up_to_the_threshold, rises("test_loss", "width")),
        ),
        Claim(
            "Up to the threshold, the gap rises with the width.",
            _NAKKIRAN,
            on(up_to_the_threshold, rises("gap", "width")),
        ),
        Claim(
            "Beyond the threshold, the gap falls with the width.",
            _NAKKIRAN,
            on(beyond_the_threshold, falls("gap", "width")),
        ),
        *(
            claim
            for column, words in (_DETERMINANTS | _MEASURES).items()
            for claim in _question(column, words)
        ),
    ),
    differences=(
        "64-H-10 of 2 to 128 hidden units on 300 digits of 8 x 8 pixels, 20 % of their labels "
        "random, for 1,500 epochs; the papers have up to 64,000 units on 4,000 images of MNIST, "
        "and residual networks of width 1 to 64 on CIFAR-10. Original: the former.",
        "The threshold is the least width whose training error is below 1 %; the range up to it "
        "begins where the training error is below the share of random labels.",
        "The gap is split in the output layer, by the activity-level dual.",
    ),
)
