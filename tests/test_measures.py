"""One battery over every registered measure, and an oracle for each."""

import copy

import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES, dense_hessian
from lowland.errors import InputError
from lowland.measures import registered
from lowland.problem import Problem

MEASURES = registered()


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
    ).double()


def data(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g, dtype=torch.float64), torch.arange(n) % 3


def problem(model: nn.Module, order: torch.Tensor | None = None, **options) -> Problem:
    X, y = data(24, 0)
    order = torch.arange(24) if order is None else order
    return Problem(model, train=(X[order], y[order]), test=data(12, 1), **options)


def value(name: str, of: Problem) -> float:
    found = ll.measure(of, [name])[name]
    assert found.value is not None, found.reason
    return found.value


@pytest.mark.parametrize("name", MEASURES)
class TestBattery:
    def test_how_samples_are_batched_and_ordered_does_not_matter(self, name):
        whole = value(name, problem(network()))
        shuffled = torch.randperm(24, generator=torch.Generator().manual_seed(2))
        ragged = value(name, problem(network(), shuffled, batch_size=7))
        assert ragged == pytest.approx(whole, rel=1e-6)

    def test_permuting_hidden_units_does_not_matter(self, name):
        model = network()
        permuted = copy.deepcopy(model)
        order = torch.tensor([3, 1, 5, 0, 2, 4])
        with torch.no_grad():
            permuted[0].weight.copy_(model[0].weight[order])
            permuted[0].bias.copy_(model[0].bias[order])
            permuted[2].weight.copy_(model[2].weight[:, order])
        assert value(name, problem(permuted)) == pytest.approx(
            value(name, problem(model)), rel=1e-6
        )

    def test_rescaling_moves_it_exactly_where_it_is_not_claimed_to_be_invariant(self, name):
        model = network()
        rescaled = copy.deepcopy(model)
        with torch.no_grad():  # Dinh et al. 2017: the function does not change
            rescaled[0].weight.mul_(10)
            rescaled[0].bias.mul_(10)
            rescaled[2].weight.div_(10)
        before, after = value(name, problem(model)), value(name, problem(rescaled))
        if "rescaling" in MEASURES[name].invariant:
            assert after == pytest.approx(before, rel=1e-6)
        else:
            assert abs(after - before) > 0.1 * abs(before)

    def test_metadata_is_complete(self, name):
        known = MEASURES[name]
        assert known.title
        assert known.formula
        assert known.definition.endswith(".")
        assert known.sharper in ("higher", "lower", None)

    def test_without_test_data_it_works_or_says_why_not(self, name):
        found = ll.measure(Problem(network(), train=data(24, 0)), name)[name]
        assert (found.value is None) == MEASURES[name].needs_test
        if found.value is None:
            assert "needs test data" in found.reason


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
