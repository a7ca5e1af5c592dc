"""Whether the weights that were analysed are a minimum of the training loss."""

from dataclasses import dataclass
from typing import Literal

# untrained: no better than a constant prediction; unfinished: the training loss still falls.
State = Literal["minimum", "unfinished", "untrained", "unknown"]


STEEP = 0.45  # times its standard error: a gradient above that is not zero
SADDLE = 0.1  # negative curvature over the largest positive
FALLING = 0.05  # share of its loss that a training took away in the last tenth of its epochs


@dataclass(frozen=True)
class Convergence:
    """The verdict, and the numbers that it rests on; None where one is not known."""

    state: State
    constant_loss: float | None  # least training loss of outputs that are the same for all samples
    constant_error: float | None  # the training error of those outputs
    gradient: float | None  # |G + a w|, G of the training loss, a >= 0 the decay that fits best
    gradient_noise: float | None  # standard error of G in as many samples, 1,000 at most
    curvature: float | None  # least over largest Hessian eigenvalue of the layer shown
    fall: float | None  # share of its loss that a training which missed its goal lost at its end

    @property
    def steep(self) -> bool:
        """Whether the gradient is beyond its noise."""
        if self.gradient is None or self.gradient_noise is None:
            return False
        return self.gradient > STEEP * self.gradient_noise

    @property
    def saddle(self) -> bool:
        """Whether the loss curves downwards."""
        return self.curvature is not None and self.curvature < -SADDLE

    @property
    def falling(self) -> bool:
        """Whether the training ended while its loss was falling."""
        return self.fall is not None and self.fall > FALLING
