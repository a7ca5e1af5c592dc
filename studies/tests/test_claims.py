"""Tests of claims against planted truths: their effects, intervals, rates of error and words."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lowland.errors import InputError
from lowland_studies.claims import (
    at_least,
    beside,
    between,
    correlated,
    falls,
    falls_most,
    larger,
    larger_part,
    not_monotone,
    on,
    part_between,
    rises,
    rises_most,
    rises_slightly,
    smaller,
    smaller_part,
    stronger,
    unchanged,
    weaker,
)
from lowland_studies.directions import falls_everywhere, proportional, rises_everywhere
from lowland_studies.evidence import Runs

RATES = (0.01, 0.02, 0.05, 0.1)


def table(*rows):
    """Runs that are only a table."""
    return Runs(tuple({"seed": 0, **row} for row in rows), (), Path("nowhere"))


def measured(y, keys=RATES, name="learning_rate"):
    """Runs with a column ``gap`` of the values y, (seeds, keys)."""
    return table(
        *(
            {"seed": seed, name: k, "gap": float(v)}
            for seed, row in enumerate(np.asarray(y))
            for k, v in zip(keys, row, strict=True)
        )
    )


def listed(**columns):
    """A run for each place of the lists, with seeds from 0."""
    names = ["seed", *columns]
    rows = zip(range(10**6), *columns.values(), strict=False)
    return table(*(dict(zip(names, map(float, row), strict=True)) for row in rows))


def rate_is(count, trials, rate):
    """A count that chance explains: once in a thousand times it is rejected wrongly."""
    low, high = stats.binom.ppf([0.0005, 0.9995], trials, rate)
    return low <= count <= high


def test_an_interval_by_hand():
    # 1, 2, 3: mean 2, standard deviation 1, Student's t for two degrees 4.302653.
    found = between("gap", -1, 5)(listed(gap=[1, 2, 3]))
    reach = 4.302653 / math.sqrt(3)
    assert (found.effect, found.low, found.high) == pytest.approx((2, 2 - reach, 2 + reach))
    assert found.verdict == "holds"


def test_a_trend_by_hand():
    # Lines over the logarithm of the setting from 1 to 100: they change by -2 and -4, of a mean 5.
    y = [[6, 5, 4], [7, 5, 3]]
    found = falls("gap", "batch_size")(measured(y, (1, 10, 100), "batch_size"))
    assert found.effect == pytest.approx(-3 / 5)
    # With 0 among its values the setting itself: 0, 1, 4 for y = 1 - x / 8 changes by -1/2.
    y = [[1, 7 / 8, 1 / 2], [2, 15 / 8, 3 / 2]]
    found = falls("gap", "decay")(measured(y, (0, 1, 4), "decay"))
    assert found.effect == pytest.approx(-0.5 / np.mean(y))
    assert found.low == pytest.approx(found.high)  # what seeds do to all alike is no noise


def test_most_of_a_change_is_where_it_is_larger_and_goes_the_right_way():
    """By hand: over the range the gap falls by 2 and by 4, of a mean 5, and the other changes."""
    runs = measured([[6, 5, 4], [7, 5, 3]], (1, 10, 100), "batch_size")

    def other(change):
        step = {1: 0.0, 10: 0.5, 100: 1.0}
        return lambda runs: 9 + change * np.array([step[row["batch_size"]] for row in runs.rows])

    for change in (-1, 1):
        found = falls_most("gap", other(change), "batch_size", of="gap")(runs)
        assert found.effect == pytest.approx(((2 - 1) + (4 - 1)) / 2 / 5)
        assert found.unit == "of gap: how much more gap falls than it changes"
    assert falls_most("gap", other(-30), "batch_size", of="gap")(runs).verdict == "does not hold"
    # A rise is no fall, however small the other's change is; it was once taken for one.
    assert falls_most(other(30), "gap", "batch_size", of="gap")(runs).effect < 0
    assert rises_most(other(30), "gap", "batch_size", of="gap")(runs).verdict == "holds"


def test_some_runs_against_others_by_hand():
    # Seed by seed 1, 2 and 3 more than there, where the mean is 4; seed 3 has no counterpart.
    rows = [{"seed": s, "optimizer": "sam", "gap": gap} for s, gap in enumerate([3, 6, 9, 50])]
    rows += [{"seed": s, "optimizer": "sgd", "gap": gap} for s, gap in enumerate([2, 4, 6])]
    runs = table(*rows, {"seed": 0, "optimizer": "sgd", "gap": None})
    here, there = {"optimizer": "sam"}, {"optimizer": "sgd"}
    found = larger("gap", here, there)(runs)
    assert found.effect == pytest.approx(2 / 4)
    assert (found.high - found.low) / 2 == pytest.approx(4.302653 / math.sqrt(3) / 4)
    assert found.note == "without 1 seed(s) that lack one of the two; 3 seeds"
    assert found.unit == "change of gap from optimizer sgd to optimizer sam"
    sure = table(*rows[:3], *({**row, "gap": row["gap"] - 0.9} for row in rows[4:]))
    assert larger("gap", here, there)(sure).verdict == "holds"
    assert smaller("gap", here, there)(sure).verdict == "does not hold"
    assert larger("gap", here, {"optimizer": "adam"})(runs).verdict == "undecided"
    none = table(*rows[:3], *({**row, "gap": 0} for row in rows[4:]))
    assert larger("gap", here, there)(none).effect == pytest.approx(1)  # of what is here


@pytest.mark.parametrize("slope", [-0.05, 0.0, 0.05])
def test_trends_are_judged_at_the_stated_rate(slope):
    """The truth lies in 95 of 100 intervals; a verdict on no trend at all is wrong in 5."""
    rng = np.random.default_rng(1)
    x = np.log(RATES) - np.log(RATES[0])
    trials, covered, verdicts = 600, 0, []
    for _ in range(trials):
        seeds = rng.normal(0, 0.1, (8, 1))
        found = rises("gap", "learning_rate")(
            measured(5 + seeds + slope * (x - x.mean()) + rng.normal(0, 0.1, (8, 4)))
        )
        covered += found.low <= slope * x[-1] / 5 <= found.high
        verdicts.append(found.verdict)
    assert rate_is(covered, trials, 0.95)
    if slope == 0:
        assert rate_is(verdicts.count("holds"), trials, 0.025)
        assert rate_is(verdicts.count("does not hold"), trials, 0.025)
    else:
        wrong = "does not hold" if slope > 0 else "holds"
        assert verdicts.count(wrong) <= stats.binom.ppf(0.9995, trials, 0.025)
        assert {"undecided", "holds", "does not hold"} - {wrong} == set(verdicts) - {wrong}


def test_falls_and_rises_are_opposites():
    y = [[4, 3, 2, 1], [4.1, 3, 2.1, 1]]
    assert falls("gap", "learning_rate")(measured(y)).verdict == "holds"
    assert rises("gap", "learning_rate")(measured(y)).verdict == "does not hold"
    noise = [[1, 2, 1, 2], [2, 1, 2, 1]]
    assert {f("gap", "learning_rate")(measured(noise)).verdict for f in (falls, rises)} == {
        "undecided"
    }


@pytest.mark.parametrize(
    ("change", "spread", "verdict"),
    [
        (0.0, 0.01, "holds"),
        (0.19, 0.001, "holds"),
        (0.21, 0.001, "does not hold"),
        (-0.5, 0.05, "does not hold"),
        (0.2, 0.05, "undecided"),
        (0.0, 1.0, "undecided"),  # no change is found, but none is excluded
    ],
)
def test_unchanged(change, spread, verdict):
    wobble = spread * np.array([-1, -0.5, 0, 0.5, 1])
    ends = np.stack([1 - change / 2 - wobble / 2, 1 + change / 2 + wobble / 2], axis=1)
    found = unchanged("gap", "learning_rate")(measured(ends, (0.1, 0.2)))
    assert found.effect == pytest.approx(change)
    assert found.verdict == verdict


def test_unchanged_looks_at_every_value():
    """A dip of a third between equal ends is a change; it was once called none."""
    wobble = np.linspace(-0.01, 0.01, 5)[:, None] * [1, -1, 1, -1]
    found = unchanged("gap", "learning_rate")(measured(wobble + np.array([4, 2.7, 3.2, 4.1])))
    assert found.verdict == "does not hold"
    assert found.effect == pytest.approx(-1.3 / 3.5)


def test_unchanged_is_a_plain_equivalence_test_at_its_level():
    """With a true change on the margin at every value it holds in no more than 2.5 of 100 trials.

    No value needs a better interval because there are others: it holds where each does.
    """
    rng = np.random.default_rng(11)
    trials, held = 600, 0
    for _ in range(trials):
        y = np.array([5.0, 6.0]) + rng.normal(0, 0.1, (8, 2))
        held += unchanged("gap", "learning_rate", 0.2 / 1.1)(measured(y, (0.1, 0.2))).verdict == (
            "holds"
        )
    assert rate_is(held, trials, 0.025)
    # Intervals of 95 % that lie inside suffice, however many values there are.
    wobble = np.linspace(-1, 1, 5)
    y = np.stack([1 + 0 * wobble, *(1 + 0.1 * wobble for _ in range(6))], axis=1)
    found = unchanged("gap", "learning_rate", 0.1)(measured(y, range(1, 8)))
    reach = 2.776445 * 0.1 * wobble.std(ddof=1) / math.sqrt(5)
    assert (found.low, found.high) == pytest.approx((-reach, reach), rel=1e-6)
    assert reach < 0.1
    assert found.verdict == "holds"
    assert (found.bottom, found.top, found.percent) == (-0.1, 0.1, True)


def test_a_flat_column_is_seldom_called_changed():
    rng = np.random.default_rng(8)
    test = unchanged("gap", "learning_rate", within=0.0)
    verdicts = [test(measured(rng.normal(5, 1, (6, 4)))).verdict for _ in range(400)]
    assert verdicts.count("does not hold") <= stats.binom.ppf(0.9995, 400, 0.05)


def test_not_monotone():
    wobble = np.linspace(-0.02, 0.02, 5)[:, None] * [1, -1, 1, -1]
    for shape, verdict in {
        (3, 1, 1, 3): "holds",
        (1, 3, 2, 1): "holds",
        (1, 2, 3, 4): "does not hold",
        (4, 3, 2, 1): "does not hold",
        (1, 1, 3, 3): "undecided",
    }.items():
        assert not_monotone("gap", "learning_rate")(measured(wobble + shape)).verdict == verdict
    found = not_monotone("gap", "learning_rate")(measured(wobble + np.array([3, 1, 1, 2])))
    assert found.effect == pytest.approx(1 / 1.75)  # beyond the nearer end, of the mean
    lacking = wobble + np.array([1, 3, 2, 1])
    lacking[0, 2] = lacking[1, 3] = np.nan  # what a seed has elsewhere counts
    found = not_monotone("gap", "learning_rate")(measured(lacking))
    assert found.verdict == "holds"
    assert found.note.endswith("5 seeds")


def test_a_flat_column_is_seldom_called_not_monotone():
    rng = np.random.default_rng(2)
    test = not_monotone("gap", "learning_rate")
    verdicts = [test(measured(rng.normal(5, 1, (6, 4)))).verdict for _ in range(400)]
    assert verdicts.count("holds") <= stats.binom.ppf(0.9995, 400, 0.05)


def test_a_slight_rise_is_bounded_from_above():
    wobble = np.linspace(-0.01, 0.01, 5)[:, None] * [1, -1]
    for ends, verdict in {
        (1, 1.1): "holds",
        (1, 1.5): "does not hold",
        (1.1, 1): "does not hold",
        (1, 1.001): "undecided",
    }.items():
        found = rises_slightly("gap", "learning_rate")(measured(wobble + ends, (0.1, 0.2)))
        assert found.verdict == verdict
        assert (found.bottom, found.top) == (0.0, 0.2)


def directions(y, keys=RATES):
    """Runs with an array (seeds, keys, n), and the function that reads it."""
    runs = measured(np.asarray(y)[..., 0], keys)
    flat = np.asarray(y).reshape(len(runs), -1)
    places = {(row["seed"], row["learning_rate"]): i for i, row in enumerate(runs.rows)}

    def array(some):
        return flat[[places[row["seed"], row["learning_rate"]] for row in some.rows]]

    return runs, array


def test_everywhere_is_in_every_direction():
    """One direction that goes the other way refutes it; the mean over directions does not show."""
    rng = np.random.default_rng(12)
    trend = np.linspace(1, 2, 4)[None, :, None] * np.ones((6, 1, 40))
    runs, array = directions(trend + rng.normal(0, 0.01, trend.shape))
    found = rises_everywhere(array, "learning_rate")(runs)
    assert (found.verdict, "40 of 40 directions rise" in found.note) == ("holds", True)
    assert falls_everywhere(array, "learning_rate")(runs).verdict == "does not hold"
    without = replace(runs, rows=tuple(row for i, row in enumerate(runs.rows) if i != 9))
    found = rises_everywhere(array, "learning_rate")(without)  # a run that did not converge
    assert (found.verdict, "40 of 40 directions rise" in found.note) == ("holds", True)
    trend[..., 7] = trend[:, ::-1, 7]
    runs, array = directions(trend + rng.normal(0, 0.01, trend.shape))
    found = rises_everywhere(array, "learning_rate")(runs)
    assert found.verdict == "does not hold"
    assert "39 of 40 directions rise; least at n = 8" in found.note
    trend[..., 7] = 1.5
    runs, array = directions(trend + rng.normal(0, 0.01, trend.shape))
    assert rises_everywhere(array, "learning_rate")(runs).verdict == "undecided"


def test_a_second_look_is_told_where_it_disagrees():
    runs = listed(sharp=[6, 6.1, 5.9], gap=[10, 10, 10])
    agrees = beside(larger_part("sharp", "gap"), between("gap", 9, 11), "the gap")
    assert agrees(runs) == larger_part("sharp", "gap")(runs)
    found = beside(larger_part("sharp", "gap"), between("gap", 0, 1), "the gap")(runs)
    assert found.verdict == "holds"
    assert found.unit.endswith("; by the gap it does not hold (10)")
    found = beside(between("gap", 0, 1), larger_part("sharp", "gap"), "the share")(runs)
    assert found.unit.endswith("; by the share it holds (60 %)")


def test_parts():
    runs = listed(sharp=[6, 6.1, 5.9], gap=[10, 10, 10])
    assert larger_part("sharp", "gap")(runs).verdict == "holds"
    assert larger_part("sharp", "gap", 0.8)(runs).verdict == "does not hold"
    assert larger_part("sharp", "gap", 0.601)(runs).verdict == "undecided"
    assert smaller_part("sharp", "gap", 0.8)(runs).verdict == "holds"
    assert smaller_part("sharp", "gap", 0.5)(runs).verdict == "does not hold"
    assert smaller_part("sharp", "gap", 0.601)(runs).verdict == "undecided"
    assert part_between("sharp", "gap", 0.5, 0.7)(runs).verdict == "holds"
    assert part_between("sharp", "gap", 0.7, 0.9)(runs).verdict == "does not hold"
    negative = listed(sharp=[50, 51, 49], gap=[-10, -10, -10])  # in size, whatever the sign
    assert smaller_part("sharp", "gap", 0.1)(negative).verdict == "does not hold"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0, 3, "holds"),
        (2.5, 4, "does not hold"),
        (0, 1.5, "does not hold"),
        (2, 3, "undecided"),
        (1, math.inf, "holds"),
        (-math.inf, 1.5, "does not hold"),
    ],
)
def test_between(low, high, verdict):
    assert between("gap", low, high)(listed(gap=[1.9, 2, 2.1])).verdict == verdict


def test_at_least_is_of_every_run():
    """Half of the runs below the bound do not vanish in a mean above it."""
    runs = measured([[0.3, -0.2], [0.3, -0.21], [0.3, -0.19]], (0.1, 0.2))
    assert between("gap", 0, math.inf)(runs).verdict == "holds"
    found = at_least("gap", 0)(runs)
    assert (found.verdict, found.effect) == ("does not hold", pytest.approx(-0.2))
    assert at_least("gap", -0.3)(runs).verdict == "holds"


def test_runs_without_a_number_are_told():
    found = between("gap", 0, 9)(measured([[1, np.nan], [2, 2], [3, 3]], (0.1, 0.2)))
    assert "without 1 run(s) that have no such number" in found.note


def test_settings_of_one_seed_are_one_realisation():
    """A number that does not differ between settings is not surer for having many of them."""
    once = measured([[1], [2], [3]], (0.1,))
    often = measured([[1] * 4, [2] * 4, [3] * 4])
    test = between("gap", 0, 9)
    assert (test(once).low, test(once).high) == (test(often).low, test(often).high)


def test_correlation_is_covered_at_the_stated_rate():
    rng = np.random.default_rng(3)
    trials, covered = 250, 0
    for _ in range(trials):
        x, e = rng.normal(size=(2, 60))
        found = correlated("x", "y")(listed(x=x, y=0.8 * x + 0.6 * e))
        covered += found.low <= 0.8 <= found.high
    assert rate_is(covered, trials, 0.95)


def test_correlation_is_covered_at_the_stated_rate_where_runs_share_their_seed():
    """What a seed does to all of its runs makes them fewer than they are."""
    rng = np.random.default_rng(9)
    trials, covered = 250, 0
    for _ in range(trials):
        shared = rng.normal(size=(2, 10, 1)) * 0.8
        x, e = (shared + rng.normal(size=(2, 10, 12)) * 0.6).reshape(2, -1)
        seeds = np.repeat(np.arange(10.0), 12)
        rows = zip(seeds, x, 0.8 * x + 0.6 * e, strict=True)
        runs = table(*({"seed": s, "x": a, "y": b} for s, a, b in rows))
        found = correlated("x", "y")(runs)
        covered += found.low <= 0.8 <= found.high
    assert covered >= 0.9 * trials  # ten seeds are few for a jackknife


def test_a_correlation_needs_several_seeds():
    runs = measured([[1, 2, 3, 4]])
    assert "1 realisation(s)" in correlated("gap", "learning_rate")(runs).note
    few = measured([[1, 2], [2, 3]], (0.1, 0.2))
    assert "needs three" in correlated("gap", "learning_rate")(few).note


def test_correlated():
    rng = np.random.default_rng(4)
    x, e = rng.normal(size=(2, 50))
    close, loose = listed(x=x, y=x + 0.1 * e), listed(x=x, y=x + 3 * e)
    found = correlated("x", "y")(close)
    assert found.verdict == "holds"
    assert found.effect == pytest.approx(stats.pearsonr(x, x + 0.1 * e)[0])
    assert f"Spearman {stats.spearmanr(x, x + 0.1 * e)[0]:.2f}" in found.note
    assert f"Kendall {stats.kendalltau(x, x + 0.1 * e)[0]:.2f}" in found.note
    assert correlated("x", "y")(loose).verdict == "does not hold"
    assert correlated("x", "y", at_least=0.3)(loose).verdict == "undecided"
    assert correlated("x", "x")(close).effect == pytest.approx(1)
    constant = correlated("x", "one")(listed(x=x, one=np.ones(50)))
    assert (constant.effect, constant.verdict) == (0, "does not hold")


def test_stronger():
    rng = np.random.default_rng(5)
    trials, covered = 250, 0
    for _ in range(trials):
        y, e1, e2 = rng.normal(size=(3, 60))
        runs = listed(near=0.9 * y + math.sqrt(0.19) * e1, far=0.6 * y + 0.8 * e2, y=y)
        found = stronger("near", "far", "y")(runs)
        covered += found.low <= 0.3 <= found.high
    assert rate_is(covered, trials, 0.95)
    assert found.verdict == "holds"
    assert stronger("far", "near", "y")(runs).verdict == "does not hold"
    same = stronger("near", "near", "y")(runs)
    assert (same.effect, same.verdict) == (0, "undecided")


def test_stronger_and_weaker_go_by_the_size_of_a_correlation():
    """A column that goes against the other is no weaker signal for that; it was once taken so."""
    rng = np.random.default_rng(13)
    y, e1, e2 = rng.normal(size=(3, 60))
    runs = listed(near=0.6 * y + 0.8 * e1, against=-0.99 * y + 0.1 * e2, y=y)
    found = stronger("near", "against", "y")(runs)
    assert found.verdict == "does not hold"
    expected = abs(stats.pearsonr(runs.column("near"), y)[0])
    expected -= abs(stats.pearsonr(runs.column("against"), y)[0])
    assert found.effect == pytest.approx(expected)
    assert "against -0.9" in found.note
    kinds = table(
        *({"seed": i, "kind": 0, "x": -a, "y": a} for i, a in enumerate(y)),
        *(
            {"seed": i, "kind": 1, "x": a + 2 * b, "y": a}
            for i, (a, b) in enumerate(zip(y, e1, strict=True))
        ),
    )
    assert weaker("x", "y", {"kind": 0}, [{"kind": 1}])(kinds).verdict == "does not hold"
    assert weaker("x", "y", {"kind": 1}, [{"kind": 0}])(kinds).verdict == "holds"


@pytest.mark.parametrize(
    ("power", "verdict"),
    [(1, "holds"), (1.15, "holds"), (0.5, "does not hold"), (2, "does not hold")],
)
def test_proportional(power, verdict):
    rng = np.random.default_rng(6)
    x = np.exp(-np.arange(100) / 5) * np.ones((6, 1))
    y = 3 * x**power * np.exp(rng.normal(0, 0.02, x.shape))
    y[:, 10:] = 1  # beyond the leading directions it need not hold
    found = proportional(lambda runs: x, lambda runs: y)(listed(seed=range(6)))
    assert found.verdict == verdict
    assert found.low <= power <= found.high


def test_proportional_undecided_and_undefined():
    x = np.exp(-np.arange(10.0)) * np.ones((2, 1))
    y = np.stack([x[0], x[1] ** 1.5])
    runs = listed(gap=[0, 0])
    assert proportional(lambda r: x, lambda r: y)(runs).verdict == "undecided"
    found = proportional(lambda r: x, lambda r: -y)(runs)
    assert (found.verdict, math.isnan(found.effect)) == ("undecided", True)


def test_a_column_may_be_computed():
    def twice_the_gap(runs):
        return 2 * runs.column("gap")

    found = between(twice_the_gap, 3, 5)(listed(gap=[1.9, 2, 2.1]))
    assert (found.verdict, found.unit) == ("holds", "mean of twice the gap")


def test_a_claim_about_a_part():
    y = np.array([[4, 3, 2, 1], [4.1, 3, 2.1, 1]])
    rows = [
        {**row, "batch_size": size}
        for size, runs in ((25, measured(y)), (50, measured(-y + 9)))
        for row in runs.rows
    ]
    runs, test = table(*rows), falls("gap", "learning_rate")
    assert on({"batch_size": 25}, test)(runs).verdict == "holds"
    assert on(lambda all_runs: all_runs.where(batch_size=50), test)(runs).verdict == "does not hold"
    with pytest.raises(InputError, match="runs that differ in batch_size as well.*`on`"):
        test(runs)


def test_missing_runs_are_left_out_in_pairs_and_said():
    y = np.array([[4, 3, 2, 1], [4.1, 3, 2.1, 1], [4, 3.1, 2, 1.1], [np.nan, 3, 2, np.nan]])
    y[:3, 1] = np.nan  # this rate only one seed reached
    found = falls("gap", "learning_rate")(measured(y))
    assert found.verdict == "holds"
    assert found.note == "without learning_rate 0.02, seed 3; 3 seeds"
    same = falls("gap", "learning_rate")(measured(y[:3, [0, 2, 3]], (0.01, 0.05, 0.1)))
    assert (found.effect, found.low) == (same.effect, same.low)


def test_a_seed_keeps_what_it_has_where_another_of_its_runs_failed():
    """By hand: its line goes through the runs that are there, over the same range."""
    y = np.array([[3.0, 2, 1], [3.2, 2.1, 1], [3.1, 2.05, np.nan]])
    found = falls("gap", "batch_size")(measured(y, (1, 10, 100), "batch_size"))
    assert found.note == "without batch_size 100 of seed 2; 3 seeds"
    lines = np.array([-2.0, -2.2, 2 * (2.05 - 3.1)])
    size = (np.mean([3, 3.2, 3.1]) + np.mean([2, 2.1, 2.05]) + 1) / 3
    assert found.effect == pytest.approx(lines.mean() / size)
    found = unchanged("gap", "batch_size", within=3)(measured(y, (1, 10, 100), "batch_size"))
    assert found.effect == pytest.approx(np.mean([-2, -2.2]) / size)
    assert found.verdict == "holds"


TESTS = [
    falls("gap", "seed"),
    unchanged("gap", "seed"),
    not_monotone("gap", "seed"),
    larger_part("gap", "gap"),
    between("gap", 0, 1),
    at_least("gap", 0),
    correlated("gap", "gap"),
    stronger("gap", "gap", "gap"),
    proportional("duality/c", "duality/c"),
    rises_everywhere("duality/c", "seed"),
]


@pytest.mark.parametrize("test", TESTS)
def test_nothing_is_concluded_from_nothing(test):
    found = test(table())
    assert found.verdict == "undecided"
    assert math.isnan(found.effect)
    assert found.note


@pytest.mark.parametrize(
    "test",
    [falls("gap", "learning_rate"), not_monotone("gap", "learning_rate"), between("gap", 0, 9)],
)
def test_one_realisation_has_no_interval(test):
    found = test(measured([[4, 3, 2, 1]]))
    assert found.verdict == "undecided"
    assert "1 realisation(s); an interval needs two" in found.note
