"""Sentences over made-up findings of all kinds: what no answer may say, whatever was found."""

import random
import re
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest

from example import changed, make_results
from landscapes import make_landscape
from lowland import figures
from lowland.budget import Clock, in_words, seconds
from lowland.measures import Schedule
from lowland.measures.planning import Plan
from lowland.report import answer
from lowland.report.figures import by_layer, split
from lowland.report.words import sure
from lowland.wording import counted

REMEDY = "weight decay"
# After these a verb in the singular, or a noun in the plural after one, would be wrong.
WRONG = (
    r"\b[02-9][\d,]* (?:[a-z]+ )*?(?:samples|pairs|checks|layers|directions|others|measures|"
    r"points|runs) (?:was|is|has|does|carries|lowers|goes)\b",
    r"(?<![\d.,])1 (?:[a-z]+ ){0,2}(?:samples|pairs|checks|layers|directions|others|runs)\b",
    r"(?<![\d.,])1 (?:[a-z]+ ){1,3}(?:are|have|do|carry|lower)\b",
    r"\w\(s\)|\bnan\b|\binf\b|  |\.\.(?!\.)|,,| ,|\blarger than that\b|times its error",
    r"learning rate|initial weights",
)


def side(sharp: float, flat: float) -> str:
    """Return the larger part, by the definition in the documentation."""
    if min(sharp, flat) > 0 and 0.45 <= sharp / (sharp + flat) <= 0.55:
        return "neither"
    return "sharp" if sharp > flat else "flat"


def made_up(chance: random.Random):
    """Return results with random splits, layers, samples, checks and outcomes."""
    results = make_results()
    directions = chance.choice([2, 50, 120, 900, 900])
    n_sharp = chance.choice([1, directions - 1, *[max(1, directions // 20)] * 6])
    gap = chance.choice([1e-5, 0.05, *[0.3] * 6, 2.0, -0.3])

    def parts() -> dict[str, float]:
        sharp = gap * chance.choice([-0.1, 0.1, 0.3, 0.48, 0.5, 0.7, 0.9, 1.1])
        mean = gap * chance.choice([0, 0, 0, 0.1, 0.8])
        return {"sharp": sharp, "flat": gap - mean - sharp, "eq9": gap, "eq11": gap - mean}

    def with_parts(split, own):
        ends = sorted(
            f * (own["sharp"] - own["flat"]) for f in chance.choice([(0.5, 2)] * 4 + [(-1, 2)])
        )
        split = changed(split, "totals", **own, paired_gap=gap)
        split = changed(split, "totals.intervals", difference=tuple(ends), paired_gap=(gap, gap))
        rule = chance.choice(["number", "share", "drop"])
        return changed(split, "setting", directions=directions, n_sharp=n_sharp, n_sharp_rule=rule)

    own = parts()
    duality = with_parts(results.duality, own)
    # Most layers and gauges agree, or a remedy would be too rare to be tested.
    agree = chance.random() < 0.7
    rows = [replace(results.layer_rows[1], layer="2", sharp=own["sharp"], flat=own["flat"])]
    for name in range(chance.choice([0, 1, 3])):
        other = own if agree else parts()
        trusted = chance.random() < 0.8
        rows.append(
            replace(
                rows[0], layer=str(name + 3), sharp=other["sharp"], flat=other["flat"],
                trusted=trusted,
            )
        )  # fmt: skip
    balanced = chance.choice([None, own if agree else parts()])
    loss = chance.choice([*[5e-4] * 5, 1.9])
    results = changed(
        results, "outcome", gap=gap, train_loss=loss, test_loss=loss + gap, train_error=0.0
    )
    samples = {
        name: chance.choice([1, 2, *[600] * 8]) for name in ("train_samples", "test_samples")
    }
    results = changed(results, "subject", **samples)
    state = chance.choice([*["minimum"] * 6, "unfinished", "untrained", "unknown"])
    results = changed(
        results, "convergence", state=state, gradient=0.01 * chance.uniform(0.5, 2),
        gradient_noise=0.01, fall=chance.choice([None, 0.2]),
    )  # fmt: skip
    results = changed(results, "course", samples=chance.choice([None, 1, 64]))
    few = changed(duality, "fit", pairs=chance.choice([1, 4, *[600] * 8]))
    checks = tuple(replace(c, passed=chance.random() < 0.9) for c in results.checks)
    *others, last = results.measures
    error = chance.choice([None, *[0.01] * 6, 5.0])
    return replace(
        results,
        duality=few,
        balanced=balanced and with_parts(results.duality, balanced),
        layer_rows=tuple(rows),
        checks=checks[: chance.choice([0, 1, 2])],
        measures=(*others, replace(last, value=gap, stderr=error)),
    )


def barred(results) -> bool:
    """Return whether one of the conditions holds under which nothing may be suggested."""
    split = results.duality
    own = side(split.sharp, split.flat)
    rows = [row for row in results.layer_rows if row.trusted]
    told = split.totals.intervals.difference
    balanced = results.balanced
    return (
        any(side(row.sharp, row.flat) != own for row in rows)
        or (balanced is not None and side(balanced.sharp, balanced.flat) != own)
        or min(split.n_sharp, split.setting.directions - split.n_sharp) == 1
        or (own != "neither" and told[0] <= 0 <= told[1])
        or any(not check.passed for check in results.checks)
        or results.convergence.state != "minimum"
        or results.outcome.gap <= 1e-4
        or min(results.subject.train_samples, results.subject.test_samples, split.pairs) < 10
    )


def test_no_answer_says_what_it_must_not():
    advised = 0
    for seed in range(800):
        results = made_up(random.Random(seed))
        text = answer(results)
        drawn = [split(results.outcome.gap, results.duality).caption]
        drawn.append(by_layer(results.layer_rows).caption)
        for words in (text, *drawn, *(fact.words for fact in sure(results))):
            for wrong in WRONG:
                assert not re.search(wrong, words), (seed, wrong, words)
        assert len(re.findall(r"\.(?= [A-Z0-9]|$)", text)) == 2, (seed, text)
        if REMEDY in text:
            advised += 1
            assert not barred(results), (seed, text)
            assert "weak evidence" in text or "favours neither" in text
            assert "by 9.4 % (95 % interval 7.3 to 11.7 %)" in text
            assert "on data that this analysis has not seen" in text
    assert advised > 30


def spoken(words: str) -> float:
    """Return the seconds of a time in words."""
    milli = words.removesuffix(" ms")
    return seconds(words) if milli == words else float(milli) / 1000


def test_no_time_that_fits_is_said_not_to_fit():
    chance, found = random.Random(0), 0
    for _ in range(2000):
        allowed = 10 ** chance.uniform(0, 4)
        planned = allowed * chance.uniform(0, 1)
        takes = allowed * chance.choice([0.05, 0.5, 0.999, 1.0001, 1.3, 40])
        name = chance.choice(["trace", "the split of the other layers"])
        schedule = Schedule(Clock(allowed))
        schedule.plan = Plan({"gap": planned}, {"gap": planned, name: takes}, 0.01)
        text = schedule.reason(name)
        for form in (
            r"does not fit the budget of (.+?); it takes about (.+?):",
            r"the others leave (\d.*?) of the budget .* about (.+?):",
        ):
            if said := re.search(form, text):
                room, need = map(spoken, said.groups())
                assert room < need, text
                found += 1
        assert ("naming it" in text) == (name == "trace")
        assert in_words(allowed) in text
    assert found > 1000


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_counts_agree_with_nouns_and_verbs(count):
    words = counted(count, "pair", ("is", "are"))
    assert words == ("1 pair is" if count == 1 else f"{count:,} pairs are")


def test_no_legend_is_cut_off():
    landscape = make_landscape()
    (first, *_) = landscape.path.routes.values()
    names = ("straight", "aligned", "renormalised", "curve")
    ways = {name: replace(first, barrier=1.2345e-5) for name in names}
    path = replace(landscape.path, routes=ways)
    split = make_results().duality
    lines = [(figures.draw_line, line) for line in landscape.lines]
    for draw, drawn in ((figures.draw_path, path), (figures.draw_split, split), *lines):
        axes = figures.drawn_on(draw, drawn)
        figure = axes.figure
        figure.canvas.draw()
        box = axes.get_legend().get_window_extent()
        plt.close(figure)
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1, draw
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1, draw
