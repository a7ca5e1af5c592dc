"""The optimiser that the settings of a training name."""

from typing import Any

from torch import nn
from torch.optim import SGD, Adam, Optimizer, RMSprop

from lowland.errors import InputError
from lowland.optim import (
    ASAM,
    IVON,
    SAM,
    EntropySGD,
    FriendlySAM,
    FunctionalSAM,
    LookSAM,
    ReplicatedSGD,
    norms_only,
)
from lowland.training.settings import TrainingSettings
from lowland.usercode import called

_GAMMA = 0.03  # of Entropy-SGD


def optimizer_of(models: list[nn.Module], samples: int, settings: TrainingSettings) -> Optimizer:
    """The optimiser of a model, or of its replicas, for so many training samples."""
    model = models[0]
    params = list(model.parameters())
    lr, momentum = settings.learning_rate, settings.momentum
    own: dict[str, Any] = {} if settings.radius is None else {"rho": settings.radius}
    match settings.optimizer:
        case "sgd":
            return SGD(params, lr, momentum, foreach=True)
        case "adam":
            return Adam(params, lr, foreach=True)
        case "rmsprop":
            return RMSprop(params, lr, momentum=momentum, foreach=True)
        case "sam":
            return SAM(params, SGD, lr=lr, momentum=momentum, **own)
        case "asam":
            return ASAM(params, SGD, lr=lr, momentum=momentum, **own)
        case "sam_on":
            return SAM(norms_only(model), SGD, lr=lr, momentum=momentum, **own)
        case "friendly_sam":
            return FriendlySAM(params, SGD, lr=lr, momentum=momentum, **own)
        case "look_sam":
            return LookSAM(params, SGD, lr=lr, momentum=momentum, **own)
        case "functional_sam":
            return FunctionalSAM(params, SGD, lr=lr, momentum=momentum, **own)
        case "ivon":
            return IVON(params, lr=lr, ess=samples, seed=settings.seed)
        case "entropy_sgd":
            # The rate is that of the inner steps; the centre then moves to their mean. Scoping
            # would carry it beyond.
            return EntropySGD(
                params,
                SGD,
                inner_lr=lr,
                lr=1 / _GAMMA,
                momentum=momentum,
                gamma=_GAMMA,
                scoping=0.0,
                seed=settings.seed,
            )
        case "replicated_sgd":
            replicas = [list(replica.parameters()) for replica in models]
            return ReplicatedSGD(replicas, SGD, lr=lr, momentum=momentum)
    made = called(settings.optimizer, "optimizer", model, settings)
    if not isinstance(made, Optimizer):
        raise InputError(
            f"optimizer {settings.optimizer} must return a torch.optim.Optimizer; it returned "
            f"{type(made).__name__}"
        )
    return made


class Scheduled:
    """Sets the learning rates of an optimiser by the schedule of the settings."""

    def __init__(self, optimizer: Optimizer, settings: TrainingSettings) -> None:
        self.groups, self.settings = optimizer.param_groups, settings
        self.key = "inner_lr" if isinstance(optimizer, EntropySGD) else "lr"
        self.rates = [group[self.key] for group in self.groups]

    def go_to(self, epochs: float) -> None:
        """The rates after so many epochs, of which the last may be a part."""
        if self.settings.schedule == "constant":  # a user's optimiser may change its own
            return
        factor = self.settings.rate_at(epochs) / self.settings.learning_rate
        for group, rate in zip(self.groups, self.rates, strict=True):
            group[self.key] = rate * factor
