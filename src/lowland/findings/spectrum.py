"""The eigenvalues of the whole network's Hessian, as the measures' one spectral pass found them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lowland.errors import InputError
from lowland.figures import draw_density, drawn_on, picture


class LeadingEigenvalues(NamedTuple):
    """Eigenvalues with the distances within which the matrix has one of each."""

    values: np.ndarray
    residuals: np.ndarray


@dataclass(frozen=True)
class WholeSpectrum:
    """All eigenvalues, or nodes of a quadrature that each stand for a share of them."""

    size: int  # how many eigenvalues there are: one for each weight
    samples: int  # of the training data that the Hessian is of
    exact: bool  # whether the nodes are all the eigenvalues
    method: str
    products: int  # of the Hessian with a vector
    floor: float  # below this magnitude an eigenvalue may be nothing but rounding
    nodes: np.ndarray  # (k,), ascending
    weights: np.ndarray  # (k,), the share of the eigenvalues at each node; in all 1
    residuals: np.ndarray  # (k,), an eigenvalue lies within this distance of each node
    single: np.ndarray  # (k,), whether the node is known to be exactly one eigenvalue
    grid: np.ndarray  # (points,), eigenvalues at which the density is given
    density: np.ndarray  # (points,), share of the eigenvalues per unit of their value
    stderr: np.ndarray  # (points,), of the density
    bandwidth: float  # standard deviation of the Gaussian that smooths the density

    def __post_init__(self) -> None:
        for names in (("nodes", "weights", "residuals", "single"), ("grid", "density", "stderr")):
            shapes = {name: getattr(self, name).shape for name in names}
            if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
                raise InputError(f"the arrays must be vectors of one length; they are {shapes}")

    def leading(self, count: int = 10) -> LeadingEigenvalues:
        """The largest eigenvalues, as far down as they are known one by one."""
        sure = (self.single & (self.nodes > self.floor))[::-1][:count]
        known = len(sure) if sure.all() else int(sure.argmin())
        return LeadingEigenvalues(self.nodes[::-1][:known], self.residuals[::-1][:known])

    def __repr__(self) -> str:
        low, high = float(self.nodes.min()), float(self.nodes.max())
        how = "all of them" if self.exact else f"{len(self.nodes)} nodes"
        return f"WholeSpectrum({self.size:,} eigenvalues in [{low:.4g}, {high:.4g}], {how})"

    def plot(self, ax: Any = None) -> Any:
        """Draw the density with two standard errors on matplotlib axes."""
        return drawn_on(draw_density, self, ax)

    def _repr_html_(self) -> str:
        return picture(draw_density, self)
