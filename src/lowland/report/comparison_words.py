"""Two solutions in words: which does better on unseen data, which gap is smaller, and why."""

from lowland.findings import Differences
from lowland.report.numbers import number, percent
from lowland.report.words import FEW, standing
from lowland.wording import counted


def compared(results: Differences, other: str = "second") -> str:
    """Say which solution does better on unseen data, then which gap is smaller and why.

    A smaller gap is called better generalisation only where both fit their training data
    comparably (``Differences.alike_fits``): the gap of an untrained network is next to nothing.
    ``other`` is what the second is called where it is one of several.
    """
    names = ("first", other)
    told = [*_unfinished(results, names), _on_unseen_data(results, names), *_gaps(results, names)]
    return " ".join(told)


def _unfinished(results: Differences, names: tuple[str, str]) -> list[str]:
    """Name those that are no minima, before anything is said about them."""
    states = [standing(side.convergence) for side in results.solutions]
    if states[0] is not None and states[0] == states[1]:
        return [f"Careful: both solutions are {states[0]}."]
    named = [
        f"the {which} solution is {state}"
        for which, state in zip(names, states, strict=True)
        if state is not None
    ]
    return [f"Careful: {' and '.join(named)}."] if named else []


def _on_unseen_data(results: Differences, names: tuple[str, str]) -> str:
    """Compare test losses and errors, each on the same samples."""
    first, second = (side.outcome for side in results.solutions)
    losses = f"test loss {number(second.test_loss, 3)} against {number(first.test_loss, 3)}"
    verdicts = [results.lower_loss]
    numbers = losses
    if first.test_error is not None and second.test_error is not None:
        verdicts.append(results.lower_error)
        numbers += f", test error {percent(second.test_error)} against {percent(first.test_error)}"
    if set(verdicts) == {None}:
        return (
            "On unseen data the two solutions are not told apart, within the error of this test "
            f"set ({numbers})."
        )
    if {0, 1} <= set(verdicts):
        loss, error = (names[v] for v in verdicts if v is not None)
        return (
            f"On unseen data the {loss} solution has the smaller loss and the {error} one the "
            f"smaller error ({numbers})."
        )
    (better,) = set(verdicts) - {None}
    assert better is not None
    if None in verdicts and len({_falls(results, n) for n in ("test_loss", "test_error")}) > 1:
        sure, other = ("loss", "error") if verdicts[1] is None else ("error", "loss")
        return (
            f"On unseen data the {names[better]} solution has the smaller {sure}, and by their "
            f"{other} the two are not told apart ({numbers})."
        )
    title = results.solutions[better].title
    return f"The {names[better]} solution, {title}, does better on unseen data ({numbers})."


def _falls(results: Differences, name: str) -> bool:
    """Whether the second solution's number is the lower one, by chance or not."""
    first, second = (getattr(side.outcome, name) for side in results.solutions)
    return first is not None and second is not None and second < first


def _gaps(results: Differences, names: tuple[str, str]) -> list[str]:
    change = results.change
    first, second = results.paired_gaps
    spread = f"(95 % interval {number(change.low, 3)} to {number(change.high, 3)})"
    gaps = f"paired gap {number(second, 3)} against {number(first, 3)}"
    if results.pairs < FEW:
        return [
            f"Their {counted(results.pairs, 'common pair', ('is', 'are'))} too few to tell their "
            f"gaps apart ({gaps}).",
            "No cause is therefore named.",
        ]
    if change.low <= 0 <= change.high:
        return [
            f"On {counted(results.pairs, 'common pair')} their gaps do not differ beyond chance: "
            f"{gaps}, a change of {number(change.value, 3)} {spread}.",
            "No cause is therefore named.",
        ]
    if not results.alike_fits:
        losses = [number(side.outcome.train_loss, 3) for side in results.solutions]
        smaller = names[1] if change.value < 0 else names[0]
        return [
            f"The {smaller} one has the smaller gap ({gaps}), but that does not mean that it "
            f"generalises better: the two do not fit their training data comparably (training loss "
            f"{losses[1]} against {losses[0]})."
        ]
    word = "worse" if change.value > 0 else "better"
    sentences = [
        f"The {names[1]} solution generalises {word}: {gaps}, a change of "
        f"{number(change.value, 3)} {spread}.",
        _cause(results),
    ]
    if results.gauge == "given":
        sentences.append(
            "The weights are taken as they are scaled: rescaling hidden units would move shares "
            "between sharpness and size (lowland analyze --gauge balanced excludes that)."
        )
    return sentences


def _cause(results: Differences) -> str:
    change = results.change.value
    same = {name: row for name, row in results.parts.items() if row.value * change > 0}
    name = max(same, key=lambda key: abs(same[key].value), default=None)
    if name is None:
        return "Its parts cancel, so that no single cause can be named."
    row = same[name]
    what = {
        "sharpness": "sharper" if change > 0 else "flatter",
        "size": "larger" if change > 0 else "smaller",
    }.get(name)
    why = f"it is {what}" if what else f"its {name} changed"
    if row.low <= 0 <= row.high:
        return (
            f"No cause is named: the largest part of the change is due to {name} "
            f"({number(row.value, 3)}), but its interval includes zero ({number(row.low, 3)} to "
            f"{number(row.high, 3)})."
        )
    rivals = {"sharpness": ("size", results.sharpness_over_size)}
    rivals["size"] = ("sharpness", 1 - results.sharpness_over_size)
    odds = ""
    if name in rivals:
        other, share = rivals[name]
        odds = f", and it weighs more than {other} in {percent(share, 0)} of the resamples"
    return (
        f"The main reason is that {why}: {number(row.value, 3)} of the change "
        f"({number(row.low, 3)} to {number(row.high, 3)}){odds}."
    )
