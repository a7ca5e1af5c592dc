"""The page of the league table in a browser: it sorts, filters, and draws its networks."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from browser import chromium
from lowland_studies.league.found import Entry, Interval, League
from lowland_studies.league.html import render_league
from lowland_studies.league.ranking import Models
from test_report_browser import assert_quiet, show, wait

NAMES = ("granulated", "kendall", "spearman", "pearson")


def made() -> League:
    """Two measures of 32 made-up networks: one goes with the gap, the other has ties and a gap."""
    random = np.random.default_rng(0)
    axes = {"data": ["a", "b"], "width": [30, 60], "decay": [0.0, 0.1], "seed": [0, 1, 2, 3]}
    rows = list(itertools.product(*axes.values()))
    settings = {name: [row[i] for row in rows] for i, name in enumerate(axes)}
    gaps = {name: random.uniform(0.1, 1, len(rows)) for name in ("gap", "error_gap")}
    values = {
        "good": gaps["gap"] + random.normal(0, 0.1, len(rows)),
        "tied <b>": random.integers(0, 4, len(rows)).astype(float),
    }
    values["tied <b>"][5] = np.nan
    entries = tuple(
        Entry(
            name=name,
            title=name,
            family="curvature" if i else "norms",
            sign=-1 if i else 1,
            tested=False,
            fooled=not i,
            gradients=2.0 if i else None,
            ranks={g: Models(y, settings).rank((-1 if i else 1) * x) for g, y in gaps.items()},
            picked=Interval(-0.01, -0.02, 0.01),
        )
        for i, (name, x) in enumerate(values.items())
    )
    numbers = {name: [None if np.isnan(v) else v for v in x] for name, x in values.items()}
    listed = {name: gap.tolist() for name, gap in gaps.items()}
    return League(settings, listed, numbers, entries, ("It is so.",), 0.02, 3, "lowland x")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        show(browser, Path(tmp_path_factory.mktemp("page")), render_league(made()))
        yield browser


def cells(browser: Any, row: int, column: str) -> float | None:
    """The number behind a cell, by the measure's place in the table as it came."""
    script = """const name = document.querySelector(`[data-shows="${arguments[0]}"]`).closest('tr');
        return name.querySelector(`[data-column=${arguments[1]}]`).dataset.value"""
    value = browser.execute_script(script, row, column)
    return float(value) if value else None


def choose(browser: Any, selector: str, text: str) -> None:
    """Pick an option as a reader does."""
    from selenium.webdriver.support.select import Select

    Select(browser.find_element("css selector", selector)).select_by_visible_text(text)


def test_all_networks_have_their_intervals_and_some_are_computed_anew(opened: Any) -> None:
    league = made()
    for row, entry in enumerate(league.entries):
        for name in NAMES:
            stored = getattr(entry.ranks["gap"], name).value
            assert cells(opened, row, name) == pytest.approx(stored)
    assert "[" in opened.find_element("css selector", "[data-column=kendall]").text
    choose(opened, "[data-gap]", "gap in error")
    choose(opened, "[data-setting=data]", "b")
    assert opened.find_element("id", "chosen").text == "16 of 32 networks"
    chosen = np.array(league.settings["data"]) == "b"
    models = Models(np.array(league.gaps["error_gap"]), league.settings).those(chosen)
    for row, entry in enumerate(league.entries):
        values = np.array(league.values[entry.name], dtype=float)[chosen] * entry.sign
        rank = models.rank(values)
        for name in NAMES:
            expected = getattr(rank, name).value
            assert cells(opened, row, name) == pytest.approx(expected), (entry.name, name)
        assert cells(opened, row, "worst") == pytest.approx(rank.worst)
        assert cells(opened, row, "information") is None  # of all networks only
    good = np.array(league.values["good"])[chosen]
    gap = np.array(league.gaps["error_gap"])[chosen]
    assert cells(opened, 0, "kendall") == pytest.approx(stats.kendalltau(good, gap)[0])
    assert cells(opened, 0, "spearman") == pytest.approx(stats.spearmanr(good, gap)[0])
    choose(opened, "[data-setting=data]", "all")
    choose(opened, "[data-gap]", "gap in loss")
    assert cells(opened, 0, "worst") == pytest.approx(league.entries[0].ranks["gap"].worst)
    assert_quiet(opened)


@pytest.mark.parametrize(("setting", "value"), [("data", "b"), ("width", 60), ("seed", 3)])
def test_the_worst_environment_of_some_networks_is_that_of_the_table(
    opened: Any, setting: str, value: Any
) -> None:
    league = made()
    chosen = np.array([one == value for one in league.settings[setting]])
    models = Models(np.array(league.gaps["gap"]), league.settings).those(chosen)
    choose(opened, f"[data-setting={setting}]", str(value))
    for row, entry in enumerate(league.entries):
        values = np.array(league.values[entry.name], dtype=float)[chosen] * entry.sign
        rank = models.rank(values)
        worst = cells(opened, row, "worst")
        if np.isnan(rank.worst):  # of each environment too few pairs
            assert worst is None
        else:
            assert worst == pytest.approx(rank.worst)
    choose(opened, f"[data-setting={setting}]", "all")
    assert_quiet(opened)


def test_the_scatter_shows_the_networks_that_are_chosen(opened: Any) -> None:
    league = made()
    wait(opened, "return document.querySelector('#scatter .main-svg') !== null")
    opened.find_element("css selector", "[data-shows='1']").click()
    choose(opened, "[data-coloured]", "width")
    choose(opened, "[data-setting=width]", "60")
    wait(opened, "return document.getElementById('scatter').data.length === 1")
    x, y = opened.execute_script(
        "const [trace] = document.getElementById('scatter').data; return [trace.x, trace.y]"
    )
    points = [
        (value, gap)
        for value, gap, width in zip(
            league.values["tied <b>"], league.gaps["gap"], league.settings["width"], strict=True
        )
        if width == 60 and value is not None
    ]
    assert list(zip(x, y, strict=True)) == points
    title = opened.find_element("id", "scatter-title").text
    assert title == "tied <b> and the gap in loss"  # a name is text, never markup
    choose(opened, "[data-setting=width]", "all")
    assert_quiet(opened)


def test_it_sorts_and_filters_measures(opened: Any) -> None:
    def names() -> list[str]:
        buttons = opened.find_elements("css selector", "#measures tbody tr:not([hidden]) .link")
        return [button.text for button in buttons]

    head = opened.find_elements("css selector", "#measures thead .sort")
    assert names() == ["good", "tied <b>"]
    head[0].click()
    head[0].click()
    assert names() == ["tied <b>", "good"]
    choose(opened, "[data-setting=data]", "a")  # other numbers, the same order
    assert names() == ["tied <b>", "good"]
    choose(opened, "[data-setting=data]", "all")
    opened.find_element("css selector", "input[type=checkbox][data-filters]").click()
    assert names() == ["tied <b>"]
    assert_quiet(opened)
