"""Measures of perturbations and volumes against closed forms, brute force and naive formulas."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

import lowland as ll
from cases import CASES
from lowland.measures.local_entropy import GAMMA, _Chain
from lowland.measures.shared import ascent
from lowland.measures.shared.average_rise import average_rise
from lowland.measures.shared.box_maximum import _maximum
from lowland.measures.shared.neighbourhood import Neighbourhood, Noise
from lowland.problem import Problem

MEASURES = [
    *("keskar_sharpness", "keskar_subspace", "sam_sharpness", "ball_sharpness"),
    *("adaptive_worst_case", "adaptive_average_case", "expected_sharpness"),
    *("flat_box", "description_length", "width"),
]


class Quadratic:
    """Linear regression: L(w + v) = L + g v + 1/2 v H v, all in closed form."""

    def __init__(self, seed: int, *, n: int = 6, N: int = 40, off: float = 0.0) -> None:
        g = torch.Generator().manual_seed(seed)
        X = torch.randn(N, n, generator=g, dtype=torch.float64)
        X = X * torch.linspace(0.3, 2, n, dtype=torch.float64)
        y = torch.randn(N, 1, generator=g, dtype=torch.float64)
        w = torch.linalg.lstsq(X, y).solution.flatten()
        w = w + off * torch.randn(n, generator=g, dtype=torch.float64)
        model = nn.Linear(n, 1, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(w)
        residual = X @ w - y.flatten()
        self.w, self.N = w, N
        self.H = 2 / N * X.T @ X
        self.g = 2 / N * X.T @ residual
        self.L = float(residual.square().mean())
        self.problem = Problem(model, "mse", (X, y))

    def measure(self, name: str) -> ll.measures.Measurement:
        found = ll.measure(self.problem, name)[name]
        assert found.value is not None, found.reason
        return found


def worst_in_ball(H: Tensor, g: Tensor, rho: float) -> float:
    """max g v + 1/2 v H v over |v| <= rho: v = (mu - H)^-1 g with mu where |v| = rho."""
    h, E = torch.linalg.eigh(H)
    c = E.T @ g
    top = float(h[-1])
    v = lambda mu: c / (mu - h)  # noqa: E731
    mu = brentq(lambda mu: float(v(mu).norm()) - rho, top + 1e-12, top + 1e6, xtol=1e-14)
    return float(c @ v(mu) + 0.5 * (h * v(mu).square()).sum())


@pytest.mark.parametrize("off", [0.3, 0.01])
class TestWorstCases:
    def test_sam_takes_one_step_along_the_gradient(self, off):
        q = Quadratic(0, off=off)
        v = 0.05 * q.g / q.g.norm()
        assert q.measure("sam_sharpness").value == pytest.approx(float(q.g @ v + v @ q.H @ v / 2))

    def test_ball_is_the_solution_of_the_trust_region_problem(self, off):
        for seed in range(5):
            q = Quadratic(seed, off=off)
            exact, found = worst_in_ball(q.H, q.g, 0.05), q.measure("ball_sharpness").value
            assert 0.998 * exact < found <= exact * (1 + 1e-9)

    def test_adaptive_is_the_same_with_weights_as_units(self, off):
        for seed in range(5):
            q = Quadratic(seed, off=off)
            D = q.w.abs()
            exact = worst_in_ball(D[:, None] * q.H * D, D * q.g, 0.05)
            assert 0.998 * exact < q.measure("adaptive_worst_case").value <= exact * (1 + 1e-9)


def test_an_ascent_between_two_like_curvatures_leaps(monkeypatch):
    # By plain steps, what is left along the second shrinks to 0.9 in each.
    h = torch.linspace(0.1, 1, 50, dtype=torch.float64)
    h[-2:] = torch.tensor([1.2, 1.3])
    g = torch.full_like(h, 3e-4)

    class Bowl:
        origin = (0.0, g)

        def gradient(self, v: Tensor) -> tuple[float, Tensor]:
            return float(g @ v + h @ v.square() / 2), g + h * v

    exact = worst_in_ball(torch.diag(h), g, 0.05)
    leaping = ascent.worst_rise(Bowl(), 1.0, 0.05)
    monkeypatch.setattr(ascent, "_FARTHEST", 0.0)
    plain = ascent.worst_rise(Bowl(), 1.0, 0.05)
    leaping_steps, plain_steps = (
        int(re.search(r"(\d+) steps", value.method)[1]) for value in (leaping, plain)
    )
    assert leaping_steps < 0.7 * plain_steps
    assert plain.value < leaping.value <= exact * (1 + 1e-9)
    assert leaping.value > 0.999 * exact


@pytest.mark.parametrize("name", CASES)
def test_the_worst_in_a_ball_is_at_least_what_sam_finds(name):
    found = ll.measure(CASES[name].problem(), ["sam_sharpness", "ball_sharpness"])
    assert found["ball_sharpness"].value >= found["sam_sharpness"].value > 0


@pytest.mark.parametrize("name", ["expected_sharpness", "adaptive_average_case"])
def test_average_cases_equal_half_the_weighted_trace_within_their_errors(name):
    q = Quadratic(0, off=0.3)
    scale = torch.full_like(q.w, 0.01) if name == "expected_sharpness" else 0.05 * q.w.abs()
    exact = 0.5 * float((q.H.diagonal() * scale.square()).sum())
    found = q.measure(name)
    assert 0 < found.stderr < 0.3 * exact
    assert abs(found.value - exact) < 4 * found.stderr

    # With many weights, whose sum of squares is nearly normal.
    q = Quadratic(0, n=50, N=100, off=0.3)
    scale = torch.full_like(q.w, 0.01) if name == "expected_sharpness" else 0.05 * q.w.abs()
    exact = 0.5 * float((q.H.diagonal() * scale.square()).sum())
    near = Neighbourhood(q.problem)
    again = [average_rise(near, scale, Noise(near, near.w, seed)) for seed in range(60)]
    errors = torch.tensor([(e.value - exact) / e.stderr for e in again])
    # The rms of 60 normal errors is 1 within 9 %; the standard errors are themselves estimated.
    assert 0.7 < errors.square().mean().sqrt() < 1.5


def two_parameters(kind: str, off: float) -> Problem:
    """A model with two weights: a line through the origin in the plane, or two tanh layers."""
    g = torch.Generator().manual_seed(3)
    if kind == "linear":
        return Quadratic(3, n=2, off=off).problem
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False))
    x = torch.randn(30, 1, generator=g, dtype=torch.float64)
    y = 1.5 * torch.tanh(0.8 * x) + 0.1 * torch.randn(30, 1, generator=g, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.fill_(0.8 + off)
        model[2].weight.fill_(1.5 - off)
    return Problem(model.double(), "mse", (x, y))


def losses_at(problem: Problem, V: Tensor) -> Tensor:
    """L(w + v) for each row of V (k, 2), straight from the formula of the model."""
    whole = problem.train.take(slice(None))
    x, y = whole.inputs, whole.targets
    w = torch.cat([p.flatten() for p in problem.params.values()])
    a, b = (w + V).T[:, :, None]  # (k, 1) each
    z = a * x[:, 0] + b * x[:, 1] if x.shape[1] == 2 else b * torch.tanh(a * x[:, 0])
    return (z - y[:, 0]).square().mean(1)


def grid(n: int = 301) -> Tensor:
    axis = torch.linspace(-1, 1, n, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis)


@pytest.mark.parametrize("kind", ["linear", "tanh"])
@pytest.mark.parametrize("off", [0.0, 0.05])
class TestBoxes:
    def test_keskar_finds_the_highest_point_of_a_grid_over_the_box(self, kind, off):
        problem = two_parameters(kind, off)
        w = torch.cat([p.flatten() for p in problem.params.values()])
        loss = problem.losses().mean().item()
        found = ll.measure(problem, "keskar_sharpness")["keskar_sharpness"]
        for eps, value in ((1e-3, found.value), (5e-4, found.parts["eps_5e-4"])):
            highest = losses_at(problem, grid() * eps * (w.abs() + 1)).max().item()
            assert value == pytest.approx((highest - loss) / (1 + loss), rel=1e-6)
        assert found.parts["percent"] == 100 * found.value
        assert found.parts["percent_5e-4"] == 100 * found.parts["eps_5e-4"]

    def test_and_in_the_box_of_a_subspace(self, kind, off):
        problem = two_parameters(kind, off)
        near = Neighbourhood(problem)
        A = torch.empty(2, 2, dtype=torch.float64)
        A[Noise(near, near.w).order] = torch.randn(
            2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        ).T
        y = torch.linalg.solve(A, near.w)
        loss = problem.losses().mean().item()
        found = ll.measure(problem, "keskar_subspace")["keskar_subspace"]
        for eps, value in ((1e-3, found.value), (5e-4, found.parts["eps_5e-4"])):
            V = grid() * eps * (y.abs() + 1) @ A.T
            highest = losses_at(problem, V).max().item()
            assert value == pytest.approx((highest - loss) / (1 + loss), rel=1e-6)


def naive_gauss_newton_diagonal(problem: Problem) -> Tensor:
    """sum over samples of diag(J^T d2l/dz2 J) / N, with J by autograd, sample by sample."""
    whole = problem.train.take(slice(None))
    sums = 0.0
    for k in range(len(whole)):
        x, y = whole.inputs[k : k + 1], whole.targets[k : k + 1]
        with problem.measuring():
            leaves = {n: p.clone().requires_grad_() for n, p in problem.params.items()}
            z = problem.outputs(x, leaves)
            rows = [torch.autograd.grad(c, list(leaves.values()), retain_graph=True) for c in z[0]]
        J = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
        S = torch.autograd.functional.hessian(lambda z, y=y: problem.loss(z, y).sum(), z.detach())
        sums = sums + torch.einsum("cm,cd,dm->m", J, S[0, :, 0], J)
    return sums / len(whole)


@pytest.mark.parametrize("name", ["mlp-relu", "mlp-gelu", "lenet", "resnet"])
def test_box_and_description_equal_their_formulas(name):
    problem = CASES[name].problem()
    h = naive_gauss_newton_diagonal(problem)
    w = torch.cat([p.flatten() for p in problem.params.values()])
    bound = h > 0
    h, loss = h[bound], problem.losses().mean().item()
    d = (2 * 0.1 * loss / len(h) / h).sqrt()
    found = ll.measure(problem, ["flat_box", "description_length"])
    assert (h * d.square()).sum().item() / 2 == pytest.approx(0.1 * loss)
    assert found["flat_box"].value == pytest.approx(d.log2().mean().item(), rel=1e-9)
    assert found["flat_box"].parts["free"] == int((~bound).sum())
    bits = (w[bound].abs() / d).log2().clamp_min(0).sum().item()
    assert found["description_length"].value == pytest.approx(bits, rel=1e-9)
    assert found["description_length"].parts["bits_per_parameter"] == pytest.approx(bits / len(w))


def test_a_perfect_fit_still_has_a_box():
    X = torch.eye(3, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    found = ll.measure(Problem(model, "mse", (X, model(X).detach())), "flat_box")["flat_box"]
    # h = 2/3 for each of three weights, epsilon = 1e-4
    assert found.value == pytest.approx(0.5 * math.log2(2e-4 / 3 / (2 / 3)))


@pytest.mark.parametrize("n", [8, 2])
def test_widths_on_a_parabola(n):
    q = Quadratic(1, n=n)
    h = torch.linalg.eigvalsh(q.H).flip(0)[:3]
    exact = 2 * (2 * q.L / h).sqrt()
    found = q.measure("width")
    assert list(found.parts.values()) == pytest.approx(exact.tolist(), rel=2e-3)
    assert found.value == pytest.approx(exact.log().mean().exp().item(), rel=2e-3)


def test_width_beside_the_minimum_reaches_to_twice_the_loss_on_both_sides():
    q = Quadratic(1, n=3, off=0.2)
    h, E = torch.linalg.eigh(q.H)
    slopes = E.T @ q.g
    # t_+ + t_- is the distance between the roots of h/2 t^2 + s t - L
    exact = (2 / h * (slopes.square() + 2 * h * q.L).sqrt()).flip(0)
    assert list(q.measure("width").parts.values()) == pytest.approx(exact.tolist(), rel=2e-3)


def test_no_width_where_the_loss_is_zero_or_cannot_double():
    X = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)).double()
    model = nn.Linear(2, 1, bias=False).double()
    zero = Problem(model, "mse", (X, model(X).detach()))
    assert "is zero and cannot double" in ll.measure(zero, "width")["width"].reason

    def bounded(z: Tensor, y: Tensor) -> Tensor:
        return 2 + torch.tanh((z - y).square()).flatten()

    flat = Problem(model, bounded, (X, model(X).detach()))
    assert "does not double" in ll.measure(flat, "width")["width"].reason


class TestLocalEntropy:
    @pytest.mark.parametrize("off", [0.0, 0.3])
    def test_on_a_quadratic(self, off):
        for seed in range(2):
            q = Quadratic(seed, n=5, off=off)
            A = torch.eye(5, dtype=torch.float64) + q.N * q.H / GAMMA
            gain = 0.5 * q.N * q.g @ torch.linalg.solve(GAMMA * A, q.g)
            exact = -q.L - A.logdet() / (2 * q.N) + gain
            found = q.measure("local_entropy")
            assert 0 < found.stderr < 0.1 * abs(exact + q.L)
            assert abs(found.value - exact) < 4 * found.stderr

    def test_on_a_valley_that_is_no_parabola(self):
        problem = two_parameters("tanh", 0.1)
        sigma, N = GAMMA**-0.5, problem.count()
        V = 8 * sigma * grid(401)
        log = -N * losses_at(problem, V) - V.square().sum(1) / (2 * sigma**2)
        cell = (16 * sigma / 400) ** 2 / (2 * math.pi * sigma**2)
        exact = (log.logsumexp(0).item() + math.log(cell)) / N
        found = ll.measure(problem, "local_entropy")["local_entropy"]
        assert 0 < found.stderr < 0.01
        assert abs(found.value - exact) < 4 * found.stderr

    def test_steps_are_accepted_as_detailed_balance_demands(self):
        problem = CASES["mlp-tanh"].problem()
        near = Neighbourhood(problem)
        h = torch.linspace(0, 30, len(near.w), dtype=torch.float64)
        chain, k, t = _Chain(near, h, 7), 0.7, 0.6
        chain._step, C = k, 1 / (GAMMA + h)
        noise = Noise(near, near.w, seed=1)
        u, v = C.sqrt() * noise.draw(), C.sqrt() * noise.draw()

        def joint(a: Tensor, b: Tensor) -> float:
            """The log density at a, plus that of proposing b from there."""
            Phi, slope = chain._potential(a)
            mean = ((2 - k) * a - 2 * k * t * C * slope) / (2 + k)
            variance = 8 * k * C / (2 + k) ** 2
            moves = ((b - mean).square() / variance).sum()
            return float(-t * Phi - (a.square() / C).sum() / 2 - moves / 2)

        there = chain._rho(t, u, v, *chain._potential(u))
        back = chain._rho(t, v, u, *chain._potential(v))
        assert there - back == pytest.approx(joint(v, u) - joint(u, v), rel=1e-9)

    def test_of_a_constant_loss_is_its_negative(self):
        X = torch.randn(9, 2, dtype=torch.float64)
        problem = Problem(nn.Linear(2, 1).double(), lambda z, y: 2 + 0 * z.sum(1), (X, X))
        assert ll.measure(problem, "local_entropy")["local_entropy"].value == pytest.approx(-2)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_model_has_a_value_or_a_reason(name):
    problem = CASES[name].problem(batch_size=None)
    weights = {n: p.clone() for n, p in problem.params.items()}
    for found in ll.measure(problem, MEASURES).values():
        assert found.value is not None, found.reason
        assert math.isfinite(found.value)
    assert all(torch.equal(p, weights[n]) for n, p in problem.params.items())


def test_noise_is_standard_normal_and_goes_with_the_weights():
    problem = CASES["mlp-relu"].problem()
    near = Neighbourhood(problem)
    noise = Noise(near, near.w)
    draws = torch.stack([noise.draw() for _ in range(4000)])
    n = len(near.w)
    assert draws.mean(0).abs().max() < 5 / 4000**0.5
    assert (draws.T @ draws / 4000 - torch.eye(n)).abs().max() < 5 * (2 / 4000) ** 0.5
    permuted = {k: p.clone() for k, p in problem.params.items()}
    order = torch.tensor([2, 0, 4, 1, 3])
    for key in ("0.weight", "0.bias"):
        permuted[key] = permuted[key][order]
    permuted["2.weight"] = permuted["2.weight"][:, order]
    other = Neighbourhood(problem.at(permuted))
    first, moved = Noise(near, near.w).draw(), Noise(other, other.w).draw()
    assert torch.equal(moved[:20].view(5, 4), first[:20].view(5, 4)[order])
    assert torch.equal(moved[20:25], first[20:25][order])
    assert torch.equal(moved[25:45].view(4, 5), first[25:45].view(4, 5)[:, order])


def test_the_box_is_climbed_from_corner_to_corner_while_that_rises():
    """A convex function ends in a corner that its gradient points out of, in few gradients."""
    random = np.random.default_rng(0)
    for _ in range(20):
        A, b = random.normal(size=(8, 8)), random.normal(size=8)
        A = A @ A.T / 8
        highest, y, calls = _maximum(
            lambda y, A=A, b=b: (y @ A @ y / 2 + b @ y, A @ y + b), 0.1 * random.normal(size=8)
        )
        assert (np.abs(y) == 1).all()
        assert highest == pytest.approx(y @ A @ y / 2 + b @ y)
        then = np.sign(A @ y + b)
        assert then @ A @ then / 2 + b @ then < (1 + 1e-3) * highest
        assert calls <= 11


def test_a_maximum_inside_the_box_is_found_where_corners_are_lower():
    def hill(y):
        return 1 - (y[0] - 0.3) ** 2 + y[1], np.array([0.6 - 2 * y[0], 1.0])

    highest, y, _ = _maximum(hill, np.zeros(2))
    assert highest == pytest.approx(2, rel=1e-3)
    assert y == pytest.approx([0.3, 1], abs=0.05)
    corner, y, _ = _maximum(hill, np.zeros(2), memory=100)  # no room for L-BFGS-B
    assert y.tolist() == [1, 1]
    assert corner == pytest.approx(1 - 0.7**2 + 1)


def test_a_box_needs_every_parameter_to_be_seen_through():
    norm = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))
    problem = Problem(model, train=(torch.randn(12, 4), torch.arange(12) % 3))
    for found in ll.measure(problem, ["flat_box", "description_length"]).values():
        assert "which is not known of '0.parametrizations" in found.reason
        assert "cannot be seen through" in found.reason
