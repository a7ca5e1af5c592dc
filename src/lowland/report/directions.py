"""Figures over the directions of one layer, in the order of decreasing sharpness."""

from collections.abc import Callable

import numpy as np

from lowland.findings import Decomposition
from lowland.report import axes
from lowland.report.axes import FLAT, MEAN, NEUTRAL, SHARP, Plot, Vector
from lowland.report.traces import (
    Figure,
    drawable,
    left_out,
    off_the_axis,
    part_of,
    sharp_and_flat,
    trace,
)


def cumulative(title: str, duality: Decomposition) -> Figure:
    """Draw the contributions of Eq. 11 added up from the sharpest direction on."""
    contribution = duality.contribution
    n, n_sharp = len(contribution), duality.n_sharp
    total = np.cumsum(np.where(np.isfinite(contribution), contribution, 0.0))
    caption = (
        "Contributions added up from the sharpest direction on: a curve that rises early says "
        "that a few sharp directions carry the gap, one that rises late that many flat ones do."
    )
    data = []
    for name, part, colour in sharp_and_flat(n, n_sharp, overlap=True):
        line = {"x": axes.values(part + 1), "y": axes.values(total[part]), "name": name}
        fill = {"fill": "tozeroy", "fillcolor": colour.replace(")", "-fill)")}
        look = {"mode": "lines", "line": {"color": colour, "width": 2.5}}
        data.append(trace(**line, **fill, **look, hover="up to n = %{x}: %{y:.4g}"))
    layout = axes.layout(
        axes.rank_axis(n),
        axes.linear_axis("part of the gap from directions 1 to n"),
        **axes.boundary(n_sharp, n),
    )
    undefined = int(np.sum(~np.isfinite(contribution)))
    caption += left_out(undefined, "without a defined contribution", "counted as zero")
    caption += part_of(duality)
    return Figure("cumulative", title, caption, ("contribution", "n_sharp"), data, layout)


def spectrum(title: str, duality: Decomposition) -> Figure:
    """Draw σ_g against rank, as in the paper's Fig. 3A."""
    sigma_g = duality.sigma_g
    n, n_sharp = len(sigma_g), duality.n_sharp
    caption = (
        "How strongly the loss reacts in each direction: a steep drop, where there is one, "
        "separates a few sharp directions from many flat ones."
    )
    if not drawable(sigma_g):
        return Figure("spectrum", title, "Not drawn: every σ_{g,n} is zero or not defined.")
    data = []
    for name, part, colour in sharp_and_flat(n, n_sharp):
        points = {"x": axes.values(part + 1), "y": axes.values(sigma_g[part], positive=True)}
        look = {"mode": "markers", "marker": {"color": colour, "size": 7 if colour == SHARP else 4}}
        data.append(trace(**points, **look, name=name, hover="n = %{x}: σ = %{y:.3g}"))
    layout = axes.layout(
        axes.rank_axis(n),
        axes.log_axis("σ<sub>g,n</sub>  (loss per unit of weight)", sigma_g),
        **axes.boundary(n_sharp, n),
    )
    caption += off_the_axis(sigma_g) + part_of(duality)
    return Figure("spectrum", title, caption, ("sigma_g", "n_sharp"), data, layout)


def size(title: str, duality: Decomposition) -> Figure:
    """Draw S_w,n against rank, as in the paper's Fig. 3B."""
    sigma_w = duality.sigma_w
    n, n_sharp = len(sigma_w), duality.n_sharp
    total = np.cumsum(np.where(np.isfinite(sigma_w), sigma_w, 0.0))
    caption = (
        "How far new data move the weights, summed over the directions up to n: a smaller "
        "solution lowers this curve, and slope one means that no direction is preferred."
    )
    if not drawable(total):
        return Figure("size", title, "Not drawn: every σ_{w,n} is zero or not defined.")
    data = []
    for name, part, colour in sharp_and_flat(n, n_sharp, overlap=True):
        points = {"x": axes.values(part + 1), "y": axes.values(total[part], positive=True)}
        look = {"mode": "lines", "line": {"color": colour, "width": 2.5}}
        data.append(trace(**points, **look, name=name, hover="up to n = %{x}: %{y:.4g}"))
    layout = axes.layout(
        axes.rank_axis(n),
        axes.log_axis("S<sub>w,n</sub>  (in units of weight)", total),
        **axes.boundary(n_sharp, n),
    )
    return Figure("size", title, caption + part_of(duality), ("s_w", "sigma_w"), data, layout)


def curvature(title: str, duality: Decomposition) -> Figure:
    """Draw H_n against σ_g,n², as in the paper's Fig. 2A, where both are positive."""
    sigma_g, eigenvalue = duality.sigma_g, duality.eigenvalue
    squared, n_sharp = sigma_g**2, duality.n_sharp
    both = np.isfinite(squared) & (squared > 0) & np.isfinite(eigenvalue) & (eigenvalue > 0)
    if not both.any():
        return Figure("curvature", title, "Not drawn: no direction has H_{n} > 0 and σ_{g,n} > 0.")
    caption = (
        "Each point is a direction: where the points follow the dotted line of slope one, σ_{g,n} "
        "measures the same sharpness as curvature, which the paper finds for the largest values."
    )
    data = _points(n_sharp, both, squared, eigenvalue, "H")
    # Through the middle of the sharpest directions: where the paper finds H_n ∝ σ_g,n².
    sharpest = np.flatnonzero(both)[: max(n_sharp, 1)]
    ratio = float(np.median(eigenvalue[sharpest] / squared[sharpest]))
    data.append(_slope_one(squared[both], ratio))
    matrix = {"hessian": "Hessian", "ggn": "GGN", "fisher": "Fisher matrix"}[duality.setting.basis]
    layout = axes.layout(
        axes.log_axis("σ<sub>g,n</sub><sup>2</sup>", squared[both]),
        axes.log_axis(f"H<sub>n</sub>, eigenvalue of the {matrix}", eigenvalue[both]),
    )
    caption += left_out(int(np.sum(~both)), "with H_{n} ≤ 0 or σ_{g,n} = 0", "left out")
    return Figure("curvature", title, caption, ("eigenvalue", "sigma_g"), data, layout)


def leading_order(title: str, duality: Decomposition) -> Figure | None:
    """Draw the mean square of the gradients of single losses against σ_g,n²."""
    if duality.approximations is None:
        return None
    sigma_g, square = duality.sigma_g, duality.approximations.gradient_square
    squared = sigma_g**2
    both = np.isfinite(square) & (square > 0) & (squared > 0)
    if not both.any():
        return Figure("leading-order", title, "Not drawn: no gradient has a size.")
    caption = (
        "The gradient of the training sample's own loss, which the supplement takes for the "
        "effective one to leading order: on the dotted line, where they are equal, it may be."
    )
    data = [
        *_points(duality.n_sharp, both, squared, square, "⟨(∂l/∂w)²⟩"),
        _slope_one(squared[both], 1.0),
    ]
    layout = axes.layout(
        axes.log_axis("σ<sub>g,n</sub><sup>2</sup>", squared[both]),
        axes.log_axis("⟨(∂l<sub>k</sub>/∂w<sub>n</sub>)<sup>2</sup>⟩", square[both]),
    )
    caption += left_out(int(np.sum(~both)), "without a gradient", "left out")
    terms = ("gradient_square", "sigma_g")
    return Figure("leading-order", title, caption, terms, data, layout)


def _points(n_sharp: int, shown: np.ndarray, x: Vector, y: Vector, of: str) -> list[Plot]:
    """A point for each direction that is shown, with its rank."""
    data = []
    for name, part, colour in sharp_and_flat(len(x), n_sharp):
        part = part[shown[part]]
        points = {"x": axes.values(x[part]), "y": axes.values(y[part])}
        size = 8 if colour == SHARP else 4
        look = {"mode": "markers", "marker": {"color": colour, "size": size, "opacity": 0.75}}
        ranks = {"customdata": axes.values(part + 1)}
        hover = f"n = %{{customdata}}: σ² = %{{x:.3g}}, {of} = %{{y:.3g}}"
        data.append(trace(**points, **look, **ranks, name=name, hover=hover))
    return data


def _slope_one(x: Vector, ratio: float) -> Plot:
    """The dotted line on which y is a multiple of x."""
    ends = np.array([x.min(), x.max()])
    guide = {"x": axes.values(ends), "y": axes.values(ratio * ends)}
    dotted = {"mode": "lines", "line": {"color": NEUTRAL, "width": 1.5, "dash": "dot"}}
    return trace(**guide, **dotted, name="slope one", hover=None)


def correlation(title: str, duality: Decomposition) -> Figure:
    """Draw c_n against rank, as in the paper's Fig. S2."""
    c = duality.c
    n, n_sharp = len(c), duality.n_sharp
    caption = (
        "How closely a large shift and a large gradient go together in each direction; the paper "
        "finds that this hardly depends on the direction, except for the flattest ones."
    )
    data = []
    for name, part, colour in sharp_and_flat(n, n_sharp):
        points = {"x": axes.values(part + 1), "y": axes.values(c[part])}
        look = {"mode": "markers", "marker": {"color": colour, "size": 7 if colour == SHARP else 4}}
        data.append(trace(**points, **look, name=name, hover="n = %{x}: c = %{y:.3g}"))
    layout = axes.layout(
        axes.rank_axis(n), axes.linear_axis("c<sub>n</sub>"), **axes.boundary(n_sharp, n)
    )
    return Figure("correlation", title, caption + part_of(duality), ("c",), data, layout)


def means(title: str, duality: Decomposition) -> Figure:
    """Draw |μ|/σ against rank for gradients and shifts, as in the paper's Fig. S1."""
    n, n_sharp = len(duality.mu_g), duality.n_sharp
    caption = (
        "The means against the standard deviations: the sum without means (Eq. 11) stands for the "
        "gap as far as these ratios lie below one."
    )
    drawn = axes.ranks(n)
    data, ratios = [], []
    for name, mu, sigma, colour in (
        ("gradient", duality.mu_g, duality.sigma_g, SHARP),
        ("shift", duality.mu_w, duality.sigma_w, FLAT),
    ):
        ratio = np.divide(np.abs(mu), sigma, out=np.zeros_like(mu), where=sigma > 0)
        ratios.append(ratio)
        points = {"x": axes.values(drawn + 1), "y": axes.values(ratio[drawn], positive=True)}
        look = {"mode": "markers", "marker": {"color": colour, "size": 4}}
        data.append(trace(**points, **look, name=name, hover=f"{name}, n = %{{x}}: %{{y:.3g}}"))
    if not drawable(np.concatenate(ratios)):
        return Figure("means", title, "Not drawn: every mean is zero.")
    layout = axes.layout(
        axes.rank_axis(n),
        axes.log_axis("|μ<sub>n</sub>| / σ<sub>n</sub>", np.concatenate(ratios)),
        **axes.boundary(n_sharp, n),
        **axes.legend(),
    )
    terms = ("mean_term", "sigma_g", "sigma_w")
    return Figure("means", title, caption + part_of(duality), terms, data, layout)


def expansion(title: str, duality: Decomposition) -> Figure | None:
    """Draw Eq. 11 beside the supplement's successive approximations, each added up over ranks."""
    terms = duality.approximations
    if terms is None:
        return None
    contribution = duality.contribution
    n = len(contribution)
    drawn = axes.ranks(n)
    data = []
    for name, each, colour, dash in (
        ("Eq. 11", contribution, NEUTRAL, "solid"),
        ("Eq. 13", terms.finite, SHARP, "solid"),
        ("Eq. 16", terms.alone, FLAT, "solid"),
        ("Eq. 17", terms.linear, MEAN, "dot"),
    ):
        total = np.cumsum(np.where(np.isfinite(each), each, 0.0))
        points = {"x": axes.values(drawn + 1), "y": axes.values(total[drawn])}
        look = {"mode": "lines", "line": {"color": colour, "width": 2, "dash": dash}}
        data.append(trace(**points, **look, name=name, hover=f"{name}: %{{y:.4g}}"))
    caption = (
        "The gap added up over directions by effective gradients (Eq. 11), one direction after the "
        "other (13), each alone (16) and linearly (17): where the last two stay far below, the "
        "loss is not a sum of separate, let alone linear, effects of the directions."
    )
    layout = axes.layout(
        axes.rank_axis(n),
        axes.linear_axis("part of the gap from 1 to n"),
        **axes.boundary(duality.n_sharp, n),
        **axes.legend(),
    )
    glossary = ("finite", "alone", "linear")
    return Figure("expansion", title, caption + part_of(duality), glossary, data, layout)


def width(title: str, duality: Decomposition) -> Figure | None:
    """Draw F_n against σ_g,n², as in the paper's Fig. S4, by both definitions."""
    if duality.widths is None:
        return None
    flatness, flatness_e = duality.widths.flatness, duality.widths.flatness_e
    sigma_g = duality.sigma_g
    squared = sigma_g**2
    both = np.isfinite(flatness) & (squared > 0)
    if not both.any():
        return Figure("width", title, "Not drawn: the loss grows along no direction.")
    caption = (
        "How far the weights may move along each direction before the training loss doubles (grey: "
        "grows by a factor of e): points that fall from left to right say that σ_{g,n} measures "
        "the landscape's sharpness."
    )
    wider = np.isfinite(flatness_e) & both
    points = {"x": axes.values(squared[wider]), "y": axes.values(flatness_e[wider])}
    look = {"mode": "markers", "marker": {"color": NEUTRAL, "size": 3}}
    by_e = trace(**points, **look, name="factor e", hover="F = %{y:.3g} by a factor of e")
    data = [by_e, *_points(duality.n_sharp, both, squared, flatness, "F")]
    layout = axes.layout(
        axes.log_axis("σ<sub>g,n</sub><sup>2</sup>", squared[both]),
        axes.log_axis("F<sub>n</sub>, width", np.concatenate([flatness[both], flatness_e[wider]])),
    )
    why = "whose width was not computed or is infinite"
    caption += left_out(int(np.sum(~both)), why, "left out")
    return Figure("width", title, caption, ("flatness", "sigma_g"), data, layout)


# What is drawn, in the order in which it is read.
OVER_DIRECTIONS: tuple[tuple[Callable[[str, Decomposition], Figure | None], str], ...] = (
    (cumulative, "Where the gap builds up"),
    (spectrum, "Sharpness of each direction"),
    (size, "Size of the solution"),
    (curvature, "Sharpness against curvature"),
    (width, "Sharpness against width"),
    (correlation, "Correlation of sharpness and size"),
    (means, "Means against spreads"),
    (expansion, "Four ways to add up the gap"),
    (leading_order, "Sharpness to leading order"),
)
