"""Two solutions on the same pairs: which generalises better, and is it sharpness or size?

In every direction the gap is a product, ``c_n sigma_g,n sigma_w,n``. When it changes from one
solution to another, the change is shared among the three factors by their Shapley values: each gets
its mean effect over all orders in which the factors could have been replaced, and the shares add up
to the change exactly. Rescaling hidden units would move shares between sharpness and size without a
change of the function, so that solutions are compared with their units balanced, where they can be.
Nothing here needs torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from lowland import __version__, report
from lowland.atomic import write_page
from lowland.errors import InputError
from lowland.findings import Change, Compared, Decomposition, Differences, Part, Solution
from lowland.results import Analysis

SAMPLES = 1000
LEVEL = 0.95
DETERMINANTS = ("sharpness", "size", "correlation")

# Resamples at a time: their moments along every direction are held at once.
_RESAMPLES = 50
_FEW = 10  # samples tell nothing apart

Vector = np.ndarray


@dataclass(frozen=True)
class Comparison(Compared):
    """Two analyses side by side; every change is of the second against the first."""

    def __repr__(self) -> str:
        return f"Comparison: {self.answer}"

    @property
    def answer(self) -> str:
        """What was found: which does better on unseen data, which has the smaller gap, and why."""
        return report.compared(self.results)

    def to_html(self, path: str | Path) -> Path:
        """Write the comparison as one self-contained HTML file."""
        return write_comparisons([self], path)


def write_comparisons(comparisons: Sequence[Comparison], path: str | Path) -> Path:
    """Write comparisons with the same first solution as one self-contained HTML file."""
    write_page(Path(path), report.render_comparison(comparisons))
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
    for given in (first, second):
        if not isinstance(given, Analysis):
            raise InputError(
                f"compare takes two analyses; got {type(given).__name__}; make one of each problem "
                "on the same data: ll.compare(ll.analyze(first), ll.analyze(second))"
            )
    _check_same_data(first, second)
    splits = _comparable(first, second)
    sides = [_Side.of(split) for split in splits]
    common = sorted(set(sides[0].pairs) & set(sides[1].pairs))
    if len(common) < 2:
        raise InputError(
            "the two analyses have no pairs of samples in common: they were paired by other rules "
            "or on other data; analyse both on the same data"
        )
    n = min(side.components.shape[1] for side in sides)
    both = [side.on(common, n) for side in sides]
    n_sharp = min(n, max(split.n_sharp for split in splits))
    alike = np.full((1, len(common)), 1 / len(common))
    whole = _changes(both, alike, n_sharp)
    rng = np.random.default_rng(seed)
    drawn = [
        _changes(both, _resamples(rng, len(common), _RESAMPLES), n_sharp)
        for _ in range(SAMPLES // _RESAMPLES)
    ]
    many = {name: np.concatenate([part[name] for part in drawn]) for name in whole}
    tail = 50 * (1 - LEVEL)

    def change(name: str) -> Change:
        low, high = np.percentile(many[name], [tail, 100 - tail])
        return Change(float(whole[name][0]), float(low), float(high))

    def part(name: str) -> Part:
        split = name in DETERMINANTS
        halves = (change(f"{half} {name}") if split else None for half in ("sharp", "flat"))
        return Part(*vars(change(name)).values(), *halves)

    titles = _titles(first, second)
    unseen = first.results.unseen, second.results.unseen
    assert unseen[0] is not None  # there are pairs
    assert unseen[1] is not None
    results = Differences(
        lowland=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        gauge=splits[0].setting.gauge,
        dual=splits[0].setting.dual,
        solutions=(
            _solution(first, splits[0], titles[0]),
            _solution(second, splits[1], titles[1]),
        ),
        lower_loss=lower(unseen[0].losses, unseen[1].losses),
        lower_error=lower(unseen[0].wrong, unseen[1].wrong, least=2),
        paired_gaps=(float(alike[0] @ both[0].dl), float(alike[0] @ both[1].dl)),
        pairs=len(common),
        n_sharp=n_sharp,
        change=change("change"),
        parts={name: part(name) for name in (*DETERMINANTS, "means")},
        sharpness_over_size=float(np.mean(np.abs(many["sharpness"]) > np.abs(many["size"]))),
    )
    landscapes = [its.results.landscape for its in (first, second)]
    surfaces = [its.surface if its is not None else None for its in landscapes]
    return Comparison(results, splits, (surfaces[0], surfaces[1]))


@dataclass(frozen=True)
class _Side:
    """What one decomposition knows of its pairs."""

    pairs: list[tuple[int, int]]
    dl: Vector  # (K,)
    size: Vector  # (K,), |dW_k|^2
    components: Vector  # (K, n), along the leading directions

    @classmethod
    def of(cls, split: Decomposition) -> "_Side":
        values = split.per_pair
        assert values is not None
        pairs = zip(values.train.tolist(), values.test.tolist(), strict=True)
        size, w = values.size.astype(float), values.components.astype(float)
        if w.shape[1] == split.setting.directions:  # all, in single precision: nothing is left
            w *= np.sqrt(size / np.maximum((w**2).sum(1), 1e-300))[:, None]
        return cls(list(pairs), values.dl.astype(float), size, w)

    def on(self, common: list[tuple[int, int]], n: int) -> "_Side":
        """Only the common pairs, and the first n directions."""
        place = {pair: k for k, pair in enumerate(self.pairs)}
        chosen = [place[pair] for pair in common]
        w = self.components[chosen, :n]
        return _Side(common, self.dl[chosen], self.size[chosen], w)


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
    rest = side.size - square.sum(1)
    rest = np.where(rest > 1e-12 * side.size, rest, 0.0)
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


def lower(first: Vector | None, second: Vector | None, least: float = 0.0) -> int | None:
    """The place of the lower mean over the same samples, 0 or 1; None where chance may decide.

    That is within two standard errors of the mean difference. ``least`` is added to the sum of
    squares: wrong predictions are rare, and two samples more, one for each side, keep a handful of
    them from deciding (Agresti & Min 2005).
    """
    if first is None or second is None or len(first) < _FEW:
        return None
    change, n = second - first, len(first)
    mean = float(change.mean())
    square = (float(change @ change) + least) / n - mean**2
    if abs(mean) <= 2 * math.sqrt(max(square, 0.0) / (n - 1)):
        return None
    return 1 if mean < 0 else 0


def _comparable(first: Analysis, second: Analysis) -> tuple[Decomposition, Decomposition]:
    """One decomposition of each, made in the same way: balanced, where both of them can be."""
    results = first.results, second.results
    balanced = [its.comparable for its in results]
    chosen = balanced if None not in balanced else [its.duality for its in results]
    splits = []
    for its, split in zip(results, chosen, strict=True):
        if split is None or split.per_pair is None:
            raise InputError(
                f"the analysis of {its.subject.title!r} holds no decomposition of single pairs to "
                "compare; its notes say why: run it again with a layer that has a dual, or with a "
                "larger budget"
            )
        splits.append(split)
    kinds = [split.setting.dual for split in splits]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"one analysis has the {kinds[0]}-level dual, the other the {kinds[1]}-level one, and "
            "their parts are not comparable; analyse both with the same one (--dual output works "
            "for any network)"
        )
    for name in ("basis", "gauge", "pairing"):
        mine, yours = (getattr(split.setting, name) for split in splits)
        if mine != yours:
            raise InputError(
                f"the two analyses differ in their {name} ({mine}; {yours}); analyse both in the "
                "same way"
            )
    return splits[0], splits[1]


def _check_same_data(first: Analysis, second: Analysis) -> None:
    before, after = first.results, second.results
    if before.subject.loss != after.subject.loss:
        raise InputError(
            f"the two analyses are of different losses ({before.subject.loss}; "
            f"{after.subject.loss}), whose gaps are not comparable; analyse both with one loss"
        )
    if before.subject.fingerprint != after.subject.fingerprint:
        names = [its.origin.data or "data given in Python" for its in (before, after)]
        raise InputError(
            f"the two analyses are of different data ({names[0]}; {names[1]}); a paired comparison "
            "needs the same training and test samples"
        )


def _titles(*analyses: Analysis) -> list[str]:
    """What tells the solutions apart: their titles, or with them what else differs."""
    titles = [its.results.subject.title for its in analyses]
    origins = [its.results.origin for its in analyses]
    others = (
        [origin.checkpoint for origin in origins],
        [None if origin.seed is None else f"seed {origin.seed}" for origin in origins],
        [f"of {its.results.created}" for its in analyses],
        ["first", "second"],
    )
    for more in others if len(set(titles)) == 1 else ():
        if len(set(more)) == len(titles):
            return [f"{title} ({word or 'none'})" for title, word in zip(titles, more, strict=True)]
    return titles


def _solution(analysis: Analysis, split: Decomposition, title: str) -> Solution:
    return Solution(
        title=title,
        created=analysis.results.created,
        outcome=analysis.results.outcome,
        convergence=analysis.results.convergence,
        layer=split.layer,
        sharp=split.sharp,
        flat=split.flat,
        weight_norm=split.weight_norm,
        total_g=split.totals.total_g,
        total_w_data=split.totals.total_w_data,
    )
