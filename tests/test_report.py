"""The report: what it says, that it draws, and that no text of the user can run in it."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import chromium, resize
from lowland.errors import InputError
from lowland.report import answer, render
from lowland.report.numbers import date, duration, number

ATTACK = "</script><img src=x onerror=\"window.__pwned='layer'\">"
FIGURES = [
    *("split", "cumulative", "spectrum", "size", "curvature", "width", "correlation", "means"),
    *("expansion", "leading-order", "layers", "norms", "training"),
]


def make_arrays(n: int = 900, n_sharp: int = 10, seed: int = 0) -> dict[str, np.ndarray]:
    """A spectrum like the paper's: a plateau, a steep drop after n_sharp, a long tail."""
    rng = np.random.default_rng(seed)
    rank = np.arange(1, n + 1)
    sharp, flat = 2 * rank**-0.35, 0.25 * (rank / n_sharp) ** -1.7
    sigma_g = np.sort(np.where(rank <= n_sharp, sharp, flat) * rng.lognormal(0, 0.1, n))[::-1]
    sigma_w = rng.uniform(0.02, 0.05, n)
    c = np.where(rank <= n_sharp, rng.uniform(0.1, 0.4, n), rng.uniform(0.4, 0.9, n))
    mu_g, mu_w = 0.02 * sigma_g * rng.standard_normal(n), 0.05 * sigma_w * rng.standard_normal(n)
    arrays = {
        "sigma_g": sigma_g,
        "sigma_w": sigma_w,
        "c": c,
        "mu_g": mu_g,
        "mu_w": mu_w,
        "contribution": c * sigma_g * sigma_w,
        "eigenvalue": 0.004 * sigma_g**2 * rng.lognormal(0, 0.5, n),
        "flatness": 0.1 / sigma_g,
        "flatness_e": 0.12 / sigma_g,
        "gradient_square": 0.5 * sigma_g**2,
        "finite": 1.1 * c * sigma_g * sigma_w,
        "alone": 0.5 * c * sigma_g * sigma_w,
        "linear": 0.2 * c * sigma_g * sigma_w,
    }
    loss = 2.3 * np.exp(-np.arange(87) / 10) * rng.lognormal(0, 0.08, 87) + 4e-4
    return {f"duality/{name}": a for name, a in arrays.items()} | {"training/loss": loss}


def make_results(arrays: dict[str, np.ndarray], n_sharp: int = 10) -> dict[str, Any]:
    """Results whose numbers follow from the arrays, as an analysis saves them."""
    part = {name.removeprefix("duality/"): a for name, a in arrays.items()}
    sharp = float(part["contribution"][:n_sharp].sum())
    flat = float(part["contribution"][n_sharp:].sum())
    eq9 = sharp + flat + float((part["mu_g"] * part["mu_w"]).sum())
    gap, train_loss = 1.02 * eq9, 4.9e-4
    measure = {
        "family": "curvature",
        "stderr": None,
        "formula": "sum_i d2L/dw_i2",
        "definition": "The sum of the second derivatives of the training loss.",
        "citation": "Hutchinson 1989",
        "sharper": "higher",
        "method": "exact, by layer structure",
        "reason": None,
        "seconds": 0.062,
        "gradients": 3.1,
        "parts": {"0.weight": 1.0, "2.weight": 0.2345},
    }
    return {
        "format": 2,
        "lowland": "0.1.0",
        "created": "2026-11-15T19:20:00+00:00",
        "subject": {
            "title": "784-30-30-10 ReLU network on mnist5k",
            "model": "Sequential(\n  (0): Linear(in_features=784, out_features=30, bias=False)\n"
            "  (1): ReLU()\n  (2): Linear(in_features=30, out_features=30, bias=False)\n  (3): "
            "ReLU()\n  (4): Linear(in_features=30, out_features=10, bias=False)\n)",
            "parameters": 24720,
            "layer": "2",
            "layer_shape": [30, 30],
            "layers": ["0", "2", "4"],
            "loss": "cross_entropy",
            "train_samples": 4000,
            "test_samples": 1000,
            "device": "cpu",
            "dtype": "float32",
            "data": "mnist5k: 5,000 images of handwritten digits, 400 + 100 per class",
            "checkpoint": None,
        },
        "outcome": {
            "train_loss": train_loss,
            "test_loss": train_loss + gap,
            "train_error": 0.0,
            "test_error": 0.046,
            "gap": gap,
        },
        "training": {
            "epochs": 87,
            "seconds": 9.3,
            "settings": {"learning_rate": 0.1, "batch_size": 25, "weight_decay": 0.0},
            "converged": True,
        },
        "duality": {
            "layer": "2",
            "basis": "hessian",
            "gauge": "given",
            "pairing": "for each test sample the nearest train sample of the same label",
            "route": "all, from the exact dense block",
            "gap": gap,
            "paired_gap": eq9,
            "dual_gap": eq9,
            "eq9": eq9,
            "eq11": sharp + flat,
            "sharp": sharp,
            "flat": flat,
            "n_sharp": n_sharp,
            "directions": len(part["sigma_g"]),
            "weight_norm": 9.84,
            "total_w": float((part["sigma_w"] ** 2).sum()),
            "total_w_data": float((part["sigma_w"] ** 2).sum()),
            "total_g": float((part["sigma_g"] ** 2).sum()),
            "unseen_sigma_g": 0.0,
            "complete": True,
            "intervals": {"paired_gap": [0.3, 0.5], "sharp": [0.1, 0.2], "flat": [0.2, 0.3]},
            "degenerate": {"inputs of the layer are all zero": 3},
            "positions": 1,
            "rank": 1.0,
            "pairs": 997,
            "excluded": 3,
            "excluded_gap": 0.0021,
            "duality_residual": 1.3e-16,
            "mean_residual": 1.1e-16,
            "loss_defect": 4.4e-16,
            "trusted": True,
            "seconds": 1.2,
        },
        "layers": [
            {
                "layer": name,
                "explained": 1.0,
                "sharp": sharp,
                "flat": flat,
                "sigma_g": 1.5,
                "sigma_w": 0.9,
                "weight_norm": 9.84,
                "mean_residual": 1e-16,
                "loss_defect": 1e-16,
                "trusted": name != "0",
            }
            for name in ("0", "2", "4")
        ],
        "measures": [
            measure | {"name": "trace", "title": "Hessian trace", "value": 1.2345},
            measure
            | {
                "name": "lambda_max",
                "title": "Largest Hessian eigenvalue",
                "value": 0.2371,
                "stderr": 0.0021,
                "formula": "max_v v^T H v / v^T v",
                "method": "Lanczos, 40 products, converged",
            },
            measure
            | {
                "name": "keskar",
                "title": "ε-sharpness in a box",
                "value": 3.1e-5,
                "method": "L-BFGS-B, 10 iterations",
            },
            measure | {"name": "diverged", "title": "Diverged measure", "value": float("nan")},
            measure
            | {
                "name": "normalized",
                "title": "Normalized sharpness",
                "value": None,
                "reason": "does not apply: layer '3' has no weight",
            },
        ],
        "checks": [
            {
                "name": "Eq. 9 equals the paired gap",
                "value": 2.2e-16,
                "limit": 1e-10,
                "passed": True,
                "meaning": "The sum over directions must give back the gap that it splits.",
            },
            {
                "name": "Eigenvectors are orthonormal",
                "value": 8.1e-15,
                "limit": 1e-10,
                "passed": True,
                "meaning": "A basis that is not orthonormal counts some directions twice.",
            },
        ],
        "notes": ["3 of 1,000 test samples have no dual, because layer '2' sees a zero input."],
        "seconds": 21.3,
        "seed": 0,
        "command": "lowland analyze",
    }


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    return make_arrays()


@pytest.fixture
def results(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return make_results(arrays)


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


def set_parts(results: dict[str, Any], sharp: float, flat: float, mean: float = 0.0) -> None:
    total = sharp + flat + mean
    results["duality"] |= {"sharp": sharp, "flat": flat, "eq11": sharp + flat, "eq9": total}
    results["outcome"] |= {"gap": total, "test_loss": total + 5e-4, "train_loss": 5e-4}


def test_answer_names_the_sharp_directions(results: dict[str, Any]) -> None:
    set_parts(results, 0.094, 0.068)
    assert answer(results) == (
        "This minimum loses 0.162 more on unseen data than on its training data (test error 4.6 %, "
        "training error 0.0 %). 58 % of that gap comes from the 10 sharpest of 900 weight "
        "directions of layer '2', which suggests flattening those first (larger learning rate, "
        "smaller batches, SAM)."
    )


def test_answer_names_the_flat_directions(results: dict[str, Any]) -> None:
    set_parts(results, 0.05, 0.15)
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
    results: dict[str, Any], parts: tuple[float, float, float], expected: str
) -> None:
    set_parts(results, *parts)
    assert expected in answer(results)
    assert len(sentences(answer(results))) == 2


def without_duality(results: dict[str, Any]) -> None:
    results["duality"] = None


def with_a_rough_dual(results: dict[str, Any]) -> None:
    results["duality"] |= {"mean_residual": 0.8, "trusted": False}


def with_a_path_around_the_layer(results: dict[str, Any]) -> None:
    results["duality"] |= {"loss_defect": 0.4, "trusted": False}


def from_python(results: dict[str, Any]) -> None:
    results["command"] = None
    results["subject"] |= {"layer": None, "layer_shape": None, "data": None}
    results |= {"duality": None, "training": None, "checks": []}


def with_a_gap_within_its_error(results: dict[str, Any]) -> None:
    gap = results["outcome"]["gap"]
    results["measures"].append(results["measures"][0] | {"name": "gap", "stderr": 0.6 * gap})


def with_an_undefined_part(results: dict[str, Any]) -> None:
    results["duality"]["flat"] = float("nan")


def with_no_paired_gap(results: dict[str, Any]) -> None:
    results["duality"] |= {"eq9": -0.01, "eq11": -0.01, "sharp": 0.01, "flat": -0.02}


def with_another_paired_gap(results: dict[str, Any]) -> None:
    results["outcome"]["gap"] = 0.5


def without_test_loss(results: dict[str, Any]) -> None:
    results["outcome"] |= {"test_loss": None, "gap": None, "test_error": None}


def with_a_diverged_loss(results: dict[str, Any]) -> None:
    results["outcome"] |= {"train_loss": float("inf"), "gap": float("nan")}


def without_convergence(results: dict[str, Any]) -> None:
    results["training"]["converged"] = False


def with_a_failed_check(results: dict[str, Any]) -> None:
    results["checks"][0]["passed"] = False


def as_regression(results: dict[str, Any]) -> None:
    results["outcome"] |= {"train_error": None, "test_error": None}


def almost_equal_losses(results: dict[str, Any]) -> None:
    results["outcome"] |= {"train_loss": 2.0, "test_loss": 2.01, "gap": 0.01}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without_duality, "duality was not available"),
        (with_a_rough_dual, "too rough in layer '2' (relative error: 80 %)"),
        (with_a_path_around_the_layer, "(relative error: 40 %)"),
        (from_python, "duality was not available"),
        (with_a_gap_within_its_error, "shows no gap beyond chance"),
        (with_an_undefined_part, "is not defined"),
        (with_no_paired_gap, "the gap vanishes"),
        (with_another_paired_gap, "of the gap between paired samples ("),
        (without_test_loss, "gap of this minimum is not defined"),
        (with_a_diverged_loss, "gap of this minimum is not defined"),
        (without_convergence, "This solution (its training did not converge) loses"),
        (with_a_failed_check, "1 of 2 checks failed, so take this with caution."),
        (as_regression, "(test loss 0."),
        (almost_equal_losses, "does about as well on unseen data"),
    ],
)
def test_every_case_has_two_sentences_and_a_page(
    arrays: dict[str, np.ndarray],
    results: dict[str, Any],
    change: Callable[[dict[str, Any]], None],
    expected: str,
) -> None:
    change(results)
    assert expected in answer(results)
    assert len(sentences(answer(results))) == 2
    page = render(results, arrays)
    embedded(page)
    assert not re.search(r"\b(nan|inf|None)\b", body(page))


# The page


def test_page_shows_what_was_saved(arrays: dict[str, np.ndarray], results: dict[str, Any]) -> None:
    page = render(results, arrays)
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


def test_every_button_opens_a_definition(
    arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    text = render(results, arrays)
    targets = set(re.findall(r'popovertarget="([^"]+)"', text))
    definitions = re.findall(r'<div popover id="([^"]+)"', text)
    assert len(definitions) == len(set(definitions))
    assert targets <= set(definitions)
    assert {"def-gap", "def-sharp", "def-flat", "measure-0", "measure-4", "check-1"} <= targets


def test_user_text_is_escaped(arrays: dict[str, np.ndarray], results: dict[str, Any]) -> None:
    poison(results)
    page = render(results, arrays)
    assert "<img" not in body(page)
    assert "<script>alert" not in page
    assert page.count("<script") == render(make_results(arrays), arrays).count("<script")


def poison(results: dict[str, Any]) -> None:
    """Put markup wherever text of the user can come from."""
    results["subject"] |= {
        "title": "<script>alert(1)</script>",
        "layer": ATTACK,
        "layers": [ATTACK],
        "model": f"Sequential({ATTACK}\u2028)",
        "data": ATTACK,
        "checkpoint": ATTACK,
    }
    results["duality"]["layer"] = ATTACK
    results["training"]["settings"] = {ATTACK: ATTACK}
    results |= {"notes": [ATTACK], "command": ATTACK, "created": ATTACK, "lowland": ATTACK}
    for measure in results["measures"]:
        measure |= dict.fromkeys(("name", "title", "formula", "definition", "citation"), ATTACK)
        measure |= {"method": ATTACK, "reason": ATTACK}
    results["checks"][0] |= {"name": ATTACK, "meaning": ATTACK}


def awkward(results: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """A rank-deficient layer: zeros, rounding noise, undefined correlations, negative curvature."""
    arrays["duality/sigma_g"][500:] = 0.0
    arrays["duality/sigma_g"][400:500] = 1e-18
    arrays["duality/sigma_w"][300:] = 0.0
    arrays["duality/c"][500:] = np.nan
    arrays["duality/contribution"][500:] = np.nan
    arrays["duality/eigenvalue"][::2] *= -1
    arrays["training/loss"][:3] = [np.inf, np.nan, 0.0]
    as_regression(results)
    results["measures"] = results["checks"] = results["notes"] = []
    results["training"] = None


def test_zeros_and_undefined_values_are_drawn_as_gaps(
    arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    awkward(results, arrays)
    page = render(results, arrays)
    spectrum = next(figure for figure in embedded(page) if figure["key"] == "spectrum")
    assert spectrum["data"][1]["y"][-1] is None
    low, high = spectrum["layout"]["yaxis"]["range"]
    assert 3 < high - low < 5
    assert "400 directions with zero or no value are not drawn" in page
    assert "100 directions far below are off the axis" in page
    assert "Test error" not in re.sub(r"<aside.*</aside>", "", body(page), flags=re.S)


def test_nothing_to_draw_is_said(arrays: dict[str, np.ndarray], results: dict[str, Any]) -> None:
    empty = {name: np.zeros(900) for name in arrays}
    page = render(results, empty)
    drawn = ["split", "cumulative", "correlation", "expansion", "layers", "norms"]
    assert [figure["key"] for figure in embedded(page)] == drawn
    assert "Not drawn: every σ<sub>g,n</sub> is zero" in page
    page = render(results, {})
    assert [figure["key"] for figure in embedded(page)] == ["split", "layers", "norms"]
    assert "Not drawn: sigma_g and eigenvalue was not saved" in page


def test_large_layers_are_thinned() -> None:
    arrays = make_arrays(n=200_000)
    page = render(make_results(arrays), arrays)
    spectrum = next(figure for figure in embedded(page) if figure["key"] == "spectrum")
    ranks = [n for trace in spectrum["data"] for n in trace["x"]]
    assert len(ranks) < 1500
    assert ranks[:20] == list(range(1, 21))
    assert ranks[-1] == 200_000


def test_wrong_input_is_refused_in_words(
    arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="have format 1 and this Lowland reads format 2"):
        render(results | {"format": 1}, arrays)
    with pytest.raises(InputError, match="have no outcome"):
        render({key: value for key, value in results.items() if key != "outcome"}, arrays)
    with pytest.raises(InputError, match="vectors of one length"):
        render(results, arrays | {"duality/c": np.zeros(3)})


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


def test_figures_are_drawn(
    browser: Any, tmp_path: Path, arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    show(browser, tmp_path, render(results, arrays))
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
    browser: Any, tmp_path: Path, arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, tmp_path, render(results, arrays))
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


def test_page_fits_its_window(
    browser: Any, tmp_path: Path, arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    results["subject"] |= {"title": "a" * 80, "layer": "encoder." * 12, "layers": ["x" * 90]}
    results["duality"]["layer"] = "encoder." * 12
    results["command"] = "lowland analyze --checkpoint " + "/very/long" * 20
    show(browser, tmp_path, render(results, arrays))
    size = "return [document.documentElement.scrollWidth, innerWidth]"
    for width in (1200, 700, 360):
        resize(browser, width, 900)
        assert browser.execute_script(size) == [width, width]


def test_text_of_the_user_does_not_run(
    browser: Any, tmp_path: Path, arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    poison(results)
    show(browser, tmp_path, render(results, arrays))
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
    browser: Any, tmp_path: Path, arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    awkward(results, arrays)
    show(browser, tmp_path, render(results, arrays), width=360)
    count = "return document.querySelectorAll('.js-plotly-plot:has(.trace path)').length"
    assert browser.execute_script(count) == len(FIGURES)
    assert_quiet(browser)


def test_figures_follow_the_theme(
    browser: Any, tmp_path: Path, arrays: dict[str, np.ndarray], results: dict[str, Any]
) -> None:
    show(browser, tmp_path, render(results, arrays))
    colour = "return document.getElementById('figure-spectrum').layout.font.color"
    light = browser.execute_script(colour)
    resize(browser, 1200, 900, dark=True)
    deadline = time.monotonic() + 5
    while browser.execute_script(colour) == light:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert_quiet(browser)
