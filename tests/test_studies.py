"""Studies: tests of claims against known truths, figures, and the whole way on a tiny problem."""

import csv
import dataclasses
import io
import json
import math
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lowland.errors import InputError
from lowland.studies import PAPERS, STUDIES, find
from lowland.studies.claims import (
    at_least,
    between,
    correlated,
    falls,
    falls_most,
    larger_part,
    not_monotone,
    on,
    proportional,
    rises,
    rises_most,
    smaller_part,
    stronger,
    unchanged,
)
from lowland.studies.drawing import Against, Scatter, Spectrum, draw
from lowland.studies.evidence import Runs
from lowland.studies.reproduce import (
    Judged,
    Outcome,
    _left_out,
    outcomes,
    page,
    reproduce,
    reproduce_all,
)
from lowland.studies.study import Claim, Finding, Study
from lowland.sweep import Configuration, Grid, Store
from lowland.sweep.plan import document, key

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


# --- claims against the truth --------------------------------------------------------------------


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
        assert found.unit.startswith("of the mean gap, by which gap falls more with batch_size")
    assert falls_most("gap", other(-30), "batch_size", of="gap")(runs).verdict == "does not hold"
    # A rise is no fall, however small the other's change is; it was once taken for one.
    assert falls_most(other(30), "gap", "batch_size", of="gap")(runs).effect < 0
    assert rises_most(other(30), "gap", "batch_size", of="gap")(runs).verdict == "holds"


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


def test_a_flat_column_is_seldom_called_not_monotone():
    rng = np.random.default_rng(2)
    test = not_monotone("gap", "learning_rate")
    verdicts = [test(measured(rng.normal(5, 1, (6, 4)))).verdict for _ in range(400)]
    assert verdicts.count("holds") <= stats.binom.ppf(0.9995, 400, 0.05)


def test_parts():
    runs = listed(sharp=[6, 6.1, 5.9], gap=[10, 10, 10])
    assert larger_part("sharp", "gap")(runs).verdict == "holds"
    assert larger_part("sharp", "gap", 0.8)(runs).verdict == "does not hold"
    assert larger_part("sharp", "gap", 0.601)(runs).verdict == "undecided"
    assert smaller_part("sharp", "gap", 0.8)(runs).verdict == "holds"
    assert smaller_part("sharp", "gap", 0.5)(runs).verdict == "does not hold"
    assert smaller_part("sharp", "gap", 0.601)(runs).verdict == "undecided"
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


# --- the runs of a store -------------------------------------------------------------------------


def fill(store, settings, failure=None, note=None, arrays=None, **results):
    """A store with one run more."""
    run = Configuration(**settings)
    npz = io.BytesIO()
    np.savez(npz, **(arrays or {}))
    results = {"converged": note is None, **results}
    doc = document(run, failure, note=note, results=results)
    store.write(key(run), doc, {"arrays.npz": npz.getvalue()})
    return run


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store", create=True)


def test_runs_of_a_store(store):
    grid = [
        fill(
            store,
            {"learning_rate": rate, "seed": seed},
            gap=rate + seed,
            arrays={"duality/sigma_g": np.arange(3.0 + seed)},
        )
        for rate in (0.1, 0.02)
        for seed in (0, 1)
    ]
    fill(store, {"seed": 7}, gap=99.0)  # of another study
    missing = Configuration(seed=8)
    runs = Runs.of(store.directory, [*grid, missing])
    assert (len(runs), runs.seeds, runs.varied) == (4, [0, 1], ["learning_rate"])
    assert runs.column("gap").tolist() == [0.1, 1.1, 0.02, 1.02]
    assert runs.column("gap").tolist() == [0.1, 1.1, 0.02, 1.02]
    assert list(runs.by("learning_rate")) == [0.02, 0.1]
    assert runs.where(learning_rate=0.02, seed=[1, 2]).column("gap").tolist() == [1.02]
    np.testing.assert_array_equal(
        runs.where(learning_rate=0.1).array("duality/sigma_g"), [[0, 1, 2, np.nan], [0, 1, 2, 3]]
    )
    assert runs.column("network").tolist() == ["784-30-30-10"] * 4
    with pytest.raises(InputError, match="no column 'gapp'; did you mean 'gap'"):
        runs.column("gapp")
    with pytest.raises(InputError, match="no array 'duality/c'; there are duality/sigma_g"):
        runs.array("duality/c")


def test_failed_and_unconverged_runs_are_left_out(store):
    grid = [
        fill(store, {"seed": 0}, gap=1.0),
        fill(store, {"seed": 1}, gap=50.0, note="the loss was 3 after 10 epochs, the limit"),
        fill(store, {"seed": 2}, gap=None, failure="it diverged"),
    ]
    runs = Runs.of(store.directory, grid)
    assert runs.column("gap").tolist() == [1.0]
    assert [row["seed"] for row in runs.left_out] == [1, 2]
    assert runs.where(seed=[0, 1]).left_out == runs.left_out[:1]
    assert _left_out(runs) == (
        "1 did not converge at the settings above (seeds 1): the loss was 3 after 10 epochs, "
        "the limit",
        "1 failed at the settings above (seeds 2): it diverged",
    )


# --- figures -------------------------------------------------------------------------------------


def drawn(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def study_of(*panels, claims=(), **fields):
    grid = Grid(seed=[0, 1])
    return Study("some:fig1", "Fig. 1", grid, grid, panels, claims, **fields)


def test_the_numbers_in_a_figure(store, tmp_path):
    rng = np.random.default_rng(0)
    grid, sigma = [], {}
    for rate in RATES:
        for seed in range(3):
            arrays = {"duality/sigma_g": np.sort(rng.exponential(size=40))[::-1]}
            arrays["duality/c"] = arrays["duality/sigma_g"] ** 2 * 5
            sigma[rate, seed] = arrays["duality/sigma_g"]
            settings = {"learning_rate": rate, "seed": seed}
            grid.append(fill(store, settings, gap=rate * (1 + seed), sharp=3 * rate, arrays=arrays))
    runs = Runs.of(store.directory, grid)
    study = study_of(
        Against("learning_rate", {"gap": "gap", "twice": lambda r: 2 * r.column("gap")}, "gap"),
        Spectrum("duality/sigma_g", "learning_rate", "$\\sigma$", log=""),
        Scatter("duality/sigma_g", "duality/c", "$\\sigma$", "c", log="xy"),
        Scatter("sharp", "gap", "sharp", "gap", by="seed", where={"learning_rate": 0.1}),
    )
    paths = draw(study, runs, tmp_path)
    assert [path.name for path in paths] == [f"some-fig1.{k}" for k in ("svg", "pdf", "png", "csv")]
    assert ET.parse(paths[0]).getroot().tag.endswith("svg")
    assert paths[1].read_bytes().startswith(b"%PDF")
    assert paths[2].read_bytes().startswith(b"\x89PNG")

    rows = {letter: [r for r in drawn(paths[3]) if r["panel"] == letter] for letter in "ABCD"}
    assert len(rows["A"]) == 8
    first = rows["A"][0]  # 0.01, 0.02, 0.03
    assert (first["curve"], float(first["x"]), int(first["runs"])) == ("gap", 0.01, 3)
    assert (float(first["y"]), float(first["sd"])) == pytest.approx((0.02, 0.01))
    assert len(rows["B"]) == 4 * 40
    expected = np.mean([sigma[0.01, seed][4] for seed in range(3)])
    assert float(rows["B"][4]["y"]) == pytest.approx(expected)
    assert float(rows["B"][4]["x"]) == 5
    assert len(rows["C"]) == 4 * 40  # one point for a direction of each setting
    geometric = np.exp(np.mean([np.log(sigma[0.01, seed][4]) for seed in range(3)]))
    assert float(rows["C"][4]["x"]) == pytest.approx(geometric)  # on a logarithmic axis
    assert [(r["curve"], r["x"], r["y"], r["sd"]) for r in rows["D"]] == [
        ("0", "0.3", "0.1", ""),
        ("1", "0.3", "0.2", ""),
        ("2", "0.3", "0.3", ""),
    ]
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in draw(study, runs, tmp_path)] == before


def test_every_panel_can_be_empty_or_of_one_run(store, tmp_path):
    panels = (
        Against("learning_rate", {"gap": "gap"}, "gap", log="xy"),
        Spectrum("duality/c", None, "c"),
        Spectrum("duality/c", "learning_rate", "c"),
        Scatter("gap", "gap", "gap", "gap"),
        Scatter("duality/c", "duality/c", "c", "c", log="xy"),
    )
    none = Runs((), (), tmp_path)
    assert drawn(draw(study_of(*panels), none, tmp_path)[3]) == []
    one = [fill(store, {}, gap=1.0, arrays={"duality/c": np.array([1.0, 0.0, -1.0])})]
    rows = drawn(draw(study_of(*panels), Runs.of(store.directory, one), tmp_path)[3])
    assert {row["panel"] for row in rows} == set("ABCDE")
    assert {row["sd"] for row in rows} == {""}
    assert len([row for row in rows if row["panel"] == "E"]) == 1  # a logarithm shows no more


def test_points_are_told_apart_by_kind(store, tmp_path):
    grid = [fill(store, {"seed": i}, gap=float(i)) for i in range(4)]

    def parity(row):
        return "odd" if row["seed"] % 2 else "even"

    panel = Scatter("gap", "gap", "gap", "gap", by=parity)
    rows = drawn(draw(study_of(panel), Runs.of(store.directory, grid), tmp_path)[3])
    assert [(row["curve"], float(row["x"])) for row in rows] == [
        *(("even", 0.0), ("even", 2.0)),
        *(("odd", 1.0), ("odd", 3.0)),
    ]


def test_a_panel_of_what_is_not_defined(store, tmp_path):
    grid = [
        fill(store, {"seed": seed}, gap=-1.0, arrays={"duality/c": np.full(3, value)})
        for seed, value in enumerate((np.nan, -1.0))
    ]
    nothing = {"gap": "gap", "nothing": lambda runs: runs.column("gap") * np.nan}
    panels = (Against("learning_rate", nothing, "gap"), Spectrum("duality/c", "seed", "c"))
    rows = drawn(draw(study_of(*panels), Runs.of(store.directory, grid), tmp_path)[3])
    assert [row["y"] for row in rows] == ["-1", "", *[""] * 3, *["-1"] * 3]


def test_columns_and_arrays_do_not_mix(store, tmp_path):
    runs = Runs.of(
        store.directory, [fill(store, {}, gap=1.0, arrays={"duality/c": np.arange(3.0)})]
    )
    with pytest.raises(InputError, match="two columns, or two arrays"):
        draw(study_of(Scatter("gap", "duality/c", "gap", "c")), runs, tmp_path)


# --- the studies there are -----------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_study_is_told_whole(study):
    assert STUDIES[study.name] is study
    assert study.paper in PAPERS
    assert study.title
    assert study.panels
    assert study.claims
    assert len(study.quick) <= len(study.grid)
    # Two realisations at least, or nothing could be said of any claim.
    assert len({run.seed for run in study.quick}) >= 2
    assert all(claim.text.endswith(".") and claim.paper for claim in study.claims)


def test_studies_are_found():
    assert find("feng-tu:fig3") == [STUDIES["feng-tu:fig3"]]
    papers = {name: find(name) for name in PAPERS}
    assert all(study.paper == name for name, found in papers.items() for study in found)
    assert find("all") == [study for found in papers.values() for study in found]
    assert STUDIES["tsuzuku:paper"] not in find("all")  # days: only when named
    assert find("feng-tu:fig3", "feng-tu:fig2", "feng-tu:fig3") == [
        STUDIES["feng-tu:fig3"],
        STUDIES["feng-tu:fig2"],
    ]
    with pytest.raises(InputError, match="no study 'feng-tu:fig-3'; did you mean 'feng-tu:fig3'"):
        find("feng-tu:fig-3")
    with pytest.raises(InputError, match="no study 'zzz'; there are feng-tu:fig"):
        find("zzz")


# --- the whole way -------------------------------------------------------------------------------

XOR = {"data": "xor", "network": "2-8-8-2", "n_sharp": 5, "stop_loss": 0.3, "max_epochs": 200}


@pytest.fixture(scope="module")
def tiny():
    return Study(
        "some:fig1",
        "the size of batches",
        grid=Grid(**XOR, batch_size=[10, 20], seed=range(3)),
        quick=Grid(**XOR, batch_size=[10, 20], seed=range(2)),
        panels=(
            Against("batch_size", {"gap": "gap"}, "gap"),
            Spectrum("duality/sigma_g", "batch_size", "$\\sigma_{g,n}$"),
        ),
        claims=(
            Claim("The loss |l| is small.", "Table 1", between("train_loss", 0, 1)),
            Claim("The loss is large.", "Table 1", between("train_loss", 2, 3)),
            Claim("A third rate exists.", "Table 1", not_monotone("gap", "batch_size")),
        ),
        differences=("other data",),
    )


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "store"
    return out, reproduce(tiny, out, executor="serial")


def test_reproduce(done, tiny):
    out, outcome = done
    assert [judged.finding.verdict for judged in outcome.claims] == [
        "holds",
        "does not hold",
        "undecided",
    ]
    assert outcome.count() == {"holds": 1, "does not hold": 1, "undecided": 1}
    assert (outcome.runs, outcome.realisations) == (6, (3,))
    assert outcome.settings["batch_size"] == [10, 20]
    assert outcome.command == "lowland reproduce some:fig1"
    folder = out / "studies" / "some-fig1"
    assert {path.name for path in folder.iterdir()} == {
        "outcome.json",
        *(f"some-fig1.{kind}" for kind in ("svg", "pdf", "png", "csv")),
    }
    saved = json.loads((folder / "outcome.json").read_text())
    assert saved["claims"][2]["finding"]["effect"] is None
    assert [o.to_dict() for o in outcomes(out)] == [outcome.to_dict()]
    assert Store(out).survey().damaged == {}


def test_once_done_it_costs_nothing_and_says_what_it_cost(done, tiny):
    out, outcome = done
    again = reproduce(tiny, out, executor="serial")
    assert again.to_dict() == outcome.to_dict()


def test_several_studies_are_one_sweep(tiny, tmp_path):
    """Though they are drawn one by one, and each counts the time of all of its runs."""
    larger = Grid(**XOR, batch_size=[10, 20, 40], seed=range(3))
    other = dataclasses.replace(tiny, name="some:fig2", grid=larger)
    both = list(reproduce_all([tiny, other], tmp_path, executor="serial"))
    assert [outcome.name for outcome in both] == ["some:fig1", "some:fig2"]
    (plan,) = (tmp_path / "plans").iterdir()
    assert json.loads(plan.read_text())["runs"] == 9
    spent = [(row["batch_size"], row["seconds"]) for row in Store(tmp_path).rows()]
    assert both[0].seconds == pytest.approx(sum(s for batch, s in spent if batch < 40))
    assert both[1].seconds == pytest.approx(sum(s for _, s in spent))


def test_quick_is_said(done, tiny, tmp_path):
    outcome = reproduce(tiny, tmp_path / "store", quick=True, executor="serial")
    assert (outcome.quick, outcome.runs, outcome.realisations) == (True, 4, (2,))
    assert outcome.command == "lowland reproduce some:fig1 --quick"
    assert "quick version" in page([outcome])
    assert "quick version" not in page([done[1]])


def test_a_failure_leaves_the_old_outcome(done, tiny):
    out, _ = done
    folder = out / "studies" / "some-fig1"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def broken(runs):
        raise ZeroDivisionError

    broken_panel = Against("batch_size", {"gap": broken}, "gap")
    with pytest.raises(ZeroDivisionError):
        reproduce(dataclasses.replace(tiny, panels=(broken_panel,)), out, executor="serial")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["some-fig1"]


def test_files_of_the_user_stop_it_before_the_runs(tiny, tmp_path):
    folder = tmp_path / "store" / "studies" / "some-fig1"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds 'notes.txt'"):
        reproduce(tiny, tmp_path / "store", executor="serial")


def test_a_damaged_outcome_is_said(tmp_path):
    folder = tmp_path / "studies" / "some-fig1"
    folder.mkdir(parents=True)
    for text in ("", "{}", "[]", '{"claims": 1}'):
        (folder / "outcome.json").write_text(text)
        with pytest.raises(InputError, match="not what `lowland reproduce` wrote"):
            outcomes(tmp_path)


def test_the_page(done):
    text = page([done[1]], "Some paper")
    lines = text.splitlines()
    assert lines[0] == "# Some paper"
    assert "## Fig. 1: the size of batches" in lines
    assert "![Fig. 1: the size of batches](some-fig1.png)" in lines
    assert "**Verdicts**: holds 1, does not hold 1, undecided 1." in lines
    row = next(line for line in lines if "The loss" in line)
    assert row.startswith("| The loss \\|l\\| is small. | Table 1 | 0.2")
    assert row.endswith("| **holds** |")
    assert "no number: of the mean" in text
    assert "- differs from the paper: other data" in lines
    assert "- command: `lowland reproduce some:fig1`" in lines


def test_the_page_shows_intervals_and_what_was_left_out():
    finding = Finding(-0.25, -0.4, -0.1, "of its mean", "holds", "4 seeds")
    outcome = Outcome(
        name="some:figS1-norm",
        title="Rates",
        quick=False,
        claims=(Judged("It falls.", "falls", finding),),
        settings={"learning_rate": [0.1, 0.2], "decay_epochs": [None], "layers": [["a", "b"]]},
        realisations=(3, 4),
        runs=8,
        left_out=("1 failed at learning_rate 0.2 (seeds 3): it diverged",),
        differences=(),
        reason="the rates are too large",
        seconds=12.3,
    )
    text = page([outcome, outcome])
    assert "| It falls. | falls | −0.25 [−0.4, −0.1] of its mean (4 seeds) | **holds** |" in text
    assert "- left out: 1 failed at learning_rate 0.2 (seeds 3): it diverged" in text
    assert "`learning_rate` 0.1, 0.2; `decay_epochs` none; `layers` a and b" in text
    assert "- time: 12 s of one process, for training and analysing its runs" in text
    assert "## Fig. S1 (norm): Rates" in text
    assert text.startswith("2 studies of the paper's figures. **Verdicts**: holds 2,")
    assert "- runs: 8, 3 or 4 realisations of each setting" in text


def test_a_reason_is_given_once_and_only_for_what_does_not_hold():
    def told(*verdicts, quick=False):
        claims = (
            Judged("It falls.", "falls", Finding(0.1, 0.0, 0.2, "of its mean", verdict))
            for verdict in verdicts
        )
        facts = {"settings": {}, "realisations": (4,), "runs": 8, "left_out": (), "seconds": 1.0}
        more = {"differences": (), "reason": "the rates are too large", **facts}
        return page([Outcome("some:fig1", "Rates", quick, tuple(claims), **more)])

    line = "- why claims do not hold: the rates are too large"
    assert told("does not hold", "does not hold").count(line) == 1
    assert line not in told("holds", "undecided")
    assert line not in told("does not hold", quick=True)  # it was found with the full version


def test_the_full_version_stands_before_the_quick_one(done, tiny, tmp_path):
    out, outcome = tmp_path / "store", done[1]
    shutil.copytree(done[0], out)
    quick = reproduce(tiny, out, quick=True, executor="serial")
    assert (out / quick.folder / f"{quick.file}.svg").is_file()
    assert outcomes(out) == [outcome]
    shutil.rmtree(out / outcome.folder)
    assert outcomes(out) == [quick]


def test_figures_are_in_the_order_of_their_numbers(tmp_path):
    names = ["a:fig2", "a:figS1", "a:figS1-norm", "a:figS2", "a:figS11", "b:fig1"]
    for name in reversed(names):
        facts = {"settings": {}, "realisations": (4,), "runs": 8, "left_out": (), "seconds": 1.0}
        one = Outcome(name, "", False, (), differences=(), reason="", **facts)
        (tmp_path / one.folder).mkdir(parents=True)
        (tmp_path / one.folder / "outcome.json").write_text(json.dumps(one.to_dict()))
    assert [one.name for one in outcomes(tmp_path)] == names


def test_importing_studies_is_cheap():
    code = """if True:
        import sys
        from lowland.studies import find
        assert find("feng-tu")
        print(sorted({"torch", "pandas", "matplotlib", "scipy"} & set(sys.modules)))
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
