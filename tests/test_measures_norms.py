"""Oracles for measures of norms, of samples' gradients and of outcomes: their formulas, naively."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowland as ll
from cases import CASES, dense_hessian, descend
from lowland.budget import Work
from lowland.measures.shared import layer_spectra
from lowland.measures.sharing import work_of
from lowland.problem import Problem
from lowland.rescaling import joints


def row(problem, name):
    found = ll.measure(problem, name)[name]
    assert found.value is not None, found.reason
    return found


def reason(problem, name):
    found = ll.measure(problem, name)[name]
    assert found.value is None
    assert found.reason.startswith("does not apply: ")
    return found.reason


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sequential(*modules, seed=3):
    torch.manual_seed(seed)
    return nn.Sequential(*modules).double()


def classifier(*modules, n=9, inputs=(2,), **options):
    """A problem of three classes with the given modules."""
    return Problem(sequential(*modules), train=(normal(n, *inputs), torch.arange(n) % 3), **options)


# Products of layer norms


def as_matrix(module):
    """A dense layer or convolution kernel as one matrix: groups are blocks on its diagonal."""
    weight = module.weight.detach().flatten(1)
    return torch.block_diag(*weight.chunk(getattr(module, "groups", 1))).numpy()


@pytest.mark.parametrize("case", ["mlp-relu", "lenet", "conv1d", "resnet"])
def test_products_of_norms_are_those_of_the_matrices(case):
    problem = CASES[case].problem()
    matrices = {
        name: as_matrix(m)
        for name, m in problem.model.named_modules()
        if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)
    }
    for name, norm in (
        ("frobenius_norms", lambda A: math.sqrt((A**2).sum())),
        ("spectral_norms", lambda A: np.linalg.svd(A)[1][0]),
    ):
        expected = {at: norm(A) for at, A in matrices.items()}
        found = row(problem, name)
        assert found.parts == pytest.approx(expected, rel=1e-12)
        assert found.value == pytest.approx(math.prod(expected.values()), rel=1e-12)


@pytest.mark.parametrize(
    ("case", "weight"),
    [("transformer", "embed.weight"), ("lstm", "lstm.weight_hh_l0"), ("tied", "first.weight")],
)
@pytest.mark.parametrize("name", ["frobenius_norms", "spectral_norms", "spectral_complexity"])
def test_products_of_norms_do_not_leave_out_weights_silently(name, case, weight):
    assert weight in reason(CASES[case].problem(), name)


def test_distance_from_initial():
    case = CASES["resnet"]
    begun = case.problem().model
    moved = copy.deepcopy(begun)
    with torch.no_grad():
        moved.stem.weight.add_(0.5)  # 72 weights
        moved.head.bias.sub_(torch.tensor([1.0, 2, 3]).double())
    problem = Problem(moved, train=(normal(3, 2, 5, 5), torch.arange(3)), initial=begun)
    found = row(problem, "distance_from_initial")
    assert found.value == pytest.approx((72 * 0.25 + 14) ** 0.5)
    assert found.parts["stem.weight"] == pytest.approx(18**0.5)
    assert found.parts["head.bias"] == pytest.approx(14**0.5)
    assert found.parts["norm1.weight"] == 0
    assert set(found.parts) == set(problem.params)
    assert "needs the initial weights" in reason(case.problem(), "distance_from_initial")


# Path norm


def test_path_norm_is_the_sum_over_all_paths():
    problem = classifier(
        nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3), nn.LeakyReLU(0.1), nn.Linear(3, 3)
    )
    (A, a), (B, b), (C, c) = (
        (m.weight.detach(), m.bias.detach()) for m in problem.model if isinstance(m, nn.Linear)
    )
    total = 0.0
    for z, j in itertools.product(range(3), range(3)):
        for i in range(4):
            for x in range(2):
                total += float(A[i, x] * B[j, i] * C[z, j]) ** 2
            total += float(a[i] * B[j, i] * C[z, j]) ** 2
        total += float(b[j] * C[z, j]) ** 2
    total += float((c**2).sum())
    assert row(problem, "path_norm").value == pytest.approx(total**0.5, rel=1e-12)


def test_path_norm_of_convolutions_pooled_by_averages():
    problem = classifier(
        nn.Conv2d(2, 4, 2, groups=2, bias=False), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(16, 3, bias=False), inputs=(2, 5, 5),
    )  # fmt: skip
    conv, _, pool, _, dense = problem.model
    squared = nn.Conv2d(2, 4, 2, groups=2, bias=False).double()
    squared.weight.data = conv.weight.detach() ** 2
    units = torch.eye(50, dtype=torch.float64).view(50, 2, 5, 5)
    paths = pool(squared(units)).flatten(1) @ (dense.weight**2).T  # (an input, an output)
    found = row(problem, "path_norm").value
    assert found == pytest.approx(paths.sum().sqrt().item(), rel=1e-12)


def test_path_norm_of_a_residual_network_adds_the_short_cut():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

        def forward(self, x):
            h = self.first(x)
            return h + self.second(h.relu())

    problem = classifier(Residual(), inputs=(3,))
    A, B = (p.square() for p in problem.params.values())
    expected = (A + B @ A).sum().sqrt().item()
    assert row(problem, "path_norm").value == pytest.approx(expected, rel=1e-12)


def test_path_norm_does_not_see_how_hidden_units_are_scaled():
    problem = CASES["lenet"].problem()  # with max-pooling and groups
    found = joints(problem)
    assert len(found) == 3
    params = problem.params
    for seed, joint in enumerate(found):
        params = joint.rescaled(params, normal(joint.units, seed=seed).exp())
    assert row(problem.at(params), "path_norm").value == pytest.approx(
        row(problem, "path_norm").value, rel=1e-10
    )


class Clipped(nn.Module):
    def __init__(self, **limits):
        super().__init__()
        self.limits = limits

    def forward(self, x):
        return x.clamp(**self.limits)


class Gated(nn.Module):
    def __init__(self, combine):
        super().__init__()
        self.left, self.right, self.combine = nn.Linear(2, 3), nn.Linear(2, 3), combine

    def forward(self, x):
        return self.combine(self.left(x), self.right(x))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (nn.ReLU6, "homogeneous"),
        (nn.Hardtanh, "homogeneous"),
        (lambda: Clipped(min=-1.0), "homogeneous"),  # squares are positive and never reach it
        (lambda: nn.BatchNorm1d(3, affine=False), "homogeneous"),
        (lambda: nn.BatchNorm1d(3), "normalisation"),
        (lambda: nn.LayerNorm(3, elementwise_affine=False), "piecewise linear"),
        (nn.PReLU, "shared layers"),
        (nn.Softplus, "piecewise linear"),
        (lambda: Gated(lambda a, b: a * b), "homogeneous"),
        (lambda: Gated(lambda a, b: a.relu() - b), "minus sign"),
    ],
)
def test_path_norm_refuses_what_has_no_paths(build, words):
    torch.manual_seed(4)
    module = build()
    if isinstance(module, nn.BatchNorm1d):
        module.running_mean.uniform_(-0.5, 0.5)
    ends = () if isinstance(module, Gated) else (nn.Linear(2, 3),)
    problem = classifier(*ends, module, nn.Linear(3, 3))
    assert words in reason(problem, "path_norm")


def test_path_norm_refuses_an_activation_that_clips_where_no_sample_goes():
    model = sequential(nn.Linear(2, 3), nn.ReLU6(), nn.Linear(3, 3))
    with torch.no_grad():
        model[0].weight.abs_().neg_()  # positive inputs leave every unit dead
    problem = Problem(model, train=(normal(6, 2).abs(), torch.arange(6) % 3))
    assert "homogeneous" in reason(problem, "path_norm")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("mlp-tanh", "layer '0' is not known to be piecewise linear"),
        ("mlp-gelu", "piecewise linear"),
        ("conv1d", "layer '0' is not known to be piecewise linear"),
        ("resnet", "'norm1.weight'"),
        ("transformer", "'embed.weight'"),
        ("lstm", "'lstm.weight_hh_l0'"),
        ("tied", "'first.weight'"),
    ],
)
def test_path_norm_of_other_networks_is_refused(case, words):
    assert words in reason(CASES[case].problem(), "path_norm")


# Gradients of single samples


def naive_gradients(problem):
    """Every sample's gradient as a row, (samples, parameters)."""
    rows = []
    with problem.measuring():
        leaves = {n: p.clone().requires_grad_() for n, p in problem.params.items()}
        for batch in problem.batches("train", 1):
            loss = problem.loss(problem.outputs(batch.inputs, leaves), batch.targets).sum()
            found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows), torch.cat([p.flatten() for p in problem.params.values()])


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("case", CASES)
def test_moments_of_gradients_equal_those_of_single_samples(case, loss):
    problem = CASES[case].problem(loss=loss)
    g, w = naive_gradients(problem)
    G = g.mean(0)
    found = ll.measure(
        problem, ["fisher_rao", "fisher_trace", "gradient_variance", "gradient_noise_scale"]
    )
    variance = (g - G).square().sum(1).mean().item()
    for name, expected in {
        "fisher_rao": (w.square() * g.square().mean(0)).sum().item(),
        "fisher_trace": g.square().sum(1).mean().item(),
        "gradient_variance": variance,
        "gradient_noise_scale": variance / G.square().sum().item(),
    }.items():
        assert found[name].value == pytest.approx(expected, rel=1e-9), name
    assert found["fisher_rao"].parts["inner_product"] == pytest.approx(
        (g @ w).square().mean().item(), rel=1e-9
    )
    sizes = [p.numel() for p in problem.params.values()]
    shares = [s.sum().item() for s in g.square().mean(0).split(sizes)]
    assert list(found["fisher_trace"].parts.values()) == pytest.approx(shares, rel=1e-9)
    shares = [s.sum().item() for s in (g - G).square().mean(0).split(sizes)]
    assert list(found["gradient_variance"].parts.values()) == pytest.approx(shares, rel=1e-9)


def test_fisher_rao_of_a_network_without_biases_follows_from_its_outputs():
    """Liang et al.: w . g_k is the number of layers times z_k . dl_k/dz_k, by homogeneity."""
    problem = classifier(
        nn.Linear(2, 5, bias=False), nn.ReLU(), nn.Linear(5, 4, bias=False), nn.ReLU(),
        nn.Linear(4, 3, bias=False),
    )  # fmt: skip
    X, y = normal(9, 2), torch.arange(9) % 3
    with torch.no_grad():
        z = problem.model(X)
    inner = (z * (z.softmax(1) - F.one_hot(y, 3))).sum(1)
    assert row(problem, "fisher_rao").parts["inner_product"] == pytest.approx(
        9 * inner.square().mean().item(), rel=1e-12
    )


def test_noise_scale_at_an_exact_minimum_is_not_defined():
    X, y = normal(20, 3), normal(20, 1, seed=1)
    model = nn.Linear(3, 1, bias=False).double()
    model.weight.data = torch.linalg.lstsq(X, y).solution.T
    problem = Problem(model, "mse", (X, y))
    residual = y - X @ model.weight.detach().T
    assert "mean gradient is zero" in reason(problem, "gradient_noise_scale")
    assert row(problem, "gradient_variance").value == pytest.approx(  # g_k = -2 r_k x_k
        (4 * residual.square() * X.square()).sum(1).mean().item(), rel=1e-9
    )


def test_noise_scale_without_any_gradient_is_not_defined():
    X = normal(5, 2)
    model = nn.Linear(2, 1).double()
    perfect = Problem(model, "mse", (X, model(X).detach()))
    assert row(perfect, "fisher_trace").value == 0
    assert "mean gradient is zero" in reason(perfect, "gradient_noise_scale")


def test_learning_rate_over_batch():
    def problem(**training):
        return classifier(nn.Linear(2, 3), training=training)

    name = "learning_rate_over_batch"
    assert row(problem(learning_rate=0.1, batch_size=25), name).value == pytest.approx(0.004)
    assert "needs the training's batch_size" in reason(problem(learning_rate=0.1), name)
    assert "needs the training's learning_rate" in reason(problem(), name)
    for wrong in (0, math.inf, "many"):
        found = reason(problem(learning_rate=0.1, batch_size=wrong), name)
        assert f"batch_size must be a positive number; got {wrong!r}" in found


# Relative flatness


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "normalized_cross_entropy"])
@pytest.mark.parametrize("case", CASES)
def test_relative_flatness_is_that_of_the_dense_block(case, loss):
    problem = CASES[case].problem(loss=loss)
    name = [n for n, m in problem.model.named_modules() if isinstance(m, nn.Linear)][-1]
    W = problem.params[f"{name}.weight"]
    out, size = W.shape
    H = dense_hessian(problem, [f"{name}.weight"]).view(out, size, out, size)
    expected = sum(
        float(W[s] @ W[t]) * H[s, :, t, :].trace().item()
        for s, t in itertools.product(range(out), repeat=2)
    )
    found = row(problem, "relative_flatness")
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert repr(name) in found.method


def test_relative_flatness_is_of_the_layer_that_runs_last():
    """Not of the one that was built last."""

    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 3), nn.Linear(2, 4)

        def forward(self, x):
            return self.last(self.first(x).relu())

    assert "'0.last'" in row(classifier(Reversed()), "relative_flatness").method


def test_relative_flatness_needs_a_dense_layer_that_sees_one_vector():
    positions = classifier(nn.Linear(2, 3), nn.Flatten(), inputs=(4, 2))
    assert "sees 4 positions" in reason(positions, "relative_flatness")
    convolution = classifier(nn.Conv1d(2, 3, 4), nn.Flatten(), inputs=(2, 4))
    assert "no dense layer" in reason(convolution, "relative_flatness")


# Margins


def fitted():
    """A network that separates its training data, and what it began from."""
    begun = sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    model = copy.deepcopy(begun)
    y = torch.arange(30) % 3
    X = 0.3 * normal(30, 2) + torch.tensor([[0.0, 1], [1, 0], [-1, -1]]).double()[y]
    descend(model, (X, y), 200, 0.3)
    return model, begun, X, y


def naive_margin(model, X, y):
    z = model(X).detach().numpy()
    leads = [
        z[k, c] - max(z[k, other] for other in range(3) if other != c)
        for k, c in enumerate(y.tolist())
    ]
    return np.percentile(leads, 10)


def test_margin_is_the_tenth_percentile():
    for case in ("mlp-relu", "resnet"):
        problem = CASES[case].problem(n=18)
        whole = problem.train.take(slice(None))
        expected = naive_margin(problem.model.eval(), whole.inputs, whole.targets)
        assert row(problem, "margin").value == pytest.approx(expected, rel=1e-12)
    alone = Problem(nn.Linear(2, 3), train=(torch.ones(1, 2), torch.tensor([1])))
    assert math.isfinite(row(alone, "margin").value)
    assert "class label" in reason(CASES["mlp-relu"].problem(loss="mse"), "margin")


def test_spectral_complexity():
    model, begun, X, y = fitted()
    margin = naive_margin(model, X, y)
    A, M = ([as_matrix(m[i]) for i in (0, 2)] for m in (model, begun))
    s = [np.linalg.svd(a)[1][0] for a in A]

    def complexity(matrices):
        norms = [sum(np.linalg.norm(column) for column in a) for a in matrices]
        total = sum((n / t) ** (2 / 3) for n, t in zip(norms, s, strict=True)) ** 1.5
        return s[0] * s[1] * total / margin

    assert margin > 0
    found = row(Problem(model, train=(X, y), initial=begun), "spectral_complexity")
    assert found.value == pytest.approx(complexity(A), rel=1e-10)
    moved = complexity([a - m for a, m in zip(A, M, strict=True)])
    expected = {"margin": margin, "product": s[0] * s[1], "from_initial": moved}
    assert found.parts == pytest.approx(expected, rel=1e-10)
    bare = row(Problem(model, train=(X, y)), "spectral_complexity")
    assert bare.value == found.value
    assert "from_initial" not in bare.parts


def test_spectral_complexity_needs_a_positive_margin_and_weights():
    model, _, X, y = fitted()
    assert "positive margin" in reason(Problem(model, train=(X, y.flip(0))), "spectral_complexity")
    nn.init.zeros_(model[2].weight)
    assert "'2' is zero" in reason(Problem(model, train=(X, y)), "spectral_complexity")


# Outcomes


def naive_calibration(z, y, bins=15):
    p = z.softmax(1)
    total = 0.0
    for b in range(bins):
        inside = [k for k in range(len(p)) if b / bins < p[k].max().item() <= (b + 1) / bins]
        if inside:
            right = np.mean([int(p[k].argmax() == y[k]) for k in inside])
            confidence = np.mean([p[k].max().item() for k in inside])
            total += len(inside) / len(p) * abs(right - confidence)
    return total


def test_calibration_error():
    model = sequential(nn.Linear(2, 3))
    X, y = 3 * normal(200, 2), torch.arange(200) % 3
    problem = Problem(model, train=(X[:3], y[:3]), test=(X, y), batch_size=37)
    expected = naive_calibration(model(X).detach(), y)
    assert row(problem, "calibration_error").value == pytest.approx(expected, rel=1e-12)
    sure = copy.deepcopy(model)
    with torch.no_grad():
        sure[0].weight.mul_(1e4)  # confidence 1 in the last bin: what is left is the error
    problem = Problem(sure, train=(X[:3], y[:3]), test=(X, y))
    wrong = (sure(X).argmax(1) != y).double().mean().item()
    assert row(problem, "calibration_error").value == pytest.approx(wrong, abs=1e-3)
    assert "class label" in reason(CASES["mlp-relu"].problem(loss="mse"), "calibration_error")


def test_calibration_error_keeps_neighbouring_bins_apart():
    """Bins 13 (to 0.933) and 14 err in opposite directions, which must not cancel."""
    high = torch.tensor([0.9, 0.9, 0.97, 0.94], dtype=torch.float64)
    p = torch.stack([high, 1 - high], 1)
    model = nn.Linear(2, 2, bias=False).double()
    model.weight.data = torch.eye(2).double()
    data = (p.log(), torch.tensor([0, 0, 1, 1]))
    found = row(Problem(model, train=data, test=data), "calibration_error")
    assert found.value == pytest.approx((2 * 0.1 + 0.97 + 0.94) / 4, rel=1e-12)


def test_noise_robustness_of_a_linear_model_has_a_closed_form():
    """E (w . (x + n) - y)^2 is the loss plus sigma^2 |w|^2."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    train, test = 5 * normal(50, 4) + 7, normal(400, 4, seed=1)
    options = {"train": (train, normal(50, 1)), "test": (test, model(test).detach())}
    found = row(Problem(model, "mse", **options), "noise_robustness")
    expected = (0.1 * train.std(correction=0) * model.weight.detach().norm()).item() ** 2
    assert abs(found.value - expected) <= 4 * found.stderr
    assert 0 < found.stderr < 0.05 * expected
    # a variance of chi-squared: 2 s^4 for each of 8 x 400 independent residuals
    assert found.stderr == pytest.approx((2 / 3200) ** 0.5 * expected, rel=0.7)
    ragged = row(Problem(model, "mse", **options, batch_size=7), "noise_robustness")
    assert ragged.value == pytest.approx(found.value, rel=1e-10)


def test_noise_robustness_of_a_model_with_two_inputs_and_of_tokens():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(5, 3)

        def forward(self, a, b):
            return self.dense(torch.cat([a, b], 1))

    torch.manual_seed(0)
    model, y = Both().double(), torch.arange(10) % 3
    data = (normal(10, 2), normal(10, 3, seed=1), y)
    values = [
        row(Problem(model, train=data, test=data, batch_size=n), "noise_robustness").value
        for n in (10, 3)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-8)
    assert values[0] != 0
    assert "floating-point inputs" in reason(CASES["transformer"].problem(), "noise_robustness")


# Normalisations, whose scale can be moved into the next layer


def normalised(depth, seed):
    """Convolutions with BatchNorm and ReLU, fitted: depth of them, then a dense layer."""
    torch.manual_seed(seed)
    X = torch.randn(30, 2, 4, 4, dtype=torch.float64)
    modules = []
    for i in range(depth):
        modules += [nn.Conv2d(3 if i else 2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()]
    model = nn.Sequential(*modules, nn.Flatten(), nn.Linear(48, 3)).double()
    y = torch.arange(30) % 3
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    with torch.no_grad():
        model[1].weight[0] *= -1  # a scale has a sign
        model(X)
    optimizer.zero_grad()
    return Problem(model.eval(), train=(X, y), test=(X + 0.1, y))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_claims_hold_where_a_normalisation_stands_between_layers(depth, seed):
    problem = normalised(depth, seed)
    names = ["frobenius_norms", "spectral_norms", "spectral_complexity", "weight_norm"]
    with torch.no_grad():  # so that nine of ten are classified well, whatever the seed
        labels = problem.model(problem.train.take(slice(None)).inputs).argmax(1)
    X = problem.train.take(slice(None)).inputs
    problem = Problem(problem.model, train=(X, labels), test=(X + 0.1, labels))
    found = ll.stress(problem, names, factor=100.0)
    assert found.moves["weight_norm"]["layers"].moved
    for name in names[:3]:
        assert found.moves[name]["layers"].verdict == "same", name
        assert found.moves[name]["layers"].claimed
    assert found.broken() == []


def test_a_scale_counts_with_the_layer_after_it():
    problem = normalised(1, 0)
    conv, norm, _, _, dense = problem.model
    after = dense.weight.detach() * norm.weight.detach().abs().repeat_interleave(16)
    first = conv.weight.detach().flatten(1)
    found = row(problem, "frobenius_norms")
    assert found.parts == pytest.approx({"0": float(first.norm()), "4": float(after.norm())})
    found = row(problem, "spectral_norms")
    expected = float(torch.linalg.matrix_norm(first, 2) * torch.linalg.matrix_norm(after, 2))
    assert found.value == pytest.approx(expected)


def test_what_is_refused_is_not_priced_as_if_scales_were_tried():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(12, 2))
    train = torch.randint(5, (20, 3)), torch.arange(20) % 2
    problem = Problem(model, train=train)
    assert "a product over layers would leave it out" in reason(problem, "frobenius_norms")
    for part in (layer_spectra.scaled, layer_spectra.spectral):
        assert work_of(part.cost, problem) == Work()
    assert work_of(layer_spectra.scaled.cost, normalised(1, 0)).forwards > 0
