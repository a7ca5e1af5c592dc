"""How measures rank models, against pair-by-pair transcriptions of the papers."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lowland_studies.league.ranking import Models


def grid(seeds=2):
    """A full grid of three settings and a seed."""
    axes = {"rate": [1, 2, 3], "batch": [10, 20], "net": ["a", "b"], "seed": list(range(seeds))}
    rows = list(itertools.product(*axes.values()))
    return {name: [row[i] for row in rows] for i, name in enumerate(axes)}, rows


def made(seed=0):
    settings, rows = grid()
    rng = np.random.default_rng(seed)
    gaps = rng.standard_normal(len(rows)) + np.array(settings["rate"])
    return Models(gaps, settings), gaps, rows


def test_kendall_is_scipys_where_nothing_ties():
    models, gaps, _ = made()
    values = gaps + np.random.default_rng(1).standard_normal(len(gaps))
    rank = models.rank(values)
    assert rank.kendall.value == pytest.approx(stats.kendalltau(values, gaps)[0])
    assert rank.pearson.value == pytest.approx(stats.pearsonr(values, gaps)[0])
    assert rank.spearman.value == pytest.approx(stats.spearmanr(values, gaps)[0])
    assert rank.kendall.low < rank.kendall.value < rank.kendall.high
    # the same order, the same rank: but for Pearson's, no scale matters
    assert replace(models.rank(np.exp(values)), pearson=rank.pearson) == rank


def granulated_by_hand(values, gaps, rows, axis):
    """Jiang et al. 2020, Eq. 5: the mean over all other settings of Kendall's within a group."""
    groups = {}
    for i, row in enumerate(rows):
        groups.setdefault((*row[:axis], *row[axis + 1 :]), []).append(i)
    taus = []
    for group in groups.values():
        pairs = list(itertools.combinations(group, 2))
        signs = [np.sign(values[i] - values[j]) * np.sign(gaps[i] - gaps[j]) for i, j in pairs]
        taus.append(np.mean(signs))
    return np.mean(taus)


def test_the_granulated_coefficient_is_the_papers():
    models, gaps, rows = made()
    values = np.random.default_rng(1).standard_normal(len(gaps))
    rank = models.rank(values)
    expected = {n: granulated_by_hand(values, gaps, rows, i) for i, n in enumerate(models.names)}
    assert rank.by_setting == pytest.approx(expected)
    assert rank.granulated.value == pytest.approx(np.mean(list(expected.values())))
    assert set(expected) == {"rate", "batch", "net"}  # seeds tell nothing by themselves


def information_by_hand(values, gaps, rows, given):
    """Jiang et al. 2020, Eq. 8 and 9, from the shares of every combination of signs."""
    shares = {}
    for i, j in itertools.permutations(range(len(rows)), 2):
        context = tuple((rows[i][k], rows[j][k]) for k in given)
        key = context, np.sign(values[i] - values[j]), np.sign(gaps[i] - gaps[j])
        shares[key] = shares.get(key, 0) + 1
    total = sum(shares.values())

    def margin(*kept):
        sums = {}
        for key, count in shares.items():
            part = tuple(key[k] for k in kept)
            sums[part] = sums.get(part, 0) + count / total
        return sums

    u, ua, ub = margin(0), margin(0, 1), margin(0, 2)
    mutual = sum(
        count / total * math.log(count / total * u[c,] / (ua[c, a] * ub[c, b]))
        for (c, a, b), count in shares.items()
    )
    entropy = -sum(p * math.log(p / u[c,]) for (c, _), p in ub.items())
    return mutual / entropy if entropy > 1e-12 else 0.0


def test_the_information_is_the_papers():
    models, gaps, rows = made()
    values = gaps + np.random.default_rng(1).standard_normal(len(gaps))
    choices = [c for size in (0, 1, 2) for c in itertools.combinations(range(3), size)]
    expected = min(information_by_hand(values, gaps, rows, given) for given in choices)
    assert models.rank(values).information == pytest.approx(expected)
    assert 0 < expected < 0.9


def test_what_is_the_gap_itself_is_perfect_and_its_negative_the_opposite():
    models, gaps, _ = made()
    best, last = models.rank(gaps), models.rank(-gaps)
    assert best.kendall.value == best.granulated.value == best.worst == 1
    assert last.kendall.value == last.granulated.value == last.worst == -1
    assert best.information == pytest.approx(1)
    assert last.information == pytest.approx(1)  # as good, once its sign is known


def test_what_a_setting_tells_alone_is_no_merit():
    """A measure that only names the setting behind the gap has no information beside it."""
    models, _, _ = made()
    named = models.rank(np.array(models.settings["rate"], dtype=float))
    assert named.kendall.value > 0.2
    assert named.information == pytest.approx(0, abs=1e-9)
    assert named.by_setting["batch"] == named.by_setting["net"] == 0


def test_the_worst_environment_is_found():
    """A measure that is the gap, but turned around for one pair of values."""
    models, gaps, rows = made()
    values = gaps.copy()
    steep = np.array([row[0] for row in rows]) == 3
    values[steep] -= 100 * (1 + 0 * gaps[steep])  # the largest rate is now always the lowest
    rank = models.rank(values)
    assert rank.worst < 0
    assert rank.worst_where in ("rate 1 or 3", "rate 2 or 3")


def test_models_without_a_value_are_left_out():
    models, gaps, _ = made()
    values = gaps.copy()
    values[::3] = np.nan
    rank = models.rank(values)
    assert rank.models == len(gaps) - len(gaps[::3])
    assert rank.kendall.value == 1
    nothing = models.rank(np.full(len(gaps), np.nan))
    assert nothing.models == 0
    assert math.isnan(nothing.kendall.value)


def test_intervals_hold_the_truth():
    """Kendall's coefficient of two normal numbers of correlation r is 2 / pi arcsin r."""
    rng, held = np.random.default_rng(0), []
    truth = 2 / math.pi * math.asin(0.6)
    for _ in range(100):
        x, y = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 60).T
        settings = {"run": list(range(60)), "seed": [0] * 60}
        found = Models(y, settings).rank(x).kendall
        held.append(found.low <= truth <= found.high)
    assert 0.88 <= np.mean(held) <= 0.99
