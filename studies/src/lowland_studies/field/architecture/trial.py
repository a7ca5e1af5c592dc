"""One network with one part more: its gap by the duality, and the picture around it."""

from typing import Any

from lowland.dual import duality
from lowland.measures import measure
from lowland_studies.field.pictures.trial import basin, drawn, roughness, trained

_LAYER = "layers.0.0"  # the first that a shortcut may go around
N_SHARP = 10
# What each kind has that the plain one has not.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch norm": {"norm": "batch"},
    "layer norm": {"norm": "layer"},
    "skip": {"skip": True},
    "wide": {"width": 4},
    "dropout": {"dropout": 0.2},
    "decay": {"decay": 1e-3},
    "stopped early": {"stop_loss": 10},
}
_FACTORS = ("width", "stop_loss")  # settings that a kind multiplies


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train the network of a ``kind``, decompose its gap, and draw the surface around it.

    ``settings`` are those of the plain kind: see ``field/pictures/trial.py``.
    """
    own = dict(settings)
    change = KINDS[own.pop("kind")]
    own |= {name: own[name] * v if name in _FACTORS else v for name, v in change.items()}
    problem, training = trained(own, seed)
    # By the output-level dual, which a shortcut around the layer does not make wrong.
    split = duality(problem, _LAYER, dual="output", n_sharp=N_SHARP)
    surface = drawn(problem, seed)
    values = measure(problem, ["test_error", "train_loss"]).whole()
    return {
        "converged": training.converged,
        **{name: row.value for name, row in values.items()},
        "eq11": split.eq11,
        "sharp": split.sharp,
        "flat": split.flat,
        "total_g": split.totals.total_g,
        "total_w": split.totals.total_w_data,
        "basin": basin(surface),
        "roughness": roughness(surface),
    }
