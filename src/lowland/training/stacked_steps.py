"""The steps of the optimisers for networks in a stack, each run with rates of its own."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from lowland.optim import noise
from lowland.training.settings import RADII, TrainingSettings
from lowland.training.stack import Weights, column, laid_out, squares

# Optimisers that are written for stacks here; the others train one network at a time.
STACKED = ("sgd", "adam", "rmsprop", *RADII, "ivon", "entropy_sgd")
NOISY = ("ivon", "entropy_sgd")  # also move weights that have no gradient

_ETA = 0.01  # of ASAM
_MEMORY = 0.9  # of friendly SAM
_EVERY, _REUSE = 5, 0.7  # of LookSAM
_H0, _DELTA, _BETA1, _BETA2 = 1.0, 1e-4, 0.9, 0.99999  # of IVON
_LANGEVIN, _GAMMA, _SHAKE, _PAST = 20, 0.03, 1e-4, 0.75  # of Entropy-SGD

# Gradients of all runs, and the slope of the losses at the outputs; computed with another slope, if
# one is given.
Gradients = Callable[[Tensor | None], tuple[Weights, Tensor]]
Batch = Callable[[], Gradients]  # the gradients of the next batch


class StackedSteps:
    """An optimiser of all runs of a stack, with its states.

    ``perturbed`` are the names of the weights that are moved for a second pass, or by noise, and
    ``samples`` those that a run is trained on.
    """

    def __init__(self, method: str, perturbed: Collection[str], samples: int) -> None:
        self.method, self.perturbed, self.samples = method, perturbed, samples
        self.states: dict[str, Weights] = {}
        self.taken = 0

    @property
    def batches(self) -> int:
        """How many batches a step goes through."""
        return _LANGEVIN if self.method == "entropy_sgd" else 1

    def settle(
        self, settings: Sequence[TrainingSettings], each: Callable[[Sequence[float]], Tensor]
    ) -> None:
        """Take the settings of the runs that are in the stack now."""
        self.seeds = [s.seed for s in settings]
        self.momentum = each([s.momentum for s in settings])
        default = RADII.get(self.method, 0.0)
        self.radius = each([default if s.radius is None else s.radius for s in settings])

    def keep(self, rows: list[int]) -> None:
        """Keep only these of the runs."""
        self.states = {
            kind: {name: laid_out(list(values[rows])) for name, values in state.items()}
            for kind, state in self.states.items()
        }

    def step(self, weights: Weights, batch: Batch, rate: Tensor) -> None:
        """Change the weights by one step, with a learning rate for each run."""
        if self.method == "ivon":
            self._variational(weights, batch(), rate)
            return
        if self.method == "entropy_sgd":
            self._entropic(weights, batch, rate)
            return
        gradients = batch()
        grads, slope = gradients(None)
        if self.method in RADII:
            grads = self._sharpness_aware(weights, gradients, grads, slope)
        self.taken += 1
        for name, update in self._updates(grads).items():
            weights[name].addcmul_(update, column(rate, update), value=-1)

    def _updates(self, grads: Weights) -> Weights:
        """What is taken off the weights, before the learning rate."""
        if self.method == "adam":
            return self._adam(grads)
        if self.method == "rmsprop":
            square = self._state("square", grads)
            for name, g in grads.items():
                square[name].mul_(0.99).addcmul_(g, g, value=1 - 0.99)
            grads = {name: g / square[name].sqrt().add_(1e-8) for name, g in grads.items()}
        if not self.momentum.any():
            return grads
        speed = self._state("momentum", grads)
        return {n: speed[n].mul_(column(self.momentum, g)).add_(g) for n, g in grads.items()}

    def _adam(self, grads: Weights) -> Weights:
        means, squared = self._state("mean", grads), self._state("square", grads)
        first, second = 1 - 0.9**self.taken, 1 - 0.999**self.taken
        updates = {}
        for name, g in grads.items():
            mean = means[name].lerp_(g, 1 - 0.9)
            square = squared[name].mul_(0.999).addcmul_(g, g, value=1 - 0.999)
            updates[name] = mean / first / (square.sqrt() / second**0.5).add_(1e-8)
        return updates

    def _state(self, kind: str, like: Weights, first: float = 0.0) -> Weights:
        """A state of the optimiser, of which all numbers are the same to begin with."""
        if kind not in self.states:
            self.states[kind] = {name: torch.full_like(t, first) for name, t in like.items()}
        return self.states[kind]

    def _draws(self, weights: Weights) -> Weights:
        """Normal numbers for each of the weights, by the seed of a run and the steps it took."""
        device = next(iter(weights.values())).device
        seeds = [noise.seed_of(seed, 0, self.taken) for seed in self.seeds]
        generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

        def drawn(w: Tensor, generator: torch.Generator) -> Tensor:
            return torch.randn(w.shape[1:], generator=generator, dtype=w.dtype, device=device)

        return {name: laid_out([drawn(w, g) for g in generators]) for name, w in weights.items()}

    def _variational(self, weights: Weights, gradients: Gradients, rate: Tensor) -> None:
        """A step of IVON, with the gradient at a sample of the weights."""
        before = {name: weights[name].clone() for name in self.perturbed}
        shifts = self._draws(before)
        hessian = self._state("hessian", before, _H0)
        for name, shift in shifts.items():
            shift.mul_((self.samples * (hessian[name] + _DELTA)).rsqrt())
        try:
            for name, shift in shifts.items():
                weights[name].add_(shift)
            grads, _ = gradients(None)
        finally:
            weights.update(before)
        self.taken += 1
        means = self._state("mean", before)
        for name, g in grads.items():
            w, h = weights[name], hessian[name]
            new = g * shifts[name] * self.samples * (h + _DELTA)
            correction = 0.5 * (1 - _BETA2) ** 2 * (h - new).square() / (h + _DELTA)
            h.mul_(_BETA2).add_(new, alpha=1 - _BETA2).add_(correction)
            mean = means[name].mul_(_BETA1).add_(g, alpha=1 - _BETA1)
            slope = mean / (1 - _BETA1**self.taken) + _DELTA * w
            slope.mul_((_H0 + _DELTA) / (h + _DELTA))
            w.addcmul_(slope, column(rate, w), value=-1)

    def _entropic(self, weights: Weights, batch: Batch, rate: Tensor) -> None:
        """A step of Entropy-SGD: wander around the weights, then move them to the mean."""
        start = {name: weights[name].clone() for name in self.perturbed}
        means: Weights = {}
        try:
            for _ in range(_LANGEVIN):
                grads, _ = batch()(None)
                draws = self._draws(grads)
                self.taken += 1
                for name, g in grads.items():
                    w = weights[name]
                    shake = _SHAKE * column(rate.sqrt(), w) * draws[name]
                    pull = _GAMMA * (w - start[name]) + g
                    w.add_(shake - column(rate, w) * pull)
                    mean = means.setdefault(name, start[name].clone())
                    mean.mul_(_PAST).add_(w, alpha=1 - _PAST)
        finally:
            weights.update(start)
        slopes = {name: _GAMMA * (weights[name] - mean) for name, mean in means.items()}
        for name, update in self._updates(slopes).items():
            weights[name].sub_(update, alpha=1 / _GAMMA)

    def _sharpness_aware(
        self, weights: Weights, gradients: Gradients, below: Weights, slope: Tensor
    ) -> Weights:
        """The gradients that SAM or one of its kin steps with."""
        if self.method == "look_sam" and self.taken % _EVERY:
            return self._looked(below)
        before = {name: weights[name].clone() for name in below}
        try:
            self._climb(weights, below)
            above, _ = gradients(slope if self.method == "functional_sam" else None)
        finally:  # an interrupt must not leave them up there
            weights.update(before)
        if self.method == "look_sam":
            inner = torch.stack([(below[n] * above[n]).flatten(1).sum(1) for n in below]).sum(0)
            share = _where_positive(inner, _norm(below) ** 2)
            self.states["across"] = {n: above[n] - column(share, g) * g for n, g in below.items()}
        return above

    def _climb(self, weights: Weights, grads: Weights) -> None:
        """Move the weights to the worst point of the ball, to first order."""
        grads = {name: g for name, g in grads.items() if name in self.perturbed}
        if self.method == "friendly_sam":
            means = self._state("mean", grads)
            for name, g in grads.items():
                means[name].mul_(_MEMORY).add_(g, alpha=1 - _MEMORY)
            grads = {name: g - means[name] for name, g in grads.items()}
        metric = {
            name: weights[name].abs() + _ETA if self.method == "asam" else 1.0 for name in grads
        }
        length = _where_positive(self.radius, _norm({n: g * metric[n] for n, g in grads.items()}))
        for name, g in grads.items():
            weights[name].add_(g * metric[name] ** 2 * column(length, g))

    def _looked(self, grads: Weights) -> Weights:
        """The gradients with the remembered part of LookSAM, in their own size."""
        across = self.states["across"]
        factor = _where_positive(_REUSE * _norm(grads), _norm(across))
        return {name: g + column(factor, g) * across[name] for name, g in grads.items()}


def _norm(parts: Weights) -> Tensor:
    """The norm of all parts together, for each run."""
    return torch.stack([squares(part) for part in parts.values()]).sum(0).sqrt()


def _where_positive(numbers: Tensor, norms: Tensor) -> Tensor:
    """The quotients; 0 where there is no norm to divide by."""
    return torch.where(norms.isfinite() & (norms > 0), numbers / norms, 0.0)
