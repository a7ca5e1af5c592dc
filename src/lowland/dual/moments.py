"""Statistics over pairs of dual shifts and effective gradients, along directions and in all."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.curvature import eigsh, rounding
from lowland.dual.shifts import Shifts

# Components of all pairs held at once: 256 MiB in float64.
_COMPONENTS = 1 << 25


@dataclass(frozen=True)
class Moments:
    """Means, spreads and correlations of ``dW_k`` and ``g_k = ratio_k dW_k`` over K pairs."""

    mu_w: Tensor  # along each direction, (n,), as all down to c
    mu_g: Tensor
    sigma_w: Tensor
    sigma_g: Tensor
    contribution: Tensor  # Eq. 10 without its denominator
    c: Tensor  # correlation of the two; 0 where a spread is rounding
    mean_w: Tensor  # the mean shift itself, (M,)
    mean_g: Tensor
    components: Tensor | None  # of the shifts, (K, n), if all fit at once
    total_w: float  # the variance in all directions together (Eq. 12), without any of them
    total_g: float

    def directions(self) -> dict[str, Tensor]:
        """The statistics along each direction."""
        return {name: getattr(self, name) for name in ("mu_w", "mu_g", "sigma_w", "sigma_g", "c")}


def moments(shifts: Shifts, ratio: Tensor, E: Tensor) -> Moments:
    """Project every dual shift on the columns of E, some directions at a time, and sum up."""
    K = len(shifts)
    columns = []
    blocks = E.split(max(1, _COMPONENTS // K), dim=1)
    for some in blocks:
        w = shifts.components(some)  # (K, n)
        w2 = w.square()
        weights = torch.stack([torch.ones_like(ratio), ratio, ratio.square()])
        (mu_w, mu_g, _), (ww, gw, gg) = weights @ w / K, weights @ w2 / K
        columns.append(torch.stack([mu_w, mu_g, ww, gg, gw]))
    mu_w, mu_g, ww, gg, gw = torch.cat(columns, dim=1)
    sigma_w = (ww - mu_w.square()).clamp_min(0).sqrt()
    sigma_g = (gg - mu_g.square()).clamp_min(0).sqrt()
    contribution = gw - mu_g * mu_w
    c = (contribution / (sigma_g * sigma_w)).clamp(-1, 1)
    # A projection errs by the rounding of the whole shift, and a variance by that of the mean
    # square; of a spread within either, c is undefined.
    eps = rounding(w.dtype)
    whole_w, whole_g = ((weight * shifts.size).mean() for weight in (1, ratio.square()))
    defined = (sigma_w.square() > eps * ww) & (sigma_w > eps * whole_w.sqrt())
    defined &= (sigma_g.square() > eps * gg) & (sigma_g > eps * whole_g.sqrt())
    mean_w = shifts.weighted_sum(torch.full_like(ratio, 1 / K))
    mean_g = shifts.weighted_sum(ratio / K)
    return Moments(
        mu_w=mu_w,
        mu_g=mu_g,
        sigma_w=sigma_w,
        sigma_g=sigma_g,
        contribution=contribution,
        c=torch.where(defined, c, 0),
        mean_w=mean_w,
        mean_g=mean_g,
        components=w if len(blocks) == 1 else None,
        # one pair has no variance, and rounding must not make it negative
        total_w=max(float(shifts.size.mean() - mean_w @ mean_w), 0.0),
        total_g=max(float((ratio.square() * shifts.size).mean() - mean_g @ mean_g), 0.0),
    )


@dataclass(frozen=True)
class _GradientProducts:
    """Inner products of the centred gradients outside of some directions, (K, K), as an operator.

    Its eigenvalues are those of their covariance, and its vectors have an entry for each pair.
    """

    shifts: Shifts
    ratio: Tensor
    listed: Tensor  # (M, n), orthonormal

    @property
    def size(self) -> int:
        return len(self.ratio)

    @property
    def dtype(self) -> torch.dtype:
        return self.listed.dtype

    @property
    def device(self) -> torch.device:
        return self.listed.device

    def __matmul__(self, V: Tensor) -> Tensor:
        return torch.stack([self._times(v) for v in V.reshape(self.size, -1).unbind(1)], 1).view(
            V.shape
        )

    def _times(self, v: Tensor) -> Tensor:
        outside = self.shifts.weighted_sum(self.ratio * (v - v.mean()) / len(v))
        outside -= self.listed @ (self.listed.T @ outside)
        along = self.ratio * self.shifts.dot(outside)
        return along - along.mean()


def unseen_sigma_g(shifts: Shifts, ratio: Tensor, listed: Tensor) -> float:
    """The largest ``sigma_g`` that any direction orthogonal to the ``listed`` ones can have."""
    sharpest = eigsh(_GradientProducts(shifts, ratio, listed), 1, which="largest", tol=1e-3)
    return float((sharpest.values[0] + sharpest.residuals[0]).clamp_min(0).sqrt())
