"""One battery over every registered measure, and an oracle for each."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES, dense_hessian
from lowland.errors import InputError
from lowland.measures import Measurement, registered
from lowland.measures.registry import FAMILIES, TRANSFORMATIONS
from lowland.problem import Problem

MEASURES = registered()
# Measures whose noise is drawn per weight: another order of units is another draw.
SAMPLED = {
    name for name, m in MEASURES.items() if m.family in ("perturbation", "volume", "bounds")
} | {"noise_robustness", "normalized_sharpness_direct"}


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
    ).double()


def data(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g, dtype=torch.float64), torch.arange(n) % 3


@functools.cache
def trained() -> nn.Sequential:
    """Fitted well enough that no measure is of an arbitrary point, and not to zero loss."""
    model = network()
    X, y = data(24, 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    return model


def problem(model: nn.Module, order: torch.Tensor | None = None, **options) -> Problem:
    X, y = data(24, 0)
    order = torch.arange(24) if order is None else order
    known = {"initial": network(), "training": {"learning_rate": 0.3, "batch_size": 24}}
    return Problem(model, train=(X[order], y[order]), test=data(12, 1), **{**known, **options})


def found(name: str, of: Problem) -> Measurement:
    row = ll.measure(of, [name])[name]
    assert row.value is not None, row.reason
    return row


def same(name: str, one: Measurement, other: Measurement) -> bool:
    """Equal to rounding, or, where the value is sampled, within four of its standard errors."""
    slack = 4 * math.hypot(one.stderr or 0, other.stderr or 0) if name in SAMPLED else 0
    return abs(one.value - other.value) <= max(1e-6 * abs(one.value), slack)


def rescaled(by: str) -> nn.Module:
    """The trained network after a transformation, by hand: the oracle of ll.rescale as well."""
    model = copy.deepcopy(trained())
    with torch.no_grad():
        if by == "layers":
            model[0].weight.mul_(10)
            model[0].bias.mul_(10)
            model[2].weight.div_(10)
        elif by == "units":
            scale = torch.tensor([0.1, 7, 1, 0.5, 3, 20]).double()
            model[0].weight.mul_(scale[:, None])
            model[0].bias.mul_(scale)
            model[2].weight.div_(scale)
        else:
            model[4].weight.mul_(3)
            model[4].bias.mul_(3)
    return model


@pytest.mark.parametrize("name", MEASURES)
class TestBattery:
    def test_how_samples_are_batched_and_ordered_does_not_matter(self, name):
        shuffled = torch.randperm(24, generator=torch.Generator().manual_seed(2))
        whole, ragged = problem(trained()), problem(trained(), shuffled, batch_size=7)
        assert same(name, found(name, ragged), found(name, whole))

    def test_permuting_hidden_units_does_not_matter(self, name):
        model = trained()
        permuted, initial = copy.deepcopy(model), copy.deepcopy(network())
        order = torch.tensor([3, 1, 5, 0, 2, 4])
        with torch.no_grad():
            for net in (permuted, initial):
                net[0].weight.copy_(net[0].weight[order].clone())
                net[0].bias.copy_(net[0].bias[order].clone())
                net[2].weight.copy_(net[2].weight[:, order].clone())
        turned = found(name, problem(permuted, initial=initial))
        assert same(name, turned, found(name, problem(model)))

    @pytest.mark.parametrize("by", TRANSFORMATIONS)
    def test_transformations_move_it_exactly_where_it_is_not_claimed_invariant(self, name, by):
        before, after = found(name, problem(trained())), found(name, problem(rescaled(by)))
        if by in MEASURES[name].invariant:
            assert same(name, after, before)
        else:
            assert abs(after.value - before.value) > 0.01 * abs(before.value)

    def test_it_is_the_same_again_and_leaves_no_trace(self, name):
        model = trained()
        before = copy.deepcopy(model.state_dict())
        model.train()
        state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        one, two = found(name, problem(model)), found(name, problem(model))
        assert one.value == two.value
        assert torch.equal(state[0], torch.get_rng_state())
        assert np.array_equal(state[1], np.random.get_state()[1])  # noqa: NPY002
        assert model.training
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())

    def test_single_precision_gives_nearly_the_same(self, name):
        double = found(name, problem(trained()))
        single = found(name, problem(trained(), dtype=torch.float32))
        slack = 4 * math.hypot(double.stderr or 0, single.stderr or 0) if name in SAMPLED else 0
        assert abs(single.value - double.value) <= max(0.02 * abs(double.value), slack, 1e-6)

    def test_metadata_is_complete(self, name):
        known = MEASURES[name]
        assert known.title
        assert known.formula
        assert known.family in FAMILIES
        assert known.definition.endswith(".")
        assert known.sharper in ("higher", "lower", None)
        assert known.invariant <= set(TRANSFORMATIONS)

    def test_without_test_data_or_initial_weights_it_works_or_says_why_not(self, name):
        known = MEASURES[name]
        bare = Problem(trained(), train=data(24, 0), training={"learning_rate": 1, "batch_size": 1})
        row = ll.measure(bare, name)[name]
        assert (row.value is None) == (known.needs_test or known.needs_initial)
        if row.value is None:
            assert "needs" in row.reason


@pytest.mark.parametrize("case", ["lenet", "resnet", "transformer", "lstm", "mlp-gelu"])
def test_every_measure_gives_a_number_or_a_reason_on_every_kind_of_model(case):
    rows = ll.measure(CASES[case].problem(n=12))
    assert len(rows) == sum(not m.trains for m in MEASURES.values())
    for name, row in rows.items():
        assert (row.value is None) != (row.reason is None), name
        assert row.value is None or math.isfinite(row.value), name
        assert row.gradients is None or row.gradients >= 0


def test_what_measures_share_is_computed_once(monkeypatch):
    calls = []
    from lowland.measures import spectrum

    original = spectrum.spectral_density
    monkeypatch.setattr(
        spectrum, "spectral_density", lambda *a, **k: calls.append(1) or original(*a, **k)
    )
    ll.measure(problem(trained()), ["effective_dimension", "negative_share", "near_zero_share"])
    assert len(calls) == 1
    ll.measure(problem(trained()), "effective_dimension")
    assert len(calls) == 2  # nothing outlives a call: the weights may have changed


def test_values_of_the_outcome_measures():
    X, y = data(24, 0)
    Xt, yt = data(12, 1)
    model = network()
    found = ll.measure(problem(model))
    with torch.no_grad():
        train = nn.functional.cross_entropy(model(X), y).item()
        losses = nn.functional.cross_entropy(model(Xt), yt, reduction="none")
        wrong = (model(Xt).argmax(1) != yt).double()
    assert found["train_loss"].value == pytest.approx(train)
    assert found["test_loss"].value == pytest.approx(losses.mean().item())
    assert found["test_loss"].stderr == pytest.approx(losses.std().item() / 12**0.5)
    assert found["gap"].value == pytest.approx(losses.mean().item() - train)
    assert found["test_error"].value == pytest.approx(wrong.mean().item())
    assert found["test_error"].stderr == pytest.approx((wrong.std(correction=0) / 12**0.5).item())
    assert found["train_error"].value == (model(X).argmax(1) != y).double().mean().item()


@pytest.mark.parametrize("name", ["mlp-relu", "mlp-tanh", "lenet"])
def test_curvature_measures_equal_those_of_the_dense_hessian(name):
    of = CASES[name].problem()
    H = dense_hessian(of)
    found = ll.measure(of)
    assert found["trace"].value == pytest.approx(H.trace().item(), rel=1e-9)
    assert found["largest_eigenvalue"].value == pytest.approx(
        torch.linalg.eigvalsh(H)[-1].item(), rel=1e-6
    )
    norm = torch.cat([p.flatten() for p in of.params.values()]).norm().item()
    assert found["weight_norm"].value == pytest.approx(norm)


def test_a_measure_that_does_not_apply_says_so_and_the_rest_go_on():
    regression = ll.measure(CASES["mlp-relu"].problem(loss="mse"))
    assert regression["test_error"].value is None
    assert "needs class labels" in regression["test_error"].reason
    assert regression["weight_norm"].value > 0


def test_an_estimated_measure_carries_its_error():
    problem = CASES["lstm"].problem()
    found = ll.measure(problem, "trace")["trace"]
    assert 0 < found.stderr <= 0.01 * found.value
    assert abs(found.value - dense_hessian(problem).trace().item()) <= 4 * found.stderr


def test_tables_and_unknown_names():
    found = ll.measure(problem(network()), ["trace", "gap"])
    frame = found.to_frame()
    assert list(frame.index) == ["trace", "gap"]
    assert frame.loc["trace", "value"] == found["trace"].value
    assert found.to_dict()["gap"]["needs_test"] is True
    with pytest.raises(InputError, match="no measure named 'trce'.*did you mean 'trace'"):
        ll.measure(problem(network()), "trce")
