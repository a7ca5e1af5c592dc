"""Panels of a figure: each computes its curves from the runs, and then draws them.

Error bars and bands are standard deviations over realisations, as in the papers.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowland.errors import InputError
from lowland_studies.evidence import Column, Runs, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Okabe and Ito's colours, which every kind of sight tells apart, without the pale yellow.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "osD^vP*"
_LINES = ("-", "--", ":", "-.")  # with every other mark hollow: curves that coincide can be seen
_SYMBOLS = {
    "learning_rate": "learning rate $\\alpha$",
    "batch_size": "batch size $B$",
    "decay": "decay rate $\\beta$",
    "init_scale": "initial scale $s$",
    "dropout": "dropout $d$",
    "label_noise": "random labels $\\rho$",
    "per_class": "samples per class $N$",
    "learning_rate_over_batch": "$\\alpha / B$",
    "alpha": "$\\alpha$",
    "beta": "$\\beta$",
    "rho": "$\\rho$",
    "varied": "what varies",
}
_DECADES = 4  # of a spectrum: below them is rounding noise, or next to nothing
_ROUNDING = 1e-16  # of the largest number on a logarithmic axis: what lies below is not drawn
_POINTS = 250
_MANY = 2000  # points above which a picture of them is smaller than their list


# A setting, or a function that tells what kind of run a row of the table is; None for all alike.
By = str | Callable[[dict[str, Any]], str] | None


@dataclass(frozen=True)
class Curve:
    """Points of one colour, as they are drawn: NaN in ``sd`` for a single run."""

    label: str
    x: np.ndarray
    y: np.ndarray
    sd: np.ndarray
    runs: np.ndarray  # behind each point
    seeds: np.ndarray | None = None  # of each point, where it is a single run


@dataclass(frozen=True)
class Against:
    """Columns against a setting: means over realisations with their standard deviation."""

    key: str
    columns: Mapping[str, Column]  # by label
    ylabel: str
    log: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    left_out: bool = False  # whether runs are shown from which nothing else is concluded

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the x and the y axis."""
        return _words(self.key), self.ylabel

    def curves(self, runs: Runs) -> list[Curve]:
        """A curve for each column."""
        shown = runs.with_left_out() if self.left_out else runs
        parts = shown.where(**self.where).by(self.key)
        curves = []
        for label, column in self.columns.items():
            numbers = [part.column(column) for part in parts.values()]
            curves.append(_means(label, np.array(list(parts), dtype=float), numbers))
        return curves

    def draw(self, ax: "Axes", curves: list[Curve]) -> None:
        """Draw a mark and an error bar at every value."""
        if "x" in self.log:
            _ticks_at(ax, curves[0].x)
        for i, (curve, colour) in enumerate(zip(curves, _colours(len(curves)), strict=True)):
            ax.errorbar(
                *(curve.x, curve.y, np.nan_to_num(curve.sd)),
                color=colour,
                marker=_MARKERS[i % len(_MARKERS)],
                linestyle=_LINES[i % len(_LINES)],
                markerfacecolor="none" if i % 2 else colour,
                capsize=2,
                elinewidth=0.9,
                label=curve.label,
            )
        if "y" not in self.log and not any((curve.y < 0).any() for curve in curves):
            ax.set_ylim(bottom=0)
        if len(curves) > 1:
            _beside(ax)


@dataclass(frozen=True)
class Kinds:
    """A column for each kind of run, such as each optimiser, side by side: mean and deviation."""

    key: str
    column: Column
    ylabel: str
    log: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    title: str = ""

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the x and the y axis."""
        return _words(self.key), self.ylabel

    def curves(self, runs: Runs) -> list[Curve]:
        """A curve of one point for each kind, in the order of the runs."""
        chosen = runs.where(**self.where)
        kinds = dict.fromkeys(row[self.key] for row in chosen.rows)
        return [
            _means(
                str(kind),
                np.array([float(place)]),
                [chosen.where(**{self.key: kind}).column(self.column)],
            )
            for place, kind in enumerate(kinds)
        ]

    def draw(self, ax: "Axes", curves: list[Curve]) -> None:
        """Draw a mark and an error bar above the name of every kind."""
        for curve in curves:
            spread = np.nan_to_num(curve.sd)
            ax.errorbar(curve.x, curve.y, spread, color=_COLOURS[0], marker="o", capsize=2)
        names = [curve.label.replace("_", " ") for curve in curves]
        slanted = len(names) > 3 or max(map(len, names)) > 12
        turned: Any = {"rotation": 25, "ha": "right"} if slanted else {}
        ax.set_xticks([float(curve.x[0]) for curve in curves], names, **turned)
        ax.set_xlim(-0.5, len(curves) - 0.5)
        if "y" not in self.log and not any((curve.y < 0).any() for curve in curves):
            ax.set_ylim(bottom=0)


@dataclass(frozen=True)
class Spectrum:
    """An array against the rank n, a line for each value of a setting."""

    array: Series
    by: str | None
    ylabel: str
    log: str = "xy"
    mark: int | None = None  # a rank to point at, as n_s
    where: dict[str, Any] = field(default_factory=dict)
    title: str = ""

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the x and the y axis."""
        return "$n$", self.ylabel

    def curves(self, runs: Runs) -> list[Curve]:
        """A curve for each value of the setting."""
        curves = []
        chosen = runs.where(**self.where)
        # Computed for all at once: what is drawn may be a ratio to some of them.
        rows = dict(zip((r["key"] for r in chosen.rows), chosen.array(self.array), strict=True))
        for label, part in _parts(chosen, self.by):
            arrays = np.array([rows[row["key"]] for row in part.rows])
            ranks = _ranks(arrays.shape[1], "x" in self.log)
            curves.append(_means(label, ranks + 1.0, list(arrays.T[ranks])))
        return curves

    def draw(self, ax: "Axes", curves: list[Curve]) -> None:
        """Draw lines with bands; on a logarithmic axis down to `_DECADES` below the top."""
        for curve, colour in zip(curves, _shades(len(curves)), strict=True):
            ax.plot(curve.x, curve.y, color=colour, label=curve.label)
            bottom = curve.y - curve.sd
            if "y" in self.log:  # a band that reaches 0 ends at the smallest mean
                smallest = np.min(curve.y, where=curve.y > 0, initial=np.inf)
                bottom = np.maximum(bottom, smallest)
            band = {"linewidth": 0, "alpha": 0.2, "color": colour}
            ax.fill_between(curve.x, bottom, curve.y + curve.sd, **band)
        if "y" in self.log:
            low, high = ax.get_ylim()
            ax.set_ylim(bottom=max(low, high / 10**_DECADES))
        if self.mark is not None:
            ax.axvline(self.mark, color="0.5", linewidth=0.8, linestyle=":", zorder=0)
        _legend(ax, self.by, curves)


@dataclass(frozen=True)
class Scatter:
    """Numbers of runs, or directions by the mean over realisations, against each other.

    The mean is that of the logarithms where an axis is logarithmic.
    """

    x: Column
    y: Column
    xlabel: str
    ylabel: str
    by: By = None
    log: str = ""
    line: bool = True
    where: dict[str, Any] = field(default_factory=dict)
    title: str = ""

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the x and the y axis."""
        return self.xlabel, self.ylabel

    def curves(self, runs: Runs) -> list[Curve]:
        """The points for each value of the setting."""
        curves = []
        for label, part in _parts(runs.where(**self.where), self.by):
            groups = _alike(part)
            points = [self._points(alike) for alike in groups]
            x, y, count = (np.concatenate(column) for column in zip(*points, strict=True))
            seeds = np.concatenate([alike.column("seed") for alike in groups])
            shown = np.isfinite(x) & np.isfinite(y)
            shown &= (x > 0) | ("x" not in self.log)
            shown &= (y > 0) | ("y" not in self.log)
            single = seeds[shown] if len(seeds) == len(x) and (count == 1).all() else None
            curve = Curve(label, x[shown], y[shown], x[shown] * np.nan, count[shown], single)
            curves.append(curve)
        return curves

    def _points(self, runs: Runs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The points of runs that differ only in their seeds: one per run, or one per direction."""
        x, y = _either(runs, self.x), _either(runs, self.y)
        if x.ndim != y.ndim:
            raise InputError("a scatter needs two columns, or two arrays, not one of each")
        if x.ndim == 1:
            return x, y, np.ones(len(x))
        shared = min(x.shape[1], y.shape[1])
        with np.errstate(divide="ignore", invalid="ignore"):  # what has no logarithm is not shown
            x, y = (
                np.exp(np.log(of).mean(axis=0)) if axis in self.log else of.mean(axis=0)
                for axis, of in (("x", x[:, :shared]), ("y", y[:, :shared]))
            )
        return x, y, np.full(shared, float(len(runs)))

    def draw(self, ax: "Axes", curves: list[Curve]) -> None:
        """Draw the points, and the straight line that fits them best on these axes."""
        many = sum(len(curve.x) for curve in curves) > _MANY
        small = any((curve.runs > 1).any() for curve in curves)
        colours = _colours if callable(self.by) else _shades  # of kinds, or of ordered values
        for curve, colour in zip(curves, colours(len(curves)), strict=True):
            ax.scatter(
                *(curve.x, curve.y),
                s=5 if small else 16,
                color=colour,
                alpha=0.6 if small else 0.85,
                linewidths=0,
                rasterized=many,
                label=_SYMBOLS.get(curve.label, curve.label),
            )
        for axis in self.log:
            low, high = getattr(ax, f"get_{axis}lim")()
            getattr(ax, f"set_{axis}lim")(max(low, high * _ROUNDING), high)
        if self.line:
            self._fit(ax, curves)
        _legend(ax, self.by, curves)

    def _fit(self, ax: "Axes", curves: list[Curve]) -> None:
        x, y = (np.concatenate([getattr(c, name) for c in curves]) for name in "xy")
        u, v = np.log(x) if "x" in self.log else x, np.log(y) if "y" in self.log else y
        if len(u) < 3 or u.std() == 0 or v.std() == 0:
            return
        r, slope = np.corrcoef(u, v)[0, 1], np.polyfit(u, v, 1)
        ends = np.array([u.min(), u.max()])
        fitted = np.polyval(slope, ends)
        ax.plot(
            np.exp(ends) if "x" in self.log else ends,
            np.exp(fitted) if "y" in self.log else fitted,
            color="0.25",
            linewidth=0.9,
            linestyle="--",
            zorder=0,
        )
        power = f", slope {slope[0]:.2f}" if set(self.log) == {"x", "y"} else ""
        left, low = _emptiest(ax, x, y, r)
        ax.text(
            *(0.04 if left else 0.96, 0.04 if low else 0.96),
            f"$r$ = {r:.2f}{power}",
            ha="left" if left else "right",
            va="bottom" if low else "top",
            transform=ax.transAxes,
        )


def _emptiest(ax: "Axes", x: np.ndarray, y: np.ndarray, r: float) -> tuple[bool, bool]:
    """The corner with the fewest points: whether it is at the left, and at the bottom."""
    points = ax.transAxes.inverted().transform(ax.transData.transform(np.column_stack([x, y])))
    wide, high = 0.5, 0.15  # of a text, as shares of the axes

    def crowd(corner: tuple[bool, bool]) -> int:
        left, low = corner
        across = points[:, 0] < wide if left else points[:, 0] > 1 - wide
        up = points[:, 1] < high if low else points[:, 1] > 1 - high
        return int((across & up).sum())

    beside = r > 0  # the line leaves the upper left free where it rises
    return min(
        [(beside, False), (not beside, True), (not beside, False), (beside, True)], key=crowd
    )


Panel = Against | Kinds | Spectrum | Scatter


# --- what is drawn -------------------------------------------------------------------------------


def _means(label: str, x: np.ndarray, groups: list[np.ndarray]) -> Curve:
    """The curve of mean and standard deviation of each group, without what is not finite."""
    groups = [group[np.isfinite(group)] for group in groups]
    return Curve(
        label,
        x,
        np.array([group.mean() if len(group) else np.nan for group in groups]),
        np.array([group.std(ddof=1) if len(group) > 1 else np.nan for group in groups]),
        np.array([len(group) for group in groups]),
    )


def _ranks(n: int, log: bool) -> np.ndarray:
    """The directions to draw, counted from 0; on a logarithmic axis only some, as they overlap."""
    if not log or not n:
        return np.arange(n)
    return np.unique(np.geomspace(1, n, _POINTS).round().astype(int)) - 1


def _either(runs: Runs, name: Column) -> np.ndarray:
    """A column, or an array of each run: the names of arrays have a slash."""
    is_array = isinstance(name, str) and "/" in name
    return runs.array(name) if is_array else runs.column(name)


def _parts(runs: Runs, by: By) -> Iterator[tuple[str, Runs]]:
    """The runs of each value of a setting or of each kind, with its label; without one, all."""
    if not runs.rows:
        return
    if by is None:
        yield "", runs
    elif callable(by):
        for kind in dict.fromkeys(map(by, runs.rows)):
            rows = tuple(row for row in runs.rows if by(row) == kind)
            yield kind, replace(runs, rows=rows)
    else:
        for value, part in runs.by(by).items():
            yield f"{value:g}" if isinstance(value, int | float) else str(value), part


def _alike(runs: Runs) -> list[Runs]:
    """The runs in groups that differ only in their seeds."""
    groups = [runs]
    for name in runs.varied:
        groups = [part for group in groups for part in group.by(name).values()]
    return groups


# --- how it looks --------------------------------------------------------------------------------


def _colours(n: int) -> list[Any]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(n)]


def _shades(n: int) -> list[Any]:
    """Colours for the values of a setting, which have an order."""
    from matplotlib import colormaps

    if n == 1:
        return [_COLOURS[0]]
    return list(colormaps["viridis"](np.linspace(0, 0.88, n)))


def _legend(ax: "Axes", by: By, curves: list[Curve]) -> None:
    if by is not None:
        title = by.__name__ if callable(by) else by
        _beside(ax, title=_words(title), alignment="left")


def _beside(ax: "Axes", **options: Any) -> None:
    """Put the legend to the right of the axes, where no data can be."""
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, **options)


def _ticks_at(ax: "Axes", values: np.ndarray) -> None:
    """Put ticks at the values themselves in place of powers of ten; small ones in thousandths."""
    small = values.max() < 0.01
    if small:
        ax.set_xlabel(f"{ax.get_xlabel()} [$10^{{-3}}$]")
    low, high = values.min(), values.max()
    edge = (high / low) ** 0.05 if high > low else 2
    ax.set_xlim(low / edge, high * edge)
    span, labels, last = np.log(values[-1] / values[0]), [], -math.inf
    for value in values:
        near = np.log(value) - last < 0.2 * span  # then its number would run into the one before
        labels.append("" if near else f"{value * 1000 if small else value:g}")
        last = last if near else np.log(value)
    ax.set_xticks(values, labels)
    ax.set_xticks([], minor=True)


def _words(key: str) -> str:
    return _SYMBOLS.get(key, key.replace("_", " "))
