"""The smallest sum of two matrices over opposite rescalings of their rows and columns.

Eq. 17 of Tsuzuku et al. (lambda = 1/2) asks for the following, with h the
Hessian's diagonal and w the squared weights:

    inf  sum_ij h_ij u_i v_j + w_ij / (u_i v_j)    over u, v > 0

In x_i = ln u_i and z_j = -ln v_j each term is an exponential of a difference: h_ij weighs an edge
z_j -> x_i of a directed graph, w_ij an edge x_i -> z_j. So this is the balancing of a matrix
(Osborne, J. ACM 7, 1960). An edge on no cycle costs nothing, because what lies before it and what
lies after it can be moved apart for ever; the infimum is then not attained. What remains are the
strongly connected parts of the graph, and there a minimum exists, where in- and outflow of every
node are equal: both halves of the sum agree row by row and column by column.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor


@dataclass(frozen=True)
class Balanced:
    """The infimum, and the variances ``u_i v_j`` that attain it wherever ``kept``."""

    value: float
    u: Tensor  # (rows,), 1 where nothing is kept
    v: Tensor  # (columns,)
    kept: Tensor  # (rows, columns); entries elsewhere cost nothing in the limit
    converged: bool


def balance(h: Tensor, w: Tensor, *, tol: float = 1e-12, sweeps: int = 10_000) -> Balanced:
    """The infimum, by alternating the best u for v with the best v for u, both in closed form.

    It stops when the halves differ, summed over rows, by less than ``tol`` of the whole; after
    each sweep the columns agree by construction. Rows of zeros contribute 0, without an epsilon.

    >>> h, w = torch.tensor([[4.0, 0.0]]), torch.tensor([[9.0, 1.0]])
    >>> balance(h, w).value  # 2 sqrt(4 * 9); the second column has no curvature
    12.0
    """
    h, w = h.double(), w.double()
    kept = _on_cycles(h > 0, w > 0)
    rows, columns = kept.any(1), kept.any(0)
    u, v = h.new_ones(len(rows)), h.new_ones(len(columns))
    if not kept.any():
        return Balanced(0.0, u, v, kept, True)
    h, w = ((t * kept)[rows][:, columns] for t in (h, w))
    y = (w.sum(0) / h.sum(0)).sqrt()
    rising, falling = h @ y, w @ y.reciprocal()
    for _ in range(sweeps):
        x = (falling / rising).sqrt()
        y = ((x.reciprocal() @ w) / (x @ h)).sqrt()
        rising, falling = h @ y, w @ y.reciprocal()
        up, down = x * rising, falling / x
        value = float(up.sum() + down.sum())
        converged = float((up - down).abs().sum()) <= tol * value
        if converged:
            break
    u[rows], v[columns] = x, y
    return Balanced(value, u, v, kept, converged)


def _on_cycles(h: Tensor, w: Tensor) -> Tensor:
    """Which pairs of a row and a column lie in one strongly connected part, (rows, columns)."""
    rows, columns = h.any(1) & w.any(1), h.any(0) & w.any(0)
    if (h & w)[rows][:, columns].all():  # the usual case: nothing is zero but whole rows or columns
        return rows.unsqueeze(1) & columns
    n = len(h)
    (i, j), (k, m) = (np.nonzero(t.cpu().numpy()) for t in (w, h))
    ends = np.concatenate([i, n + m]), np.concatenate([n + j, k])
    size = sum(h.shape)
    graph = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(size, size))
    part = torch.from_numpy(connected_components(graph, connection="strong")[1]).to(h.device)
    return part[:n].unsqueeze(1) == part[n:]
