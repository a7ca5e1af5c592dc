"""Normalized sharpness and bounds: closed forms, naive transcriptions, and bounds that hold."""

import copy
import importlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import lowland as ll
from cases import CASES, dense_hessian
from lowland.measures import pac_bayes_optimised, registered
from lowland.measures.pac_bayes_magnitude import _crossing
from lowland.measures.shared.balancing import balance
from lowland.measures.shared.noisy_weights import averages, kl_inverse
from lowland.problem import Problem

normalized_sharpness, matrix_normalized_sharpness, normalized_sharpness_direct = (
    registered()[name].function
    for name in (
        "normalized_sharpness",
        "matrix_normalized_sharpness",
        "normalized_sharpness_direct",
    )
)
NORMALIZED = ["normalized_sharpness", "matrix_normalized_sharpness"]
BOUNDS = ["pac_bayes", "pac_bayes_magnitude", "vc_dimension"]


def positive(*shape: int, seed: int = 0) -> Tensor:
    """Entries over several orders of magnitude."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).mul(2).exp()


def objective(h: Tensor, w: Tensor, u: Tensor, v: Tensor) -> Tensor:
    s = u.unsqueeze(1) * v
    return (h * s + w / s).sum()


def by_descent(h: Tensor, w: Tensor, steps: int = 1500) -> float:
    """Algorithm 1: gradient descent on the logarithms of the variances."""
    x = torch.zeros(h.shape[0], dtype=h.dtype, requires_grad=True)
    y = torch.zeros(h.shape[1], dtype=h.dtype, requires_grad=True)
    optimiser = torch.optim.Adam([x, y], lr=0.1)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        objective(h, w, x.exp(), y.exp()).backward()
        optimiser.step()
        decay.step()
    return float(objective(h, w, x.exp(), y.exp()).detach())


def infimum(h: Tensor, w: Tensor) -> float:
    """The same by quasi-Newton steps, which come near also where no minimum exists."""
    n = len(h)

    def value_and_slope(at: np.ndarray) -> tuple[float, np.ndarray]:
        s = np.exp(at[:n, None] + at[n:])
        up, down = h.numpy() * s, w.numpy() / s
        slope = up - down
        return (up + down).sum(), np.concatenate([slope.sum(1), slope.sum(0)])

    options = {"maxiter": 10_000, "maxfun": 10_000, "ftol": 0, "gtol": 1e-12}
    start = np.zeros(sum(h.shape))
    return minimize(value_and_slope, start, jac=True, method="L-BFGS-B", options=options).fun


class TestBalance:
    @pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 1), (4, 5), (6, 3)])
    def test_equals_gradient_descent(self, rows, columns):
        h, w = positive(rows, columns, seed=1), positive(rows, columns, seed=2)
        assert balance(h, w).value == pytest.approx(by_descent(h, w), rel=1e-8)

    def test_equals_gradient_descent_where_rows_and_columns_are_zero(self):
        h, w = positive(5, 6, seed=3), positive(5, 6, seed=4)
        h[1], w[2] = 0, 0
        h[:, 0], w[:, 3] = 0, 0
        h[4, 5] = w[0, 1] = 0
        found = balance(h, w)
        assert found.value == pytest.approx(infimum(h, w), rel=1e-6)
        assert found.value < by_descent(h, w)
        left = [0, 3, 4]
        inner = balance(h[left][:, [1, 2, 4, 5]], w[left][:, [1, 2, 4, 5]])
        assert found.value == pytest.approx(inner.value, rel=1e-12)

    def test_removing_a_row_can_leave_a_column_without_curvature(self):
        """Row 1 has no weights; without it column 1 has no curvature, so only (0, 0) counts."""
        h = torch.tensor([[2.0, 0.0], [5.0, 7.0]])
        w = torch.tensor([[8.0, 3.0], [0.0, 0.0]])
        found = balance(h, w)
        assert found.value == 2 * math.sqrt(2 * 8)
        assert found.kept.tolist() == [[True, False], [False, False]]

    def test_an_infimum_that_is_not_attained(self):
        """h_01 lies on no cycle: u_0 v_1 can go to zero while u_0 v_0 and u_1 v_1 stay."""
        h, w = torch.tensor([[1.0, 5.0], [0.0, 4.0]]), torch.eye(2)
        found = balance(h, w)
        assert found.value == pytest.approx(2 + 4, rel=1e-14)
        x = torch.tensor([1e-9, 1.0], dtype=torch.float64)  # a point that comes near
        near = objective(h.double(), w.double(), x, torch.tensor([1e9, 0.5], dtype=torch.float64))
        assert found.value < near < found.value + 1e-8

    def test_a_cycle_of_four_in_closed_form(self):
        """Four terms whose product is fixed are least when they are equal."""
        h = torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
        w = torch.diag(torch.tensor([5.0, 7.0], dtype=torch.float64))
        assert balance(h, w).value == pytest.approx(4 * (2 * 3 * 5 * 7) ** 0.25, rel=1e-12)

    def test_a_ratio_of_rank_one_in_closed_form(self):
        h = positive(4, 6, seed=5)
        s = positive(4, seed=6).unsqueeze(1) * positive(6, seed=7)
        w = h * s**2  # u_i v_j = s_ij makes both halves equal entry by entry
        found = balance(h, w)
        assert found.value == pytest.approx(2 * (h * w).sqrt().sum().item(), rel=1e-10)
        assert torch.allclose(found.u.unsqueeze(1) * found.v, s, rtol=1e-6)

    def test_both_halves_agree_row_by_row_and_column_by_column(self):
        h, w = positive(40, 70, seed=8), positive(40, 70, seed=9)
        found = balance(h, w)
        assert found.converged
        s = found.u.unsqueeze(1) * found.v
        for axis in (0, 1):
            up, down = (h * s).sum(axis), (w / s).sum(axis)
            assert torch.allclose(up, down, rtol=1e-8)
        assert found.value == pytest.approx(objective(h, w, found.u, found.v).item(), rel=1e-12)

    def test_scales_of_rows_and_columns_do_not_matter(self):
        h, w = positive(5, 4, seed=1), positive(5, 4, seed=2)
        h[0, 1] = w[3, 3] = 0
        scale = positive(5, seed=3).unsqueeze(1) * positive(4, seed=4) ** 3
        assert balance(h / scale, w * scale).value == pytest.approx(balance(h, w).value, rel=1e-10)

    def test_nothing_but_zeros(self):
        assert balance(torch.zeros(2, 3), torch.ones(2, 3)).value == 0

    def test_a_solver_that_is_cut_short_says_so(self):
        h, w = positive(9, 9, seed=1), positive(9, 9, seed=2)
        assert not balance(h, w, sweeps=1).converged


def layered(problem: Problem) -> dict[str, tuple[Tensor, Tensor]]:
    """The clipped dense Hessian diagonal and the squares of each weight matrix."""
    h = dense_hessian(problem).diagonal().clamp_min(0)
    parts = h.split([p.numel() for p in problem.params.values()])
    return {
        n: (t.view_as(p), p.square())
        for (n, p), t in zip(problem.params.items(), parts, strict=True)
        if p.ndim > 1
    }


class TestNormalizedSharpness:
    @pytest.mark.parametrize("name", ["mlp-relu", "mlp-tanh"])
    def test_equals_the_infimum_on_the_dense_hessian(self, name):
        problem = CASES[name].problem(loss="normalized_cross_entropy")
        found = ll.measure(problem, "normalized_sharpness")["normalized_sharpness"]
        for layer, (h, w) in layered(problem).items():
            assert found.parts[layer] == pytest.approx(infimum(h, w), rel=1e-6, abs=1e-6)
        assert found.value == pytest.approx(sum(found.parts[n] for n in layered(problem)))

    def test_a_convolution_has_variances_per_channel_and_group(self):
        problem = CASES["lenet"].problem(loss="normalized_cross_entropy")
        found = normalized_sharpness(problem)
        for layer, (h, w) in layered(problem).items():
            groups = 2 if layer == "3.weight" else 1
            expected = 0.0
            for one_h, one_w in zip(h.chunk(groups), w.chunk(groups), strict=True):
                sums = [t.flatten(2).sum(2) if t.ndim > 2 else t for t in (one_h, one_w)]
                expected += balance(*sums).value
            assert found.parts[layer] == pytest.approx(expected, rel=1e-9)

    def test_says_how_much_was_clipped(self):
        problem = CASES["mlp-tanh"].problem(loss="normalized_cross_entropy")
        h = dense_hessian(problem).diagonal()
        sizes = [p.numel() for p in problem.params.values()]
        matrices = torch.cat(
            [t for t, p in zip(h.split(sizes), problem.params.values(), strict=True) if p.ndim > 1]
        )
        expected = -matrices.clamp_max(0).sum() / matrices.abs().sum()
        assert 0 < expected < 1
        found = normalized_sharpness(problem).parts["clipped"]
        assert found == pytest.approx(expected.item(), rel=1e-8)

    def test_appendix_a_norms_explode_and_it_does_not_move(self):
        model = nn.Sequential(
            nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)
        ).double()
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([[1.0, 2], [3, 4]]))
            model[2].weight.copy_(torch.tensor([[5.0, 6], [7, 8]]))
        scaled = copy.deepcopy(model)
        with torch.no_grad():
            scaled[0].weight.mul_(torch.tensor([[0.1], [10.0]], dtype=torch.float64))
            scaled[2].weight.mul_(torch.tensor([[10.0, 0.1]], dtype=torch.float64))
        first, second = model[0].weight.detach(), scaled[2].weight.detach()
        assert torch.linalg.matrix_norm(first, 2).item() == pytest.approx(5.465, abs=5e-4)
        assert second.square().sum().item() == pytest.approx(7401, abs=1e-9)  # not 6101.13
        assert scaled[0].weight.square().sum().item() == pytest.approx(2500.05)
        g = torch.Generator().manual_seed(0)
        data = torch.randn(20, 2, generator=g, dtype=torch.float64) / 10, torch.arange(20) % 2
        before, after = (Problem(m, train=data) for m in (model, scaled))
        value = normalized_sharpness(before).value
        assert value > 0.1
        assert normalized_sharpness(after).value == pytest.approx(value, rel=1e-9)
        moved = matrix_normalized_sharpness(after).value
        assert abs(moved / matrix_normalized_sharpness(before).value - 1) > 0.1

    def test_splitting_a_matrix_keeps_it(self):
        """Eq. 26-30: W/2 in both branches, or W in one and nothing in the other."""

        class Split(nn.Module):
            def __init__(self, W: Tensor, share: float) -> None:
                super().__init__()
                self.a, self.b = (nn.Linear(4, 3, bias=False).double() for _ in range(2))
                with torch.no_grad():
                    self.a.weight.copy_(share * W)
                    self.b.weight.copy_((1 - share) * W)

            def forward(self, x: Tensor) -> Tensor:
                return self.a(x).relu() + self.b(x).relu()

        g = torch.Generator().manual_seed(0)
        W = torch.randn(3, 4, generator=g, dtype=torch.float64)
        data = torch.randn(12, 4, generator=g, dtype=torch.float64), torch.arange(12) % 3
        halves, whole = (Problem(Split(W, share), train=data) for share in (0.5, 1.0))
        for measure in (normalized_sharpness, matrix_normalized_sharpness):
            assert measure(halves).value > 0.1
            assert measure(whole).value == pytest.approx(measure(halves).value, rel=1e-9)

    def test_matrix_normalized_is_the_naive_sum(self):
        problem = CASES["lenet"].problem(loss="normalized_cross_entropy")
        h = dense_hessian(problem).diagonal()
        expected = 0.0
        for p, t in zip(
            problem.params.values(),
            h.split([p.numel() for p in problem.params.values()]),
            strict=True,
        ):
            if p.ndim > 1:
                expected += math.sqrt(p.square().sum().item() * t.clamp_min(0).sum().item())
        found = ll.measure(problem, "matrix_normalized_sharpness")["matrix_normalized_sharpness"]
        assert found.value == pytest.approx(expected, rel=1e-9)
        # One variance for all entries is a choice that Eq. 17 has as well.
        assert normalized_sharpness(problem).value < 2 * found.value

    @pytest.mark.parametrize("name", NORMALIZED)
    def test_an_estimated_diagonal_gives_an_error_that_covers(self, name):
        problem = CASES["lstm"].problem(loss="normalized_cross_entropy")
        found = ll.measure(problem, name)[name]
        truth = 0.0
        h = dense_hessian(problem).diagonal()
        sizes = [p.numel() for p in problem.params.values()]
        for p, t in zip(problem.params.values(), h.split(sizes), strict=True):
            if p.ndim > 1:
                t, w = t.view_as(p), p.square()
                if name == "normalized_sharpness":
                    truth += balance(t.clamp_min(0), w).value
                else:
                    truth += math.sqrt(w.sum().item() * t.clamp_min(0).sum().item())
        if found.stderr is None:  # small enough to be exact
            assert found.value == pytest.approx(truth, rel=1e-8)
        else:
            assert abs(found.value - truth) <= 4 * found.stderr

    def test_the_papers_estimate_of_the_diagonal(self, monkeypatch):
        """Eq. 61's entries have variance 2 H_ii^2 + sum_(j != i) H_ij^2 / samples, scaled by r."""
        problem = CASES["mlp-tanh"].problem()
        H = dense_hessian(problem)
        steps = torch.cat(
            [p.square().mean().sqrt().expand(p.numel()) for p in problem.params.values()]
        )
        samples = 400
        scaled = H * steps / steps.unsqueeze(1)
        variance = (scaled.square().sum(1) + H.diagonal().square()) / samples
        monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
        found = importlib.import_module("algorithm1").sampled_diagonal(problem, samples, r=1e-4)
        flat = torch.cat([found[n].flatten() for n in problem.params])
        z = (flat - H.diagonal()) / variance.sqrt()
        assert z.abs().max() < 5
        assert 0.7 < z.square().mean() < 1.4  # an error bar that is neither too wide nor too narrow

    def test_two_classes_have_no_curvature_and_say_so(self):
        torch.manual_seed(0)
        problem = Problem(
            nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double(),
            train=(torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 2),
        )
        found = ll.measure(problem, NORMALIZED)
        assert all("three classes" in found[name].reason for name in NORMALIZED)


class TestDirect:
    def test_a_quadratic_loss_in_closed_form(self):
        """A linear model: the rise is exactly half of Eq. 17's first half."""
        g = torch.Generator().manual_seed(0)
        X = torch.randn(16, 3, generator=g, dtype=torch.float64)
        Y = torch.randn(16, 2, generator=g, dtype=torch.float64)
        model = nn.Linear(3, 2).double()
        with torch.no_grad():
            model.weight.copy_(torch.randn(2, 3, generator=g, dtype=torch.float64))
        problem = Problem(model, "mse", train=(X, Y))
        expected = normalized_sharpness(problem).value / (2 * math.sqrt(16))
        found = normalized_sharpness_direct(problem)
        assert found.stderr < 0.1 * expected
        assert found.value == pytest.approx(found.parts["rise"] + found.parts["squared_weights"])
        # The variances were trained on other noises than those they are measured with.
        assert -4 * found.stderr < found.value - expected < 0.1 * expected + 4 * found.stderr

    def test_it_improves_on_its_start(self, monkeypatch):
        problem = CASES["mlp-relu"].problem(batch_size=7, loss="normalized_cross_entropy")
        trained = normalized_sharpness_direct(problem)
        monkeypatch.setattr("lowland.measures.normalized_sharpness_direct._STEPS", 0)
        start = normalized_sharpness_direct(problem)
        assert trained.value < start.value - 4 * start.stderr

    def test_rescaled_units_do_not_move_it(self):
        problem = CASES["mlp-relu"].problem(batch_size=7, loss="normalized_cross_entropy")
        scale = torch.tensor([0.1, 3.0, 1.0, 20.0, 0.5], dtype=torch.float64)
        p = problem.params
        rescaled = problem.at(
            {
                "0.weight": p["0.weight"] * scale.unsqueeze(1),
                "0.bias": p["0.bias"] * scale,
                "2.weight": p["2.weight"] / scale,
                "4.weight": p["4.weight"] * 3,
                "4.bias": p["4.bias"] * 3,
            }
        )
        found = normalized_sharpness_direct(problem)
        # Line searches make rounding larger, but not beside the error.
        within = 0.01 * found.stderr
        again = normalized_sharpness_direct(rescaled).value
        assert again == pytest.approx(found.value, abs=within)


def test_kl_inverse_equals_a_fine_grid():
    p = np.linspace(0, 1, 1_000_001)[1:-1]
    for q in (0.0, 1e-4, 0.1, 0.5, 0.97):
        kl = (q * np.log(q / p) if q else 0) + (1 - q) * np.log((1 - q) / (1 - p))
        for c in (1e-5, 0.01, 0.3, 2.0):
            expected = p[(p >= q) & (kl <= c)].max()
            assert kl_inverse(q, c) == pytest.approx(expected, abs=2e-6)
    assert kl_inverse(0.0, math.log(4)) == pytest.approx(0.75, rel=1e-14)  # -ln(1 - p) = c
    assert kl_inverse(0.3, 0.0) == pytest.approx(0.3)
    assert kl_inverse(1.0, 0.1) == 1
    assert kl_inverse(0.5, 1e9) == 1


def two_moons(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two noisy half-circles: a task whose risk a large fresh sample tells."""
    g = torch.Generator().manual_seed(seed)
    angle = math.pi * torch.rand(n, generator=g, dtype=torch.float64)
    y = torch.arange(n) % 2
    side = 1 - 2 * y.double()
    x = torch.stack([side * angle.cos() + y, side * angle.sin() + 0.5 * y], 1)
    return x + 0.15 * torch.randn(n, 2, generator=g, dtype=torch.float64), y


@pytest.fixture(scope="module")
def trained() -> Problem:
    """A small network trained on the moons, with its initial weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)).double()
    initial = copy.deepcopy(model)
    X, y = two_moons(1000, 0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        optimiser.step()
    return Problem(model, train=(X, y), initial=initial)


def risk(problem: Problem, mean: dict[str, Tensor], std: float, draws: int = 50) -> float:
    """The error of Q on 20,000 fresh samples."""
    X, y = two_moons(20_000, 1)
    g = torch.Generator().manual_seed(9)
    wrong = 0.0
    with torch.no_grad():
        for _ in range(draws):
            w = {
                n: p + std * torch.randn(p.shape, generator=g, dtype=p.dtype)
                for n, p in mean.items()
            }
            wrong += (problem.outputs(X, w).argmax(1) != y).double().mean().item()
    return wrong / draws


class TestPacBayes:
    def test_terms_add_up_to_the_bound_of_eq_1(self, trained):
        found = ll.measure(trained, "pac_bayes")["pac_bayes"]
        t, m = found.parts, 1000
        names = ("train_error", "C_rise", "B_kl", "confidence")
        assert found.value == pytest.approx(sum(t[n] for n in names))
        w, w0 = trained.params, trained.initial
        distance = sum((w[n] - w0[n]).square().sum().item() for n in w)
        kl = distance / (2 * t["sigma"] ** 2)
        assert t["B_kl"] == pytest.approx(kl / t["lambda"])
        choices = 12 * 12  # sigmas; lambdas 1, 2, ..., 2048
        eq1 = (kl + math.log(choices / 0.04) + t["lambda"] ** 2 / (2 * m)) / t["lambda"]
        error = t["train_error"] + t["C_rise"]
        certified = kl_inverse(error, math.log(100) / 50)  # delta 0.01, 50 draws
        assert found.value == pytest.approx(certified + eq1)
        assert t["train_error"] == trained.wrong().double().mean().item()

    def test_the_error_of_q_by_other_draws(self, trained):
        found = ll.measure(trained, "pac_bayes")["pac_bayes"]
        g = torch.Generator().manual_seed(77)
        X, y = two_moons(1000, 0)
        errors = []
        with torch.no_grad():
            for _ in range(400):
                w = {
                    n: p + found.parts["sigma"] * torch.randn(p.shape, generator=g, dtype=p.dtype)
                    for n, p in trained.params.items()
                }
                errors.append((trained.outputs(X, w).argmax(1) != y).double().mean().item())
        got = found.parts["train_error"] + found.parts["C_rise"]
        spread = np.std(errors) * math.sqrt(1 / 400 + 1 / 100)
        assert abs(got - np.mean(errors)) < 4 * spread

    def test_it_holds_on_fresh_samples(self, trained):
        found = ll.measure(trained, "pac_bayes")["pac_bayes"]
        true = risk(trained, trained.params, found.parts["sigma"])
        assert true < found.value
        assert found.stderr > 0

    @pytest.mark.parametrize(("samples", "batch_size"), [(1000, None), (997, 64), (7, 2)])
    def test_parts_of_the_samples_have_the_mean_of_all(self, trained, samples, batch_size):
        X, y = two_moons(1000, 0)
        data = X[:samples], y[:samples]
        problem = Problem(trained.model, train=data, batch_size=batch_size)
        (whole,) = averages(problem, [problem.params], problem.batch_losses)
        parts = averages(problem, 5 * [problem.params], problem.batch_losses, parts=5)
        assert float(parts.mean()) == pytest.approx(float(whole))
        losses = problem.losses().double()
        expected = [float(5 * losses[k::5].sum() / samples) for k in range(5)]
        assert parts.tolist() == pytest.approx(expected)

    def test_the_prior_is_at_zero_where_the_start_is_unknown(self, trained):
        X, y = two_moons(1000, 0)
        t = ll.measure(Problem(trained.model, train=(X, y)), "pac_bayes")["pac_bayes"].parts
        norm = sum(p.square().sum().item() for p in trained.params.values())
        assert t["B_kl"] * t["lambda"] == pytest.approx(norm / (2 * t["sigma"] ** 2))


class TestMagnitude:
    def test_equals_the_naive_sum_at_a_sigma_that_raises_the_loss_by_a_tenth(self, trained):
        found = ll.measure(trained, "pac_bayes_magnitude")["pac_bayes_magnitude"]
        sigma, m = found.parts["sigma"], 1000
        d = torch.cat([(trained.params[n] - trained.initial[n]).flatten() for n in trained.params])
        total = 0.0
        for each in d.tolist():
            top = 1e-6 + (sigma**2 + 1) * d.square().sum().item() / len(d)
            total += math.log(top / (1e-6 + sigma**2 * each**2))
        expected = math.sqrt((total / 4 + math.log(m / 0.05) + 10) / (m - 1))
        assert found.value == pytest.approx(expected)
        assert found.parts["rise"] == pytest.approx(0.1, abs=1e-6)

        g = torch.Generator().manual_seed(5)
        X, y = two_moons(1000, 0)
        rises = []
        with torch.no_grad():
            base = nn.functional.cross_entropy(trained.outputs(X), y).item()
            for _ in range(1000):
                w = {}
                for n, p in trained.params.items():
                    spread = (sigma**2 * (p - trained.initial[n]).square() + 1e-6).sqrt()
                    w[n] = p + spread * torch.randn(p.shape, generator=g, dtype=p.dtype)
                rises.append(nn.functional.cross_entropy(trained.outputs(X, w), y).item() - base)
        error = np.std(rises) * math.sqrt(1 / 1000 + 1 / 32)
        assert abs(np.mean(rises) - 0.1) < 4 * error

    def test_the_error_covers_another_order_of_the_hidden_units(self, trained):
        order = torch.randperm(16, generator=torch.Generator().manual_seed(3))

        def permuted(p: dict[str, Tensor]) -> dict[str, Tensor]:
            return {
                "0.weight": p["0.weight"][order],
                "0.bias": p["0.bias"][order],
                "2.weight": p["2.weight"][:, order],
                "2.bias": p["2.bias"],
            }

        other = copy.deepcopy(trained.model)
        other.load_state_dict(permuted(trained.params))
        moved = Problem(other, train=two_moons(1000, 0), initial=permuted(trained.initial))
        for name in ("pac_bayes", "pac_bayes_magnitude"):
            a, b = (ll.measure(p, name)[name] for p in (trained, moved))
            assert abs(a.value - b.value) <= 4 * math.hypot(a.stderr, b.stderr)

    @pytest.mark.parametrize("grain", [1e-12, 1e-4, 4e-3, 1e-2])
    def test_the_steepness_is_not_that_of_rounding(self, grain):
        """The error bar is divided by it."""

        def over(log_sigma: float) -> float:
            return grain * (math.floor(2 * (log_sigma + 1.3) / grain) + 0.5)

        log_sigma, steepness = _crossing(over)
        assert log_sigma == pytest.approx(-1.3, abs=grain + 1e-5)
        assert steepness == pytest.approx(2, rel=0.2)

    @pytest.mark.parametrize("factor", [1e2, 1e4, 1e6])
    def test_a_loss_of_any_size_has_a_sigma_or_says_why_not(self, factor):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
        model[2].weight.data.mul_(factor)
        data = torch.randn(30, 4), torch.arange(30) % 3
        row = ll.measure(Problem(model, train=data), "pac_bayes_magnitude")["pac_bayes_magnitude"]
        if row.value is None:
            assert "does not tell where it rises" in row.reason or "already raises" in row.reason
        else:
            assert row.parts["rise"] == pytest.approx(0.1, rel=0.02)

    def test_weights_that_never_moved_have_no_sigma(self, trained):
        still = Problem(trained.model, train=two_moons(1000, 0), initial=trained.model)
        found = ll.measure(still, "pac_bayes_magnitude")["pac_bayes_magnitude"]
        assert found.value is None
        assert "no noise in proportion" in found.reason


@pytest.fixture(scope="module")
def fits(trained):
    """The means and variances of two trainings (of four), for the measure and for its tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pac_bayes_optimised, "_FITS", 2)
        w0 = pac_bayes_optimised._flat(trained.initial)
        return [pac_bayes_optimised._trained(trained, w0, 1000, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def optimised(trained, fits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pac_bayes_optimised, "_FITS", 2)
        patch.setattr(pac_bayes_optimised, "_trained", lambda *args: fits[args[-1]])
        return ll.measure(trained, "pac_bayes_optimised")["pac_bayes_optimised"]


class TestOptimised:
    def test_the_certificate_follows_from_its_terms(self, optimised):
        t, m = optimised.parts, 1000
        j = 100 * math.log(0.1 / t["lambda"])
        assert j == pytest.approx(round(j), abs=1e-9)
        assert round(j) >= 1
        cost = (t["kl"] + 2 * math.log(j) + math.log(math.pi**2 * m / (6 * 0.025))) / (m - 1)
        upper = kl_inverse(t["train_error_of_Q"], math.log(2 / 0.01) / 1000)
        assert optimised.value == pytest.approx(kl_inverse(upper, cost), rel=1e-9)
        assert t["relaxed"] == pytest.approx(upper + math.sqrt(cost / 2))
        assert t["relaxed"] > optimised.value

    def test_it_is_far_below_the_bound_that_is_not_trained(self, trained, optimised):
        assert optimised.value < 0.7 * ll.measure(trained, "pac_bayes")["pac_bayes"].value
        assert optimised.value < 1

    def test_it_holds(self, trained, optimised, fits):
        """Q itself, and not only its bound: its risk on fresh samples stays below."""
        X, y = two_moons(20_000, 1)
        g = torch.Generator().manual_seed(9)
        errors = []
        with torch.no_grad():
            for mean, s in [*fits] * 25:
                w = mean + s.sqrt() * torch.randn(mean.shape, generator=g, dtype=mean.dtype)
                z = trained.outputs(X, pac_bayes_optimised._shaped(w, trained.params))
                errors.append((z.argmax(1) != y).double().mean().item())
        assert 0 < np.mean(errors) < optimised.value
        # The KL divergence, against torch's own: the mean of those of the two.
        normal = torch.distributions.Normal
        w0 = pac_bayes_optimised._flat(trained.initial)
        prior = normal(w0, math.sqrt(optimised.parts["lambda"]))
        kls = [torch.distributions.kl_divergence(normal(m, s.sqrt()), prior).sum() for m, s in fits]
        assert optimised.parts["kl"] == pytest.approx(float(sum(kls)) / 2, rel=1e-9)

    def test_its_error_is_that_of_trainings(self, optimised, fits):
        """Two trainings that differ more than draws of weights do; with one there is none."""
        assert optimised.stderr > 1e-4
        assert float((fits[0][0] - fits[1][0]).abs().max()) > 0

    def test_it_needs_the_initial_weights(self, trained):
        name = "pac_bayes_optimised"
        found = ll.measure(Problem(trained.model, train=two_moons(20, 0)), name)[name]
        assert "initial weights" in found.reason


class TestVcDimension:
    def test_counts_by_hand(self):
        found = ll.measure(CASES["mlp-relu"].problem(), "vc_dimension")["vc_dimension"]
        W = 4 * 5 + 5 + 5 * 4 + 4 * 3 + 3
        assert found.value == pytest.approx(W * 3 * math.log2(W))
        assert found.parts == {"parameters": W, "layers": 3, "units": 5 + 4, "W U": W * 9}

    def test_a_convolutions_units_are_channels_at_places(self):
        found = ll.measure(CASES["lenet"].problem(), "vc_dimension")["vc_dimension"]
        assert found.parts["units"] == 4 * 36 + 4 * 4 + 6

    @pytest.mark.parametrize(
        "name", ["mlp-tanh", "mlp-gelu", "conv1d", "transformer", "lstm", "tied"]
    )
    def test_it_refuses_what_is_not_piecewise_linear_or_not_known(self, name):
        found = ll.measure(CASES[name].problem(), "vc_dimension")["vc_dimension"]
        assert found.value is None
        assert "piecewise-linear" in found.reason or "shared" in found.reason


@pytest.mark.parametrize("case", CASES)
def test_every_case_gives_a_value_or_a_reason_and_keeps_the_model(case):
    problem = CASES[case].problem(n=5, batch_size=5)
    before = {n: p.clone() for n, p in problem.model.state_dict().items()}
    state = torch.get_rng_state()
    for row in ll.measure(problem, [*NORMALIZED, *BOUNDS]).values():
        assert (row.value is None) != (row.reason is None)
        assert row.value is None or math.isfinite(row.value)
        if row.measure.name != "vc_dimension":
            assert row.value is not None, row.reason
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[n], p) for n, p in problem.model.state_dict().items())
    assert all(p.grad is None for p in problem.model.parameters())


def test_regression_has_no_error_to_bound():
    found = ll.measure(CASES["mlp-relu"].problem(loss="mse"), [*NORMALIZED, *BOUNDS])
    for name in (*NORMALIZED, "pac_bayes", "pac_bayes_magnitude"):
        assert found[name].value is None
        assert found[name].reason
