"""A parameter's exact curvature as a product of small factors, one set for each sample.

The loss sees a parameter only through the outputs a of its uses. With the Jacobian
``J_k = dz_k/da_k`` of the model's outputs z and ``A_k = d2l_k/dz2``, its block of the Hessian is

    H = 1/N sum_k B_k^T A_k B_k,    row c of B_k: the gradient of z_c with respect to the parameter

if z is piecewise linear in the parameter: C backward passes give every ``J_k``. The same sum is the
generalised Gauss-Newton (GGN) block of any network. Otherwise ``J_k`` is the identity and
``A_k = d2l_k/da2`` is differentiated twice with respect to a, a pass for each of its rows. The
empirical Fisher block has the same form: ``J_k = dl_k/da_k``, a single row, and ``A_k = 1``. Where
a parameter has several uses, B_k is the sum of theirs, so cross terms between uses are part of H.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.budget import check_time
from lowland.curvature.forward import ForwardPass, gradients, jacobian, summed
from lowland.curvature.layer_search import Layer, give_up, outputs_of_a_sample
from lowland.curvature.memory import samples_within
from lowland.curvature.precision import rounding
from lowland.curvature.second_derivatives import check_double_backward, check_loss_curvature
from lowland.curvature.uses import Use
from lowland.errors import InputError
from lowland.problem import Problem

Kind = Literal["hessian", "ggn", "fisher"]  # the Fisher block is the empirical one

# Entries of Jacobians that are multiplied at a time: they stay in the processor's cache.
CACHED = 1 << 19
# Entries of packed outer products in flight: memory that stays in the cache, and is not fetched
# from the system page by page for every chunk, which would take as long as the product.
_PAIRS = 1 << 20
# Rows of Jacobians (outputs x samples) up to which they are computed in one vectorised pass.
_BATCHED = 1 << 16


def check_kind(kind: str) -> None:
    """An error if there is no matrix of this kind."""
    if kind not in get_args(Kind):
        raise InputError(f"kind must be 'hessian', 'ggn' or 'fisher'; got {kind!r}")


@dataclass(frozen=True)
class Term:
    """One use's share of the gradients of C numbers of each of n samples."""

    x: Tensor  # (n, T, G, in) or (n, T, m), what multiplies the parameter
    J: Tensor  # (n, C, T, G, out) or (n, C, T, m), gradients with respect to the use's outputs
    places: Tensor  # (G, out, in) or (m,): the use's own weights in the flat parameter

    def gradients(self) -> Tensor:
        """The gradients of the C numbers with respect to the use's own weights, (n, C, m)."""
        if self.places.ndim == 3:
            return torch.einsum("nctgo,ntgi->ncgoi", self.J, self.x).flatten(2)
        return torch.einsum("nctm,ntm->ncm", self.J, self.x)

    def outputs(self, v: Tensor) -> Tensor:
        """Return what the use makes of a flat parameter, (n, T, G, out) or (n, T, m)."""
        if self.places.ndim == 3:
            return torch.einsum("goi,ntgi->ntgo", v[self.places], self.x)
        return v[self.places] * self.x


@dataclass(frozen=True)
class Factors:
    """The factors of one parameter's block for n samples."""

    layer: Layer
    terms: list[Term]
    A: Tensor  # (n, C, C), second derivatives by the C numbers
    route: str

    @property
    def is_outer(self) -> bool:
        """Whether a gradient is one outer product: a dense layer that sees one vector."""
        first = self.terms[0]
        return len(self.terms) == 1 and first.places.ndim == 3 and first.x.shape[1:3] == (1, 1)

    def gradients(self) -> Tensor:
        """B, the gradients of the C numbers with respect to the parameter, (n, C, M)."""
        places, B = self.as_used()
        whole = B.new_zeros(*B.shape[:2], self.layer.size)
        whole[:, :, places] = B
        return whole

    def as_used(self) -> tuple[Tensor, Tensor]:
        """Places in the flat parameter, (m,), and the gradients there, (n, C, m).

        A single use has its own order of weights: sums over samples need not be put into the
        parameter's order for each of them, which would take longer than the gradients.
        """
        if len(self.terms) == 1:
            (term,) = self.terms
            return term.places.flatten(), term.gradients()
        shares = [(term.places.flatten(), term.gradients()) for term in self.terms]
        whole = shares[0][1].new_zeros(*shares[0][1].shape[:2], self.layer.size)
        for places, share in shares:
            whole[:, :, places] += share
        return torch.arange(self.layer.size, device=whole.device), whole

    def dense_sum(self) -> Tensor:
        """The sum over samples of the (M, M) blocks; :func:`unpacked` for an outer product's."""
        if self.is_outer:
            return self._packed_sum()
        B = self.gradients()
        return (self.A @ B).flatten(0, 1).T @ B.flatten(0, 1)

    def _packed_sum(self) -> Tensor:
        """``sum_k (J_k^T A_k J_k) kron (x_k x_k^T)``, (pairs of outputs, pairs of inputs).

        Both factors are symmetric, so one product of their upper triangles holds every entry once:
        a quarter of the work of the full sum.
        """
        x, J = self.terms[0].x[:, 0, 0], self.terms[0].J[:, :, 0, 0]  # (n, in), (n, C, out)
        out, inputs = J.shape[2], x.shape[1]
        o1, o2 = torch.triu_indices(out, out, device=x.device)
        i1, i2 = torch.triu_indices(inputs, inputs, device=x.device)
        packed = x.new_zeros(len(o1), len(i1))
        size = max(1, _PAIRS // (len(o1) + len(i1)))
        for x_, J_, A_ in zip(x.split(size), J.split(size), self.A.split(size), strict=True):
            S = (J_.mT @ (A_ @ J_)).flatten(1).index_select(1, o1 * out + o2)
            x_ = x_.T.contiguous()  # rows are copied faster than columns
            packed += S.T @ (x_.index_select(0, i1) * x_.index_select(0, i2)).T
        return packed

    def diagonal_sum(self) -> Tensor:
        """The sum over samples of the diagonals of the blocks, (M,)."""
        if self.is_outer:
            (term,) = self.terms
            J = term.J[:, :, 0, 0]  # (n, C, out)
            size = max(1, CACHED // J[0].numel())
            S = torch.cat(  # the diagonals of J^T A J, (n, out)
                [
                    (J_ * (A_ @ J_)).sum(1)
                    for J_, A_ in zip(J.split(size), self.A.split(size), strict=True)
                ]
            )
            diagonal = S.new_empty(self.layer.size)
            diagonal[term.places.flatten()] = (S.T @ term.x[:, 0, 0].square()).flatten()
            return diagonal
        sums = self.A.new_zeros(self.layer.size, dtype=torch.float64)
        for part in self.cached():
            places, B = part.as_used()
            sums[places] += (part.A @ B).mul_(B).sum((0, 1))
        return sums

    def cached(self) -> Iterator["Factors"]:
        """The factors of so few samples at a time that their gradients stay in the cache."""
        size = max(1, CACHED // (self.A.shape[1] * self.layer.size))
        for start in range(0, len(self.A), size):
            check_time()
            of = slice(start, start + size)
            terms = [Term(t.x[of], t.J[of], t.places) for t in self.terms]
            yield Factors(self.layer, terms, self.A[of], self.route)


def unpacked(packed: Tensor, layer: Layer) -> Tensor:
    """The (M, M) block in the parameter's order, from its entries at pairs of rows and columns."""
    _, out, inputs = layer.shape

    def places(n: int) -> Tensor:
        i, j = torch.triu_indices(n, n, device=packed.device)
        numbers = torch.empty(n, n, dtype=torch.long, device=packed.device)
        numbers[i, j] = numbers[j, i] = torch.arange(len(i), device=packed.device)
        return numbers.flatten()

    full = packed.index_select(0, places(out)).index_select(1, places(inputs))
    full = full.view(out, out, inputs, inputs).transpose(1, 2)
    full = full.reshape(out * inputs, out * inputs)
    if layer.in_order:
        return full
    back = layer.flat(torch.arange(layer.size, device=packed.device).view(layer.shape))
    return full[back][:, back]


def factors(
    problem: Problem, chosen: Sequence[Layer], kind: Kind = "hessian", split: str = "train"
) -> Iterator[dict[str, Factors]]:
    """Chunk by chunk, the factors of every chosen parameter by its name, from one pass each.

    A parameter that cannot be seen through on some of the data is left out from there on, and
    counts as opaque: compare :func:`parameters` before and after. A routed layer that no sample of
    a chunk comes to is left out of that chunk.
    """
    check_kind(kind)
    left = {layer.parameter: layer for layer in chosen}
    if not left:
        return
    with problem.measuring():
        each = sum(factor_bytes(problem, layer, kind)[1] for layer in chosen)
        for batch in problem.batches(split, samples_within(problem, each)):
            seen = ForwardPass(problem, batch, left)
            left = {name: layer for name, layer in left.items() if name not in seen.opaque}
            parts = of_batch(problem, batch, seen, seen.reached(left), kind)
            give_up(problem, seen.opaque)
            left = {name: layer for name, layer in left.items() if name not in seen.opaque}
            if not left:
                return
            yield parts


def sample_gradients(problem: Problem, batch: Batch, layer: Layer) -> Tensor:
    """The gradients of every sample's own loss with respect to one parameter, (n, M)."""
    with problem.measuring():
        seen = ForwardPass(problem, batch, [layer.parameter])
        if seen.opaque:
            raise InputError(f"layer {layer.name!r} {seen.opaque[layer.parameter]}")
        losses = problem.loss(seen.outputs, batch.targets)
        problem.check_differentiable(losses)
        return _fisher(losses, seen, {layer.parameter: layer})[layer.parameter].gradients()[:, 0]


def factor_bytes(problem: Problem, layer: Layer, kind: Kind) -> tuple[int, int]:
    """What one sample takes: its factors of a layer, and all that is made on the way."""
    C = _rows(problem, layer, kind)
    inputs = layer.positions * (layer.shape[0] * layer.shape[2] if layer.is_matrix else layer.size)
    numbers = inputs + C * layer.outputs + C * C
    outer = layer.is_matrix and layer.uses == 1 and layer.positions == 1
    return numbers * problem.dtype.itemsize, 8 * (numbers + (0 if outer else 2 * C * layer.size))


def passes(layer: Layer) -> int:
    """How many double backward passes the exact Hessian block takes.

    0 where the outputs are piecewise linear in the parameter: its block is its GGN block.
    """
    return layer.outputs if layer.curved else 0


def _rows(problem: Problem, layer: Layer, kind: Kind) -> int:
    """C, the number of rows of J for one sample."""
    if kind == "fisher":
        return 1
    if kind == "hessian" and layer.curved:
        return layer.outputs
    return outputs_of_a_sample(problem)


def of_batch(
    problem: Problem, batch: Batch, seen: ForwardPass, chosen: dict[str, Layer], kind: Kind
) -> dict[str, Factors]:
    """The factors of one batch, of parameters that it reaches."""
    if not chosen:
        return {}
    if kind == "fisher":
        losses = losses_in_double(problem, seen.outputs, batch.targets)
        problem.check_differentiable(losses)
        return _fisher(losses, seen, chosen)
    through = {n: layer for n, layer in chosen.items() if kind == "ggn" or n not in seen.curved}
    parts = {}
    if through:
        A = output_curvature(problem, seen.outputs.detach(), batch.targets)
        rows = rows_with_curvature([A])
        A = rows @ A @ rows.T
        terms = through_outputs(seen, through, rows)
        for name, layer in through.items():
            parts[name] = Factors(layer, terms[name], A, "C backward passes")
    rest = {name: layer for name, layer in chosen.items() if name not in parts}
    if rest:
        check_double_backward(problem, rest)
        losses = problem.loss(seen.outputs, batch.targets)
        twice = {name: _twice(losses, seen, layer) for name, layer in rest.items()}
        parts |= {name: part for name, part in twice.items() if part is not None}
    return parts


def through_outputs(
    seen: ForwardPass, chosen: Iterable[str], rows: Tensor
) -> dict[str, list[Term]]:
    """Each parameter's terms of the gradients of ``rows z``, from one pass for each row."""
    uses = [(name, i, use) for name in chosen for i, use in enumerate(seen.uses[name])]
    J = _jacobians(seen.outputs, [use for *_, use in uses], rows)
    terms: dict[str, list[Term]] = {name: [] for name in chosen}
    for (name, i, use), columns in zip(uses, J, strict=True):
        x = seen.inputs(name)[i]
        terms[name].append(Term(x, seen.by_sample(name, i, columns), use.places))
    return {name: _merged(each) for name, each in terms.items()}


def losses_in_double(problem: Problem, z: Tensor, targets: Tensor) -> Tensor:
    """The losses of outputs z, (n,), in float64 where the loss can be computed in it.

    In float32 a probability of nearly 1 is 1, and a sample that is fitted well has no gradient.
    """
    try:
        return problem.loss(z.double(), _double(targets))
    except (InputError, RuntimeError):  # a loss with tensors of its own
        return problem.loss(z, targets)


def _double(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


def _fisher(losses: Tensor, seen: ForwardPass, chosen: dict[str, Layer]) -> dict[str, Factors]:
    """The factors of the empirical Fisher blocks, from one backward pass."""
    uses = [(name, i, use) for name in chosen for i, use in enumerate(seen.uses[name])]
    terms: dict[str, list[Term]] = {name: [] for name in chosen}
    every = gradients(losses, [use for *_, use in uses])
    for (name, i, use), gradient in zip(uses, every, strict=True):
        J = seen.by_sample(name, i, gradient.unsqueeze(0))
        terms[name].append(Term(seen.inputs(name)[i], J, use.places))
    ones = seen.outputs.detach().new_ones(len(losses), 1, 1)
    return {
        name: Factors(layer, _merged(terms[name]), ones, "one backward pass")
        for name, layer in chosen.items()
    }


def _twice(losses: Tensor, seen: ForwardPass, layer: Layer) -> Factors | None:
    """Differentiate the loss twice with respect to the outputs of all uses of one parameter.

    None where the block is not the one that autograd multiplies by: ``seen.opaque`` says so then.
    """
    name, uses = layer.parameter, seen.uses[layer.parameter]
    if any(use.in_series for use in uses):
        raise InputError(
            f"layer {layer.name!r} is used in series, so that its Hessian does not follow from its "
            f"outputs; use hessian(problem, {name!r})"
        )

    def flat(every: Sequence[Tensor]) -> Tensor:
        """Return the gradients of all uses side by side, by sample, (n, D)."""
        parts = [seen.by_sample(name, i, g.unsqueeze(0)) for i, g in enumerate(every)]
        return torch.cat([part.flatten(1) for part in parts], 1)

    slopes = gradients(losses, uses, create_graph=True)
    gradient = flat([slope.detach() for slope in slopes])
    n, D = gradient.shape
    A, eye = gradient.new_zeros(n, D, D), torch.eye(D, dtype=gradient.dtype, device=gradient.device)
    terms, start = [], 0
    for i, (use, x, slope) in enumerate(zip(uses, seen.inputs(name), slopes, strict=True)):
        shape = seen.by_sample(name, i, slope.detach().unsqueeze(0)).shape[2:]
        own = eye[:, start : start + shape.numel()].view(D, *shape)
        terms.append(Term(x, own.expand(n, *own.shape), use.places))
        if slope.requires_grad and slope.numel():  # the loss may be linear here, or no sample come
            rows = own[start : start + shape.numel()].unsqueeze(1)  # (d, 1, *shape)
            for some in rows.split(max(1, CACHED // (n * shape.numel()))):
                for row in seen.as_outputs(name, i, some.expand(-1, n, *shape)):
                    A[:, start] = flat(gradients(slope, uses, row))
                    start += 1
        else:
            start += shape.numel()
    A = (A + A.mT) / 2
    if not _is_autograds(losses, seen, name, terms, A):
        seen.opaque[name] = "has second derivatives that do not follow from those by its outputs"
        return None
    return Factors(layer, _merged(terms), A, "double backward of the layer's outputs")


def _is_autograds(
    losses: Tensor, seen: ForwardPass, name: str, terms: list[Term], A: Tensor
) -> bool:
    """Whether the samples' blocks, each times a random number, multiply as autograd does.

    One more backward pass, where there is one for each row of A, verifies every sample.
    """
    leaf = seen.leaves[name]
    generator = torch.Generator(device=A.device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=A.dtype, device=A.device)

    weights, v = random(len(A)), random(*leaf.shape)
    (gradient,) = torch.autograd.grad(
        losses, leaf, weights.to(losses.dtype), create_graph=True, materialize_grads=True
    )
    expected = torch.zeros_like(v)
    if gradient.requires_grad:
        (expected,) = torch.autograd.grad(
            gradient, leaf, v.to(gradient.dtype), retain_graph=True, materialize_grads=True
        )
    moves = torch.cat([term.outputs(v.flatten()).flatten(1) for term in terms], 1)  # (n, D)
    answers = weights.unsqueeze(1) * (A @ moves.unsqueeze(2)).squeeze(2)
    sums, bound, start = torch.zeros_like(v).flatten(), 0.0, 0
    for term in terms:
        shape = term.J.shape[2:]
        own = answers[:, start : start + shape.numel()].view(-1, *shape)
        sums.index_add_(0, term.places.flatten(), summed(term.places, term.x, own).flatten())
        bound += float(term.x.norm() * A.norm() * moves.norm())
        start += shape.numel()
    eps = torch.finfo(A.dtype).eps
    limit = eps**0.5 * max(float(expected.norm()), float(sums.norm())) + 16 * eps * bound
    return float((sums - expected.flatten()).norm()) <= limit


def _merged(terms: list[Term]) -> list[Term]:
    """Several uses of one whole matrix as more positions of a single one."""
    first, *others = terms
    if not others or not all(torch.equal(first.places, term.places) for term in others):
        return terms
    x = torch.cat([term.x for term in terms], 1)
    return [Term(x, torch.cat([term.J for term in terms], 2), first.places)]


def rows_with_curvature(matrices: Sequence[Tensor]) -> Tensor:
    """Orthonormal rows (r, C) that span all directions that matter to matrices (n, ..., C).

    Behind a softmax a common shift of all outputs has no curvature: one backward pass less.
    """
    A = matrices[0]
    C = A.shape[-1]
    eye = torch.eye(C, dtype=A.dtype, device=A.device)
    if C == 1 or any(
        M.sum(-1).abs().amax() > C * rounding(M.dtype) * M.abs().amax() for M in matrices
    ):
        return eye
    v = eye[0] - C**-0.5  # the reflection that takes the first unit vector to the common shift
    return (eye - 2 * torch.outer(v, v) / v.square().sum())[1:]


def _jacobians(z: Tensor, uses: list[Use], rows: Tensor) -> list[Tensor]:
    """For each use: the gradients of ``rows z`` with respect to its outputs, (r, *outputs)."""
    n, (r, C) = len(z), rows.shape
    units = rows.unsqueeze(1).expand(r, n, C).reshape(r, *z.shape)
    if r * n <= _BATCHED:  # all of them in one pass: as many samples, fewer calls
        return jacobian(z, uses, units)
    slopes = [gradients(z, uses, unit) for unit in units]
    return [torch.stack(column) for column in zip(*slopes, strict=True)]


def output_curvature(problem: Problem, z: Tensor, targets: Tensor) -> Tensor:
    """``d2l/dz2`` of each sample, (n, C, C): in closed form where the loss has one."""
    closed = problem.loss.second(z.double(), _double(targets))  # 1 - p of nearly 1 needs digits
    if closed is not None:
        return closed.to(z.dtype)
    check_loss_curvature(problem)
    leaf = z.requires_grad_()
    losses = problem.loss(leaf, targets)
    problem.check_differentiable(losses)
    return second_derivative(losses, leaf)


def second_derivative(losses: Tensor, point: Tensor) -> Tensor:
    """``d2l/d point2`` for each sample, (n, D, D) with D the size of one sample of the point."""
    (gradient,) = torch.autograd.grad(
        losses.sum(), point, create_graph=True, materialize_grads=True
    )
    gradient = gradient.reshape(len(gradient), -1)  # (n, D), also of outputs (n,)
    if not gradient.requires_grad:  # the loss is linear here
        return gradient.new_zeros(*gradient.shape, gradient.shape[1])
    rows = [
        torch.autograd.grad(gradient[:, d].sum(), point, retain_graph=True, materialize_grads=True)[
            0
        ]
        for d in range(gradient.shape[1])
    ]
    S = torch.stack([r.detach().reshape(gradient.shape) for r in rows], dim=1)
    return (S + S.mT) / 2
