"""The report: what it says, that it draws, and that no text of the user can run in it."""

import json
import math
import re
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example import changed, make_results
from lowland import reference
from lowland.errors import InputError
from lowland.findings import Landscape, Origin, Results
from lowland.measures import registered
from lowland.report import answer, figure_files, number, render, render_landscape
from lowland.report.mathml import mathml
from lowland.report.numbers import date, duration
from lowland.report.words import sure
from lowland.results import Analysis

ATTACK = "</script><img src=x onerror=\"window.__pwned='layer'\">"
DIRECTIONS = [
    *("cumulative", "spectrum", "size", "curvature", "width", "correlation", "means"),
    *("expansion", "leading-order", "norms"),
]
LANDSCAPE = ["surface", "surface-contours", "cuts", "ways"]
FIGURES = ["split", "layers", *DIRECTIONS, "density", "leading", *LANDSCAPE, "training"]
MOST = 3_000_000  # bytes of a page


@pytest.fixture
def results() -> Results:
    return make_results()


def sentences(text: str) -> list[str]:
    return re.findall(r"[A-Z0-9].*?\.(?=\s|$)", text)


def embedded(page: str) -> list[dict[str, Any]]:
    """The figures of a page, read as strictly as a browser reads them."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = re.search(r'<script type="application/json" id="pictures">(.*?)</script>', page, re.S)
    assert text is not None
    figures = json.loads(text[1], parse_constant=refuse)
    return [{"key": its["key"], **its["views"][0], "views": its["views"]} for its in figures]


def body(page: str) -> str:
    """The page without its scripts, for looking at what was written."""
    return page[: page.index("<script")]


# The answer


def with_parts(results: Results, sharp: float, flat: float, mean: float = 0.0) -> Results:
    total = sharp + flat + mean
    parts = {"sharp": sharp, "flat": flat, "eq11": sharp + flat, "eq9": total}
    results = changed(results, "duality.totals", **parts)
    ends = sorted(factor * (sharp - flat) for factor in (0.5, 1.5))
    results = changed(results, "duality.totals.intervals", difference=tuple(ends))
    rows = tuple(replace(row, sharp=sharp, flat=flat) for row in results.layer_rows)
    results = replace(results, layer_rows=rows)
    return changed(results, "outcome", gap=total, test_loss=total + 5e-4, train_loss=5e-4)


def test_answer_names_the_sharp_directions(results: Results) -> None:
    results = with_parts(results, 0.094, 0.068)
    assert answer(results) == (
        "This minimum loses 0.162 more on unseen data than on its training data (test error 4.6 %, "
        "training error 0.0 %). 58 % of that gap comes from the 10 sharpest of 900 weight "
        "directions of layer '2', which is weak evidence for a flatter solution: try weight "
        "decay, dropout and SAM, and keep what is best on data that this analysis has not seen, "
        "which lowered the test error of 193 dense networks by 9.4 % (95 % interval 7.3 to 11.7 %);"
        " across the 2 layers, the sharp share ranges from 58 % to 58 %."
    )


def test_answer_names_the_flat_directions(results: Results) -> None:
    results = with_parts(results, 0.05, 0.15)
    assert "75 % of that gap comes from the 890 flatter of 900" in answer(results)
    assert "which is weak evidence for a smaller solution: try weight decay" in answer(results)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((0.1, 0.1, 0.0), "about equally (50 % from the 10 sharpest"),
        ((0.2, -0.01, 0.0), "(the 890 other directions lower it by 0.0100)"),
        ((0.2, 0.0, 0.0), "All of that gap comes from the 10 sharpest"),
        ((-0.01, 0.2, 0.0), "All of that gap comes from the 890 flatter"),
        ((-0.01, 0.19, 0.02), "95 % of that gap comes from the 890 flatter"),
        ((0.02, 0.01, 0.1), "a shift of the mean"),
        ((-0.1, 0.02, 0.0), "There is no gap to explain"),
        ((1e-4, 1e-4, 0.0), "There is no gap to explain"),
    ],
)
def test_answer_fits_the_numbers(
    results: Results, parts: tuple[float, float, float], expected: str
) -> None:
    results = with_parts(results, *parts)
    assert expected in answer(results)
    assert len(sentences(answer(results))) == 2


def without_duality(results: Results) -> Results:
    return replace(results, duality=None)


def with_a_rough_dual(results: Results) -> Results:
    return changed(results, "duality.fit", mean_residual=0.8)


def with_a_path_around_the_layer(results: Results) -> Results:
    return changed(results, "duality.fit", loss_defect=0.4)


def with_an_infinite_defect(results: Results) -> Results:
    return changed(results, "duality.fit", loss_defect=math.inf)


def from_python(results: Results) -> Results:
    results = changed(results, "subject", layer=None, layer_shape=None)
    return replace(results, origin=Origin(), duality=None, checks=())


def with_a_gap_within_its_error(results: Results) -> Results:
    *others, row = results.measures
    return replace(results, measures=(*others, replace(row, stderr=0.6 * results.outcome.gap)))


def with_an_undefined_part(results: Results) -> Results:
    return changed(results, "duality.totals", flat=math.nan)


def with_no_paired_gap(results: Results) -> Results:
    return changed(results, "duality.totals", eq9=-0.01, eq11=-0.01, sharp=0.01, flat=-0.02)


def with_another_paired_gap(results: Results) -> Results:
    return changed(results, "outcome", gap=0.5)


def without_test_loss(results: Results) -> Results:
    return changed(results, "outcome", test_loss=None, gap=None, test_error=None)


def with_a_diverged_loss(results: Results) -> Results:
    return changed(results, "outcome", train_loss=math.inf, gap=math.nan)


def without_convergence(results: Results) -> Results:
    return changed(results, "origin.training", converged=False)


def with_a_failed_check(results: Results) -> Results:
    failed = replace(results.checks[0], passed=False)
    return replace(results, checks=(failed, *results.checks[1:]))


def as_regression(results: Results) -> Results:
    return changed(results, "outcome", train_error=None, test_error=None)


def underfitted(results: Results) -> Results:
    return changed(results, "outcome", train_loss=1.5, test_loss=1.9, gap=0.4)


def almost_equal_losses(results: Results) -> Results:
    return changed(results, "outcome", train_loss=2.0, test_loss=2.01, gap=0.01)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without_duality, "duality was not available"),
        (with_a_rough_dual, "too rough in layer '2' (relative error: 80 %)"),
        (with_a_path_around_the_layer, "(relative error: 40 %)"),
        (with_an_infinite_defect, "(relative error: unknown)"),
        (from_python, "duality was not available"),
        (with_a_gap_within_its_error, "shows no gap beyond chance"),
        (with_an_undefined_part, "is not defined"),
        (with_no_paired_gap, "the gap vanishes"),
        (with_another_paired_gap, "of the gap between paired samples ("),
        (without_test_loss, "gap of this minimum is not defined"),
        (with_a_diverged_loss, "gap of this minimum is not defined"),
        (without_convergence, "This solution (its training did not converge) loses"),
        (with_a_failed_check, "but 1 of 2 checks failed, so no remedy is suggested"),
        (as_regression, "(test loss 0."),
        (almost_equal_losses, "does about as well on unseen data"),
    ],
)
def test_every_case_has_two_sentences_and_a_page(
    results: Results, change: Callable[[Results], Results], expected: str
) -> None:
    results = change(results)
    assert expected in answer(results)
    assert len(sentences(answer(results))) == 2
    page = render(results)
    embedded(page)
    assert not re.search(r"\b(nan|inf|None)\b", body(page))


# The page


def test_page_shows_what_was_saved(results: Results) -> None:
    page = render(results)
    text = body(page)
    assert page.startswith("<!doctype html>")
    assert len(page.encode()) < MOST
    assert [figure["key"] for figure in embedded(page)] == FIGURES
    for shown in ("15 November 2026, 19:20 UTC", "lowland analyze", "24,720", "30 × 30"):
        assert shown in text
    assert "does not apply: layer &#39;3&#39; has no weight" in text
    assert "not defined: the computation gave no number" in text
    assert "± 0.0021" in text
    assert "2 of 2 checks passed" in text


def test_every_button_opens_a_definition(results: Results) -> None:
    text = render(results)
    targets = set(re.findall(r'popovertarget="([^"]+)"', text))
    definitions = re.findall(r'<div popover id="([^"]+)"', text)
    assert len(definitions) == len(set(definitions))
    assert targets <= set(definitions)
    assert {"def-gap", "def-sharp", "def-flat", "measure-0", "measure-4", "check-1"} <= targets


def test_user_text_is_escaped(results: Results) -> None:
    page = render(poisoned(results))
    assert "<img" not in body(page)
    assert "<script>alert" not in page
    assert page.count("<script") == render(results).count("<script")


def poisoned(results: Results) -> Results:
    """Markup wherever text of the user can come from."""
    results = changed(
        results,
        "subject",
        title="<script>alert(1)</script>",
        layer=ATTACK,
        layers=(ATTACK,),
        model=f"Sequential({ATTACK}\u2028)",
    )
    results = changed(results, "origin", command=ATTACK, data=ATTACK, checkpoint=ATTACK)
    results = changed(results, "origin.training", settings={ATTACK: ATTACK})
    results = changed(results, "duality.setting", layer=ATTACK)
    texts = ("name", "title", "formula", "definition", "citation", "method", "reason")
    rows = tuple(replace(row, **dict.fromkeys(texts, ATTACK)) for row in results.measures)
    check = replace(results.checks[0], name=ATTACK, meaning=ATTACK)
    layers = tuple(replace(row, layer=ATTACK) for row in results.layer_rows)
    surface = results.landscape.surface
    axis = replace(surface.axes[0], label=ATTACK)
    mark = replace(surface.marks[0], name=ATTACK)
    landscape = replace(
        results.landscape,
        lines=(replace(results.landscape.lines[0], axis=axis),),
        surface=replace(surface, axes=(axis, axis), marks=(mark,)),
        path=replace(results.landscape.path, names=(ATTACK, ATTACK), refused={ATTACK: ATTACK}),
        notes=(ATTACK,),
    )
    head = {"created": ATTACK, "lowland": ATTACK, "notes": (ATTACK,), "versions": {ATTACK: ATTACK}}
    head |= {"layer_rows": layers, "landscape": landscape}
    return replace(results, measures=rows, checks=(check, *results.checks[1:]), **head)


def awkward(results: Results) -> Results:
    """A rank-deficient layer: zeros, rounding noise, undefined correlations, negative curvature."""
    arrays = {name: array.copy() for name, array in vars(results.duality.per_direction).items()}
    arrays["sigma_g"][500:] = 0.0
    arrays["sigma_g"][400:500] = 1e-18
    arrays["sigma_w"][300:] = 0.0
    arrays["c"][500:] = np.nan
    arrays["contribution"][500:] = np.nan
    arrays["eigenvalue"][::2] *= -1
    results = changed(results, "duality.per_direction", **arrays)
    loss = results.origin.training.curves["loss"].copy()
    loss[:3] = [np.inf, np.nan, 0.0]
    results = changed(results, "origin.training", curves={"loss": loss}, settings={})
    return replace(as_regression(results), measures=(), checks=(), notes=())


def test_zeros_and_undefined_values_are_drawn_as_gaps(results: Results) -> None:
    page = render(awkward(results))
    spectrum = next(figure for figure in embedded(page) if figure["key"] == "spectrum")
    assert spectrum["data"][1]["y"][-1] is None
    low, high = spectrum["layout"]["yaxis"]["range"]
    assert 3 < high - low < 5
    assert "400 directions with zero or no value are not drawn" in page
    assert "100 directions far below are off the axis" in page
    assert "Test error" not in re.sub(r"<aside.*</aside>", "", body(page), flags=re.S)


def test_nothing_to_draw_is_said(results: Results) -> None:
    for part in ("per_direction", "approximations", "widths"):
        empty = dict.fromkeys(vars(getattr(results.duality, part)), np.zeros(900))
        results = changed(results, f"duality.{part}", **empty)
    results = changed(results, "origin.training", curves={"loss": np.zeros(87)})
    page = render(results)
    drawn = ["split", "layers", "cumulative", "correlation", "expansion", "norms"]
    assert [figure["key"] for figure in embedded(page)] == [*drawn, *FIGURES[12:-1]]
    assert "Not drawn: every σ<sub>g,n</sub> is zero" in page


def test_what_was_not_computed_has_no_figure(results: Results) -> None:
    page = render(changed(results, "duality", approximations=None, widths=None))
    expected = [key for key in FIGURES if key not in ("width", "expansion", "leading-order")]
    assert [figure["key"] for figure in embedded(page)] == expected


def test_large_layers_are_thinned() -> None:
    page = render(make_results(n=200_000))
    spectrum = next(figure for figure in embedded(page) if figure["key"] == "spectrum")
    ranks = [n for trace in spectrum["data"] for n in trace["x"]]
    assert len(ranks) < 1500
    assert ranks[:20] == list(range(1, 21))
    assert ranks[-1] == 200_000


def test_report_does_not_import_torch() -> None:
    code = "import sys, lowland.report; print([m for m in ('torch', 'pandas') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.16234, "0.1623"),
        (0.1, "0.1000"),
        (0.0, "0"),
        (24720, "24,720"),
        (1234.5, "1,234"),
        (-12.345, "-12.35"),
        (1.2e-16, "1.2e-16"),
        (4.9e-4, "4.9e-4"),
        (2.5e9, "2.5e9"),
        (0.00099999, "0.001000"),
        (None, "not recorded"),
        (float("inf"), "not defined: the computation overflowed"),
    ],
)
def test_numbers_are_written_one_way(value: float | None, text: str) -> None:
    assert number(value) == text


def test_times_are_written_as_said() -> None:
    assert [duration(s) for s in (0.0123, 21.3, 245.2, 1e-5, None)] == [
        "0.0123 s",
        "21.3 s",
        "4 min 05 s",
        "under 1 ms",
        "not recorded",
    ]
    assert date("2026-11-15T19:20:00+02:00") == "15 November 2026, 17:20 UTC"
    assert date("yesterday") == "yesterday"


# Its parts


def test_the_policy_allows_two_scripts_by_their_hashes_and_nothing_else(results: Results) -> None:
    page = render(results)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("script-src").count("'sha256-") == 2
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_what_the_answer_rests_on_is_told(results: Results) -> None:
    told = {fact.words: fact.good for fact in sure(results)}
    assert told.pop("gap 0.183 ± 0.010 (two standard errors, 1,000 test samples)") is True
    assert told.pop("2 of 2 checks passed") is True
    assert told.pop("at a minimum, as far as can be told") is True
    (split,) = told
    assert split.startswith("sharp part 0.10 to 0.20, flat part 0.20 to 0.30, their difference")
    doubts = {
        underfitted: ("the training data are not fitted yet", False),
        with_a_gap_within_its_error: ("two standard errors", None),
        with_a_failed_check: ("1 of 2 checks failed", False),
        with_a_rough_dual: ("do not stand for the data", False),
        without_test_loss: ("the error of the gap is not known", None),
    }
    for change, (words, good) in doubts.items():
        (fact,) = [fact for fact in sure(change(results)) if words in fact.words]
        assert fact.good is good, words


def test_every_formula_is_mathml_and_what_is_none_stays_text() -> None:
    for measure in registered().values():
        assert "<math" in mathml(measure.formula), measure.name
    assert mathml("(a") == '<span class="plain">(a</span>'
    assert mathml("<b>x") == (
        '<math displaystyle="true"><mo>&lt;</mo><mi>b</mi><mo>&gt;</mo><mi>x</mi></math>'
    )
    fraction = "<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mi>σ</mi></mfrac>"
    assert fraction in mathml("(a + b) / sigma")
    assert "<msubsup><mi>W</mi><mrow><mi>i</mi><mi>j</mi></mrow><mn>2</mn></msubsup>" in mathml(
        "W_ij^2"
    )


def test_a_rank_is_given_where_it_means_something(results: Results) -> None:
    results = changed(results, "outcome", train_loss=0.009)
    zoo = reference.zoo().comparable(results)
    losses = [model["stop_loss"] for model in zoo.models]
    assert set(losses) == {0.01, 0.02}  # others were trained further
    assert len(losses) >= 30
    values = sorted(zoo.values["trace"])
    trace = results.measures[0]
    middle = zoo.standing(replace(trace, value=values[20], stderr=None))
    below, equal = bisect_left(values, values[20]), values.count(values[20])
    assert middle.low == middle.high == middle.share == (below + equal / 2) / len(values)
    wide = zoo.standing(replace(trace, value=values[20], stderr=values[-1]))
    assert (wide.low, wide.high) == (0, 1)
    assert zoo.standing(replace(trace, value=2 * values[-1])).words == "highest"
    for row in (replace(trace, value=math.nan), replace(trace, value=None)):
        assert zoo.standing(row) is None
    assert zoo.standing(replace(trace, name="a measure of mine")) is None
    assert 'class="rank"' in render(results)
    others = {
        "the loss is mse": changed(results, "subject", loss="mse"),
        "it has 10,000,000 weights": changed(results, "subject", parameters=10**7),
        "it is not trained": changed(results, "convergence", state="untrained"),
        "a training loss near 0.3": changed(results, "outcome", train_loss=0.3),
    }
    for words, other in others.items():
        page = render(other)
        assert "Not ranked among the reference models" in page
        assert words in page
        assert 'class="rank"' not in body(page)


def test_a_surface_over_decades_is_drawn_by_its_logarithm_with_its_values(results: Results) -> None:
    surface = results.landscape.surface
    steep = replace(surface, train=np.exp(8 * surface.train))
    for its, log in ((replace(surface, train=surface.train + 5), False), (steep, True)):
        page = render(changed(results, "landscape", surface=its))
        (drawn,) = [figure["data"][0] for figure in embedded(page) if figure["key"] == "surface"]
        assert drawn["z"][0][0] is None  # a hole
        expected = np.log10(its.train[3, 4]) if log else its.train[3, 4]
        assert drawn["z"][3][4] == pytest.approx(expected, rel=1e-4)
        assert ("customdata" in drawn) == log
        if log:
            assert drawn["customdata"][3][4] == pytest.approx(its.train[3, 4], rel=1e-4)


def test_a_fine_surface_is_thinned_from_end_to_end(results: Results) -> None:
    x = np.linspace(-1, 1, 301)
    fine = np.exp(9 * (x[None, :] ** 2 + x[:, None] ** 2))
    values = dict.fromkeys(("train", "test", "train_error", "test_error"), fine)
    surface = replace(results.landscape.surface, x=x, y=x, **values)
    page = render(changed(results, "landscape", surface=surface))
    assert len(page.encode()) < MOST
    (drawn,) = [figure["data"][0] for figure in embedded(page) if figure["key"] == "surface"]
    assert len(drawn["x"]) == len(drawn["z"]) == len(drawn["z"][0]) == 75
    assert (drawn["x"][0], drawn["x"][-1]) == (-1, 1)
    assert "90,601 points" in page


def test_leading_eigenvalues_end_where_one_is_not_known(results: Results) -> None:
    spectrum = results.spectrum
    assert spectrum.leading().values.tolist() == [3.1, 2.0, 1.2]
    gap = replace(spectrum, single=np.array([True, True, True, True, False, True]))
    assert gap.leading().values.tolist() == [3.1]
    none = replace(spectrum, single=np.zeros(6, bool))
    assert "no single eigenvalue has been found" in render(replace(results, spectrum=none))


def test_parts_that_are_not_there_are_said(results: Results) -> None:
    page = render(replace(results, spectrum=None, landscape=None, layer_rows=()))
    assert "No eigenvalues of the whole network were computed" in page
    assert "No landscape was computed" in page
    lone = results.landscape.lines[:1]
    page = render(changed(results, "landscape", surface=None, path=None, lines=lone, notes=()))
    assert [its["key"] for its in embedded(page) if its["key"] in LANDSCAPE] == ["cuts"]


def test_without_test_data_or_errors_a_landscape_has_what_there_is(results: Results) -> None:
    none = {"test": None, "train_error": None, "test_error": None}
    landscape = results.landscape
    bare = replace(
        landscape,
        surface=replace(landscape.surface, **none, quadratic=None, marks=(), trajectory=()),
        lines=tuple(replace(line, **none, quadratic=None) for line in landscape.lines),
        path=None,
    )
    page = render(replace(without_test_loss(results), landscape=bare))
    figures = {its["key"]: its for its in embedded(page)}
    assert len(figures["surface"]["views"]) == len(figures["surface-contours"]["views"]) == 1
    assert [trace["name"] for trace in figures["cuts"]["data"]] == ["training loss"]
    assert "no quadratic was computed" in page


def test_a_landscape_is_a_page_of_its_own(results: Results) -> None:
    page = render_landscape(results.landscape, ATTACK, "lowland landscape")
    assert [its["key"] for its in embedded(page)] == LANDSCAPE
    assert "<img" not in body(page)
    assert "This landscape is empty" in render_landscape(Landscape(), "nothing")


def with_long_names(results: Results) -> Results:
    """Long names wherever a user can have one, and 200 layers."""
    long = "encoder." * 12
    row = results.layer_rows[1]
    rows = tuple(replace(row, layer=f"{long}{i}", trusted=i % 7 != 0) for i in range(200))
    results = changed(results, "subject", title="a" * 80, layer=long, layers=("x" * 90,))
    results = changed(results, "duality.setting", layer=long)
    command = "lowland analyze --checkpoint " + "/very/long" * 20
    results = changed(results, "origin", command=command)
    if results.landscape.surface is not None:
        mark = replace(results.landscape.surface.marks[0], name="c" * 200)
        results = changed(results, "landscape.surface", marks=(mark,))
    return replace(results, layer_rows=rows)


def test_pages_of_many_layers_stay_small(results: Results) -> None:
    assert len(render(with_long_names(results)).encode()) < MOST
    alone = render(replace(results, layer_rows=results.layer_rows[1:2]))
    assert "All 1 layers in a table" not in alone


# Figures for papers and notebooks


def test_figures_are_files_for_a_paper(results: Results, tmp_path: Path) -> None:
    analysis = Analysis(results, b"")
    starts = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    names = ["layers", "gap", "directions", "spectrum", "eigenvalues", "landscape", "landscape-3d"]
    names += ["cut-1", "cut-2", "path", "training"]
    files = analysis.save_figures(tmp_path / "svg", "svg")
    assert [file.name for file in files] == [f"{name}.svg" for name in names]
    only = replace(results, duality=None, spectrum=None, landscape=None, layer_rows=())
    for kind, start in starts.items():
        once, again = (figure_files(only, kind) for _ in range(2))
        assert list(once) == [f"training.{kind}"]
        assert once[f"training.{kind}"].startswith(start)
        assert once == again
    with pytest.raises(InputError, match="pdf, svg, png; got 'gif'"):
        analysis.save_figures(tmp_path / "gif", "gif")
    poor = replace(without_duality(results), spectrum=None, landscape=None, layer_rows=())
    assert list(figure_files(replace(poor, origin=Origin()), "svg")) == []


def test_everything_can_be_drawn_in_a_notebook(results: Results) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    analysis, landscape = Analysis(results, b""), results.landscape
    drawn = (results.duality, results.spectrum, landscape.surface, landscape.path)
    for result in (*drawn, *landscape.lines, analysis):
        ax = plt.subplots()[1]
        assert result.plot(ax) is ax
        assert ax.lines or ax.collections
        plt.close(ax.figure)
        assert result._repr_html_().count("<") > 1
    solid = plt.figure().add_subplot(projection="3d")
    assert landscape.surface.plot(solid) is solid
    plt.close("all")
    poisonous = Analysis(poisoned(results), b"")._repr_html_()
    assert "<script>" not in poisonous
    assert "<img" not in poisonous
