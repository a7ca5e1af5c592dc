"""One battery over every registered measure, and an oracle for each."""

import copy
import functools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

import lowland as ll
from cases import CASES, dense_hessian, descend, some_fast
from lowland.curvature import Curvature
from lowland.errors import InputError
from lowland.measures import FAMILIES, TRANSFORMATIONS, Measurement, registered, sharing, stressed
from lowland.measures.condition_number import _is_blind_to_shifts
from lowland.measures.shared import spectrum
from lowland.problem import Problem

MEASURES = registered()
N = 120
# Measures whose noise is drawn per weight: another order of units is another draw.
SAMPLED = {
    *(name for name, m in MEASURES.items() if m.family in ("perturbation", "volume", "bounds")),
    *("noise_robustness", "normalized_sharpness_direct"),
}
# A softmax has directions without curvature, so this network has no condition number.
BATTERY = [
    pytest.param(name, marks=[pytest.mark.slow] if m.trains else [])
    for name, m in MEASURES.items()
    if name != "condition_number"
]
# Logarithms and saturated counts move, but by per cents: 2 and 1 %, 8 %, 4 %, 2 % and 9 % here.
MOVE_LITTLE = {
    ("effective_dimension", "layers"),
    ("effective_dimension", "units"),
    ("near_zero_share", "layers"),
    ("near_zero_share", "units"),
    ("gradient_noise_scale", "units"),
    ("flat_box", "units"),
    ("calibration_error", "outputs"),
}
# What a transformation may leave as it is, although nothing says that it must: counts, and the
# size of a layer that is not the last.
MAY_STAY = {
    *(("negative_share", by) for by in TRANSFORMATIONS),
    ("near_zero_share", "outputs"),
    ("total_sigma_w", "outputs"),
}


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
    ).double()


def data(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 4, generator=g, dtype=torch.float64)
    return X, X[:, :3].argmax(1)


@functools.cache
def trained() -> nn.Sequential:
    """Fitted well enough that no measure is of an arbitrary point, and not to zero loss."""
    model = network()
    X, y = data(N, 0)
    descend(model, (X, y), 400, 0.3)
    return model


def problem(model: nn.Module, order: torch.Tensor | None = None, **options) -> Problem:
    X, y = data(N, 0)
    order = torch.arange(N) if order is None else order
    known = {"initial": network(), "training": {"learning_rate": 0.3, "batch_size": N}}
    return Problem(model, train=(X[order], y[order]), test=data(12, 1), **{**known, **options})


def same(name: str, one: Measurement, other: Measurement) -> bool:
    """Equal to rounding, or, where the value is sampled, within four of its standard errors."""
    slack = 4 * math.hypot(one.stderr or 0, other.stderr or 0) if name in SAMPLED else 0
    return abs(one.value - other.value) <= max(1e-6 * abs(one.value), slack)


def rescaled(by: str) -> nn.Module:
    """The trained network after a transformation, by hand: the oracle of ll.rescale as well."""
    model = copy.deepcopy(trained())
    with torch.no_grad():
        if by == "layers":
            model[2].weight.mul_(10)
            model[2].bias.mul_(10)
            model[4].weight.div_(10)
        elif by == "units":
            scale = torch.tensor([0.1, 7, 1, 0.5, 3, 20]).double()
            model[0].weight.mul_(scale[:, None])
            model[0].bias.mul_(scale)
            model[2].weight.div_(scale)
            scale = torch.tensor([4, 0.2, 1, 9, 0.6]).double()
            model[2].weight.mul_(scale[:, None])
            model[2].bias.mul_(scale)
            model[4].weight.div_(scale)
        else:
            model[4].weight.mul_(5)
            model[4].bias.mul_(5)
    return model


def shuffled() -> Problem:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    return problem(trained(), order, batch_size=37)


def permuted() -> Problem:
    model, initial = copy.deepcopy(trained()), copy.deepcopy(network())
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    with torch.no_grad():
        for net in (model, initial):
            net[0].weight.copy_(net[0].weight[order].clone())
            net[0].bias.copy_(net[0].bias[order].clone())
            net[2].weight.copy_(net[2].weight[:, order].clone())
    return problem(model, initial=initial)


def bare() -> Problem:
    return Problem(trained(), train=data(N, 0), training={"learning_rate": 1, "batch_size": 1})


# The trained network as it is, and all that the battery makes of it.
VARIANTS = {
    "plain": lambda: problem(trained()),
    "shuffled": shuffled,
    "permuted": permuted,
    "single": lambda: problem(trained(), dtype=torch.float32),
    "bare": bare,
    **{by: lambda by=by: problem(rescaled(by)) for by in TRANSFORMATIONS},
}


@functools.cache
def rows_of(variant: str, name: str | None = None) -> dict[str, Measurement]:
    """Every measure of a variant that does not train, in one call, or the one that is named."""
    return dict(ll.measure(VARIANTS[variant](), name))


def row(name: str, variant: str = "plain") -> Measurement:
    return rows_of(variant, name if MEASURES[name].trains else None)[name]


@pytest.mark.parametrize("name", BATTERY)
class TestBattery:
    def test_it_has_a_value(self, name):
        for variant in VARIANTS.keys() - {"bare"}:
            assert row(name, variant).value is not None, row(name, variant).reason

    def test_how_samples_are_batched_and_ordered_does_not_matter(self, name):
        assert same(name, row(name, "shuffled"), row(name))

    def test_permuting_hidden_units_does_not_matter(self, name):
        assert same(name, row(name, "permuted"), row(name))

    @pytest.mark.parametrize("by", TRANSFORMATIONS)
    def test_transformations_move_it_exactly_where_it_is_not_claimed_invariant(self, name, by):
        before, after = row(name), row(name, by)
        if by in MEASURES[name].invariant:
            assert same(name, after, before)
        elif (name, by) not in MAY_STAY:
            share = 0.01 if (name, by) in MOVE_LITTLE else 0.1
            assert abs(after.value - before.value) > share * abs(before.value)

    def test_it_is_the_same_alone_and_leaves_no_trace(self, name):
        model = trained()
        before = copy.deepcopy(model.state_dict())
        model.train()
        state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        assert ll.measure(problem(model), name)[name].value == row(name).value
        assert torch.equal(state[0], torch.get_rng_state())
        assert np.array_equal(state[1], np.random.get_state()[1])  # noqa: NPY002
        assert model.training
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())

    def test_single_precision_gives_nearly_the_same(self, name):
        double, single = row(name), row(name, "single")
        slack = 4 * math.hypot(double.stderr or 0, single.stderr or 0) if name in SAMPLED else 0
        # a search that stops early stops elsewhere in another precision
        share = 0.25 if "lower bound" in double.method else 0.02
        assert abs(single.value - double.value) <= max(share * abs(double.value), slack, 1e-6)

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
        told = row(name, "bare")
        assert (told.value is None) == (known.needs_test or known.needs_initial)
        if told.value is None:
            assert "needs" in told.reason


@pytest.mark.parametrize("case", some_fast("resnet", "mlp-gelu"))
def test_every_measure_gives_a_number_or_a_reason_on_every_kind_of_model(case):
    rows = ll.measure(CASES[case].problem(n=12))
    assert len(rows) == sum(not m.trains for m in MEASURES.values())
    for name, row in rows.items():
        assert (row.value is None) != (row.reason is None), name
        assert row.value is None or math.isfinite(row.value), name
        assert row.gradients is None or row.gradients >= 0


class Counted(torch.autograd.Function):
    """Change nothing, and count how often it is passed backwards."""

    backwards = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Counted.backwards += 1
        return gradient


class Counting(nn.Linear):
    """A linear layer that counts its backward passes."""

    def forward(self, x):
        return Counted.apply(super().forward(x))


def test_measures_of_forward_passes_alone_run_no_gradient():
    network = nn.Sequential(Counting(4, 3)).double()
    known = problem(network, initial=copy.deepcopy(network))
    Counted.backwards = 0
    names = ["train_loss", "test_error", "gap", "margin", "weight_norm", "distance_from_initial"]
    rows = ll.measure(known, names)
    assert all(row.value is not None and row.gradients is None for row in rows.values())
    assert Counted.backwards == 0
    with_derivatives = ll.measure(known, ["train_loss", "gradient_variance"])
    assert Counted.backwards > 0
    assert with_derivatives["train_loss"].gradients is None
    assert with_derivatives["gradient_variance"].gradients > 0
    planned = ll.measure(known, ["train_loss", "trace"], budget="1h")
    assert planned["train_loss"].gradients is None
    assert planned["trace"].gradients > 0


@pytest.mark.parametrize("affordable", [spectrum.AFFORDABLE, 0])
def test_one_spectral_pass_feeds_every_spectral_measure(monkeypatch, affordable):
    monkeypatch.setattr(spectrum, "AFFORDABLE", affordable)
    products, multiply = Counter(), Curvature.__matmul__

    def counted(self, V):
        products[self.kind] += V[:1].numel()
        return multiply(self, V)

    monkeypatch.setattr(Curvature, "__matmul__", counted)
    names = ["largest_eigenvalue", "frobenius_norm", "near_zero_share", "negative_share", "width"]
    rows = ll.measure(problem(trained()), [*names, "effective_dimension"])
    alone = products["hessian"]
    # one more product tells what a product costs
    assert alone <= 83 + 1
    assert products["ggn"] <= 83 + 1
    for name in ("largest_eigenvalue", "frobenius_norm", "effective_dimension"):
        assert f"{alone - 1} products" in rows[name].method
    ll.measure(problem(trained()), "largest_eigenvalue")
    assert products["hessian"] == 2 * alone  # nothing outlives a call: the weights may have changed


def test_what_is_shared_belongs_to_one_model_and_loss():
    """Derived problems hold the same data: once that alone was the key of what is shared."""
    one = problem(trained())
    others = ll.rescale(one, "layers", 10.0), one.with_loss("normalized_cross_entropy")
    assert all(other.train is one.train for other in others)
    alone = [spectrum.leading(of).values for of in (one, *others)]
    with sharing():
        together = [spectrum.leading(of).values for of in (one, *others)]
        assert spectrum.leading(one) is spectrum.leading(one)
    for expected, got in zip(alone, together, strict=True):
        torch.testing.assert_close(got, expected)
    assert not torch.allclose(alone[0], alone[1])
    assert not torch.allclose(alone[0], alone[2])


def test_values_of_the_outcome_measures():
    X, y = data(N, 0)
    Xt, yt = data(12, 1)
    model = network()
    names = ["train_loss", "test_loss", "gap", "train_error", "test_error"]
    found = ll.measure(problem(model), names)
    with torch.no_grad():
        train = nn.functional.cross_entropy(model(X), y).item()
        losses = nn.functional.cross_entropy(model(Xt), yt, reduction="none")
        wrong = (model(Xt).argmax(1) != yt).double()
    assert found["train_loss"].value == pytest.approx(train)
    assert found["test_loss"].value == pytest.approx(losses.mean().item())
    # Student's with 11 degrees of freedom, or more: few samples may have missed what costs most
    assert found["test_loss"].stderr >= 1.127 * losses.std().item() / 12**0.5
    assert found["gap"].stderr == found["test_loss"].stderr
    assert found["gap"].value == pytest.approx(losses.mean().item() - train)
    assert found["test_error"].value == pytest.approx(wrong.mean().item())
    share = found["test_error"].value
    ends = binomtest(int(wrong.sum()), 12).proportion_ci(0.9544997, method="wilson")
    farther = max(share - ends.low, ends.high - share)
    assert found["test_error"].stderr == pytest.approx(farther / 2, rel=1e-4)
    assert found["train_error"].value == (model(X).argmax(1) != y).double().mean().item()


@pytest.mark.parametrize("name", ["mlp-relu", "mlp-tanh", "lenet"])
def test_curvature_measures_equal_those_of_the_dense_hessian(name):
    of = CASES[name].problem()
    H = dense_hessian(of)
    found = ll.measure(of, ["trace", "largest_eigenvalue", "weight_norm"])
    assert found["trace"].value == pytest.approx(H.trace().item(), rel=1e-9)
    assert found["largest_eigenvalue"].value == pytest.approx(
        torch.linalg.eigvalsh(H)[-1].item(), rel=1e-6
    )
    norm = torch.cat([p.flatten() for p in of.params.values()]).norm().item()
    assert found["weight_norm"].value == pytest.approx(norm)


def test_a_measure_that_does_not_apply_says_so_and_the_rest_go_on():
    regression = ll.measure(CASES["mlp-relu"].problem(loss="mse"), ["test_error", "weight_norm"])
    assert regression["test_error"].value is None
    assert "needs class labels" in regression["test_error"].reason
    assert regression["weight_norm"].value > 0


def test_the_trace_of_a_small_network_is_exact_where_no_layer_is_seen_through():
    def equation(run, t):
        t = t.detach().requires_grad_()
        (slope,) = torch.autograd.grad(run(t).sum(), t, create_graph=True)
        return (slope - t.cos()).square().squeeze(1)

    torch.manual_seed(0)
    hidden = nn.Linear(1, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh()
    model = nn.Sequential(*hidden, nn.Linear(6, 1)).double()
    points = torch.rand(58, 1, dtype=torch.float64)
    loss = ll.ModelLoss(lambda run, batch: equation(run, batch.inputs))
    found = ll.measure(ll.Problem(model, loss, train=points), "trace")["trace"]

    names, weights = zip(*model.named_parameters(), strict=True)

    def mean_loss(*weights):
        params = dict(zip(names, weights, strict=True))
        return equation(lambda t: torch.func.functional_call(model, params, (t,)), points).mean()

    blocks = torch.autograd.functional.hessian(mean_loss, weights)
    sizes = [w.numel() for w in weights]
    trace = sum(float(blocks[i][i].reshape(n, n).trace()) for i, n in enumerate(sizes))
    assert found.stderr is None
    assert found.value == pytest.approx(trace, rel=1e-9)


@pytest.mark.slow
def test_an_estimated_measure_carries_its_error(monkeypatch):
    monkeypatch.setattr("lowland.curvature.diagonals._TRACE_PASSES", 0)  # nothing exact that costs
    monkeypatch.setattr("lowland.curvature.diagonals._Plan._by_products", lambda plan, *_: plan)
    monkeypatch.setattr("lowland.measures.shared.spectrum.AFFORDABLE", 0)  # nor all eigenvalues
    problem = CASES["mlp-gelu"].problem(n=4000)
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


def test_the_condition_number_of_a_regression_and_its_absence_elsewhere():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(30, 3, generator=g, dtype=torch.float64)
    linear = Problem(nn.Linear(3, 1, bias=False).double(), "mse", (X, X[:, :1]))
    row = ll.measure(linear, "condition_number")["condition_number"]
    assert row.value == pytest.approx(float(torch.linalg.cond(X.T @ X)), rel=1e-6)
    row = ll.measure(problem(trained()), "condition_number")["condition_number"]
    assert row.value is None
    assert "common shift of the outputs" in row.reason


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_softmax_does_not_see_a_common_shift_of_the_outputs_and_squares_do(name, dtype):
    for loss, blind in (("cross_entropy", True), ("mse", False)):
        problem = CASES[name].problem(loss=loss)
        assert _is_blind_to_shifts(problem.of(problem.copied_model().to(dtype))) == blind


@pytest.mark.parametrize("name", ["mlp-relu", "mlp-gelu"])
def test_spectral_measures_equal_those_of_all_eigenvalues(name):
    of = CASES[name].problem(n=30)
    values = torch.linalg.eigvalsh(dense_hessian(of))
    ggn = torch.linalg.eigvalsh(ll.ggn(of).dense().double()).clamp_min(0)
    rows = ll.measure(
        of, ["frobenius_norm", "negative_share", "near_zero_share", "effective_dimension"]
    )
    expected = {
        "frobenius_norm": float(values.norm()),
        "negative_share": float((values < -1e-12).double().mean()),
        "near_zero_share": float((values.abs() <= 0.01 * values.abs().max()).double().mean()),
        "effective_dimension": float((ggn / (ggn + 1 / 30)).sum()),
    }
    for key, truth in expected.items():
        slack = max(4 * (rows[key].stderr or 0), 1e-6 * abs(truth))
        assert abs(rows[key].value - truth) <= slack, key


def test_measures_of_the_duality_are_those_of_the_decomposition():
    of = problem(trained())
    found = ll.duality(of, "2")
    rows = ll.measure(of, ["sharp_part", "flat_part", "total_sigma_g", "total_sigma_w"])
    assert rows["sharp_part"].value == pytest.approx(found.sharp)
    assert rows["flat_part"].value == pytest.approx(found.flat)
    assert rows["total_sigma_g"].value == pytest.approx(float(np.sqrt((found.sigma_g**2).sum())))
    assert rows["total_sigma_w"].value == pytest.approx(found.total_w**0.5)


def test_stress_finds_what_rescaling_can_fool():
    names = ["trace", "weight_norm", "normalized_sharpness", "test_error", "condition_number"]
    names += ["test_loss"]
    found = ll.stress(problem(trained()), names, factor=100.0)
    assert set(found.skipped) == {"norms"}
    moved = {(name, by) for name, row in found.moves.items() for by, m in row.items() if m.moved}
    for name in ("trace", "weight_norm"):
        assert {(name, "layers"), (name, "units"), (name, "outputs")} <= moved
    assert not any(name in ("normalized_sharpness", "test_error") for name, _ in moved)
    assert {by for name, by in moved if name == "test_loss"} == {"outputs"}
    assert found.broken() == []
    assert found.moves["condition_number"]["units"].reason
    assert found.moves["weight_norm"]["layers"].ratio > 5
    assert ("weight_norm", "split") in moved
    assert found.to_dict()["moves"]["trace"]["layers"]["claimed"] is False
    assert "  outputs: trace, weight_norm, test_loss\n" in repr(found)


def test_stress_does_not_call_the_same_what_it_does_not_know():
    def row(value, stderr):
        return Measurement(MEASURES["effective_dimension"], value, stderr, "sampled", None, 0.0)

    def verdict(before, after):
        return stressed._move(row(*before), row(*after), "units").verdict

    assert verdict((178.7, 40.0), (1920.0, 700.0)) == "unknown"
    assert verdict((178.7, 4.0), (180.0, 4.0)) == "same"
    assert verdict((178.7, 4.0), (1920.0, 70.0)) == "moved"
    assert verdict((178.7, None), (178.8, None)) == "same"
    assert verdict((0.0, None), (0.0, None)) == "same"
    unknown = stressed._move(row(1.0, 1.0), row(2.0, 1.0), "units")
    assert "would not be seen" in unknown.reason
    assert not unknown.moved


def test_a_network_without_a_matrix_has_spectral_measures():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(20, 1, 6, generator=g, dtype=torch.float64)
    model = nn.Sequential(nn.Conv1d(1, 1, 3, bias=False), nn.Flatten()).double()
    rows = ll.measure(
        Problem(model, "mse", (X, X[:, 0, 1:5])), ["condition_number", "frobenius_norm"]
    )
    values = torch.linalg.eigvalsh(dense_hessian(Problem(model, "mse", (X, X[:, 0, 1:5]))))
    assert rows["condition_number"].value == pytest.approx(float(values[-1] / values[0]))
    assert rows["frobenius_norm"].value == pytest.approx(float(values.norm()))
