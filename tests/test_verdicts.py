"""Verdicts that once misled: on networks that were not trained, or not to the end."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

import lowland as ll
from cases import descend
from example import changed, make_results
from lowland.comparison import compare
from lowland.problem import Problem
from lowland.report import answer, compared, render
from lowland.results import Analysis

F = nn.functional


def data(seed: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four clouds that overlap a little."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 4
    centres = 1.5 * torch.eye(4).repeat(1, 2)
    return centres[y] + 0.7 * torch.randn(n, 8, generator=generator), y


def network(steps: int, decay: float = 0.0) -> nn.Sequential:
    """A small network after so many steps of gradient descent."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4))
    )
    X, y = data(0, 240)
    descend(model, (X, y), steps, 0.5, weight_decay=decay)
    return model


trained = functools.cache(network)  # for tests that leave it as it is


@functools.cache
def analysed(steps: int, decay: float = 0.0) -> Analysis:
    problem = Problem(trained(steps, decay), train=data(0, 240), test=data(1, 600))
    return ll.analyze(problem, "2", measures=[])


@pytest.mark.parametrize(
    ("steps", "decay", "state"),
    [
        (0, 0.0, "untrained"),
        (15, 0.0, "unfinished"),
        (3000, 0.0, "minimum"),  # next to no loss is left
        (2500, 0.02, "minimum"),  # its gradient is that of the decay
    ],
)
def test_the_state_of_a_classifier(steps, decay, state):
    analysis = analysed(steps, decay)
    reached = analysis.results.convergence
    assert reached.state == state, reached
    assert reached.constant_loss == pytest.approx(torch.tensor(4.0).log().item(), rel=1e-5)
    assert reached.constant_error == pytest.approx(0.75)
    said = {"untrained": "This network is not trained", "unfinished": "This is not a minimum yet"}
    assert analysis.answer.startswith(said.get(state, "This minimum "))
    if state != "minimum":
        assert "SAM" not in analysis.answer
        assert "weight decay" not in analysis.answer
        assert "on a minimum" not in render(analysis.results)


def test_the_state_of_a_regression():
    """Least squares in closed form is a minimum that fits badly; short of it is none."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(400, 5, generator=generator)
    y = X @ torch.ones(5, 1) + 2 * torch.randn(400, 1, generator=generator)
    w = torch.linalg.lstsq(X, y).solution.T
    shift = torch.zeros_like(w)
    shift[0, 0], shift[0, 1] = 1.0, -1.0
    states = []
    for weight in (w, w + 0.5 * shift, 0 * w):
        model = nn.Sequential(nn.Linear(5, 1, bias=False))
        with torch.no_grad():
            model[0].weight.copy_(weight)
        problem = Problem(model, "mse", train=(X, y), test=(X[:50], y[:50] + 1))
        reached = ll.analyze(problem, measures=[]).results.convergence
        states.append(reached.state)
        assert reached.constant_loss == pytest.approx(float(y.var(correction=0)), rel=1e-4)
    assert states == ["minimum", "unfinished", "untrained"]


def test_the_gradient_and_its_error_are_those_of_single_samples():
    model = network(15)
    X, y = data(0, 240)
    rows = []
    for k in range(240):
        loss = F.cross_entropy(model(X[k : k + 1]), y[k : k + 1])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())]))
    g = torch.stack(rows).double()
    w = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    G = g.mean(0)
    rest = G + max(0.0, float(-(G @ w) / (w @ w))) * w
    reached = analysed(15).results.convergence
    assert reached.gradient == pytest.approx(float(rest.norm()), rel=1e-4)
    noise = g.var(0).sum() / 240
    assert reached.gradient_noise == pytest.approx(float(noise.sqrt()), rel=1e-4)


def test_an_untrained_network_is_not_the_better_one_for_its_small_gap():
    trained, untrained = analysed(3000), analysed(0)
    for order, better in (((trained, untrained), "first"), ((untrained, trained), "second")):
        found = compare(*order)
        other = {"first": "second", "second": "first"}[better]
        assert found.answer.startswith(
            f"Careful: the {other} solution is not trained. The {better}"
        )
        title = found.results.solutions[["first", "second"].index(better)].title
        does_better = f"The {better} solution, {title}, does better on unseen data (test loss"
        assert does_better in found.answer
        assert "solution generalises" not in found.answer
        assert "do not fit their training data comparably" in found.answer
    unfinished = compare(trained, analysed(15)).answer
    assert unfinished.startswith("Careful: the second solution is not a minimum yet.")


def test_solutions_that_fit_alike_are_told_apart_by_their_gaps():
    one = analysed(3000)
    split = one.results.balanced
    pairs = replace(split.per_pair, dl=2 * split.per_pair.dl)
    steeper = replace(one, results=replace(one.results, balanced=replace(split, per_pair=pairs)))
    assert "The second solution generalises worse" in compare(one, steeper).answer


def test_the_answer_gives_the_range_over_layers():
    analysis = analysed(3000)
    eq9 = analysis.results.duality.eq9
    shares = [row.sharp / eq9 for row in analysis.results.layer_rows if row.trusted]
    low, high = (f"{100 * share:.0f} %" for share in (min(shares), max(shares)))
    assert f"across the {len(shares)} layers, the sharp share ranges from {low} to {high}" in (
        analysis.answer
    )


LARGER = [(30, 60, 20), (64, 100, 25)]


@pytest.mark.parametrize(
    ("outputs", "inputs", "expected"),
    [(4, 5, 1), (30, 30, 10), *(pytest.param(*s, marks=pytest.mark.slow) for s in LARGER)],
)
def test_sharp_directions_are_the_papers_share_of_a_layer(outputs, inputs, expected):
    """10 of 900; of a layer with more than 4,096 weights, half of the 50 that are computed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, outputs, bias=False), nn.ReLU(), nn.Linear(outputs, 3))
    X, y = torch.randn(60, inputs), torch.arange(60) % 3
    problem = Problem(model, train=(X[:40], y[:40]), test=(X[40:], y[40:]))
    split = ll.duality(problem, "0")
    assert (split.n_sharp, split.setting.n_sharp_rule) == (expected, "share")
    assert ll.duality(problem, "0", n_sharp=2).setting.n_sharp_rule == "number"


def test_frozen_parameters_are_shown():
    model = network(15)
    model[0].weight.requires_grad_(False)
    analysis = ll.analyze(Problem(model, train=data(0, 240), test=data(1, 600)), measures=[])
    assert analysis.results.subject.frozen == 96
    assert ", and 96 frozen" in render(analysis.results)


# What may be said, over all that an analysis may find

REMEDIES = ("larger learning rate", "weight decay", "smaller batches", "SAM", "worth trying")


def found(n_test, gap, error, state, train_loss, failed):
    """Results with a gap of which most is sharp."""
    results = make_results()
    results = changed(results, "subject", test_samples=n_test)
    results = changed(
        results, "outcome", gap=gap, train_loss=train_loss, test_loss=train_loss + gap
    )
    results = changed(results, "convergence", state=state)
    parts = {"sharp": 0.8 * gap, "flat": 0.2 * gap, "eq9": gap, "eq11": gap, "paired_gap": gap}
    results = changed(results, "duality.totals", **parts)
    known = {"paired_gap": gap, "sharp": 0.8 * gap, "flat": 0.2 * gap, "difference": 0.6 * gap}
    spans = {name: tuple(sorted((0.95 * value, 1.05 * value))) for name, value in known.items()}
    results = changed(results, "duality.totals.intervals", **spans)
    results = changed(results, "duality.fit", pairs=n_test)
    checks = (replace(results.checks[0], passed=not failed), *results.checks[1:])
    *others, row = results.measures
    return replace(
        results, checks=checks, measures=(*others, replace(row, value=gap, stderr=error))
    )


CASES = [
    (n, gap, error, state, loss, failed)
    for n in (*range(1, 11), 600)
    for gap in (-0.3, -1e-5, 1e-5, 0.3)
    for error in (None, 0.01, 0.2)
    for state in ("minimum", "unfinished", "untrained", "unknown")
    for loss in (5e-4, 1.9)
    for failed in (False, True)
]


def test_a_remedy_is_suggested_only_where_everything_supports_it():
    advised = 0
    for case in CASES:
        n, gap, error, state, loss, failed = case
        text = answer(found(*case))
        supported = (
            n >= 10
            and gap > 0.1
            and error == 0.01
            and state == "minimum"
            and loss < 1
            and not failed
        )
        assert any(word in text for word in REMEDIES) == supported, (case, text)
        advised += supported
        if n < 10 and state in ("minimum", "unknown"):
            assert "too few to tell a gap from chance" in text, (case, text)
            assert "no remedy yet" in text
        if gap == -0.3 and n >= 10 and error == 0.01 and state == "minimum" and loss < 1:
            assert "There is no gap to explain" in text
        if failed and n >= 10 and gap > 0.1 and error == 0.01 and state == "minimum" and loss < 1:
            assert "1 of 2 checks failed" in text
        if n >= 10 and abs(gap) == 0.3 and error is None and state == "minimum" and loss < 1:
            assert "unknown error" in text
    assert advised == 2


def test_parts_that_the_pairs_do_not_tell_apart_suggest_nothing():
    results = found(600, 0.3, 0.01, "minimum", 5e-4, False)
    wide = changed(results, "duality.totals.intervals", difference=(-0.02, 0.4))
    # Parts whose own intervals overlap rise and fall together: their difference may still be sure.
    sure = changed(results, "duality.totals.intervals", sharp=(0.02, 0.4), flat=(0.01, 0.1))
    assert any(word in answer(sure) for word in REMEDIES)
    assert "do not tell which part is the larger" in answer(wide)
    open_gap = changed(results, "duality.totals.intervals", paired_gap=(-0.1, 0.4))
    few_pairs = changed(results, "duality.fit", pairs=4)
    for doubtful in (wide, open_gap, few_pairs):
        assert not any(word in answer(doubtful) for word in REMEDIES)


@pytest.mark.parametrize("n", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5)), 9])
def test_few_test_samples_choose_no_remedy_and_no_winner(n):
    X, y = data(1, 600)
    sides = [
        ll.analyze(
            Problem(trained(steps, decay), train=data(0, 240), test=(X[:n], y[:n])),
            "2",
            measures=[],
        )
        for steps, decay in ((3000, 0.0), (2500, 0.02))
    ]
    for side in sides:
        assert "too few to tell a gap from chance" in side.answer
        assert not any(word in side.answer for word in REMEDIES)
    if n == 1:
        with pytest.raises(ll.InputError, match="pairs"):
            compare(*sides)
        return
    text = compare(*sides).answer
    assert "are too few to tell their gaps apart" in text
    assert "generalises" not in text
    assert "The main reason" not in text


def test_a_test_set_without_a_wrong_prediction_has_an_error_all_the_same():
    X, y = data(1, 600)
    model = trained(3000)
    right = (model(X).argmax(1) == y).nonzero()[:12, 0]
    rows = ll.measure(
        Problem(model, train=data(0, 240), test=(X[right], y[right])),
        ["test_error", "test_loss", "gap"],
    )
    assert rows["test_error"].value == 0
    assert 2 * rows["test_error"].stderr > 1 - 0.05 ** (1 / 12)  # the exact bound of 95 %
    assert rows["gap"].stderr == rows["test_loss"].stderr > rows["test_loss"].value


def few_trained(X, y, steps, outputs=3, loss=F.cross_entropy):
    """A network on these samples alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())
    model.append(nn.Linear(6, outputs))
    descend(model, (X, y), steps, 0.2, loss=loss)
    return model


@pytest.mark.parametrize(("copies", "steps"), [(1, 300), (20, 50)])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_samples_without_a_spread_say_nothing_of_chance(copies, steps, loss):
    g = torch.Generator().manual_seed(0)
    X, Xt = torch.randn(1, 5, generator=g).repeat(copies, 1), torch.randn(12, 5, generator=g)
    y, yt = torch.zeros(copies).long(), torch.arange(12) % 3
    if loss == "mse":
        y, yt = X.sum(1, keepdim=True), Xt.sum(1, keepdim=True)
    model = few_trained(
        X, y, steps, 3 if loss != "mse" else 1, getattr(F, f"{loss}_loss", F.cross_entropy)
    )
    results = ll.analyze(
        Problem(model, loss, train=(X, y), test=(Xt, yt)), measures=["gap"]
    ).results
    assert results.convergence.gradient_noise is None
    assert results.convergence.gradient > 0
    text = answer(results)
    assert "not defined" not in text
    assert "times" not in text
    assert not any(word in text for word in REMEDIES)


@pytest.mark.parametrize("n", [2, 8])
def test_few_training_samples_choose_no_remedy(n):
    g = torch.Generator().manual_seed(0)
    X, Xt = torch.randn(n, 5, generator=g), torch.randn(40, 5, generator=g)
    y, yt = torch.arange(n) % 3, torch.arange(40) % 3
    problem = Problem(few_trained(X, y, 600), train=(X, y), test=(Xt, yt))
    text = answer(ll.analyze(problem, measures=["gap"]).results)
    assert not any(word in text for word in REMEDIES), text


def test_few_pairs_are_called_few():
    """The interval may leave out 0 all the same: from a handful of pairs it is none."""
    few = changed(found(600, 0.3, 0.01, "minimum", 5e-4, False), "duality.fit", pairs=4)
    assert "It has only 4 pairs of test and training samples, too few" in answer(few)


def test_half_a_training_does_not_generalise_better_for_its_smaller_gap():
    """Stopped early its loss is lower and its error higher; nothing says that it is the better."""
    half, whole = analysed(15), analysed(3000)
    assert half.results.convergence.state == "unfinished"
    text = compare(half, whole).answer
    assert "the first solution is not a minimum yet" in text
    assert "generalises worse" not in text
    assert "do not fit their training data comparably" in text


def test_a_lower_loss_with_a_higher_error_is_not_called_better():
    found = compare(analysed(3000), analysed(15)).results
    first, second = found.solutions
    losses, errors = (1.9, 0.65), (0.20, 0.25)
    sides = tuple(
        replace(
            side,
            outcome=replace(side.outcome, test_loss=loss, test_error=error),
        )
        for side, loss, error in zip((first, second), losses, errors, strict=True)
    )
    text = compared(replace(found, solutions=sides, lower_loss=1, lower_error=None))
    assert "the second solution has the smaller loss, and by their error the two are not" in text
    assert "does better on unseen data" not in text
