"""How the tangents of an operation's results follow from those of its arguments, k at a time.

A tangent of a value of shape S is a tensor (k, *S), in whatever order of memory came out: matrix
products of samples (n, in) leave columns between samples and features, (n, k, out) in memory, so
that the next product reads them as more rows. Each rule gets which arguments have tangents, the
results and the arguments, and returns the function from tangents (None for an argument without) to
tangents; or None where the results have none. Of models with operations that have no rule, products
are done column by column.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Tangent = Callable[..., Callable[..., Any] | None]
RULES: dict[Any, Tangent] = {}


def _rule(*operations: Any) -> Callable[[Tangent], Tangent]:
    def add(rule: Tangent) -> Tangent:
        RULES.update(dict.fromkeys(operations, rule))
        return rule

    return add


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


# Matrix products ---------------------------------------------------------------------------------


def _is_view(t: Tensor, shape: Sequence[int]) -> bool:
    """Whether the tensor can take that shape without a copy."""
    try:
        t.view(shape)
    except RuntimeError:
        return False
    return True


def _by_many(a: Tensor, b: Tensor) -> Tensor:
    """``a b``, contiguous. MKL takes 1.6 times as long for (4000, 784) by (784, 30) as turned."""
    (p, q), m = b.shape, len(a)
    if q <= 64 and 8 * q < p and 8 * q < m:
        return torch.mm(b.T, a.T).T.contiguous()
    return a @ b


def _mm(a: Tensor, b: Tensor, da: Tensor | None, db: Tensor | None) -> Tensor:
    """``da b + a db`` with matrices a (m, p) and b (p, q): (k, m, q)."""
    (m, p), q = a.shape, b.shape[1]
    out = None
    if db is not None:
        k = len(db)
        out = _by_many(a, db.transpose(0, 1).reshape(p, k * q)).view(m, k, q).transpose(0, 1)
    if da is not None:
        k = len(da)
        if _is_view(da, (k * m, p)):  # not so where samples, then columns are the rows
            more = (da.view(k * m, p) @ b).view(k, m, q)
            return more if out is None else out.add_(more)
        rows = da.transpose(0, 1).reshape(m * k, p)
        if out is not None:
            out.transpose(0, 1).view(m * k, q).addmm_(rows, b)
        else:
            out = (rows @ b).view(m, k, q).transpose(0, 1)
    assert out is not None
    return out


@_rule(aten.mm.default)
def mm(has: Any, out: Tensor, a: Tensor, b: Tensor) -> Callable[..., Any]:
    """``a b``."""
    return lambda da, db: _mm(a, b, da, db)


@_rule(aten.addmm.default)
def addmm(
    has: Any, out: Tensor, c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> Callable[..., Any] | None:
    """``c + a b``."""
    _refuse(beta != 1 or alpha != 1 or c.ndim != 1)

    def tangent(dc: Tensor | None, da: Tensor | None, db: Tensor | None) -> Any:
        if da is None and db is None:
            assert dc is not None
            return dc.unsqueeze(1).expand(len(dc), *out_shape)
        product = _mm(a, b, da, db)
        return product if dc is None else product.add_(dc.unsqueeze(1))

    out_shape = out.shape
    return tangent


class NoRule(Exception):
    """An operation whose tangents are not known."""


def _refuse(special: bool) -> None:
    if special:
        raise NoRule("a form of the operation that has no rule")


# Convolutions ------------------------------------------------------------------------------------


def _as_rows(t: Tensor) -> Tensor:
    """(k, n, ...) to (n k, ...)."""
    return t.transpose(0, 1).flatten(0, 1)


def _as_channels(t: Tensor, axis: int = 1) -> Tensor:
    """(k, n, channels, ...) to (n, k channels, ...); (k, channels, ...) for axis 0."""
    return t.movedim(0, axis).flatten(axis, axis + 1)


def _of_rows(t: Tensor, k: int) -> Tensor:
    return t.unflatten(0, (-1, k)).transpose(0, 1)


def _of_channels(t: Tensor, k: int, axis: int = 1) -> Tensor:
    return t.unflatten(axis, (k, -1)).movedim(axis, 0)


@_rule(aten.convolution.default)
def convolution(
    has: Any, out: Tensor, x: Tensor, w: Tensor, b: Tensor | None, *how: Any
) -> Callable[..., Any] | None:
    """``x * w + b``; columns of w are more outputs, columns of x are more samples."""
    *_, transposed, _, groups = how
    _refuse(transposed or groups != 1)
    shape = out.shape

    def tangent(dx: Tensor | None, dw: Tensor | None, db: Tensor | None = None, *_: Any) -> Any:
        total = None
        if dw is not None:
            total = _of_channels(aten.convolution(x, _as_channels(dw, 0), None, *how), len(dw))
        if dx is not None:
            shifted = _of_rows(aten.convolution(_as_rows(dx), w, None, *how), len(dx))
            total = shifted if total is None else total.add_(shifted)
        if db is not None:
            db = _by_channel(db, x.ndim)
            total = db.expand(len(db), *shape) if total is None else total.add_(db)
        return total

    return tangent


@_rule(aten.convolution_backward.default)
def convolution_backward(
    has: Any, out: Any, g: Tensor, x: Tensor, w: Tensor, sizes: Any, *how: Any
) -> Callable[..., Any] | None:
    """The gradients by x, w and b."""
    *settings, mask = how
    *_, transposed, _, groups = settings
    _refuse(transposed or groups != 1)

    def back(g: Tensor, x: Tensor, w: Tensor, which: int) -> Tensor:
        chosen = [i == which for i in range(3)]
        return aten.convolution_backward(g, x, w, None, *settings, chosen)[which]

    def like(t: Tensor, *shape: int) -> Tensor:
        return t.new_empty(1).expand(*shape)  # only its shape is looked at

    def tangent(dg: Tensor | None, dx: Tensor | None, dw: Tensor | None, *_: Any) -> Any:
        k = next(len(d) for d in (dg, dx, dw) if d is not None)
        n, (out, inputs, *size), image = len(x), w.shape, x.shape[2:]
        by_x = by_w = by_b = None
        if mask[0] and dw is not None:  # columns of w are more inputs
            wide = _as_channels(dw)  # (out, k in, ...)
            by_x = _of_channels(back(g, like(x, n, k * inputs, *image), wide, 0), k)
        if mask[0] and dg is not None:
            more = _of_rows(back(_as_rows(dg), like(x, n * k, *x.shape[1:]), w, 0), k)
            by_x = more if by_x is None else by_x.add_(more)
        if mask[1] and dg is not None:  # columns of g are more outputs
            wide = back(_as_channels(dg), x, like(w, k * out, inputs, *size), 1)
            by_w = _of_channels(wide, k, 0)
        if mask[1] and dx is not None:
            wide = back(g, _as_channels(dx), like(w, out, k * inputs, *size), 1)
            by_w = _plus(by_w, _of_channels(wide, k))
        if mask[2] and dg is not None:
            by_b = dg.sum((1, *range(3, dg.ndim)))
        return by_x, by_w, by_b

    return tangent


# Entry by entry ----------------------------------------------------------------------------------


@_rule(aten.relu.default, aten.relu_.default)
def relu(has: Any, out: Tensor, x: Tensor) -> Callable[..., Any]:
    """``max(x, 0)``."""
    return lambda dx: aten.threshold_backward(dx, out, 0)


@_rule(aten.threshold_backward.default)
def threshold_backward(
    has: Any, out: Tensor, g: Tensor, x: Tensor, threshold: float
) -> Callable[..., Any] | None:
    """``g`` where x is above the threshold."""
    if not has[0]:
        return None
    return lambda dg, dx, _: None if dg is None else aten.threshold_backward(dg, x, threshold)


@_rule(aten.tanh.default)
def tanh(has: Any, out: Tensor, x: Tensor) -> Callable[..., Any]:
    """``tanh x``."""
    slope = 1 - out * out
    return lambda dx: dx * slope


@_rule(aten.tanh_backward.default)
def tanh_backward(has: Any, out: Tensor, g: Tensor, y: Tensor) -> Callable[..., Any]:
    """``g (1 - y^2)``."""
    slope, bend = 1 - y * y, -2 * g * y
    return lambda dg, dy: _plus(_times(dg, slope), _times(dy, bend))


@_rule(aten.sigmoid.default)
def sigmoid(has: Any, out: Tensor, x: Tensor) -> Callable[..., Any]:
    """``1 / (1 + exp(-x))``."""
    slope = out * (1 - out)
    return lambda dx: dx * slope


@_rule(aten.sigmoid_backward.default)
def sigmoid_backward(has: Any, out: Tensor, g: Tensor, y: Tensor) -> Callable[..., Any]:
    """``g y (1 - y)``."""
    slope, bend = y * (1 - y), g * (1 - 2 * y)
    return lambda dg, dy: _plus(_times(dg, slope), _times(dy, bend))


def _times(t: Tensor | None, factor: Any) -> Tensor | None:
    return None if t is None else t * factor


def _aligned(t: Tensor | None, ndim: int) -> Tensor | None:
    """The tangents with size 1 in the dimensions of the result that the argument lacks."""
    if t is None or t.ndim > ndim:
        return t
    return t.view(len(t), *[1] * (ndim + 1 - t.ndim), *t.shape[1:])


@_rule(aten.add.Tensor, aten.add_.Tensor)
def add(has: Any, out: Tensor, a: Any, b: Any, alpha: float = 1) -> Callable[..., Any]:
    """``a + b``."""
    _refuse(alpha != 1)
    shape = out.shape

    def tangent(da: Tensor | None, db: Tensor | None) -> Tensor:
        whole = _plus(_aligned(da, len(shape)), _aligned(db, len(shape)))
        assert whole is not None
        return whole.expand(len(whole), *shape)

    return tangent


@_rule(aten.mul.Tensor)
def mul(has: Any, out: Tensor, a: Any, b: Any) -> Callable[..., Any]:
    """``a b``."""
    ndim = out.ndim
    return lambda da, db: _plus(_times(_aligned(da, ndim), b), _times(_aligned(db, ndim), a))


# Normalisation with fixed statistics, and pooling ------------------------------------------------


def _by_channel(t: Tensor, ndim: int) -> Tensor:
    """Tangents (k, channels) for values (n, channels, ...) of so many dimensions."""
    return t.view(len(t), 1, -1, *[1] * (ndim - 2))


@_rule(aten.native_batch_norm.default)
def batch_norm(
    has: Any, out: Any, x: Tensor, w: Any, b: Any, mean: Any, var: Any, train: bool, *rest: float
) -> Callable[..., Any]:
    """``w (x - mean) / sqrt(var + eps) + b``."""
    _refuse(train or w is None)
    xhat, scale = _normalised(x, mean, var, rest[-1])

    def tangent(dx: Any, dw: Any, db: Any, *_: Any) -> Any:
        total = _times(dx, scale * _row(w, x))
        if dw is not None:
            dw = _by_channel(dw, x.ndim)
            total = xhat * dw if total is None else total.addcmul_(xhat, dw)
        if db is not None:
            db = _by_channel(db, x.ndim)
            total = db.expand(len(db), *x.shape) if total is None else total.add_(db)
        return total, None, None

    return tangent


def _row(t: Tensor, like: Tensor) -> Tensor:
    """(channels,) for values (n, channels, ...)."""
    return t.view(-1, *[1] * (like.ndim - 2))


def _normalised(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x with the fixed statistics taken out, and what it was divided by, inverted."""
    scale = _row((var + eps).rsqrt(), x)
    return (x - _row(mean, x)) * scale, scale


@_rule(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    has: Any, out: Any, g: Tensor, x: Tensor, w: Any, mean: Any, var: Any, *rest: Any
) -> Callable[..., Any]:
    """The gradients by x, w and b."""
    *_, train, eps, mask = rest
    _refuse(train or w is None)
    xhat, scale = _normalised(x, mean, var, eps)
    others = (1, *range(3, x.ndim + 1))  # all axes but those of columns and channels

    def tangent(dg: Any, dx: Any, dw: Any, *_: Any) -> Any:
        by_x = by_w = by_b = None
        if mask[0]:
            by_x = _times(dg, scale * _row(w, x))
            if dw is not None:
                factor = _by_channel(dw, x.ndim) * scale
                by_x = g * factor if by_x is None else by_x.addcmul_(g, factor)
        if mask[1]:
            by_w = None if dg is None else (dg * xhat).sum(others)
            if dx is not None:
                by_w = _plus(by_w, (dx * g).sum(others) * scale.flatten())
        if mask[2] and dg is not None:
            by_b = dg.sum(others)
        return by_x, by_w, by_b

    return tangent


@_rule(aten.max_pool2d_with_indices.default)
def max_pool(has: Any, out: Any, x: Tensor, *how: Any) -> Callable[..., Any]:
    """The largest entries of patches, and where they stand."""
    indices = out[1]

    def tangent(dx: Tensor, *_: Any) -> Any:
        planes = dx.transpose(0, 1).flatten(3)  # (n, k, channels, entries)
        places = indices.flatten(2).unsqueeze(1).expand(-1, len(dx), -1, -1)
        return planes.gather(3, places).unflatten(3, indices.shape[2:]).transpose(0, 1), None

    return tangent


@_rule(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(has: Any, out: Tensor, g: Tensor, x: Tensor, *how: Any) -> Any:
    """g at the places of the largest entries."""
    if not has[0]:
        return None
    indices, image = how[-1], x.shape[2:]

    def tangent(dg: Tensor | None, *_: Any) -> Tensor | None:
        if dg is None:
            return None
        values = dg.transpose(0, 1).flatten(3)
        places = indices.flatten(2).unsqueeze(1).expand(-1, len(dg), -1, -1)
        planes = dg.new_zeros(*values.shape[:3], image.numel())
        return planes.scatter_add_(3, places, values).unflatten(3, image).transpose(0, 1)

    return tangent


# Linear in the first argument --------------------------------------------------------------------


@_rule(aten.t.default)
def t(has: Any, out: Tensor, x: Tensor) -> Callable[..., Any]:
    """The transposed matrix."""
    return (lambda dx: dx.mT) if x.ndim == 2 else (lambda dx: dx)


@_rule(aten.view.default, aten._unsafe_view.default)
def view(has: Any, out: Tensor, x: Tensor, shape: Any) -> Callable[..., Any]:
    """The same entries in another shape."""
    shape = out.shape
    return lambda dx, *_: dx.reshape(len(dx), *shape)


@_rule(aten.detach.default, aten.alias.default, aten.clone.default)
def same(has: Any, out: Tensor, x: Tensor, **how: Any) -> Callable[..., Any]:
    """The same values."""
    return lambda dx: dx


def _linear(operation: Any) -> None:
    def rule(has: Any, out: Tensor, x: Tensor, *how: Any, **more: Any) -> Callable[..., Any] | None:
        if not has[0]:  # where only shapes or the like come from values with tangents
            return None
        apply = torch.vmap(lambda dx: operation(dx, *how, **more))
        return lambda dx, *_: apply(dx)

    RULES[operation] = rule


for _operation in (
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.expand.default,
    aten.div.Scalar, aten.mul.Scalar, aten.neg.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.permute.default, aten.transpose.int,
    aten.slice.Tensor, aten.select.int, aten.slice_backward.default, aten.select_backward.default,
    aten.avg_pool2d.default,
):  # fmt: skip
    _linear(_operation)
