"""Pictures of weight space against closed forms, plain loops and dense derivatives."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowland as ll
import zoo
from cases import descend
from generated import KINDS
from lowland.analysis.scenery import Scenery
from lowland.errors import InputError
from lowland.landscape import state_of
from lowland.landscape.directions import directions
from lowland.landscape.evaluation import Evaluator, evaluate
from lowland.landscape.picture import Picture
from lowland.landscape.points import Frame
from lowland.landscape.span import midpoints


def data(n: int = 60, classes: int = 3, size: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    means = torch.randn(classes, size, generator=g, dtype=torch.float64)
    return means[y] + torch.randn(n, size, generator=g, dtype=torch.float64), y


def mlp(seed: int = 0, epochs: int = 60) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    return trained(model.double(), epochs)


def trained(model: nn.Module, epochs: int = 60) -> nn.Module:
    X, y = data()
    descend(model, (X, y), epochs, 0.2)
    return model.eval()


@pytest.fixture(scope="module")
def problem() -> ll.Problem:
    return ll.Problem(mlp(), train=data(), test=data(seed=1))


def frame_of(p: ll.Problem, count: int = 2, size: float = 0.3) -> Frame:
    g = torch.Generator().manual_seed(3)

    def draw() -> dict[str, Tensor]:
        return {
            n: size * torch.randn(w.shape, generator=g, dtype=torch.float64).to(w)
            for n, w in p.params.items()
        }

    return Frame(state_of(p), tuple(draw() for _ in range(count)))


COEFFICIENTS = np.array([[0.0, 0.0], [1.0, 0.0], [-0.5, 0.3], [0.2, -1.0], [0.7, 0.7]])


def plain_losses(p: ll.Problem, frame: Frame, split: str = "train") -> np.ndarray:
    """The mean loss at each point by a copy of the model that holds the weights."""
    means = []
    for c in COEFFICIENTS:
        other = p.at({n: w for n, w in frame.point(c).items() if n in p.params})
        means.append(float(other.losses(split).double().mean()))
    return np.array(means)


# Evaluation --------------------------------------------------------------------------------------


# In the fast suite, one of each kind: recorded for many points, one by one, or not at all.
FEW = ("folded", "tied_in_series", "functional", "gru", "transposed_2d", "temperature", "routed")


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in sorted(zoo.ZOO)]
)
def test_any_network_has_the_values_of_a_plain_loop(name):
    make, shape = zoo.ZOO[name]
    torch.manual_seed(0)
    model = make().double()
    X = zoo.inputs(shape, 11, torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = model.eval()(X)
    y = torch.arange(11) % 2 if out.ndim == 2 else torch.zeros(11, *out.shape[1:-1]).long()
    try:
        p = ll.Problem(model, train=(X, y))
    except InputError:
        pytest.skip("not measured at all")
    frame = frame_of(p)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    found = evaluate(p, frame, COEFFICIENTS)
    np.testing.assert_allclose(found.train, plain_losses(p, frame), rtol=1e-9)
    plain = evaluate(p, frame, COEFFICIENTS, recorded=False)
    np.testing.assert_allclose(found.train_error, plain.train_error)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


@pytest.mark.parametrize(
    "kind",
    [k if i in (0, 3, 9) else pytest.param(k, marks=pytest.mark.slow) for i, k in enumerate(KINDS)],
    ids=str,
)
def test_networks_of_each_kind_have_the_values_of_a_plain_loop(kind):
    p = kind.problem(seed=0)
    frame = frame_of(p)
    evaluator = Evaluator(p, frame)
    np.testing.assert_allclose(
        evaluator.values(COEFFICIENTS).train, plain_losses(p, frame), rtol=1e-9
    )
    assert "recorded" in evaluator.route
    assert ("many points" in evaluator.route) == (not kind.conv and not kind.norm)


class InPlace(nn.Module):
    """Sums what two layers make, into a tensor that it makes itself."""

    def __init__(self, add: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = (nn.Linear(6, 3, dtype=torch.float64) for _ in range(2))
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x), 3)
        self.add(total, self.a(x))
        self.add(total, self.b(x).relu_())
        return total.mul_(2)


PLACES = torch.tensor([[0, 1, 2]])


@pytest.mark.parametrize(
    "add",
    [
        lambda total, h: total.add_(h),
        lambda total, h: total.index_add_(0, torch.arange(len(h)), h),
        lambda total, h: total.scatter_add_(1, PLACES.expand(len(h), -1), h),
        lambda total, h: total[:, 1:].add_(h[:, 1:]),
    ],
)
def test_what_is_written_in_place_is_new_at_every_point(add):
    p = ll.Problem(InPlace(add), train=data())
    frame = frame_of(p)
    evaluator = Evaluator(p, frame)
    np.testing.assert_allclose(
        evaluator.values(COEFFICIENTS).train, plain_losses(p, frame), rtol=1e-9
    )
    assert "recorded" in evaluator.route


def test_float32_convolutions_are_fused_and_agree():
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Residual(8),
        nn.MaxPool2d(2), nn.Conv2d(8, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    X = torch.randn(40, 3, 8, 8)
    body(X)  # statistics
    p = ll.Problem(body.eval(), train=(X, torch.arange(40) % 5), batch_size=16)
    frame = frame_of(p, size=0.1)
    evaluator = Evaluator(p, frame)
    values = evaluator.values(COEFFICIENTS)
    assert evaluator.route == "a recorded forward pass, point by point"
    np.testing.assert_allclose(values.train, plain_losses(p, frame), rtol=1e-5)
    plain = evaluate(p, frame, COEFFICIENTS, recorded=False)
    np.testing.assert_allclose(values.train_error, plain.train_error, atol=1 / 40)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm(self.two(F.relu(self.one(x)))))


def test_an_interrupt_leaves_the_number_of_threads():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    p = ll.Problem(model, train=(torch.randn(6, 1, 4, 4), torch.arange(6) % 2))
    evaluator = Evaluator(p, frame_of(p))
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt) as kept:
            evaluator.values(COEFFICIENTS, interrupt)
        assert torch.get_num_threads() == 2
        assert kept.traceback  # whose frames still hold the generators
    finally:
        torch.set_num_threads(before)


def test_a_loss_that_runs_the_model_and_one_without_errors():
    X, y = data()

    @ll.ModelLoss
    def steep(model, batch):
        x = batch.inputs.detach().requires_grad_()
        losses = F.cross_entropy(model(x), batch.targets, reduction="none")
        (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
        return losses + slope.square().sum(1)

    for loss in (steep, "mse"):
        targets = F.one_hot(y, 3).double() if loss == "mse" else y
        p = ll.Problem(mlp(), loss, train=(X, targets))
        found = ll.line(p, "random", steps=5)
        assert found.train_error is None
        assert found.test is None
        assert found.train[2] == pytest.approx(float(p.losses().mean()), rel=1e-12)


def test_positions_and_ties_count_as_the_loss_has_them():
    """Token labels that do not count, and a network whose scores are all the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Tanh(), nn.Linear(4, 7)).double()
    X = torch.randint(7, (9, 5))
    y = torch.randint(7, (9, 5))
    y[:, 3:] = -100
    p = ll.Problem(model, train=(X, y))
    found = evaluate(p, frame_of(p), COEFFICIENTS)
    assert found.train[0] == pytest.approx(float(p.losses().mean()), rel=1e-12)
    assert found.train_error[0] == pytest.approx(float(p.wrong().mean()), rel=1e-12)
    flat = mlp(epochs=0)
    with torch.no_grad():
        for w in flat[4].parameters():
            w.zero_()
    p = ll.Problem(flat, train=data())
    centre = evaluate(p, Frame(state_of(p), (dict(p.params),)), np.zeros((1, 1)))
    assert centre.train_error[0] == float(p.wrong().mean())


def test_points_that_overflow_are_holes(problem):
    large = {n: 1e200 * torch.ones_like(w) for n, w in problem.params.items()}
    found = ll.line(problem, large, steps=5)
    assert np.isnan(found.train[[0, -1]]).all()
    assert np.isnan(found.train_error[[0, -1]]).all()
    assert np.isfinite(found.train[2])
    assert found.holes == np.isnan(found.train).sum()


# Lines and surfaces ------------------------------------------------------------------------------


def test_a_linear_model_has_the_surface_of_its_closed_form():
    """mean |X (w + x d1 + y d2) - t|^2: a quadratic everywhere."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(20, 3, generator=g, dtype=torch.float64)
    t = torch.randn(20, 1, generator=g, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    w = model.weight.detach().clone()
    d1, d2 = (torch.randn(1, 3, generator=g, dtype=torch.float64) for _ in range(2))
    p = ll.Problem(model, "mse", train=(X, t))
    found = ll.surface(p, ({"weight": d1}, {"weight": d2}), span=2.0, steps=9)
    assert found.x.tolist() == found.y.tolist() == np.linspace(-2, 2, 9).tolist()
    expected = [
        [float((X @ (w + a * d1 + b * d2).T - t).square().mean()) for a in found.x] for b in found.y
    ]
    np.testing.assert_allclose(found.train, expected, rtol=1e-12)
    q = found.quadratic
    H = 2 / 20 * X.T @ X
    np.testing.assert_allclose(
        q.curvature, [float(a @ H @ b.T) for a, b in ((d1, d1), (d1, d2), (d2, d2))], rtol=1e-10
    )
    np.testing.assert_allclose(q.measured, q.curvature, rtol=1e-6)
    np.testing.assert_allclose(q.over(found.x, found.y), expected, rtol=1e-10)
    assert q.holds == 2.0  # it is right as far as was tried
    cosine = float((d1 * d2).sum() / d1.norm() / d2.norm())
    assert found.cosine == pytest.approx(cosine, rel=1e-12)


def test_the_curvature_at_the_centre_is_that_of_the_dense_hessian():
    torch.manual_seed(0)
    smooth = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    problem = ll.Problem(trained(smooth), train=data())
    found = ll.line(problem, "random", span=2.0, steps=11, vectors="scaled", seed=4)
    (d,) = directions(problem, "random", 1, vectors="scaled", seed=4)
    H = ll.hessian(problem).dense()
    flat = torch.cat([d.vector[n].reshape(-1) for n in problem.params])
    assert found.quadratic.curvature[0] == pytest.approx(float(flat @ H @ flat), rel=1e-9)
    assert found.quadratic.measured[0] == pytest.approx(found.quadratic.curvature[0], rel=1e-3)
    gradient = torch.cat([g.reshape(-1) for g in problem.gradient()[1].values()])
    assert found.quadratic.slope[0] == pytest.approx(float(flat @ gradient), rel=1e-9)
    # Where it is said to hold it does, and at the next rung it does not.
    reach, q = found.quadratic.holds, found.quadratic
    assert reach is not None
    assert reach < 2
    for r, holds in ((reach, True), (2 * reach, False)):
        ends = evaluate(problem, Frame(state_of(problem), (d.vector,)), np.array([[r], [-r]]))
        x = np.array([r, -r])
        change = abs(q.slope[0] * x) + abs(q.curvature[0] / 2 * x**2)
        assert (np.abs(ends.train - q.along(x)) <= 0.1 * change).all() == holds


def test_filters_of_a_direction_have_the_lengths_of_the_weights():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 3, 2),
        nn.Flatten(), nn.Linear(75, 5),
    ).double().eval()  # fmt: skip
    X = torch.randn(6, 2, 6, 6, dtype=torch.float64)
    p = ll.Problem(model, train=(X, torch.arange(6) % 5))
    w = p.params
    for vectors in ("left", "scaled"):
        d, other = directions(p, ("random", "random"), 2, vectors=vectors)
        for v in (d.vector, other.vector):
            for name, axis in (("0.weight", 0), ("3.weight", 1), ("5.weight", 0)):
                own, drawn = (t[name].movedim(axis, 0).flatten(1).norm(dim=1) for t in (w, v))
                torch.testing.assert_close(drawn, own)
            for name in ("0.bias", "1.weight", "1.bias", "5.bias"):
                length = w[name].norm() if vectors == "scaled" else torch.tensor(0.0)
                assert float(v[name].norm()) == pytest.approx(float(length))
        assert not torch.allclose(d.vector["5.weight"], other.vector["5.weight"])
    (layer,) = directions(p, "random", 1, normalize="layer")
    assert float(layer.vector["5.weight"].norm()) == pytest.approx(float(w["5.weight"].norm()))
    (raw,) = directions(p, "random", 1, normalize="none", seed=1)
    numbers = torch.cat([t.flatten() for t in raw.vector.values()])
    assert abs(float(numbers.mean())) < 5 / len(numbers) ** 0.5  # Gaussian, not from [0, 1)
    assert float(numbers.std()) == pytest.approx(1, abs=0.2)
    (again,) = directions(p, "random", 1, normalize="none", seed=1)
    assert all(torch.equal(again.vector[n], t) for n, t in raw.vector.items())


def test_filters_of_a_grouped_transposed_convolution_are_those_of_its_outputs():
    """Output j of group g is made by inputs of group g alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose1d(4, 6, 3, groups=2), nn.Flatten()).double()
    X = torch.randn(5, 4, 2, dtype=torch.float64)
    p = ll.Problem(model, train=(X, torch.arange(5)))
    (d,) = directions(p, "random", 1)
    for group in (slice(0, 2), slice(2, 4)):
        own, drawn = (t["0.weight"][group].transpose(0, 1).flatten(1) for t in (p.params, d.vector))
        torch.testing.assert_close(drawn.norm(dim=1), own.norm(dim=1))


def test_named_directions_are_what_they_are_called(problem):
    H = ll.hessian(problem).dense()
    values, vectors = torch.linalg.eigh(H)
    first, second = directions(problem, ("hessian", "hessian"), 2)
    for d, k in ((first, -1), (second, -2)):
        flat = torch.cat([d.vector[n].reshape(-1) for n in problem.params])
        assert d.axis.eigenvalue == pytest.approx(float(values[k]), rel=1e-2)
        assert abs(float(flat @ vectors[:, k])) == pytest.approx(1, abs=0.02)
        assert d.axis.norm == pytest.approx(1)
    (sam,) = directions(problem, "sam", 1)
    gradient = torch.cat([g.reshape(-1) for g in problem.gradient()[1].values()])
    flat = torch.cat([sam.vector[n].reshape(-1) for n in problem.params])
    torch.testing.assert_close(flat, gradient / gradient.norm())
    (dual,) = directions(problem, "dual:2", 1)
    assert set(dual.vector) == {"2.weight"}
    assert dual.axis.label == "mean dual shift of layer '2'"


def test_the_mean_dual_shift_is_that_of_the_formula(problem):
    """dW = (W dx) x^T / |x|^2, averaged over the pairs."""
    pairs = ll.pair(problem)
    seen = {}
    for split in ("train", "test"):
        X = problem.data(split).take(slice(None)).inputs
        seen[split] = problem.model[1](problem.model[0](X)).detach()
    x, new = seen["train"][pairs.train], seen["test"][pairs.test]
    W = problem.params["2.weight"]
    shifts = torch.einsum("ko,ki->koi", (new - x) @ W.T, x) / x.square().sum(1)[:, None, None]
    (dual,) = directions(problem, "dual:2", 1)
    torch.testing.assert_close(dual.vector["2.weight"], shifts.mean(0))


def test_the_dual_shift_around_which_data_goes_gives_the_outputs_of_the_partner():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), Residual(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 3),
    ).double().eval()  # fmt: skip
    X = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    p = ll.Problem(model, train=(X[:1], torch.tensor([0])), test=(X[1:], torch.tensor([0])))
    name = next(n for n in p.params if n.startswith("1.") and p.params[n].ndim == 4)
    (d,) = directions(p, f"dual:{name.removesuffix('.weight')}", 1)
    with torch.no_grad():
        moved = p.at({name: p.params[name] + d.vector[name]}).model.eval()(X[:1])
        apart = moved - model(X[1:])
    assert float((apart - apart.mean()).abs().max()) < 1e-6


def test_towards_another_model_one_is_that_model(problem):
    other = mlp(seed=5)
    found = ll.line(problem, other, span=1.0, steps=5, marks={"other": other})
    expected = float(problem.of(other).losses().mean())
    assert found.train[-1] == pytest.approx(expected, rel=1e-12)
    (mark,) = found.marks
    assert (mark.x, mark.distance) == (pytest.approx(1), pytest.approx(0, abs=1e-10))
    assert mark.train == pytest.approx(expected, rel=1e-12)


def test_the_range_is_chosen_so_that_the_basin_fills_the_picture(problem):
    found = ll.line(problem, "random", span="auto", steps=21)
    edge = (found.train[0] + found.train[-1]) / 2
    assert edge == pytest.approx(np.log(3), rel=0.25)  # that of a network that knows nothing
    narrow = ll.line(problem, {n: 1e3 * w for n, w in problem.params.items()}, "auto", 5)
    assert narrow.span < 0.1


def test_refinement_adds_points_where_it_bends_and_keeps_the_others(problem):
    plain = ll.line(problem, "random", span=1.0, steps=11)
    fine = ll.line(problem, "random", span=1.0, steps=11, refine=12)
    assert set(plain.x) < set(fine.x)
    kept = np.isin(fine.x, plain.x)
    np.testing.assert_array_equal(fine.train[kept], plain.train)
    surface = ll.surface(problem, span=1.0, steps=7, refine=3, second_order=False)
    assert len(surface.x) > 7 or len(surface.y) > 7
    frame = Frame(state_of(problem), tuple(d.vector for d in directions(
        problem, ("random", "random"), 2)))  # fmt: skip
    points = np.array([[a, b] for b in surface.y for a in surface.x])
    expected = evaluate(problem, frame, points).train.reshape(len(surface.y), len(surface.x))
    np.testing.assert_allclose(surface.train, expected, rtol=1e-12)
    x = np.linspace(-1, 1, 5)
    assert midpoints(x, np.where(x > 0.4, 1.0, 0.0), 1).tolist() == [0.25]
    assert len(midpoints(x, 3 * x + 1, 4)) == 0


def test_frozen_parameters_tied_weights_and_single_numbers():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 6, dtype=torch.float64)
            self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
            self.fixed = nn.Linear(6, 3, dtype=torch.float64).requires_grad_(False)
            self.again = self.body

        def forward(self, x: Tensor) -> Tensor:
            return self.fixed(self.scale * self.again(torch.tanh(self.body(x))))

    model = Odd()
    p = ll.Problem(model, train=data())
    found = ll.surface(p, span=0.5, steps=5, vectors="scaled")
    (d, e) = directions(p, ("random", "random"), 2, vectors="scaled")
    assert set(d.vector) == {"body.weight", "body.bias", "scale"}
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, w in other.named_parameters():
            if name in d.vector:
                w += 0.5 * d.vector[name] - 0.25 * e.vector[name]
    assert found.train[1, 4] == pytest.approx(float(p.of(other).losses().mean()), rel=1e-12)


def test_nothing_is_left_behind(problem):
    model = problem.model.train()
    state = {n: t.clone() for n, t in model.state_dict().items()}
    others = mlp(seed=1), mlp(seed=2)
    random = torch.random.get_rng_state()
    ll.surface(problem, steps=5)
    ll.path(problem, *others, steps=5, alignment=True, renormalize=True, iterations=3)
    assert model.training
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert torch.equal(random, torch.random.get_rng_state())
    assert not any(m._forward_hooks for m in model.modules())
    model.eval()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: ll.line(p, "up"), "a direction is one of 'random', 'hessian', 'sam', 'dual'"),
        (lambda p: ll.line(p, {"7.weight": torch.ones(2)}), "not a measured parameter"),
        (lambda p: ll.line(p, {"0.weight": torch.ones(2)}), r"shape \(8, 6\); got \(2,\)"),
        (lambda p: ll.line(p, {"0.weight": torch.zeros(8, 6)}), "zero everywhere"),
        (lambda p: ll.line(p, copy.deepcopy(p.model)), "zero everywhere"),
        (lambda p: ll.line(p, "random", span=-1), "span is a positive number, below 1e\\+300, or"),
        (lambda p: ll.line(p, "random", span=1e308), "span is a positive number, below"),
        (lambda p: ll.surface(p, refine=-1), "refine is a number of more points"),
        (lambda p: ll.line(p, "hessian", normalize="filter"), "have a length of their own"),
        (lambda p: ll.line(p, "random", steps=2), "at least 3"),
        (lambda p: ll.line(p, "random", normalize="unit"), "'filter', 'layer' or 'none'"),
        (lambda p: ll.surface(p, ("random",)), "expected 2 directions"),
        (lambda p: ll.path(p, mlp(), mlp()), "the same weights"),
        (lambda p: ll.plane(p, mlp(), mlp(1), mlp()), "the same weights"),
        (lambda p: ll.path(p, mlp(), nn.Linear(6, 3)), "differ in their architecture"),
        (lambda p: ll.line(p, ll.Trajectory(p.model)), "needs two points or more"),
    ],
)
def test_mistakes_are_told_in_words(problem, call, words):
    with pytest.raises(InputError, match=words):
        call(problem)


# Keeping what is done ----------------------------------------------------------------------------


def test_an_interrupted_picture_goes_on_where_it_stopped(problem, tmp_path):
    whole = ll.surface(problem, steps=21, second_order=False)
    calls = []

    def interrupt(stage: str) -> None:
        calls.append(stage)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ll.surface(problem, steps=21, second_order=False, keep=tmp_path, progress=interrupt)
    frame = Frame(state_of(problem), tuple(
        d.vector for d in directions(problem, ("random", "random"), 2)))  # fmt: skip
    picture = Picture(problem, frame, "surface", keep=tmp_path)
    done = len(picture._kept)
    assert 0 < done < 441
    lines = []
    again = ll.surface(problem, steps=21, second_order=False, keep=tmp_path, progress=lines.append)
    np.testing.assert_array_equal(again.train, whole.train)
    np.testing.assert_array_equal(again.test_error, whole.test_error)
    assert any(f"{done} more are done already" in line for line in lines)
    # Other weights: what was kept is not theirs.
    other = ll.Problem(mlp(seed=3), train=data(), test=data(seed=1))
    moved = Frame(state_of(other), frame.directions)
    assert len(Picture(other, moved, "", keep=tmp_path)._kept) == 0


def test_the_cost_is_told_before_and_the_progress_on_the_way(problem):
    told = []
    ll.surface(problem, steps=31, second_order=False, progress=told.append)
    costs = [stage for stage in told if stage.lasting]
    assert len(costs) == 1
    assert costs[0].startswith("surface: 961 points of 60 + 60 samples, about ")
    shares = [stage.done for stage in told if not stage.lasting]
    assert shares == sorted(shares)


def test_no_cost_is_told_of_what_is_done(problem, monkeypatch):
    monkeypatch.setattr("lowland.landscape.picture._TIMED", 0.0)  # any time tells the cost
    told = []
    ll.line(problem, steps=5, progress=told.append)
    assert not [stage for stage in told if stage.lasting]
    ll.line(problem, steps=50, progress=told.append)
    assert len([stage for stage in told if stage.lasting]) == 1


# Trajectories ------------------------------------------------------------------------------------


def recorded(**options) -> tuple[ll.Trajectory, nn.Module]:
    model = mlp(epochs=0).train()
    X, y = data()
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    trajectory = ll.Trajectory(model, **options)
    for step in range(24):
        trajectory.record(step)
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
    return trajectory, model.eval()


def test_a_trajectory_lies_in_the_plane_of_its_components_and_has_its_own_losses():
    trajectory, model = recorded()
    p = ll.Problem(model, train=data())
    found = ll.surface(p, trajectory, "auto", steps=5, second_order=False)
    assert found.spans == (-1, 1, -1, 1)
    wide = ll.surface(p, span="auto", steps=5, second_order=False, trajectory=trajectory)
    assert all(abs(m.x) < wide.x[-1] and abs(m.y) < wide.y[-1] for m in wide.trajectory)
    assert [mark.step for mark in found.trajectory] == list(range(24))
    assert sum(axis.explained for axis in found.axes) <= 1
    assert found.axes[0].explained > found.axes[1].explained > 0
    assert abs(found.cosine) < 1e-8
    assert max(abs(m.x) for m in found.trajectory) == pytest.approx(0.9)
    assert max(abs(m.y) for m in found.trajectory) == pytest.approx(0.9)
    # Own losses, and Pythagoras: distances from the centre from coordinates and the rest.
    rows = []
    for mark, (_, state) in zip(found.trajectory, trajectory.states(), strict=True):
        other = copy.deepcopy(model)
        other.load_state_dict(state)
        assert mark.train == pytest.approx(float(p.of(other).losses().mean()), rel=1e-12)
        rows.append(torch.cat([(state[n] - w).flatten() for n, w in p.params.items()]))
        within = (mark.x * found.axes[0].norm) ** 2 + (mark.y * found.axes[1].norm) ** 2
        assert float(rows[-1].square().sum()) == pytest.approx(within + mark.distance**2)
    squares = torch.linalg.svdvals(torch.stack(rows)).square()
    assert found.axes[0].explained == pytest.approx(float(squares[0] / squares.sum()))


def test_trajectories_keep_to_their_memory_and_are_read_from_files(tmp_path):
    state = sum(p.numel() * 8 for p in mlp(epochs=0).parameters())
    few, _ = recorded(memory=7 * state)
    assert len(few) <= 7
    assert few.steps[0] == 0
    assert few.every > 1
    written, model = recorded(directory=tmp_path / "way", every=5)
    again = ll.Trajectory.load(tmp_path / "way", model)
    assert again.steps == written.steps == [0, 5, 10, 15, 20]
    paths = sorted((tmp_path / "way").iterdir())
    third = ll.Trajectory.of_checkpoints(model, paths)
    for (_, a), (_, b) in zip(again.states(), third.states(), strict=True):
        assert all(torch.equal(a[n], b[n]) for n in a)


# In an analysis, and in losses -------------------------------------------------------------------


def test_an_analysis_draws_the_landscape_and_says_so_when_it_does_not(problem, tmp_path):
    found = ll.analyze(problem, "2", measures=[], landscape=True, out=tmp_path / "out")
    landscape = ll.load(tmp_path / "out").results.landscape
    assert landscape.surface.train.shape == (25, 25)
    assert [line.axis.kind for line in landscape.lines] == ["random", "hessian"]
    centre = landscape.surface.train[12, 12]
    assert centre == pytest.approx(found.results.outcome.train_loss, rel=1e-9)
    plain = ll.analyze(problem, "2", measures=[])
    assert plain.results.landscape is None
    assert not any("landscape" in note for note in plain.results.notes)


def test_an_analysis_draws_as_many_samples_as_a_picture_needs_and_says_so():
    X, y = data()
    many = X.repeat(20, 1)[:1100], y.repeat(20)[:1100]
    other = many[0] + 0.1, many[1]
    found = ll.analyze(ll.Problem(mlp(), train=many, test=other), "2", measures=[], landscape=True)
    landscape = found.results.landscape
    assert landscape.surface.samples == landscape.lines[0].samples == (1024, 1024)
    assert any("test losses are of 1,024 samples" in note for note in landscape.notes)
    wide = nn.Sequential(nn.Linear(6, 4000), nn.ReLU(), nn.Linear(4000, 4000), nn.Linear(4000, 3))
    assert Scenery(ll.Problem(wide.double(), train=many, test=many)).samples < 1024


@pytest.mark.parametrize(
    "loss", ["cross_entropy", "mse", nn.CrossEntropyLoss(weight=torch.ones(3))]
)
def test_totals_of_many_models_are_sums_of_their_losses(loss):
    X, y = data()
    targets = F.one_hot(y, 3).double() if loss == "mse" else y
    p = ll.Problem(mlp().float(), loss, train=(X.float(), targets))
    outputs = torch.randn(4, 60, 3, generator=torch.Generator().manual_seed(0))
    outputs[1, :, 1] = outputs[1, :, 0] = 1.0  # ties
    batch = p.first(60)
    errors = p.loss.has_errors(batch.targets)
    sums, wrong = p.loss.totals(outputs, batch.targets, errors)
    for k in range(4):
        expected = p.loss(outputs[k], batch.targets).double().sum()
        assert float(sums[k]) == pytest.approx(float(expected), rel=1e-6)
        if errors:
            assert wrong[k] == p.loss.wrong(outputs[k], batch.targets).sum()
