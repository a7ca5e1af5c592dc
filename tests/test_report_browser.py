"""The report in a browser, as a reader sees and uses it."""

import csv
import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import chromium, resize
from example import changed, make_results
from lowland.findings import Results
from lowland.report import render
from test_report import ATTACK, FIGURES, awkward, poisoned, with_long_names


@pytest.fixture
def results() -> Results:
    return make_results()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The page of the example, unfolded: one that several tests look at, each as it finds it."""
    results = make_results()
    rows = [replace(row, sharp=0.01 * (i + 1)) for i, row in enumerate(results.layer_rows)]
    page = render(replace(results, layer_rows=tuple(rows)))
    show(browser, tmp_path_factory.mktemp("opened"), page, opened=True)
    return browser


def show(browser: Any, tmp_path: Path, page: str, width: int = 1280, opened: bool = False) -> None:
    """Open a page as a file, unfold it if asked to, and wait until its figures stand."""
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    resize(browser, width, 900)
    browser.get_log("browser")  # empties it
    browser.get(path.as_uri())
    wait(browser, "return document.documentElement.dataset.drawn === 'yes'")
    if opened:
        browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    wait(browser, "return [...document.querySelectorAll('.plot')].every(p => !p.offsetParent || "
         "p.querySelector('.main-svg'))")  # fmt: skip


def wait(browser: Any, condition: str) -> None:
    deadline = time.monotonic() + 30
    while not browser.execute_script(condition):
        assert time.monotonic() < deadline, browser.get_log("browser")
        time.sleep(0.05)


def assert_quiet(browser: Any) -> None:
    """Nothing was fetched, refused or thrown."""
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_figures_are_drawn(opened: Any) -> None:
    browser = opened
    drawn = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.js-plotly-plot')].map(p => "
        "[p.id, [p.querySelectorAll('.trace').length, [...p.querySelectorAll('.trace path')]"
        ".map(q => q.getAttribute('d')).filter(d => d && d.length > 5 && !/NaN/.test(d)).length]]))"
    )
    expected = {"split": 3, "cumulative": 2, "spectrum": 2, "size": 2, "curvature": 3}
    assert set(drawn) == {f"figure-{key}" for key in FIGURES}
    for key, traces in (expected | {"training": 1, "cuts": 3, "density": 3}).items():
        assert drawn[f"figure-{key}"][0] == traces, key
    assert drawn["figure-spectrum"][1] == 900
    assert all(paths >= traces for traces, paths in drawn.values())
    # In space: the graphics of the surface, with the training and the checkpoints.
    solid = "const p = document.getElementById('figure-surface');"
    assert browser.execute_script(
        solid + "return [p.querySelectorAll('canvas').length > 0, p._fullLayout.scene._scene.glplot"
        ".objects.length >= 3, p._fullData.map(d => d.type)]"
    ) == [True, True, ["surface", "scatter3d", "scatter3d"]]
    assert browser.execute_script("return document.querySelectorAll('.gl-container canvas').length")
    assert_quiet(browser)
    # The reader turns it by the keyboard, and looks at another quantity.
    eye = solid + "return p.layout.scene.camera.eye.x"
    before = browser.execute_script(eye)
    turn = browser.find_element("css selector", "input[data-turns=surface]")
    turn.send_keys("\ue012\ue012")  # arrow left
    wait(browser, f"{solid} return Math.abs(p.layout.scene.camera.eye.x - {before}) > 0.01")
    choice = browser.find_element("css selector", "input[name=view-cuts][value='1']")
    choice.send_keys(" ")
    wait(browser, "return document.getElementById('figure-cuts').data[0].y[0] > 2")
    assert_quiet(browser)


def test_layers_are_picked_and_tables_sorted_by_keyboard(opened: Any) -> None:
    browser = opened
    find = functools.partial(browser.find_element, "css selector")
    picked = "return document.querySelector('#picked-layer dd').textContent"
    assert browser.execute_script(picked) == "0.0200"  # the layer that was decomposed
    find("select[data-picks=layers]").send_keys("3")
    assert browser.execute_script(picked) == "0.0300"
    browser.execute_script(
        "document.getElementById('figure-layers').emit('plotly_click', {points: [{x: 1}]})"
    )
    assert browser.execute_script(picked) == "0.0100"

    def column(selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].filter(c => c.offsetParent)"
        return browser.execute_script(f"{script}.map(c => c.innerText.trim())", selector)

    names = "#measures tbody th"
    given = column(names)
    value = find("#measures th:nth-child(2) .sort")
    value.send_keys("\n")
    assert [text.split()[0] for text in column("#measures tbody td.value:nth-child(2)")] == [
        *("1.234", "0.3700", "0.2371", "3.1e-5"),
    ]
    assert column(names)[-2:] == given[3:5]  # those without a number come last
    value.send_keys("\n")
    assert column(names)[0] == given[2]
    value.send_keys("\n")
    assert column(names) == given
    find("input[type=search][data-filters=measures]").send_keys("lanczos")
    assert [name.split("\n")[0] for name in column(names)] == ["Largest Hessian eigenvalue\xa0i"]
    assert find("[data-counts=measures]").text == "1 of 6"
    assert_quiet(browser)


def test_the_data_of_figures_and_tables_are_csv(opened: Any, results: Results) -> None:
    browser = opened
    browser.execute_script(
        "window.saved = []; URL.createObjectURL = b => { saved.push(b); return '#'; };"
        "HTMLAnchorElement.prototype.click = function () { saved.push(this.download); };"
    )

    def csv_of(selector: str) -> tuple[str, list[list[str]]]:
        browser.execute_script("document.querySelector(arguments[0]).click()", selector)
        script = "const done = arguments[0]; saved[0].text().then(t => done([saved[1], t]));"
        name, text = browser.execute_async_script(script)
        browser.execute_script("saved.length = 0")
        return name, list(csv.reader(text.splitlines()))

    name, rows = csv_of("[data-csv=surface]")
    surface = results.landscape.surface
    assert name == "surface.csv"
    assert rows[0][:4] == ["series", "x", "y", "training loss"]
    of_surface = [row for row in rows[1:] if row[0] == "training loss"]
    assert len(of_surface) == surface.train.size
    assert float(of_surface[26][3]) == pytest.approx(surface.train[1, 1], rel=1e-4)
    name, rows = csv_of("[data-csv=leading]")
    assert rows[1][:3] == ["eigenvalue", "1", "3.1"]
    assert float(rows[1][4]) == 1e-5
    name, rows = csv_of("[data-csv-table=measures]")
    assert name == "measures.csv"
    assert [row[0] for row in rows[1:]] == [row.name for row in results.measures]


def test_figures_follow_the_theme(opened: Any) -> None:
    browser = opened
    colour = "return document.getElementById('figure-density').layout.font.color"
    light = browser.execute_script(colour)
    resize(browser, 1200, 900, dark=True)
    deadline = time.monotonic() + 5
    while browser.execute_script(colour) == light:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert_quiet(browser)


def test_definitions_open_by_mouse_and_keyboard(opened: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser = opened
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
        assert box["x"] + box["width"] <= 1280
        button.send_keys(Keys.ESCAPE)
    assert_quiet(browser)


def test_a_browser_that_cannot_unpack_is_told(
    browser: Any, tmp_path: Path, results: Results
) -> None:
    (tmp_path / "report.html").write_text(render(results), encoding="utf-8")
    script = {"source": "delete window.DecompressionStream"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    try:
        browser.get((tmp_path / "report.html").as_uri())
        text = browser.execute_script("return document.getElementById('figure-split').textContent")
        assert "cannot unpack the figures" in text
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


# Whatever is cut off or pushed out of its box, in an unfolded page. Info buttons have an edge that
# nobody sees, for fingers, of 6 pixels, which may stand out.
CUT = """
const out = [], within = document.documentElement.clientWidth + 1;
const texts = 'td, th, dt, dd, p, li, summary, h1, h2, h3, figure, label';
for (const e of document.querySelectorAll(texts)) {
  const box = e.getBoundingClientRect();
  if (!e.offsetParent || e.closest('[popover], thead, pre')) continue;
  if (box.right > within || box.left < -1) out.push(['outside', e.textContent.slice(0, 60)]);
  if (e.scrollWidth > e.clientWidth + 8 && getComputedStyle(e).display !== 'inline'
      && !e.querySelector('.plot, math')) out.push(['cut', e.textContent.slice(0, 60)]);
}
const boxes = [...document.querySelectorAll('figure, table, .cards, h2, details')]
  .filter(e => e.offsetParent).map(e => [e, e.getBoundingClientRect()]);
for (const [a, p] of boxes) for (const [b, q] of boxes)
  if (a !== b && !a.contains(b) && !b.contains(a) && p.left < q.right - 1 && q.left < p.right - 1
      && p.top < q.bottom - 1 && q.top < p.bottom - 1) out.push(['overlap', a.id, b.id]);
return out;
"""


def test_page_fits_its_window(browser: Any, tmp_path: Path, results: Results) -> None:
    results = changed(results, "landscape", lines=(), surface=None)
    assert_fits(browser, tmp_path, results)


@pytest.mark.slow
def test_page_with_its_landscape_fits_too(browser: Any, tmp_path: Path, results: Results) -> None:
    assert_fits(browser, tmp_path, results)


def assert_fits(browser: Any, tmp_path: Path, results: Results) -> None:
    show(browser, tmp_path, render(with_long_names(results)), opened=True)
    size = "return [document.documentElement.scrollWidth, innerWidth]"
    for width in (1280, 700, 390):
        resize(browser, width, 900, dark=width == 390)
        assert browser.execute_script(size) == [width, width]
        assert browser.execute_script(CUT) == [], width
    assert_quiet(browser)


def test_text_of_the_user_does_not_run(browser: Any, tmp_path: Path, results: Results) -> None:
    # With values that cannot be drawn, all the same: zeros, undefined ones, negative curvature.
    bad = poisoned(results)
    texts = {"measures": bad.measures, "checks": bad.checks, "notes": bad.notes}
    show(browser, tmp_path, render(replace(awkward(bad), **texts)), width=360, opened=True)
    count = "return document.querySelectorAll('.js-plotly-plot:has(.trace path)').length"
    assert browser.execute_script(count) == len(FIGURES) - 1  # the surface is no path
    assert browser.execute_script("return window.__pwned === undefined")
    assert browser.title == "<script>alert(1)</script> · Lowland"
    assert browser.execute_script("return document.images.length") == 0
    assert_quiet(browser)
    # The second line of defence: markup that did get in is not run, by the page's own policy.
    browser.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", ATTACK)
    time.sleep(0.3)
    assert browser.execute_script("return document.images.length") == 1
    assert browser.execute_script("return window.__pwned === undefined")
