"""Comparing two solutions: exact sums, known causes, and the command."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from browser import chromium
from cases import descend
from commandline import run
from landscapes import make_surface
from lowland.comparison import compare, lower, shapley
from lowland.errors import InputError
from lowland.findings import Change, Landscape, PairValues
from lowland.problem import Problem
from lowland.report import render_comparison
from lowland.results import Analysis
from test_duality import make_problem

NAMES = ["first", "second", "third"]
PARTS = ("sharpness", "size", "correlation", "means")


def trained(steps: int, **options: object) -> Problem:
    """The test problem's network after more steps, on the same data."""
    problem = make_problem(**options)
    batch = problem.train.take(slice(None))
    descend(problem.model, (batch.inputs, batch.targets), steps, 0.2)
    return problem


@pytest.fixture(scope="module")
def analyses() -> tuple[Analysis, Analysis]:
    return tuple(
        ll.analyze(trained(steps), title=f"{steps} steps", measures=["trace", "weight_norm"])
        for steps in (0, 400)
    )


def test_shapley_values_are_the_mean_over_orders_and_add_up():
    rng = np.random.default_rng(0)
    before, after = (tuple(rng.standard_normal((3, 4))) for _ in range(2))
    found = shapley(before, after)
    expected = [np.zeros(4) for _ in range(3)]
    for order in permutations(range(3)):
        now = list(before)
        for i in order:
            old = np.prod(now, axis=0)
            now[i] = after[i]
            expected[i] += (np.prod(now, axis=0) - old) / 6
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(sum(found), np.prod(after, axis=0) - np.prod(before, axis=0))


def test_the_parts_add_up_to_the_change(analyses):
    found = compare(*analyses).results
    gaps = [a.results.duality.paired_gap for a in analyses]
    assert found.paired_gaps == pytest.approx(gaps, rel=1e-12)
    assert found.change.value == pytest.approx(gaps[1] - gaps[0], rel=1e-12)
    assert tuple(found.parts) == PARTS
    whole = sum(part.value for part in found.parts.values())
    assert whole == pytest.approx(gaps[1] - gaps[0], rel=1e-6)
    for name in PARTS[:3]:
        part = found.parts[name]
        assert part.sharp.value + part.flat.value == pytest.approx(part.value, rel=1e-9)
    assert found.parts["means"].sharp is None
    for row in (found.change, *found.parts.values()):
        assert row.low <= row.high
    assert found.change.low < found.change.value < found.change.high


def test_a_solution_does_not_differ_from_itself(analyses):
    found = compare(analyses[0], analyses[0])
    assert found.results.change == Change(0, 0, 0)
    assert all(part.value == 0 for part in found.results.parts.values())
    assert "do not differ beyond chance" in found.answer


def with_pairs(analysis: Analysis, change: Callable[[PairValues], PairValues]) -> Analysis:
    """The analysis with other numbers of its pairs, in both gauges."""
    splits = {
        gauge: replace(split, per_pair=change(split.per_pair))
        for gauge in ("duality", "balanced")
        for split in [getattr(analysis.results, gauge)]
    }
    return replace(analysis, results=replace(analysis.results, **splits))


def changed(analysis: Analysis, size: float = 1.0, loss: float = 1.0) -> Analysis:
    """The analysis as if dual weights were larger or losses steeper, by hand."""
    return with_pairs(
        analysis,
        lambda pairs: replace(
            pairs,
            dl=pairs.dl * loss,
            size=pairs.size * size**2,
            components=pairs.components * np.float32(size),
        ),
    )


def test_known_causes_are_named(analyses):
    one = analyses[1]
    # twice the loss change for the same shifts: twice the gradient, and nothing else
    steeper = compare(one, changed(one, loss=2.0)).results
    gap = one.results.duality.paired_gap
    mean = steeper.parts["means"].value
    assert steeper.parts["sharpness"].value == pytest.approx(gap - mean, rel=1e-5)
    assert steeper.parts["size"].value == pytest.approx(0, abs=1e-7 * gap)
    assert steeper.parts["correlation"].value == pytest.approx(0, abs=1e-5 * gap)
    # twice the shifts for the same loss changes: twice the size, half the gradient, no change
    larger = compare(one, changed(one, size=2.0)).results
    assert larger.change.value == 0
    sharper, size = (larger.parts[p].value for p in ("sharpness", "size"))
    assert size > 0.1 * gap
    assert sharper == pytest.approx(-size, rel=1e-5)


def rescaled(problem: Problem, factor: float) -> Problem:
    """The same function: one layer multiplied, the next one divided (Dinh et al. 2017)."""
    with torch.no_grad():
        problem.model[2].weight.mul_(factor)
        problem.model[2].bias.mul_(factor)
        problem.model[4].weight.div_(factor)
    return problem


def test_a_rescaling_that_leaves_the_function_moves_no_share():
    """The verdict once went from sharper to larger by multiplying a layer."""
    first = ll.analyze(trained(0, activation=nn.ReLU), "2", measures=[])
    plain, scaled = (
        compare(
            first, ll.analyze(rescaled(trained(400, activation=nn.ReLU), factor), "2", measures=[])
        ).results
        for factor in (1.0, 1e3)
    )
    assert plain.gauge == "balanced"
    for part in PARTS:
        expected = plain.parts[part].value
        assert scaled.parts[part].value == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_what_cannot_be_balanced_is_compared_as_it_is_and_that_is_said(analyses):
    first, second = analyses[1], changed(analyses[1], loss=2.0)
    found = compare(
        *(replace(a, results=replace(a.results, balanced=None)) for a in (first, second))
    )
    assert found.results.gauge == "given"
    assert "rescaling hidden units would move shares" in found.answer


def test_a_side_with_fewer_directions_takes_nothing_from_rounding(analyses):
    """Of one side some directions are kept, of the other all: the rest is compared as one."""
    first, second = analyses
    less = with_pairs(second, lambda pairs: replace(pairs, components=pairs.components[:, :12]))
    parts = []
    for seed in range(4):  # the last digit of what was stored in single precision
        rng = np.random.default_rng(seed)

        def shaken(pairs: PairValues, rng: np.random.Generator = rng) -> PairValues:
            wobble = 1 + 6e-8 * rng.choice([-1, 1], pairs.components.shape)
            return replace(pairs, components=pairs.components * wobble)

        found = compare(with_pairs(first, shaken), less).results
        values = [found.parts[part].value for part in PARTS]
        assert sum(values) == pytest.approx(found.change.value, rel=1e-6)
        parts.append(values)
    np.testing.assert_allclose(parts, parts[:1] * 4, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("key", ["basis", "gauge", "pairing"])
def test_analyses_in_other_terms_are_refused(analyses, key):
    first, second = analyses
    split = second.results.balanced
    other = replace(split, setting=replace(split.setting, **{key: "another"}))
    with pytest.raises(InputError, match=f"differ in their {key}"):
        compare(first, replace(second, results=replace(second.results, balanced=other)))


def test_an_analysis_in_the_balanced_gauge_is_compared_with_one_that_has_both(analyses):
    """A rescaling leaves it alone, whichever of the two decompositions is the first."""
    balanced = ll.analyze(trained(400), gauge="balanced", measures=[])
    assert balanced.results.balanced is None
    found = compare(analyses[0], balanced).results
    expected = compare(*analyses).results
    assert found.gauge == "balanced"
    assert found.change == expected.change
    for part in PARTS:
        assert found.parts[part].value == pytest.approx(expected.parts[part].value, rel=1e-6)


def test_one_sample_or_the_loss_being_another_is_seen(analyses):
    problem = trained(400)
    data = {s: problem.data(s).take(slice(None)) for s in ("train", "test")}
    X, y = data["train"].inputs.clone(), data["train"].targets
    test = data["test"].inputs, data["test"].targets
    same = ll.analyze(Problem(problem.model, train=(X, y), test=test), "2", measures=[])
    compare(analyses[0], same)
    X[7] += 0.1
    with pytest.raises(InputError, match="different data"):
        compare(
            analyses[0],
            ll.analyze(Problem(problem.model, train=(X, y), test=test), "2", measures=[]),
        )
    other = Problem(problem.model, "normalized_cross_entropy", (data["train"].inputs, y), test)
    with pytest.raises(InputError, match="different losses"):
        compare(analyses[0], ll.analyze(other, "2", measures=[]))


def test_the_answer_names_the_larger_determinant(analyses):
    found = compare(analyses[1], changed(analyses[1], loss=2.0))
    assert "The second solution generalises worse: paired gap" in found.answer
    assert "The main reason is that it is sharper" in found.answer


def test_other_data_and_results_without_pairs_are_refused(analyses):
    other = make_problem(seed=3)
    with pytest.raises(InputError, match="different data"):
        compare(analyses[0], ll.analyze(other, measures=[]))
    results = analyses[0].results
    bare = replace(results, balanced=None, duality=replace(results.duality, per_pair=None))
    with pytest.raises(InputError, match="no decomposition of single pairs"):
        compare(replace(analyses[0], results=bare), analyses[1])
    others = with_pairs(analyses[0], lambda pairs: replace(pairs, test=pairs.test + 1000))
    with pytest.raises(InputError, match="no pairs of samples in common"):
        compare(others, analyses[1])


def test_the_command_prints_and_draws(analyses, tmp_path):
    for name, analysis in zip("ab", analyses, strict=True):
        analysis.save(tmp_path / name)
    done = run("compare", "a", "b", cwd=tmp_path)
    assert done.code == 0, done.err
    answer = " ".join(compare(*analyses).answer.split())
    assert answer in " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 80
    page = tmp_path / "lowland-comparison.html"
    with chromium(tmp_path / "profile") as browser:
        browser.get(page.as_uri())
        support = pytest.importorskip("selenium.webdriver.support.ui")
        drawn = "return document.documentElement.dataset.drawn"
        support.WebDriverWait(browser, 20).until(lambda b: b.execute_script(drawn) == "yes")
        assert browser.execute_script(
            "return document.querySelectorAll('.plot svg.main-svg').length"
        )
        assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]

    as_json = run("compare", "a", "b", "--json", "--quiet", cwd=tmp_path)
    document = json.loads(as_json.out)
    assert document["change"]["value"] == compare(*analyses).results.change.value
    assert as_json.err == ""


def test_several_solutions_share_one_page_and_its_scales(analyses):
    surface = make_surface()
    wider = replace(surface, train=10 * surface.train, spans=(-2.0, 1.0, -0.8, 3.0))
    drawn = [
        replace(its, results=replace(its.results, landscape=Landscape((), one)))
        for its, one in zip((*analyses, analyses[1]), (surface, wider, surface), strict=True)
    ]
    comparisons = [compare(drawn[0], other) for other in drawn[1:]]
    page = render_comparison(comparisons)
    text = re.search(r'id="pictures">(.*?)</script>', page, re.S)[1]
    figures = {its["key"]: its["views"][0] for its in json.loads(text)}
    ranges = [figures[f"waterfall-{name}"]["layout"]["yaxis"]["range"] for name in NAMES[1:]]
    assert ranges[0] == ranges[1]
    assert [trace["name"] for trace in figures["spectrum"]["data"]] == NAMES
    scenes = [figures[f"surface-{name}"]["layout"]["scene"] for name in NAMES]
    assert scenes[0]["xaxis"]["range"] == scenes[1]["xaxis"]["range"] == [-2.0, 1.0]
    assert scenes[0]["zaxis"]["range"] == scenes[1]["zaxis"]["range"]
    colours = [figures[f"surface-{name}-contours"]["data"][0]["zmax"] for name in NAMES]
    assert len(set(colours)) == 1
    assert "What makes the third differ" in page
    assert len(page.encode()) < 3_000_000


def test_the_command_says_what_is_wrong(analyses, tmp_path):
    analyses[0].save(tmp_path / "a")
    done = run("compare", "a", "nowhere", cwd=tmp_path)
    assert done.code == 2
    assert "nowhere does not exist" in done.err
    assert not (tmp_path / "lowland-comparison.html").exists()


@pytest.mark.parametrize("n", [30, 300])
def test_which_does_better_on_the_same_samples_is_rarely_the_wrong_one(n):
    """Losses that go together, rarely large: the worse one is called better in at most 5 %."""
    rng = np.random.default_rng(0)
    hard = rng.lognormal(-3, 2, 20_000)
    wrong = [rng.random(20_000) < np.minimum(hard, 0.9) * share for share in (0.5, 0.6)]
    losses = [hard * rng.lognormal(0, 0.5, 20_000) + 2 * w for w in wrong]
    for (first, second), least in ((losses, 0), ([1.0 * w for w in wrong], 2)):
        assert second.mean() > first.mean()
        draws = [rng.integers(0, 20_000, n) for _ in range(1000)]
        named = [lower(first[k], second[k], least) for k in draws]
        assert np.mean([place == 1 for place in named]) < 0.05
        assert lower(first, second, least) == 0
    assert lower(losses[0][:9], losses[0][:9] - 1) is None  # too few
    assert lower(None, None) is None
