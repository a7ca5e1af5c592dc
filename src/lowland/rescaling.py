"""Rescalings of hidden units that leave the network's function as it is.

If all that lies between a layer and the next is positively homogeneous (ReLU, max- and average
pooling, flattening), a unit's incoming weights and bias can be multiplied by s > 0 and its outgoing
weights divided by s (Tsuzuku et al., Sec. 5.1; with one s for the whole layer, Dinh et al. 2017).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from lowland.curvature import ForwardPass, Layer, layers, matrices
from lowland.errors import InputError
from lowland.problem import Problem, of_a_problem

By = Literal["layers", "units", "norms", "split", "outputs"]

# Enough for deep chains: each sweep lets every joint see its neighbours once more.
_SWEEPS = 1000
# Samples on which each joint is tried before all of them together are tried on all.
TRIED = 256
_AT_FIRST = 4  # of them: most of what is no joint shows at once
# Joints are tried with factors between 1/30 and 30: what is nearly linear near 0, as tanh, is not
# there. If larger factors are asked for, with those.
_REACH = 30.0


@dataclass(frozen=True)
class Joint:
    """Two layers and the hidden units between them, whose scale the function does not see."""

    source: Layer
    target: Layer

    @property
    def units(self) -> int:
        """How many units (channels, for a convolution) there are."""
        return _units(self.source)

    def incoming(self, params: dict[str, Tensor]) -> Tensor:
        """The norm of each unit's incoming weights, (units,)."""
        weight = params[self.source.parameter].flatten()
        if not self.source.is_matrix:
            return weight.abs()
        return self.source.matrix(weight).norm(dim=2).flatten()

    def outgoing(self, params: dict[str, Tensor]) -> Tensor:
        """The norm of each unit's outgoing weights, (units,)."""
        weights = self._by_unit(params[self.target.parameter])
        return weights.square().sum((1, 3)).flatten().sqrt()

    def rescaled(self, params: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
        """The parameters with every unit's incoming weights times ``scale``, (units,)."""
        changed = dict(params)
        source, target = params[self.source.parameter], params[self.target.parameter]
        if self.source.is_matrix:
            groups, out, _ = self.source.shape
            into = self.source.matrix(source.flatten()) * scale.view(groups, out, 1)
            changed[self.source.parameter] = self.source.flat(into).view_as(source)
        else:
            changed[self.source.parameter] = source * scale
        if self.source.bias is not None:
            changed[self.source.bias] = params[self.source.bias] * scale
        apart = self._by_unit(target) / scale.view(self.target.shape[0], 1, -1, 1)
        apart = self.target.flat(apart.reshape(self.target.shape))
        changed[self.target.parameter] = apart.view_as(target)
        return changed

    def _by_unit(self, weight: Tensor) -> Tensor:
        """The target's weight as (groups, outputs, units, places of a unit)."""
        groups, out, _ = self.target.shape
        return self.target.matrix(weight.flatten()).reshape(groups, out, self.units // groups, -1)


def _units(source: Layer) -> int:
    return source.shape[0] * source.shape[1] if source.is_matrix else source.size


@of_a_problem
def rescale(problem: Problem, by: By, factor: float = 10.0, *, seed: int = 0) -> Problem:
    """A copy of the problem whose model has other weights and computes the same function.

    With ``"outputs"`` it computes a multiple of that function, and so makes the same decisions.

    Args:
        problem: the model, and data on which every place is tried before it is used.
        by: ``"layers"`` multiplies layers by ``factor`` and divides the next ones (Dinh et al.
            2017); ``"units"`` gives every hidden unit a factor of its own, between ``1 / factor``
            and ``factor`` (Tsuzuku et al., Sec. 5.1); ``"norms"`` multiplies weights before a
            BatchNorm, whose running statistics follow; ``"split"`` replaces each layer by the sum
            of two, with a share of ``1 / factor`` of its weight in the second (Tsuzuku et al., Eq.
            26-30); ``"outputs"`` multiplies the last layer, which scales the outputs.
        factor: above 0.
        seed: of the units' factors.
    """
    if not factor > 0:
        raise InputError(f"factor must be above 0; got {factor}")
    ways: dict[str, Callable[[Problem, float, int], Problem]] = {
        "layers": _by_layers,
        "units": _by_units,
        "norms": _through_norms,
        "split": _split,
        "outputs": _outputs,
    }
    if by not in ways:
        raise InputError(f"by must be one of {', '.join(map(repr, ways))}; got {by!r}")
    other = ways[by](problem, factor, seed)
    if by != "outputs" and not _is_same(problem, other):
        raise InputError(
            f"rescaling by {by!r} with a factor of {factor:g} gives another function on the "
            "training data: what is rescaled is not homogeneous at this size (an activation that "
            "clips?), or the precision does not suffice; pass a smaller factor"
        )
    return other


def _by_layers(problem: Problem, factor: float, seed: int) -> Problem:
    params = _params(problem)
    for number, joint in enumerate(_some_joints(problem, factor)):
        scale = factor if number % 2 == 0 else 1 / factor
        params = joint.rescaled(
            params, torch.full((joint.units,), scale).to(problem.device).double()
        )
    return problem.at(params)


def _by_units(problem: Problem, factor: float, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    params = _params(problem)
    for joint in _some_joints(problem, factor):
        power = 2 * torch.rand(joint.units, generator=generator, dtype=torch.float64) - 1
        params = joint.rescaled(params, (factor**power).to(problem.device))
    return problem.at(params)


def _through_norms(problem: Problem, factor: float, seed: int) -> Problem:
    # Tried one by one: what a BatchNorm sees may go past it as well, along a shortcut.
    followed = [
        pair for pair in _norms(problem) if _is_same(problem, _before_norms(problem, [pair], 2.0))
    ]
    if not followed:
        raise InputError("no layer is followed by a BatchNorm with running statistics alone")
    return _before_norms(problem, followed, factor)


def _before_norms(problem: Problem, followed: list[tuple[Layer, Layer]], factor: float) -> Problem:
    """A copy of the problem with the weights before some BatchNorms times ``factor``.

    Running means and variances follow, and the variance takes the epsilon with it: the function is
    the same to rounding.
    """
    params = _params(problem)
    changed = {}
    for source, norm in followed:
        for name in (source.parameter, source.bias):
            if name is not None:
                params[name] = params[name] * factor
        module = problem.model.get_submodule(norm.name)
        assert isinstance(module, _BatchNorm)
        assert module.running_mean is not None
        assert module.running_var is not None
        variance = factor**2 * (module.running_var.double() + module.eps) - module.eps
        if (variance < 0).any():
            raise InputError(
                f"a factor of {factor:g} is too small for the epsilon of BatchNorm {norm.name!r}"
            )
        changed[norm.name] = module.running_mean.double() * factor, variance
    other = problem.at(params)
    for name, (mean, variance) in changed.items():
        module = other.model.get_submodule(name)
        module.running_mean.copy_(mean)  # type: ignore[operator]
        module.running_var.copy_(variance)  # type: ignore[operator]
    return other


def _is_same(problem: Problem, other: Problem, factor: float = 1.0) -> bool:
    """Whether the other's outputs are ``factor`` times the problem's, on all training data."""
    with problem.measuring(), other.measuring(), torch.no_grad():
        for batch in problem.batches("train"):
            before, after = problem.outputs(batch.inputs) * factor, other.outputs(batch.inputs)
            limit = torch.finfo(problem.dtype).eps ** 0.5 * before.abs().max()
            if not (after - before).abs().max() <= limit:  # NaN is not the same
                return False
    return True


class Sum(nn.Module):
    """Two layers of one shape side by side, their outputs added.

    Who reads the weight instead of calling the layer, as attention does, gets the sum of weights;
    whatever else is asked of the layer, the first one answers.
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.first(x) + self.second(x)

    @property
    def weight(self) -> Tensor:
        """The weight of one layer that computes the same."""
        return self.first.weight + self.second.weight  # type: ignore[operator]

    def __getattr__(self, name: str) -> Any:
        """An attribute of the first layer, where the sum has none of that name."""
        parts = vars(self).get("_modules", {})
        return (
            super().__getattr__(name) if name in parts or not parts else getattr(self.first, name)
        )


def _split(problem: Problem, factor: float, seed: int) -> Problem:
    if not factor > 1:
        raise InputError(f"a split needs a factor above 1; got {factor}")
    model = problem.copied_model()
    for name, layer in matrices(problem).items():
        parent, _, last = name.rpartition(".")
        first = dict(model.named_modules()).get(name)
        if not isinstance(first, nn.Linear | _ConvNd) or not name or layer.uses > 1:
            continue
        second = copy.deepcopy(first)
        with torch.no_grad():
            first.weight.mul_(1 - 1 / factor)
            second.weight.mul_(1 / factor)
        second.register_parameter("bias", None)
        setattr(model.get_submodule(parent), last, Sum(first, second))
    return problem.of(model)


def _outputs(problem: Problem, factor: float, seed: int) -> Problem:
    layer = _last(problem)
    params = _params(problem)
    for name in (layer.parameter, layer.bias):
        if name is not None:
            params[name] = params[name] * factor
    other = problem.at(params)
    if not _is_same(problem, other, factor):
        raise InputError(f"the outputs are not proportional to layer {layer.name!r}'s")
    return other


def _params(problem: Problem) -> dict[str, Tensor]:
    return {name: p.double() for name, p in problem.params.items()}


def _some_joints(problem: Problem, factor: float) -> list[Joint]:
    rescalable = joints(problem, max(_REACH, factor, 1 / factor))
    if not rescalable:
        raise InputError(
            f"the model has no hidden units that can be rescaled by a factor of {factor:g}: "
            "nothing positively homogeneous (ReLU, pooling) lies between two of its layers alone"
        )
    return rescalable


def _order(problem: Problem) -> list[Layer]:
    """The matrices and normalisations that are used once, as the data meets them."""
    every = [
        layer
        for layer in layers(problem).values()
        if layer.uses == 1 and (layer.is_matrix or layer.operation == "normalisation")
    ]
    return sorted(every, key=lambda layer: layer.order)


def _last(problem: Problem) -> Layer:
    every = [layer for layer in _order(problem) if layer.is_matrix]
    if not every:
        raise InputError("the model has no dense or convolutional layer that is used once")
    return every[-1]


def _norms(problem: Problem) -> list[tuple[Layer, Layer]]:
    """Layers whose outputs a BatchNorm with running statistics takes as they are."""
    order = _order(problem)
    modules = dict(problem.model.named_modules())
    with problem.measuring():
        seen = ForwardPass(problem, problem.first(2), [layer.parameter for layer in order])
    made_by = {seen.uses[layer.parameter][0].node: layer for layer in order if layer.is_matrix}
    pairs = []
    for norm in order:
        module = modules.get(norm.name)
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            before, _ = seen.uses[norm.parameter][0].node.next_functions[0]
            if before in made_by:
                pairs.append((made_by[before], norm))
    return pairs


def joints(problem: Problem, reach: float = _REACH) -> list[Joint]:
    """All joints whose units can be rescaled; each was tried on some samples.

    Each unit is tried with a factor of its own, between ``1 / reach`` and ``reach``.
    """
    return problem.found((joints, reach), lambda: _found_joints(problem, reach))


def _found_joints(problem: Problem, reach: float) -> list[Joint]:
    generator = torch.Generator(device=problem.device).manual_seed(0)
    holding = []
    order = _order(problem)
    with problem.measuring(), torch.no_grad():
        inputs = [problem.first(count).inputs for count in (_AT_FIRST, TRIED)]
        outputs = [problem.outputs(some) for some in inputs]
        limit = torch.finfo(problem.dtype).eps ** 0.5 * outputs[-1].abs().max()
        for source, target in pairwise(order):
            if not target.is_matrix or not _fits(source, target):
                continue
            joint = Joint(source, target)
            scale = reach ** torch.empty(
                joint.units, device=problem.device, dtype=problem.dtype
            ).uniform_(-1, 1, generator=generator)
            params = joint.rescaled(problem.params, scale)
            if all(
                (problem.outputs(some, params) - before).abs().max() <= limit
                for some, before in zip(inputs, outputs, strict=True)
            ):
                holding.append(joint)
    return holding


def _fits(source: Layer, target: Layer) -> bool:
    """Whether the target's inputs are the source's units, each at one or more places."""
    groups, _, inputs = target.shape
    units = _units(source)
    return units % groups == 0 and inputs % (units // groups) == 0


def balanced(problem: Problem) -> Problem:
    """The same function with every hidden unit's incoming and outgoing weights of equal norm.

    Of all rescalings of the units this one has the smallest sum of squared weights, and it is the
    only one where every unit has both kinds of weights (Stock et al., Equi-normalization of neural
    networks, ICLR 2019): a representative that rescaling cannot change. Units without incoming or
    without outgoing weights stay as they are.
    """
    rescalable = joints(problem)
    params = {name: p.double() for name, p in problem.params.items()}
    for _ in range(_SWEEPS):
        largest = 0.0
        for joint in rescalable:
            into, out = joint.incoming(params), joint.outgoing(params)
            alive = (into > 0) & (out > 0)
            scale = torch.where(alive, out / torch.where(alive, into, 1), 1).sqrt()
            params = joint.rescaled(params, scale)
            largest = max(largest, float(scale.log().abs().max()))
        if largest < 1e-14:
            break
    other = problem.at(params)
    if not _is_same(problem, other):
        raise InputError(
            "hidden units cannot be balanced here: the rescaled network is another function, as "
            "something between its layers is not positively homogeneous (ReLU is, tanh is not); "
            "use the gauge 'given'"
        )
    return other
