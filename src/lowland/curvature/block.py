"""One layer's curvature as an operator on its factors: for layers too wide for a dense block."""

import torch
from torch import Tensor

from lowland.curvature.factors import Factors, Kind, factors
from lowland.curvature.layers import MatrixLayer, layer
from lowland.distributed import total
from lowland.errors import InputError
from lowland.problem import Problem, differentiating

# Numbers in flight in one step of a product; more only leaves the cache.
_CHUNK = 1 << 24


class LayerBlock:
    """The exact block ``1/N sum_k B_k^T A_k B_k`` of one layer's weight, never formed.

    Held are the layer's inputs x, the Jacobians J and the small matrices A of every sample: about
    ``N (in + C out)`` numbers for a dense layer of ``out x in`` weights. A product is two matrix
    products with x and a few small ones, whatever the rest of the network.
    """

    def __init__(self, problem: Problem, at: MatrixLayer, parts: list[Factors], kind: Kind) -> None:
        self.problem, self.layer, self.kind = problem, at, kind
        self.size = at.weight.numel()
        self.shape = (self.size, self.size)
        self.dtype, self.device = problem.dtype, problem.device
        self.slices = {at.weight_name: slice(0, self.size)}
        self._count = problem.count()
        self._parts = parts

    def __repr__(self) -> str:
        return f"LayerBlock({self.layer.name!r}, {self.kind}, size={self.size:,})"

    def __matmul__(self, V: Tensor) -> Tensor:
        if self._parts[0].is_outer:
            columns = [self._outer_product(v) for v in V.reshape(self.size, -1).unbind(1)]
            return (total(torch.stack(columns, 1)) / self._count).reshape(V.shape)
        k = V.reshape(self.size, -1).shape[1]
        weights = V.reshape(*self.layer.shape, k)  # (G, out, in, k)
        sums = torch.zeros_like(weights)
        for x, J, A in self._chunks(k):
            Px = torch.einsum("ntgi,goik->ntgok", x, weights)  # the shift of the layer's outputs
            u = A @ torch.einsum("nctgo,ntgok->nck", J, Px)
            y = torch.einsum("nctgo,nck->ntgok", J, u)
            sums += torch.einsum("ntgok,ntgi->goik", y, x)
        return (total(sums) / self._count).reshape(V.shape)

    def _outer_product(self, v: Tensor) -> Tensor:
        """The sum over samples of the blocks times v, for a layer that sees one vector."""
        weights = v.view(self.layer.weight.shape)
        sums = torch.zeros_like(weights)
        for part in self._parts:
            x, J = part.x[:, 0, 0], part.J[:, :, 0, 0]  # (n, in), (n, C, out)
            Jp = (x @ weights.T).unsqueeze(1) @ J.mT  # (n, 1, C)
            sums += (Jp @ part.A @ J)[:, 0].T @ x
        return sums.flatten()

    def _chunks(self, columns: int):  # type: ignore[no-untyped-def]
        for part in self._parts:
            each = part.J[0, 0].numel() * columns
            size = max(1, _CHUNK // each)
            yield from zip(part.x.split(size), part.J.split(size), part.A.split(size), strict=True)

    def diagonal(self) -> Tensor:
        """The exact diagonal, (size,), in float64."""
        sums = torch.stack([p.diagonal_sum().double() for p in self._parts]).sum(0)
        return total(sums) / self._count

    def trace(self) -> float:
        """The exact trace."""
        return float(self.diagonal().sum())

    def frobenius_norm(self) -> float:
        """The exact Frobenius norm, from the inner products of all pairs of samples.

        With ``A_k = Q_k diag(s_k) Q_k^T`` and ``d_kc`` the rows of ``Q_k^T J_k``, the square is
        ``1/N^2 sum_kl sum_cd s_kc s_ld (d_kc . d_ld)^2 (x_k . x_l)^2``.
        """
        if not all(p.is_outer for p in self._parts):
            raise InputError(
                "the exact Frobenius norm is known for dense layers that see one vector per "
                "sample; use lowland.curvature.frobenius_norm for an estimate"
            )
        if self._count != len(self.problem.train):
            raise InputError("the exact Frobenius norm needs all samples in one process")
        x = torch.cat([p.x[:, 0, 0] for p in self._parts])  # (N, in)
        J = torch.cat([p.J[:, :, 0, 0] for p in self._parts])  # (N, C, out)
        s, Q = torch.linalg.eigh(torch.cat([p.A for p in self._parts]).double())
        d = Q.mT.to(J.dtype) @ J
        C = d.shape[1]
        size = max(1, int((_CHUNK / C**2) ** 0.5))
        starts = range(0, len(x), size)
        square = 0.0
        for i in starts:
            for j in range(i, len(x), size):  # symmetric: pairs of chunks once
                a, b = slice(i, i + size), slice(j, j + size)
                inner = (d[a].flatten(0, 1) @ d[b].flatten(0, 1).T).double().square()
                inner = inner.view(len(x[a]), C, -1, C)
                pairs = torch.einsum("kc,kcld,ld->kl", s[a], inner, s[b])
                part = float((pairs * (x[a] @ x[b].T).double().square()).sum())
                square += part if i == j else 2 * part
        return square**0.5 / self._count


@differentiating()
def layer_operator(problem: Problem, name: str, kind: Kind = "hessian") -> LayerBlock:
    """The exact curvature block of one layer's weight as an operator, for layers of any width."""
    return layer_operators(problem, [name], kind)[name]


def layer_operators(
    problem: Problem, names: list[str], kind: Kind = "hessian"
) -> dict[str, LayerBlock]:
    """The same for several layers from one pass over the data."""
    chosen = [layer(problem, name) for name in names]
    wrong = [at.name for at in chosen if not isinstance(at, MatrixLayer)]
    if wrong:
        raise InputError(f"layer {wrong[0]!r} is no dense or convolutional layer")
    parts: dict[str, list[Factors]] = {name: [] for name in names}
    held = 0
    for found in factors(problem, chosen, kind):
        for name, part in found.items():
            parts[name].append(part)
            held += sum(t.nbytes for t in (part.x, part.J, part.A))
        if held > problem.memory:
            raise InputError(
                f"the factors of layer {', '.join(map(repr, names))} do not fit the memory budget "
                f"of {problem.memory / 2**20:,.0f} MiB; pass Problem(memory=...) with more, or use "
                f"hessian(problem, {chosen[0].weight_name!r})"
            )
    return {
        at.name: LayerBlock(problem, at, parts[at.name], kind)
        for at in chosen
        if isinstance(at, MatrixLayer)
    }
