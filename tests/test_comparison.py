"""Comparing two solutions: exact sums, known causes, and the command."""

import json
from itertools import permutations

import numpy as np
import pytest
import torch

import lowland as ll
from browser import chromium
from commandline import run
from lowland.comparison import compare, shapley
from lowland.errors import InputError
from lowland.problem import Problem
from lowland.results import Analysis
from test_duality import make_problem

PARTS = ("sharpness", "size", "correlation", "means")


def trained(steps: int) -> Problem:
    """The test problem's network after more steps, on the same data."""
    problem = make_problem()
    batch = problem.train.take(slice(None))
    optimizer = torch.optim.SGD(problem.model.parameters(), 0.2)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(problem.model(batch.inputs), batch.targets).backward()
        optimizer.step()
    return problem


@pytest.fixture(scope="module")
def analyses() -> tuple[Analysis, Analysis]:
    return tuple(ll.analyze(trained(steps), title=f"{steps} steps") for steps in (0, 400))


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
    gaps = [a.results["duality"]["paired_gap"] for a in analyses]
    assert found["paired_gaps"] == pytest.approx(gaps, rel=1e-12)
    assert found["change"]["value"] == pytest.approx(gaps[1] - gaps[0], rel=1e-12)
    assert sum(found["parts"][p]["value"] for p in PARTS) == pytest.approx(
        gaps[1] - gaps[0], rel=1e-6
    )
    for part in PARTS[:3]:
        halves = sum(found["within"][half][part]["value"] for half in ("sharp", "flat"))
        assert halves == pytest.approx(found["parts"][part]["value"], rel=1e-9)
    for row in (found["change"], *found["parts"].values()):
        assert row["low"] <= row["high"]
    assert found["change"]["low"] < found["change"]["value"] < found["change"]["high"]


def test_a_solution_does_not_differ_from_itself(analyses):
    found = compare(analyses[0], analyses[0])
    assert found.results["change"] == {"value": 0, "low": 0, "high": 0}
    assert all(row["value"] == 0 for row in found.results["parts"].values())
    assert "do not differ beyond chance" in found.answer


def changed(analysis: Analysis, **factors: float) -> Analysis:
    """The analysis as if dual weights were larger or losses steeper, by hand."""
    arrays = dict(analysis.arrays)
    size = factors.get("size", 1.0)
    arrays["pairs/dl"] = arrays["pairs/dl"] * factors.get("loss", 1.0)
    arrays["pairs/size"] = arrays["pairs/size"] * size**2
    arrays["pairs/components"] = arrays["pairs/components"] * np.float32(size)
    return Analysis(analysis.results, arrays, analysis.weights)


def test_known_causes_are_named(analyses):
    one = analyses[1]
    # twice the loss change for the same shifts: twice the gradient, and nothing else
    steeper = compare(one, changed(one, loss=2.0)).results
    gap = one.results["duality"]["paired_gap"]
    mean = steeper["parts"]["means"]["value"]
    assert steeper["parts"]["sharpness"]["value"] == pytest.approx(gap - mean, rel=1e-5)
    assert steeper["parts"]["size"]["value"] == pytest.approx(0, abs=1e-7 * gap)
    assert steeper["parts"]["correlation"]["value"] == pytest.approx(0, abs=1e-5 * gap)
    # twice the shifts for the same loss changes: twice the size, half the gradient, no change
    larger = compare(one, changed(one, size=2.0)).results
    assert larger["change"]["value"] == 0
    sharper, size = (larger["parts"][p]["value"] for p in ("sharpness", "size"))
    assert size > 0.1 * gap
    assert sharper == pytest.approx(-size, rel=1e-5)


def test_the_answer_names_the_larger_determinant(analyses):
    found = compare(*analyses)
    text = found.answer
    assert text.count(". ") == 1
    worse = found.results["change"]["value"] > 0
    assert f"generalises {'worse' if worse else 'better'}" in text or "beyond chance" in text


def test_other_data_and_results_without_pairs_are_refused(analyses):
    other = make_problem(seed=3)
    with pytest.raises(InputError, match="different data"):
        compare(analyses[0], ll.analyze(other))
    bare = Analysis(analyses[0].results, {}, b"")
    with pytest.raises(InputError, match="no decomposition of single pairs"):
        compare(bare, analyses[1])
    arrays = {**analyses[0].arrays, "pairs/test": analyses[0].arrays["pairs/test"] + 1000}
    with pytest.raises(InputError, match="no pairs of samples in common"):
        compare(Analysis(analyses[0].results, arrays, b""), analyses[1])


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
    assert document["change"]["value"] == compare(*analyses).results["change"]["value"]
    assert as_json.err == ""


def test_the_command_says_what_is_wrong(analyses, tmp_path):
    analyses[0].save(tmp_path / "a")
    done = run("compare", "a", "nowhere", cwd=tmp_path)
    assert done.code == 2
    assert "nowhere does not exist" in done.err
    assert not (tmp_path / "lowland-comparison.html").exists()
