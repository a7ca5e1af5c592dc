"""A model with weights of its own for each sample, in one layer or in several at once.

The general way, by torch's vmap: also for a weight that is used in series, and for shifts of
several layers, where an early one changes what a later one sees. It holds every weight for each
sample.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lowland.batches import Batch, Inputs
from lowland.curvature import Layer
from lowland.dual.injection import CannotShift
from lowland.dual.matching import Matching
from lowland.problem import Problem


class OwnWeights:
    """The numbers to match of k samples, as functions of their weights' shifts in some layers.

    A shift (P,) has the layers' parameters one after the other, each in its own order. Make it, and
    call it, inside :meth:`Problem.measuring`.
    """

    def __init__(
        self, problem: Problem, chosen: Sequence[Layer], batch: Batch, matching: Matching
    ) -> None:
        self.problem, self.chosen, self.batch, self.matching = problem, chosen, batch, matching
        self.sizes = [layer.size for layer in chosen]
        with torch.no_grad():
            self.outputs = problem.outputs(batch.inputs)

    @property
    def size(self) -> int:
        """P, how many numbers of a sample's shift are free."""
        return sum(self.sizes)

    def of(self, places: Tensor) -> "OwnWeights":
        """Those of some samples."""
        part = self.batch.map(lambda t: t[places.to(t.device)])
        return OwnWeights(self.problem, self.chosen, part, self.matching.of(places))

    def __call__(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """For shifts (k, P): the numbers to match (k, m), and their gradients (k, m, P)."""
        params = self.problem.params

        def numbers(shift: Tensor, inputs: Inputs, target: Tensor) -> tuple[Tensor, Tensor]:
            parts = zip(self.chosen, shift.split(self.sizes), strict=True)
            moved = {
                layer.parameter: params[layer.parameter] + part.view_as(params[layer.parameter])
                for layer, part in parts
            }
            sample = Batch(inputs, target).map(lambda t: t.unsqueeze(0))
            z = self.problem.outputs(sample.inputs, moved)
            c = self.matching.read(z, sample.targets)[0]
            return c, c

        own = torch.func.vmap(torch.func.jacrev(numbers, has_aux=True))
        try:
            J, c = own(v.to(self.outputs.dtype), self.batch.inputs, self.batch.targets)
        except (RuntimeError, ValueError) as error:
            names = ", ".join(repr(layer.name) for layer in self.chosen)
            why = str(error).strip().partition("\n")[0]
            raise CannotShift(
                f"layer {names}: the model cannot be run with weights of its own for each sample; "
                f"torch's vmap says: {why}"
            ) from error
        return c.detach().double(), J.detach()
