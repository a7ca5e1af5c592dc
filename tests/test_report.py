"""The report: what it says, that it draws, and that no text of the user can run in it."""

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import chromium, resize
from example import changed, make_results
from lowland.findings import Origin, Results
from lowland.report import answer, render
from lowland.report.numbers import date, duration, number

ATTACK = "</script><img src=x onerror=\"window.__pwned='layer'\">"
FIGURES = [
    *("split", "cumulative", "spectrum", "size", "curvature", "width", "correlation", "means"),
    *("expansion", "leading-order", "layers", "norms", "training"),
]


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
    return json.loads(text[1], parse_constant=refuse)


def body(page: str) -> str:
    """The page without plotly.js, for looking at what was written."""
    return max(re.split(r"<script>.*?</script>", page, flags=re.S), key=len)


# The answer


def with_parts(results: Results, sharp: float, flat: float, mean: float = 0.0) -> Results:
    total = sharp + flat + mean
    parts = {"sharp": sharp, "flat": flat, "eq11": sharp + flat, "eq9": total}
    results = changed(results, "duality.totals", **parts)
    return changed(results, "outcome", gap=total, test_loss=total + 5e-4, train_loss=5e-4)


def test_answer_names_the_sharp_directions(results: Results) -> None:
    results = with_parts(results, 0.094, 0.068)
    assert answer(results) == (
        "This minimum loses 0.162 more on unseen data than on its training data (test error 4.6 %, "
        "training error 0.0 %). 58 % of that gap comes from the 10 sharpest of 900 weight "
        "directions of layer '2', which suggests flattening those first (larger learning rate, "
        "smaller batches, SAM); over the 2 layers, the sharp part of it goes from 66 % to 66 %."
    )


def test_answer_names_the_flat_directions(results: Results) -> None:
    results = with_parts(results, 0.05, 0.15)
    assert "75 % of that gap comes from the 890 flatter of 900" in answer(results)
    assert "suggests a smaller solution first (weight decay" in answer(results)
    assert "SAM" not in answer(results)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((0.1, 0.1, 0.0), "about equally (50 % from the 10 sharpest"),
        ((0.2, -0.01, 0.0), "(the others lower it by 0.0100)"),
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
    assert page.count("plotly.js v") == 1
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
    head = {"created": ATTACK, "lowland": ATTACK, "notes": (ATTACK,)}
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
    drawn = ["split", "cumulative", "correlation", "expansion", "layers", "norms"]
    assert [figure["key"] for figure in embedded(page)] == drawn
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


# In the browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


def show(browser: Any, tmp_path: Path, page: str, width: int = 1200) -> None:
    """Open a page as a file and wait until its figures stand."""
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    resize(browser, width, 900)
    browser.get_log("browser")  # empties it
    browser.get(path.as_uri())
    deadline = time.monotonic() + 20
    while browser.execute_script("return document.documentElement.dataset.drawn") != "yes":
        assert time.monotonic() < deadline, browser.get_log("browser")
        time.sleep(0.05)


def assert_quiet(browser: Any) -> None:
    """Nothing was fetched, refused or thrown."""
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_figures_are_drawn(browser: Any, tmp_path: Path, results: Results) -> None:
    show(browser, tmp_path, render(results))
    drawn = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.js-plotly-plot')].map(p => "
        "[p.id, [p.querySelectorAll('.trace').length, [...p.querySelectorAll('.trace path')]"
        ".map(q => q.getAttribute('d')).filter(d => d && d.length > 5 && !/NaN/.test(d)).length]]))"
    )
    expected = {"split": 3, "cumulative": 2, "spectrum": 2, "size": 2, "curvature": 3}
    assert set(drawn) == {f"figure-{key}" for key in FIGURES}
    for key, traces in (expected | {"training": 1}).items():
        assert drawn[f"figure-{key}"][0] == traces, key
    assert drawn["figure-spectrum"][1] == 900
    assert all(paths >= traces for traces, paths in drawn.values())
    assert_quiet(browser)


def test_definitions_open_by_mouse_and_keyboard(
    browser: Any, tmp_path: Path, results: Results
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, tmp_path, render(results))
    for target, text in (("def-sharp", "Sec. 4.1"), ("measure-0", "Hutchinson 1989")):
        button = browser.find_elements(By.CSS_SELECTOR, f"[popovertarget={target}]")[0]
        definition = browser.find_element(By.ID, target)
        assert not definition.is_displayed()
        button.click()
        assert definition.is_displayed()
        assert text in definition.text
        browser.switch_to.active_element.send_keys(Keys.ESCAPE)
        assert not definition.is_displayed()
        button.send_keys(Keys.ENTER)
        assert definition.is_displayed()
        box = definition.rect
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1200
        button.send_keys(Keys.ESCAPE)
    assert_quiet(browser)


def test_page_fits_its_window(browser: Any, tmp_path: Path, results: Results) -> None:
    long = "encoder." * 12
    results = changed(results, "subject", title="a" * 80, layer=long, layers=("x" * 90,))
    results = changed(results, "duality.setting", layer=long)
    command = "lowland analyze --checkpoint " + "/very/long" * 20
    results = changed(results, "origin", command=command)
    show(browser, tmp_path, render(results))
    size = "return [document.documentElement.scrollWidth, innerWidth]"
    for width in (1200, 700, 360):
        resize(browser, width, 900)
        assert browser.execute_script(size) == [width, width]


def test_text_of_the_user_does_not_run(browser: Any, tmp_path: Path, results: Results) -> None:
    show(browser, tmp_path, render(poisoned(results)))
    assert browser.execute_script("return window.__pwned === undefined")
    assert browser.title == "<script>alert(1)</script> · Lowland"
    assert browser.execute_script("return document.images.length") == 0
    assert_quiet(browser)
    # The second line of defence: markup that did get in is not run, by the page's own policy.
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", ATTACK)
    time.sleep(0.3)
    assert browser.execute_script("return document.images.length") == 1
    assert browser.execute_script("return window.__pwned === undefined")


def test_awkward_values_draw_without_complaint(
    browser: Any, tmp_path: Path, results: Results
) -> None:
    show(browser, tmp_path, render(awkward(results)), width=360)
    count = "return document.querySelectorAll('.js-plotly-plot:has(.trace path)').length"
    assert browser.execute_script(count) == len(FIGURES)
    assert_quiet(browser)


def test_figures_follow_the_theme(browser: Any, tmp_path: Path, results: Results) -> None:
    show(browser, tmp_path, render(results))
    colour = "return document.getElementById('figure-spectrum').layout.font.color"
    light = browser.execute_script(colour)
    resize(browser, 1200, 900, dark=True)
    deadline = time.monotonic() + 5
    while browser.execute_script(colour) == light:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert_quiet(browser)
