"""What of a model's outputs a dual shift has to make equal."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.losses import Loss

# Numbers of a sample that are matched one by one; of more, as many random combinations.
MATCHED = 128


@dataclass(frozen=True)
class Matching:
    """The numbers of k samples' outputs that the loss can see, or random combinations of them.

    Class scores are matched but for a common shift, at the positions whose label counts; the
    outputs of a regression are matched as they are.
    """

    loss: Loss
    targets: Tensor  # (k, ...), which say what positions count
    projection: Tensor | None  # (D, m), orthonormal columns

    @classmethod
    def within(cls, loss: Loss, outputs: Tensor, targets: Tensor, limit: int) -> "Matching":
        """At most ``limit`` numbers of each sample."""
        D = loss.seen(outputs, targets).shape[1]
        projection = None
        if limit < D:
            g = torch.Generator().manual_seed(0)
            drawn = torch.randn(D, limit, generator=g, dtype=torch.float64)
            projection = torch.linalg.qr(drawn).Q.to(outputs)
        return cls(loss, targets, projection)

    def __call__(self, outputs: Tensor) -> Tensor:
        """(k, ...) to (k, m)."""
        return self.read(outputs, self.targets)

    def read(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The same for outputs of other samples."""
        numbers = self.loss.seen(outputs, targets)
        return numbers if self.projection is None else numbers @ self.projection

    def of(self, places: Tensor) -> "Matching":
        """That of some samples."""
        return Matching(self.loss, self.targets[places], self.projection)
