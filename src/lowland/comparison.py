"""Two solutions on the same pairs: which is better, and is it sharpness or size?

In every direction the gap is a product, ``c_n sigma_g,n sigma_w,n``. When it changes from one
solution to another, the change is shared among the three factors by their Shapley values: each gets
its mean effect over all orders in which the factors could have been replaced, and the shares add up
to the change exactly. Nothing here needs torch.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lowland import __version__, report
from lowland.atomic import write_file
from lowland.errors import InputError
from lowland.results import Analysis

SAMPLES = 1000
LEVEL = 0.95
DETERMINANTS = ("sharpness", "size", "correlation")

# Resamples at a time: their moments along every direction are held at once.
_RESAMPLES = 50

Vector = np.ndarray


@dataclass(frozen=True)
class Comparison:
    """Two analyses side by side; every change is of the second against the first."""

    results: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def __repr__(self) -> str:
        return f"Comparison: {self.answer}"

    @property
    def answer(self) -> str:
        """What was found, in two sentences."""
        return report.compared(self.results)

    def to_html(self, path: str | Path) -> Path:
        """Write the comparison as one self-contained HTML file."""
        write_file(Path(path), report.render_comparison(self.results, self.arrays))
        return Path(path)


def compare(
    first: Analysis, second: Analysis, *, seed: int = 0, command: str | None = None
) -> Comparison:
    """Compare two analyses of one data set on the pairs that both of them explain.

    Args:
        first: what to start from.
        second: what is compared with it.
        seed: of the bootstrap over pairs that the intervals come from.
        command: for the record, what was called.
    """
    sides = [_Side.of(analysis) for analysis in (first, second)]
    _check_same_data(first, second)
    common = sorted(set(sides[0].pairs) & set(sides[1].pairs))
    if len(common) < 2:
        raise InputError(
            "the two analyses have no pairs of samples in common: they were paired by other rules "
            "or on other data; analyse both on the same data"
        )
    n = max(side.components.shape[1] for side in sides)
    both = [side.on(common, n) for side in sides]
    n_sharp = max(side.n_sharp for side in sides)
    one = np.full((1, len(common)), 1 / len(common))
    found = _changes(both, one, n_sharp)
    rng = np.random.default_rng(seed)
    drawn = [
        _changes(both, _resamples(rng, len(common), _RESAMPLES), n_sharp)
        for _ in range(SAMPLES // _RESAMPLES)
    ]
    many = {name: np.concatenate([part[name] for part in drawn]) for name in found}
    tail = 50 * (1 - LEVEL)

    def row(name: str) -> dict[str, Any]:
        low, high = np.percentile(many[name], [tail, 100 - tail])
        return {"value": float(found[name][0]), "low": float(low), "high": float(high)}

    gaps = [float(one[0] @ side.dl) for side in both]
    more = float(np.mean(np.abs(many["sharpness"]) > np.abs(many["size"])))
    results = {
        "lowland": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "subjects": [_subject(a) for a in (first, second)],
        "paired_gaps": gaps,
        "pairs": len(common),
        "n_sharp": n_sharp,
        "change": row("change"),
        "parts": {name: row(name) for name in (*DETERMINANTS, "means")},
        "within": {
            half: {name: row(f"{half} {name}") for name in DETERMINANTS}
            for half in ("sharp", "flat")
        },
        "sharpness_over_size": more,
        "layers": [side.layer for side in sides],
    }
    arrays = {
        f"{i}/{name}": analysis.arrays[f"duality/{name}"]
        for i, analysis in enumerate((first, second))
        for name in ("sigma_g", "sigma_w", "contribution")
    }
    return Comparison(results, arrays)


@dataclass(frozen=True)
class _Side:
    """What one analysis knows of its pairs."""

    layer: str
    n_sharp: int
    pairs: list[tuple[int, int]]
    dl: Vector  # (K,)
    size: Vector  # (K,), |dW_k|^2
    components: Vector  # (K, n), along the leading directions

    @classmethod
    def of(cls, analysis: Analysis) -> "_Side":
        title = analysis.results.get("subject", {}).get("title")
        duality = analysis.results.get("duality")
        arrays = {
            name: analysis.arrays.get(f"pairs/{name}")
            for name in ("train", "test", "dl", "size", "components")
        }
        missing = [name for name, value in arrays.items() if value is None]
        if duality is None or missing:
            raise InputError(
                f"the analysis of {title!r} holds no decomposition of single pairs to compare; "
                "run it again with a layer that has a dual"
            )
        known = {name: np.asarray(value) for name, value in arrays.items()}
        pairs = list(zip(known["train"].tolist(), known["test"].tolist(), strict=True))
        rest = {name: known[name].astype(float) for name in ("dl", "size", "components")}
        return cls(duality["layer"], duality["n_sharp"], pairs, **rest)

    def on(self, common: list[tuple[int, int]], n: int) -> "_Side":
        """Only the common pairs, and n directions: those that a smaller layer lacks are zero."""
        place = {pair: k for k, pair in enumerate(self.pairs)}
        at = [place[pair] for pair in common]
        padded = np.zeros((len(common), n))
        padded[:, : self.components.shape[1]] = self.components[at]
        return _Side(self.layer, self.n_sharp, common, self.dl[at], self.size[at], padded)


def _changes(both: list[_Side], share: Vector, n_sharp: int) -> dict[str, Vector]:
    """The change of the paired gap and its parts for each row of shares of pairs (b, K)."""
    before, after = (_factors(side, share) for side in both)
    parts = dict(zip(DETERMINANTS, shapley(before[:3], after[:3]), strict=True))
    sharp = slice(0, n_sharp), slice(n_sharp, None)
    return {
        "change": share @ both[1].dl - share @ both[0].dl,
        "means": after[3] - before[3],
        **{name: part.sum(1) for name, part in parts.items()},
        **{f"sharp {name}": part[:, sharp[0]].sum(1) for name, part in parts.items()},
        **{f"flat {name}": part[:, sharp[1]].sum(1) for name, part in parts.items()},
    }


def _factors(side: _Side, share: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    """``sigma_g``, ``sigma_w`` and c of each direction (b, n + 1), and the product of means (b,).

    The last column stands for all directions that were not kept: what the shifts have beside
    the kept ones, about zero instead of about its mean, so that the sum is the paired gap.
    """
    w, ratio = side.components, side.dl / side.size
    square = w**2
    rest = np.maximum(side.size - square.sum(1), 0.0)
    mu_w, mu_g = share @ w, share @ (ratio[:, None] * w)
    ww, gw, gg = (share @ (ratio[:, None] ** p * square) for p in (0, 1, 2))
    sigma_w = np.sqrt(np.maximum(ww - mu_w**2, 0))
    sigma_g = np.sqrt(np.maximum(gg - mu_g**2, 0))
    rest_w, rest_g = np.sqrt(share @ rest), np.sqrt(share @ (ratio**2 * rest))
    sigma_g, sigma_w, product = (
        np.concatenate([kept, other[:, None]], axis=1)
        for kept, other in (
            (sigma_g, rest_g),
            (sigma_w, rest_w),
            (gw - mu_g * mu_w, share @ side.dl - gw.sum(1)),
        )
    )
    size = sigma_g * sigma_w
    c = np.divide(product, size, out=np.zeros_like(size), where=size > 0)
    return sigma_g, sigma_w, c, (mu_g * mu_w).sum(1)


def shapley(
    before: tuple[Vector, Vector, Vector], after: tuple[Vector, Vector, Vector]
) -> tuple[Vector, Vector, Vector]:
    """How much of ``a' b' c' - a b c`` is due to each factor; the three add up to it.

    >>> one, two = np.array([1.0]), np.array([2.0])
    >>> [float(part[0]) for part in shapley((one, one, one), (two, one, one))]
    [1.0, 0.0, 0.0]
    """
    shares = []
    for i in range(3):
        (b0, b1), (c0, c1) = ((before[j], after[j]) for j in range(3) if j != i)
        others = (b0 * c0 + b1 * c1) / 3 + (b0 * c1 + b1 * c0) / 6
        shares.append((after[i] - before[i]) * others)
    return shares[0], shares[1], shares[2]


def _resamples(rng: np.random.Generator, K: int, count: int) -> Vector:
    return rng.multinomial(K, np.full(K, 1 / K), size=count) / K


def _check_same_data(first: Analysis, second: Analysis) -> None:
    marks = [a.results["subject"].get("fingerprint") for a in (first, second)]
    if marks[0] != marks[1]:
        names = [
            a.results["subject"].get("data") or "data given in Python" for a in (first, second)
        ]
        raise InputError(
            f"the two analyses are of different data ({names[0]}; {names[1]}); a paired comparison "
            "needs the same training and test samples"
        )


def _subject(analysis: Analysis) -> dict[str, Any]:
    results = analysis.results
    return {
        "title": results["subject"]["title"],
        "created": results["created"],
        "outcome": results["outcome"],
        **{
            key: results["duality"][key]
            for key in ("layer", "sharp", "flat", "weight_norm", "total_g", "total_w_data")
        },
    }
