"""A network with one hidden layer on digits, some of whose labels are random, trained for long."""

from typing import Any

from lowland.dual import duality
from lowland.experiment import Configuration
from lowland.experiment.subject import Subject
from lowland.measures import measure
from lowland.training import train_many

OUTCOME = ("train_error", "test_error", "test_loss", "gap")
MEASURES = (
    *("trace", "largest_eigenvalue", "expected_sharpness", "keskar_sharpness", "weight_norm"),
    *("path_norm", "normalized_sharpness", "description_length"),
)
_OUTPUT_LAYER = "3"


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train ``inputs-width-10`` for all epochs, measure it, split its gap in the output layer.

    ``data`` are ``digits`` and ``inputs`` 64 unless given.
    """
    configuration = Configuration(
        data=settings.get("data", "digits"),
        network=f"{settings.get('inputs', 64)}-{settings['width']}-10",
        per_class=settings["per_class"],
        label_noise=settings["label_noise"],
        max_epochs=settings["max_epochs"],
        stop_loss=1e-5,
        seed=seed,
        data_seed=seed,
    )
    subject = Subject.of(configuration)
    train_many([subject.model], subject.train, [subject.settings])
    problem = subject.problem()
    split = duality(problem, _OUTPUT_LAYER, dual="activity")
    rows = measure(problem, [*OUTCOME, *MEASURES]).whole()
    return {
        **{name: row.value for name, row in rows.items()},
        "paired_gap": split.paired_gap,
        "sharp": split.sharp,
        "flat": split.flat,
        "total_g": split.totals.total_g,
        "total_w": split.totals.total_w_data,
    }
