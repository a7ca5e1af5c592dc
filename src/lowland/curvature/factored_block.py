"""One layer's curvature as an operator on its factors: for layers too wide for a dense block."""

import torch
from torch import Tensor

from lowland.curvature.layer_search import Layer
from lowland.curvature.layer_search import layer as layer_named
from lowland.curvature.sample_factors import Factors, Kind, Term, check_kind, factors
from lowland.distributed import total
from lowland.errors import InputError
from lowland.problem import ONE_AT_A_TIME, Problem, of_a_problem

# Numbers in flight in one step of a product; more only leaves the cache.
_CHUNK = 1 << 24


class LayerBlock:
    """The exact block ``1/N sum_k B_k^T A_k B_k`` of one layer's weight, never formed.

    Held are the layer's inputs x, the Jacobians J and the small matrices A of every sample: about
    ``N (in + C out)`` numbers for a dense layer of ``out x in`` weights. A product is two matrix
    products with x and a few small ones, whatever the rest of the network.
    """

    def __init__(self, problem: Problem, layer: Layer, parts: list[Factors], kind: Kind) -> None:
        self.problem, self.layer, self.kind = problem, layer, kind
        self.size = layer.size
        self.shape = (self.size, self.size)
        self.dtype, self.device = problem.dtype, problem.device
        self.slices = {layer.parameter: slice(0, self.size)}
        self._count = problem.count()
        self._parts, self._state = parts, problem.state

    def __repr__(self) -> str:
        return f"LayerBlock({self.layer.name!r}, {self.kind}, size={self.size:,})"

    def __matmul__(self, V: Tensor) -> Tensor:
        self._renew()
        weights = self.layer.matrix(V.reshape(self.size, -1))  # (G, out, in, k)
        sums = torch.zeros_like(weights)
        for part in self._parts:
            (term,) = part.terms
            if part.is_outer:
                sums[0] += _outer_products(term, part.A, weights[0])
                continue
            size = max(1, _CHUNK // (term.J[0, 0].numel() * weights.shape[-1]))
            chunks = (t.split(size) for t in (term.x, term.J, part.A))
            for x, J, A in zip(*chunks, strict=True):
                Px = torch.einsum("ntgi,goik->ntgok", x, weights)  # the shift of the outputs
                u = A @ torch.einsum("nctgo,ntgok->nck", J, Px)
                y = torch.einsum("nctgo,nck->ntgok", J, u)
                sums += torch.einsum("ntgok,ntgi->goik", y, x)
        return (total(self.layer.flat(sums)) / self._count).reshape(V.shape)

    def diagonal(self) -> Tensor:
        """The exact diagonal, (size,), in float64."""
        self._renew()
        sums = torch.stack([p.diagonal_sum().double() for p in self._parts]).sum(0)
        return total(sums) / self._count

    def trace(self) -> float:
        """The exact trace."""
        return float(self.diagonal().sum())

    def _renew(self) -> None:
        """Take the factors anew if the problem has changed."""
        with ONE_AT_A_TIME:
            if not self.problem.changed_since(self._state):
                return
            self.__dict__.update(vars(layer_operator(self.problem, self.layer.name, self.kind)))


def _outer_products(term: Term, A: Tensor, weights: Tensor) -> Tensor:
    """The blocks, summed over samples that each see one vector, times ``weights`` (out, in, k)."""
    x, J = term.x[:, 0, 0], term.J[:, :, 0, 0]  # (n, in), (n, C, out)
    out, inputs, k = weights.shape
    size = max(1, _CHUNK // (len(x) * out))  # columns
    products = torch.empty_like(weights)
    for start in range(0, k, size):
        rows = weights[..., start : start + size].permute(2, 0, 1).reshape(-1, inputs)
        y = (x @ rows.T).view(len(x), -1, out)
        y = (y @ J.mT) @ A @ J  # (n, k, out)
        some = (y.view(len(x), -1).T @ x).view(-1, out, inputs)
        products[..., start : start + size] = some.permute(1, 2, 0)
    return products


@of_a_problem
def layer_operator(problem: Problem, name: str, kind: Kind = "hessian") -> LayerBlock:
    """The exact curvature block of one layer's weight as an operator, for layers of any width."""
    return layer_operators(problem, [name], kind)[name]


def layer_operators(
    problem: Problem, names: list[str], kind: Kind = "hessian"
) -> dict[str, LayerBlock]:
    """The :func:`layer_operator` of several layers by name, from one pass over the data."""
    check_kind(kind)
    chosen = {name: layer_named(problem, name) for name in names}
    for name, layer in chosen.items():
        if not layer.is_matrix or (kind == "hessian" and layer.in_series):
            why = "is used in series" if layer.in_series else "is not one matrix in all its uses"
            raise InputError(
                f"layer {name!r} {why}, so its curvature is no product of factors; use "
                f"hessian(problem, {layer.parameter!r})"
            )
    parts: dict[str, list[Factors]] = {layer.parameter: [] for layer in chosen.values()}
    held = 0
    for of_batch in factors(problem, list(chosen.values()), kind):
        for parameter, part in of_batch.items():
            parts[parameter].append(part)
            held += part.A.nbytes + sum(t.x.nbytes + t.J.nbytes for t in part.terms)
        if held > problem.memory:
            first = next(iter(chosen.values()))
            raise InputError(
                f"the factors of layer {', '.join(map(repr, names))} do not fit the memory budget "
                f"of {problem.memory / 2**20:,.0f} MiB; pass Problem(memory=...) with more, or use "
                f"hessian(problem, {first.parameter!r})"
            )
    return {
        name: LayerBlock(problem, layer_named(problem, name), parts[layer.parameter], kind)
        for name, layer in chosen.items()
    }
