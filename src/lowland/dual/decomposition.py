"""Activity-weight duality: the generalisation gap over Hessian eigen-directions.

Y. Feng, W. Zhang and Y. Tu, Nature Machine Intelligence 5, 908-918 (2023); Feng & Tu, 2022. A test
sample that differs from a training sample by ``dx`` in a layer's inputs acts on the network as the
training sample would if the layer's weight were shifted by

    dW = (W dx) x^T / |x|^2                                                        (Eq. 6)

so differences between data become shifts in weight space, where the loss landscape is.
"""

import time
from dataclasses import asdict, dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from lowland.curvature.exact import layer_hessian
from lowland.curvature.layers import Layer, layer
from lowland.dual.activity import activities, losses_with_outputs
from lowland.dual.pairing import nearest_same_label
from lowland.errors import InputError
from lowland.problem import Problem

N_SHARP = 10  # the paper's n_s, where its sharpness spectrum falls steepest

# Dual shifts held at once: 256 MiB in float64.
_SHIFTS = 1 << 25


@dataclass(frozen=True)
class Decomposition:
    """The generalisation gap of one layer, split over directions of its weight space.

    Per-direction fields are arrays ordered by decreasing ``sigma_g``. Means and standard deviations
    are over the ``pairs`` of a test sample and its training partner that have a dual shift; the
    ``excluded`` others (``x = 0``, or no shift) are left out of every sum.
    """

    layer: str
    gap: float  # mean test loss - mean train loss
    paired_gap: float  # mean over pairs of dl_k = l(test sample) - l(its partner)
    eq9: float  # sum_n c sigma_g sigma_w + mu_g mu_w: the paired gap again
    eq11: float  # the same without the means
    sharp: float  # the part of eq11 in the n_sharp sharpest directions
    flat: float  # the rest
    n_sharp: int
    weight_norm: float
    total_w: float  # T_w = sum_n sigma_w^2 (Eq. 12)
    total_g: float  # T_g = sum_n sigma_g^2
    pairs: int
    excluded: int
    excluded_gap: float  # what the excluded pairs carry: the sum of their dl_k over all pairs
    duality_residual: float  # largest |dW x - W dx| / |W dx|
    loss_defect: float  # mean |l(w + dW, x) - l(w, x')|, as a share of mean |dl|
    seconds: float
    sigma_g: np.ndarray
    sigma_w: np.ndarray
    c: np.ndarray  # 0 where a sigma is 0: such a direction contributes nothing
    mu_g: np.ndarray
    mu_w: np.ndarray
    contribution: np.ndarray  # c sigma_g sigma_w
    eigenvalue: np.ndarray

    def __repr__(self) -> str:
        return (
            f"Decomposition(layer={self.layer!r}, paired_gap={self.paired_gap:.4g}, "
            f"sharp={self.sharp:.4g} in {self.n_sharp} of {len(self.sigma_g)} directions, "
            f"flat={self.flat:.4g}, pairs={self.pairs}, excluded={self.excluded})"
        )

    def to_dict(self) -> dict[str, object]:
        """The single numbers, ready for JSON."""
        numbers = {k: v for k, v in asdict(self).items() if not isinstance(v, np.ndarray)}
        return {**numbers, "directions": len(self.sigma_g)}

    def arrays(self) -> dict[str, np.ndarray]:
        """The per-direction fields by name."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if isinstance(getattr(self, f.name), np.ndarray)
        }


def duality(problem: Problem, name: str, *, n_sharp: int | None = None) -> Decomposition:
    """Decompose the generalisation gap over the Hessian eigen-directions of one dense layer.

    Needs class labels, test data, and a layer small enough for its dense Hessian block.
    """
    began = time.perf_counter()
    at = layer(problem, name)
    M = at.weight.numel()
    if not isinstance(at.module, nn.Linear):
        raise InputError(
            f"layer {name!r} is {type(at.module).__name__}; the duality is computed for dense "
            "layers (torch.nn.Linear)"
        )
    n_sharp = min(N_SHARP, M) if n_sharp is None else n_sharp
    if not 1 <= n_sharp <= M:
        raise InputError(f"n_sharp must be between 1 and the layer's {M} weights; got {n_sharp}")

    partner = nearest_same_label(problem)
    x_train, loss_train = activities(problem, at, "train")
    x_test, loss_test = activities(problem, at, "test")
    x = x_train[partner]  # (K, in)
    dl = loss_test - loss_train[partner]  # (K,)
    W = at.weight.double()
    Wdx = (x_test - x) @ W.T  # (K, out)
    left = Wdx * reciprocal(x.square().sum(1, keepdim=True))  # dW_k = left_k x_k^T, Eq. 6
    size = left.square().sum(1) * x.square().sum(1)  # |dW_k|^2
    kept = size > 0
    if not kept.any():
        raise InputError(
            f"no test sample has a dual shift in layer {name!r}: its inputs are all zero, or equal "
            "to their partners'"
        )
    eigenvalue, E = torch.linalg.eigh(layer_hessian(problem, name))  # directions: columns of E
    g_over_w = dl * reciprocal(size)  # g_k = g_over_w_k dW_k, Eq. 7
    moments = _moments(left[kept], x[kept], g_over_w[kept], E)
    order = moments.sigma_g.argsort(descending=True)
    sharp, flat = (
        float(part.sum()) for part in moments.contribution[order].tensor_split([n_sharp])
    )
    return Decomposition(
        layer=name,
        gap=float(loss_test.mean() - loss_train.mean()),
        paired_gap=float(dl[kept].mean()),
        eq9=sharp + flat + float((moments.mu_g * moments.mu_w).sum()),
        eq11=sharp + flat,
        sharp=sharp,
        flat=flat,
        n_sharp=n_sharp,
        weight_norm=float(W.norm()),
        total_w=float(moments.sigma_w.square().sum()),
        total_g=float(moments.sigma_g.square().sum()),
        pairs=int(kept.sum()),
        excluded=int((~kept).sum()),
        excluded_gap=float(dl[~kept].sum() / len(dl)),
        duality_residual=_duality_residual(left[kept], x[kept], Wdx[kept]),
        loss_defect=_loss_defect(problem, at, partner, left, x, loss_test, dl, kept),
        seconds=time.perf_counter() - began,
        **{
            key: value[order].cpu().numpy()
            for key, value in {**asdict(moments), "eigenvalue": eigenvalue}.items()
        },
    )


@dataclass(frozen=True)
class _Moments:
    """Statistics over pairs of the components of dW_k and g_k along each direction, (n,) each."""

    mu_w: Tensor
    mu_g: Tensor
    sigma_w: Tensor
    sigma_g: Tensor
    contribution: Tensor
    c: Tensor


def _moments(left: Tensor, x: Tensor, g_over_w: Tensor, E: Tensor) -> _Moments:
    """Project every dual shift on the columns of E, some pairs at a time, and sum up."""
    K, (M, n) = len(x), E.shape
    sums = torch.zeros(5, n, dtype=E.dtype, device=E.device)
    for some in torch.arange(K, device=x.device).split(max(1, _SHIFTS // M)):
        w = torch.einsum("ko,ki->koi", left[some], x[some]).flatten(1) @ E  # (k, n)
        r = g_over_w[some]
        w2 = w.square()
        sums += torch.stack([w.sum(0), r @ w, w2.sum(0), r.square() @ w2, r @ w2])
    mu_w, mu_g, ww, gg, gw = sums / K
    sigma_w = (ww - mu_w.square()).clamp_min(0).sqrt()
    sigma_g = (gg - mu_g.square()).clamp_min(0).sqrt()
    contribution = gw - mu_g * mu_w  # Eq. 10 without its denominator
    return _Moments(
        mu_w, mu_g, sigma_w, sigma_g, contribution, contribution * reciprocal(sigma_g * sigma_w)
    )


def reciprocal(t: Tensor) -> Tensor:
    """1/t, and 0 where t is 0: what has no size has no share."""
    return torch.where(t == 0, 0, 1 / torch.where(t == 0, 1, t))


def _duality_residual(left: Tensor, x: Tensor, Wdx: Tensor) -> float:
    """The largest ``|dW x - W dx| / |W dx|`` (Eq. 2): rounding, for a dense layer."""
    dWx = left * torch.einsum("ki,ki->k", x, x).unsqueeze(1)
    return float(((dWx - Wdx).norm(dim=1) / Wdx.norm(dim=1)).max())


def _loss_defect(
    problem: Problem,
    at: Layer,
    partner: Tensor,
    left: Tensor,
    x: Tensor,
    loss_test: Tensor,
    dl: Tensor,
    kept: Tensor,
) -> float:
    """How far ``l(w + dW_k, x_k)`` is from ``l(w, x'_k)`` (Eq. 1), run through the real model.

    It vanishes when the loss sees a sample only through this layer; a path around the layer, as in
    a residual network, makes a defect. The mean absolute defect over the mean absolute dl.
    """
    bias = at.module.bias
    a = x @ at.weight.double().T + left * x.square().sum(1, keepdim=True)  # (W + dW) x
    if isinstance(bias, Tensor):
        a = a + bias.detach().double()
    replayed = losses_with_outputs(problem, at, partner[kept.to(partner.device)], a[kept])
    scale = dl[kept].abs().mean()
    return float((replayed - loss_test[kept]).abs().mean() * reciprocal(scale))
