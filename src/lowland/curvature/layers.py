"""Layers whose parameters enter linearly: what exact curvature and the duality can see through.

A dense layer or convolution computes ``a_t = W x_t`` at each of T positions of a sample (T = 1 for
a plain dense layer, the tokens of a sequence, the patches that a convolution unfolds); an affine
normalisation computes ``a_t = w * x_t``. The gradient of anything with respect to such a parameter
follows from x and the gradient with respect to a, for each sample on its own.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowland.errors import InputError
from lowland.problem import Problem

_Matrix = nn.Linear | nn.Conv1d | nn.Conv2d
_Affine = nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm


@dataclass(frozen=True)
class Layer(ABC):
    """One layer of the model, and how its parameters enter."""

    name: str
    module: nn.Module

    @property
    def weight_name(self) -> str:
        """The weight's name among the model's parameters; a model may itself be the layer."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias_name(self) -> str | None:
        """The bias's name, if the layer has one."""
        if getattr(self.module, "bias", None) is None:
            return None
        return f"{self.name}.bias" if self.name else "bias"

    @property
    def weight(self) -> Tensor:
        """The weight, detached."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    @abstractmethod
    def inputs(self, x: Tensor) -> Tensor:
        """What multiplies the weight at each position, (n, T, ...)."""

    @abstractmethod
    def outputs(self, a: Tensor) -> Tensor:
        """The layer's outputs, or gradients with respect to them, at each position (n, T, ...)."""

    @abstractmethod
    def restored(self, positions: Tensor, shape: torch.Size) -> Tensor:
        """Undo :meth:`outputs`: from (n, T, ...) to the outputs' own ``shape``."""

    @abstractmethod
    def gradients(self, x: Tensor, delta: Tensor) -> Tensor:
        """Gradients with respect to the weight, (n, C, M).

        From the inputs (n, T, ...) and C gradients with respect to the outputs (n, C, T, ...).
        """


@dataclass(frozen=True)
class MatrixLayer(Layer):
    """A dense layer or convolution; its weight is G groups of (out, in) matrices."""

    @property
    def groups(self) -> int:
        """How many blocks of channels a convolution keeps apart; 1 for a dense layer."""
        return getattr(self.module, "groups", 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(groups, outputs per group, inputs per group), kernel positions counted as inputs."""
        out, *rest = self.weight.shape
        return self.groups, out // self.groups, math.prod(rest)

    def inputs(self, x: Tensor) -> Tensor:
        """(n, T, G, in)."""
        conv = self.module
        if isinstance(conv, nn.Linear):
            return x.reshape(len(x), -1, 1, x.shape[-1])
        assert isinstance(conv, nn.Conv1d | nn.Conv2d)
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
        kernel, dilation, stride = conv.kernel_size, conv.dilation, conv.stride
        if isinstance(conv, nn.Conv1d):  # as a convolution over an image of height 1
            x, kernel, dilation, stride = x.unsqueeze(2), (1, *kernel), (1, *dilation), (1, *stride)
        patches = F.unfold(x, kernel, dilation, 0, stride)  # (n, channels * kernel, T)
        return patches.unflatten(1, (self.groups, -1)).permute(0, 3, 1, 2)

    def outputs(self, a: Tensor) -> Tensor:
        """(n, T, G, out)."""
        if not isinstance(self.module, nn.Linear):
            a = a.flatten(2).transpose(1, 2)  # (n, T, channels)
        return a.reshape(len(a), -1, self.groups, self.shape[1])

    def restored(self, positions: Tensor, shape: torch.Size) -> Tensor:
        """From (n, T, G, out) to the outputs' own ``shape``."""
        a = positions.flatten(2)
        return (a if isinstance(self.module, nn.Linear) else a.transpose(1, 2)).reshape(shape)

    def gradients(self, x: Tensor, delta: Tensor) -> Tensor:
        """``B_kc = sum_t delta_kct x_kt^T``, flattened."""
        return torch.einsum("nctgo,ntgi->ncgoi", delta, x).flatten(2)


@dataclass(frozen=True)
class AffineLayer(Layer):
    """The scale and shift of a normalisation layer in eval mode."""

    def inputs(self, x: Tensor) -> Tensor:
        """The normalised inputs, (n, T, M)."""
        norm = self.module
        if isinstance(norm, nn.LayerNorm):
            x = F.layer_norm(x, norm.normalized_shape, eps=norm.eps)
        elif isinstance(norm, nn.GroupNorm):
            x = F.group_norm(x, norm.num_groups, eps=norm.eps)
        else:
            assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
            running = norm.running_mean, norm.running_var
            x = F.batch_norm(x, *running, training=running[0] is None, eps=norm.eps)
        return self.outputs(x)

    def outputs(self, a: Tensor) -> Tensor:
        """(n, T, M), with the dimension that the weight runs over last."""
        if not isinstance(self.module, nn.LayerNorm) and a.ndim > 2:
            a = a.movedim(1, -1)
        return a.reshape(len(a), -1, self.weight.numel())

    def restored(self, positions: Tensor, shape: torch.Size) -> Tensor:
        """To the outputs' own ``shape``."""
        if isinstance(self.module, nn.LayerNorm) or len(shape) == 2:
            return positions.reshape(shape)
        n, channels, *rest = shape
        return positions.reshape(n, *rest, channels).movedim(-1, 1)

    def gradients(self, x: Tensor, delta: Tensor) -> Tensor:
        """``sum_t delta_kct * x_kt``."""
        return torch.einsum("nctm,ntm->ncm", delta, x)


def layers(problem: Problem) -> dict[str, Layer]:
    """The layers that can be seen through, by name, in the order they were built.

    A layer whose parameters also enter elsewhere (tied weights, a module that is called twice) is
    not among them: this is checked, on two samples, by comparing its gradients with autograd's.
    """
    candidates = _candidates(problem)
    opaque = _opaque(problem, candidates)
    return {name: at for name, at in candidates.items() if name not in opaque}


def layer(problem: Problem, name: str) -> Layer:
    """The layer called ``name``, or an error that says why not and lists those there are."""
    if problem.loss.needs_model:
        raise InputError(
            f"loss {problem.loss.name!r} is computed from the model itself, which may run a layer "
            "more than once; layers are seen through for losses of the model's outputs"
        )
    candidates = _candidates(problem)
    opaque = _opaque(problem, candidates)
    if name in candidates and name not in opaque:
        return candidates[name]
    modules = dict(problem.model.named_modules())
    listed = ", ".join(repr(n) for n in candidates if n not in opaque) or "none"
    if name not in modules:
        raise InputError(f"there is no layer {name!r}; layers with a weight: {listed}")
    if name in opaque:
        raise InputError(f"layer {name!r} {opaque[name]}; layers that can be used: {listed}")
    kind = type(modules[name]).__name__
    if next(modules[name].parameters(recurse=False), None) is None:
        raise InputError(f"layer {name!r} is {kind} and has no weight; layers with one: {listed}")
    raise InputError(
        f"layer {name!r} is {kind}, whose structure is not known; layers that can be used: {listed}"
    )


def _candidates(problem: Problem) -> dict[str, Layer]:
    if problem.loss.needs_model:  # which may run the layers more than once
        return {}
    return {
        name: MatrixLayer(name, module)
        if isinstance(module, _Matrix)
        else AffineLayer(name, module)
        for name, module in problem.model.named_modules()
        if isinstance(module, _Matrix | _Affine) and isinstance(module.weight, nn.Parameter)
    }


@dataclass
class Tap:
    """What one layer saw and gave in a forward pass."""

    layer: Layer
    x: Tensor
    a: Tensor
    calls: int = 1


@contextlib.contextmanager
def tapped(chosen: Sequence[Layer]) -> Iterator[dict[str, Tap]]:
    """Record each layer's input and output during one forward pass.

    The outputs become points that the model's outputs can be differentiated by: since parameters
    enter as constants, the autograd graph then holds only what comes after the first layer.
    """
    taps: dict[str, Tap] = {}

    def hook(at: Layer):  # type: ignore[no-untyped-def]
        def record(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
            if at.name in taps:
                taps[at.name].calls += 1
                return output
            x = args[0] if args else kwargs["input"]
            if not output.requires_grad:
                output = output.detach().requires_grad_()
            taps[at.name] = Tap(at, x.detach(), output)
            return output.clone()  # what follows may work in place, as ReLU(inplace=True) does

        return record

    handles = [
        at.module.register_forward_hook(hook(at), with_kwargs=True, prepend=True) for at in chosen
    ]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


def _opaque(problem: Problem, found: dict[str, Layer]) -> dict[str, str]:
    """The layers among ``found`` whose gradients do not follow from their own x and a, and why."""
    reasons: dict[str, str] = {}
    if not found:
        return reasons
    few = problem.first(2)
    names = {at.weight_name: at for at in found.values()}
    with problem.measuring():
        leaves = {
            n: problem.params[n].clone().requires_grad_() for n in names if n in problem.params
        }
        with tapped(list(found.values())) as taps:
            loss = problem.batch_losses(few, leaves).sum()
        for name, at in found.items():
            if at.weight_name in problem.frozen:
                reasons[name] = "is frozen (Problem(params='all') measures it all the same)"
            elif at.weight_name not in leaves:
                reasons[name] = "shares its weight with another layer"
            elif name not in taps:
                reasons[name] = "takes no part in the forward pass"
            elif taps[name].calls > 1:
                reasons[name] = "is used more than once in a forward pass"
        rest = [taps[name] for name in found if name not in reasons]
        if not rest:
            return reasons
        weights = [leaves[t.layer.weight_name] for t in rest]
        gradients = torch.autograd.grad(
            loss, [*weights, *(t.a for t in rest)], materialize_grads=True
        )
        for t, expected, delta in zip(rest, gradients, gradients[len(rest) :], strict=False):
            x = t.layer.inputs(t.x)
            got = t.layer.gradients(x, t.layer.outputs(delta).unsqueeze(1)).sum((0, 1))
            limit = torch.finfo(got.dtype).eps ** 0.5 * expected.norm()
            if (got - expected.flatten()).norm() > limit:
                reasons[t.layer.name] = "shares its weight with another part of the model"
    return reasons
