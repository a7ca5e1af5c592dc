"""The answer in two sentences: how large the gap is, and which half of the duality carries it.

Every claim is one that the numbers support. Which part is the larger is weak evidence of what would
help: over 193 dense networks, remedies chosen by it did not lower the test error (+0.8 %, 95 %
interval -0.7 to 2.6 %), and larger learning rates raised it (+17.6 %). Trying weight decay, dropout
and SAM and keeping the best did (-9.4 %, -11.7 to -7.3 %). So this is what the answer suggests.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeGuard

from lowland.findings import STEEP, Convergence, Decomposition, LayerRow, Outcome, Results
from lowland.report.numbers import number, percent
from lowland.wording import counted

# A gap below this share of the test loss is called negligible: scale-free, so that it holds for a
# regression in any unit. Some losses have a unit of their own (nats), hence an absolute bound.
NEGLIGIBLE_SHARE = 0.02
NEGLIGIBLE_NATS = 1e-3

# With fewer samples, or pairs, no error bar is to be trusted and nothing is suggested.
FEW = 10

# A training loss above this share of the best constant prediction's is an underfitted one, and
# where it is also above the gap, the gap is not what to mend first.
UNDERFITTED = 0.5

# Shares this close to one half do not name a culprit.
BALANCED = (0.45, 0.55)

# How the number of sharp directions was chosen, where nobody named it.
RULES = {
    "number": "",
    "share": ", one in 90 as in the paper",
    "drop": ", up to the steepest drop",
    "variance": ", by half of the gradient variance",
}

# By which dual, where it is not the paper's.
DUALS = {"activity": "", "output": ", by the output-level dual"}

TRY = (
    "try weight decay, dropout and SAM, and keep what is best on data that this analysis has not "
    "seen, which lowered the test error of 193 dense networks by 9.4 % (95 % interval 7.3 to "
    "11.7 %)"
)


def answer(results: Results) -> str:
    """Say in exactly two sentences what was found and what it suggests, in plain text."""
    gap = results.outcome.gap
    if results.subject.test_samples == 0:
        return f"{_trained(results)} Without test data there is no gap, and no remedy is suggested."
    if results.convergence.state in ("untrained", "unfinished") and _finite(gap):
        return (
            f"{_unfinished(results)} Its gap between unseen and training data is "
            f"{number(gap, 3)} ({_evidence(results.outcome)}), but sharp and flat are words for a "
            "minimum, so train it further before looking for a remedy."
        )
    return f"{_what(results)} {_why(results)}"


@dataclass(frozen=True)
class Fact:
    """Something that makes the answer more or less sure; None if it leaves it open."""

    words: str
    good: bool | None


def sure(results: Results) -> list[Fact]:
    """Say what the answer rests on: the gap's error, the split's, the checks, the convergence."""
    facts = []
    gap, noise = results.outcome.gap, _noise(results)
    if results.subject.test_samples == 0:
        facts.append(Fact("no test data", None))
    elif _finite(gap) and noise is not None:
        told = abs(gap) > noise and results.subject.test_samples >= FEW
        words = f"gap {number(gap, 3)} ± {number(noise, 2)} (two standard errors, "
        words += f"{counted(results.subject.test_samples, 'test sample')})"
        facts.append(Fact(words, told or None))
    else:
        facts.append(Fact("the error of the gap is not known", None))
    duality = results.duality
    if duality is not None and duality.trusted:
        intervals = duality.totals.intervals
        (low, high), (least, most) = intervals.sharp, intervals.flat
        less, more = intervals.difference
        if all(map(_finite, (low, high, least, most, less, more))):
            words = f"sharp part {number(low, 2)} to {number(high, 2)}, flat part "
            words += f"{number(least, 2)} to {number(most, 2)}, their difference "
            words += f"{number(less, 2)} to {number(more, 2)} (95 % intervals)"
            facts.append(Fact(words, True if _told_apart(duality) else None))
    elif duality is not None:
        facts.append(Fact("the dual weights do not stand for the data", False))
    failed = sum(not check.passed for check in results.checks)
    if results.checks:
        count = len(results.checks)
        of = f"of {counted(count, 'check')}"
        words = f"{failed} {of} failed" if failed else f"{count} {of} passed"
        facts.append(Fact(words, not failed))
    state = results.convergence.state
    words = {
        "minimum": "at a minimum, as far as can be told",
        "unfinished": "not at a minimum yet",
        "untrained": "not trained",
        "unknown": "not known whether this is a minimum",
    }[state]
    facts.append(Fact(words, None if state == "unknown" else state == "minimum"))
    if _finite(gap) and gap > 0 and _underfitted(results, gap):
        facts.append(Fact("the training data are not fitted yet", False))
    if results.course.samples is not None:
        few = counted(results.course.samples, "sample")
        facts.append(Fact(f"some numbers are from {few}, for lack of time", None))
    return facts


def standing(convergence: Convergence) -> str | None:
    """Name what keeps a solution from being a minimum, in two or three words."""
    return {"untrained": "not trained", "unfinished": "not a minimum yet"}.get(convergence.state)


def _unfinished(results: Results) -> str:
    """Say why this is no minimum, with the number that says so most plainly."""
    reached, outcome = results.convergence, results.outcome
    loss = number(outcome.train_loss, 3)
    if reached.state == "untrained":
        than = f"training loss {loss} against {number(reached.constant_loss, 3)}"
        if _finite(outcome.train_error) and _finite(reached.constant_error):
            errors = percent(outcome.train_error), percent(reached.constant_error)
            than += f", training error {errors[0]} against {errors[1]}"
        return (
            "This network is not trained: on its training data it does hardly better than the best "
            f"constant prediction, if at all ({than})."
        )
    why = []
    if reached.steep and reached.gradient is not None and reached.gradient_noise is not None:
        most = STEEP * reached.gradient_noise
        why.append(
            f"the norm of its gradient is {number(reached.gradient, 3)}, where a finished training "
            f"with as many samples leaves {number(most, 3)} at most"
        )
    if reached.falling:
        why.append(f"the last tenth of the epochs took {percent(reached.fall, 0)} off it")
    if reached.saddle and reached.curvature is not None:
        share = percent(-reached.curvature, 0)
        why.append(f"it curves downwards, by {share} of its largest curvature")
    return f"This is not a minimum yet of the training loss ({loss}): {', and '.join(why)}."


def _trained(results: Results) -> str:
    """Say how well the training data are fitted, where there are no others."""
    if standing(results.convergence) is not None:
        return _unfinished(results)
    minimum, outcome = _minimum(results), results.outcome
    error = (
        f" and an error of {percent(outcome.train_error)}"
        if outcome.train_error is not None
        else ""
    )
    return (
        f"{minimum[0].upper()}{minimum[1:]} has a loss of {number(outcome.train_loss, 3)}{error} "
        "on its training data."
    )


def _what(results: Results) -> str:
    """Compare unseen with training data: the first sentence."""
    outcome = results.outcome
    gap = outcome.gap
    minimum = _minimum(results)
    if not _finite(gap):
        return (
            f"The generalisation gap of {minimum} is not defined, because a loss is missing or "
            "not finite."
        )
    minimum = minimum[0].upper() + minimum[1:]
    evidence = _evidence(outcome)
    if results.subject.test_samples < FEW:
        return (
            f"{minimum} was tried on {counted(results.subject.test_samples, 'unseen sample')} "
            "only, too few to tell a gap from chance: "
            f"the losses differ by {number(abs(gap), 3)} ({evidence})."
        )
    if _negligible(results, gap):
        return (
            f"{minimum} does about as well on unseen data as on its training data: "
            f"the losses differ by {number(abs(gap), 3)} ({evidence})."
        )
    noise = _noise(results)
    if noise is None:
        return (
            f"{minimum} has a test loss that is {number(abs(gap), 3)} "
            f"{'higher' if gap > 0 else 'lower'} than its training loss ({evidence}), by an "
            "unknown error."
        )
    if abs(gap) <= noise:
        return (
            f"{minimum} shows no gap beyond chance: the losses on unseen and on training data "
            f"differ by {number(abs(gap), 3)}, within the error of {number(noise, 3)} that "
            f"this test set leaves ({evidence})."
        )
    if gap < 0:
        return (
            f"{minimum} does no worse on unseen data than on its training data: "
            f"the test loss is {number(-gap, 3)} lower ({evidence})."
        )
    return (
        f"{minimum} loses {number(gap, 3)} more on unseen data than on its training data "
        f"({evidence})."
    )


def _why(results: Results) -> str:
    """Name the part of the gap that dominates, if one does: the second sentence."""
    gap, duality = results.outcome.gap, results.duality
    if not _finite(gap):
        return "Without a gap there is nothing to explain, and no remedy is suggested."
    noise = _noise(results)
    if results.subject.test_samples < FEW or (
        not _negligible(results, gap) and (noise is None or abs(gap) <= noise)
    ):
        return "More test samples would tell, so these numbers suggest no remedy yet."
    if gap < 0 or _negligible(results, gap):
        return (
            "There is no gap to explain, so these numbers suggest neither a flatter "
            "nor a smaller solution."
        )
    if _underfitted(results, gap):
        return (
            f"But its training loss ({number(results.outcome.train_loss, 3)}, against "
            f"{number(results.convergence.constant_loss, 3)} of the best constant prediction) is "
            "larger than the gap, so fit the training data first before looking for a remedy."
        )
    unknown = "whether its sharp directions or its size carry the gap"
    if duality is None and results.course.stopped is not None:
        ended = "It was interrupted" if results.course.interrupted else "The time was up"
        return f"{ended} before the gap was decomposed, so it stays open {unknown}."
    if duality is None:
        return f"The activity-weight duality was not available here, so it stays open {unknown}."
    if duality.targets_dominate:
        return (
            "It comes mostly from test samples whose targets differ from those of their partners "
            f"in training ({number(duality.totals.target_gap, 3)}, against "
            f"{number(duality.paired_gap, 3)} from their inputs), so it stays open {unknown}."
        )
    layer = f"layer '{duality.layer}'"
    if not duality.trusted:
        misses = duality.fit.mean_residual, duality.fit.loss_defect  # of activities, of losses
        size = percent(max(misses), 0) if all(map(_finite, misses)) else "unknown"
        why = f"relative error: {size}" if duality.fit.solving is None else duality.fit.doubt
        return (
            f"The activity-weight duality is too rough in {layer} ({why}), so it stays open "
            f"{unknown}."
        )
    whole = duality.eq9
    if not all(map(_finite, (whole, duality.eq11, duality.sharp, duality.flat))):
        return f"The split of the gap in {layer} is not defined, so it stays open {unknown}."
    if whole <= 0:
        return (
            f"Between paired test and training samples the gap vanishes ({number(whole, 3)} in "
            f"{layer}), so it stays open {unknown}."
        )
    low, high = duality.totals.intervals.paired_gap
    if duality.pairs < FEW:
        return (
            f"It has only {counted(duality.pairs, 'pair')} of test and training samples, too few "
            f"to tell the gap between them from chance, so it stays open {unknown}."
        )
    if low <= 0 <= high:
        return (
            f"Its {counted(duality.pairs, 'pair')} of test and training samples do not tell "
            f"the gap between them from chance ({number(low, 3)} to {number(high, 3)} in {layer}), "
            f"so it stays open {unknown}."
        )
    return f"{_verdict(results, duality, gap)}{_layers(results, duality)}."


def _verdict(results: Results, duality: Decomposition, gap: float) -> str:
    """Weigh the sharp against the flat part of a gap that is positive and well defined."""
    doubt = _doubt(results, duality)
    whole, sharp, flat = duality.eq9, duality.sharp, duality.flat
    mean = whole - duality.eq11
    n_sharp, n_flat = duality.n_sharp, duality.setting.directions - duality.n_sharp
    total, layer = number(duality.setting.directions), duality.layer
    # The split explains the *paired* gap; it is "that gap" only where the two agree.
    that = (
        "that gap"
        if abs(whole - gap) <= 0.1 * gap
        else f"the gap between paired samples ({number(whole, 3)})"
    )
    few = duality.setting.n_sharp_rule == "share" and duality.setting.directions < 90
    rule = ", one at least" if few else RULES[duality.setting.n_sharp_rule]
    of = f"of {total} weight directions of layer '{layer}'{rule}{DUALS[duality.setting.dual]}"
    sharpest = f"the {'' if n_sharp == 1 else f'{number(n_sharp)} '}sharpest {of}"
    flatter = f"the {number(n_flat)} flatter {of}"
    if abs(mean) > max(sharp, flat):
        return (
            f"In layer '{layer}' a shift of the mean, which is neither sharp nor flat, outweighs "
            f"both parts of {that}, so no remedy is suggested"
        )
    if _larger(sharp, flat) == "neither":
        return (
            f"Sharp and flat directions carry {that} about equally ({percent(sharp / whole, 0)} "
            f"from {sharpest}){doubt or f', which favours neither: {TRY}'}"
        )
    if not doubt and not _told_apart(duality):
        doubt = ", but these pairs do not tell which part is the larger, so no remedy is suggested"
    if sharp > flat:
        part = f"{_share(sharp, whole)} of {that} comes from {sharpest}"
        part += _lowered("other", n_flat, flat)
    else:
        part = f"{_share(flat, whole)} of {that} comes from {flatter}"
        part += _lowered("sharpest", n_sharp, sharp)
    better = "flatter" if sharp > flat else "smaller"
    return part + (doubt or f", which is weak evidence for a {better} solution: {TRY}")


def _larger(sharp: float, flat: float) -> Literal["sharp", "flat", "neither"]:
    """Name the larger of the two parts; neither where they are about equal."""
    if min(sharp, flat) > 0 and BALANCED[0] <= sharp / (sharp + flat) <= BALANCED[1]:
        return "neither"
    return "sharp" if sharp > flat else "flat"


def _layers(results: Results, duality: Decomposition) -> str:
    """Give the range of the sharp part over layers, for another layer may say something else."""
    shares = [row.sharp / duality.eq9 for row in _told_rows(results)]
    if len(shares) < 2:
        return ""
    low, high = (percent(share, 0) for share in (min(shares), max(shares)))
    return f"; across the {len(shares)} layers, the sharp share ranges from {low} to {high}"


def _told_rows(results: Results) -> list[LayerRow]:
    """Return the layers whose parts can be trusted and are numbers."""
    rows = (row for row in results.layer_rows if row.trusted)
    return [row for row in rows if math.isfinite(row.sharp) and math.isfinite(row.flat)]


def _share(part: float, whole: float) -> str:
    """Write a part in per cent, but no more than all of it, whatever the others take away."""
    return percent(part / whole, 0) if part < whole else "All"


def _lowered(which: str, count: int, part: float) -> str:
    directions = counted(count, f"{which} direction", ("lowers", "lower"))
    return f" (the {directions} it by {number(-part, 3)})" if part < 0 else ""


def _doubt(results: Results, duality: Decomposition) -> str:
    """Say why the shares suggest no remedy, if they do not: nothing else tells in a terminal."""
    failed = sum(not check.passed for check in results.checks)
    if failed:
        checks = counted(len(results.checks), "check")
        return f", but {failed} of {checks} failed, so no remedy is suggested"
    if results.subject.train_samples < FEW:
        samples = counted(results.subject.train_samples, "training sample", ("is", "are"))
        return f", but {samples} too few to choose a remedy by, so none is suggested"
    if results.convergence.state == "unknown":
        return ", but whether this is a minimum is not known, so no remedy is suggested"
    if min(duality.n_sharp, duality.setting.directions - duality.n_sharp) < 2:
        return ", but one direction is too few to stand for a part, so no remedy is suggested"
    larger = _larger(duality.sharp, duality.flat)
    if any(_larger(row.sharp, row.flat) != larger for row in _told_rows(results)):
        return ", but other layers say otherwise, so no remedy is suggested"
    balanced = results.balanced
    if balanced is not None and (
        _larger(balanced.sharp, balanced.flat) != larger
        or (larger != "neither" and not _told_apart(balanced))
    ):
        return ", but not with balanced units, so no remedy is suggested"
    return ""


def _told_apart(duality: Decomposition) -> bool:
    """Whether the interval of sharp less flat part, of the same pairs, lies on one side of 0."""
    low, high = duality.totals.intervals.difference
    return low > 0 or high < 0


def _underfitted(results: Results, gap: float) -> bool:
    """Whether the training loss is large, and more of the test loss than the gap is."""
    loss, constant = results.outcome.train_loss, results.convergence.constant_loss
    return _finite(loss) and _finite(constant) and loss > max(gap, UNDERFITTED * constant)


def _minimum(results: Results) -> str:
    """Call it a minimum unless it is not known to be one, or its training never got there."""
    training = results.origin.training
    if training is not None and not training.converged:
        return "this solution (its training did not converge)"
    return "this minimum" if results.convergence.state == "minimum" else "this solution"


def _evidence(outcome: Outcome) -> str:
    """Give the errors, which everybody understands; the losses where there are no errors."""
    if _finite(outcome.test_error) and _finite(outcome.train_error):
        test, train = percent(outcome.test_error), percent(outcome.train_error)
        return f"test error {test}, training error {train}"
    test, train = number(outcome.test_loss, 3), number(outcome.train_loss, 3)
    return f"test loss {test}, training loss {train}"


def _negligible(results: Results, gap: float) -> bool:
    """Tell a gap that matters from one that is small."""
    outcome = results.outcome
    losses = (outcome.test_loss, outcome.train_loss)
    scale = max((abs(loss) for loss in losses if _finite(loss)), default=0.0)
    if results.subject.unit == "nats" and abs(gap) < NEGLIGIBLE_NATS:
        return True
    return abs(gap) <= NEGLIGIBLE_SHARE * scale


def _noise(results: Results) -> float | None:
    """Twice the standard error of the gap, within which it may be chance; None if not known."""
    for measure in results.measures:
        if measure.name == "gap" and _finite(measure.stderr):
            return 2 * measure.stderr
    return None


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
