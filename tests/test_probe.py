"""The probe in a training loop: its numbers, its pace, and that it leaves no trace."""

import csv
import math
import random
import time
import types

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from lowland.errors import InputError
from lowland.probe.critical_step import PASSES, Search, critical_step
from lowland.probe.pace import Pace

G = torch.Generator().manual_seed(0)
X = torch.randn(48, 6, generator=G)
Y = torch.randint(0, 3, (48,), generator=G)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))
    )


# The line search ----------------------------------------------------------------------------------


def counted(rise):
    """The same function; ``calls`` says how often it was asked."""

    def asked(step):
        asked.calls += 1
        return rise(step)

    asked.calls = 0
    return asked


@pytest.mark.parametrize("guess", [1e-4, 0.01, 0.3, 1.0, 2.5, 80.0, 1e4])
def test_a_parabola_takes_few_passes(guess):
    rise = counted(lambda a: -3 * a + a * a)  # above its start from 3 on
    assert critical_step(rise, guess).step == pytest.approx(3, rel=1e-6)
    assert rise.calls <= (4 if 1 < guess < 6 else PASSES)


def test_a_known_slope_saves_a_pass():
    rise = counted(lambda a: -3 * a + a * a)
    assert critical_step(rise, 4.0, slope=-3.0).step == pytest.approx(3, rel=1e-9)
    assert rise.calls == 3


@pytest.mark.parametrize("guess", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("slope", [None, -1.0])
@pytest.mark.parametrize(
    ("rise", "root", "smooth"),
    [
        (lambda a: math.exp(a) - 1 - 2 * a, 1.25643, True),  # of exp(a) = 1 + 2 a
        (lambda a: a**4 - a, 1.0, True),
        (lambda a: max(-a, 2 * a - 6), 3.0, False),
        (lambda a: -a if a < 2 else math.inf, 2.0, False),
    ],
)
def test_other_shapes_to_eight_per_cent_or_no_number(rise, root, smooth, guess, slope):
    rise = counted(rise)
    step = critical_step(rise, guess, slope).step
    assert rise.calls <= PASSES
    assert step is None or step == pytest.approx(root, rel=0.081)
    if smooth and guess == 1.0:
        assert step is not None


def test_no_number_where_the_loss_never_or_always_rises():
    uphill = counted(lambda a: a + a * a)
    assert critical_step(uphill, 1.0) == Search(None, 1.0)
    assert uphill.calls <= 4  # two points tell that the smallest step is uphill, a third confirms
    assert critical_step(lambda a: 0.0, 1.0).step is None
    far = critical_step(lambda a: -a, 1.0)
    assert far.step is None
    assert far.guess > 1e6  # from where a next search goes on


# Numbers ------------------------------------------------------------------------------------------


def quadratic():
    """L(w) = 1/2 w^T A w as a regression, with eigenvalues 9 and 1 of A."""
    data = torch.tensor([[3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
    return model, (data, torch.zeros(2, 1, dtype=torch.float64))


def test_critical_sharpness_of_a_gradient_is_its_rayleigh_quotient():
    model, batch = quadratic()
    A = torch.diag(torch.tensor([9.0, 1.0], dtype=torch.float64))
    g = A @ model.weight.detach()[0]
    scalars = ll.Probe(model, "mse", batch, measures=["critical_sharpness"])(7)
    expected = float(g @ A @ g / (g @ g))
    assert scalars["lowland/critical_sharpness"] == pytest.approx(expected, rel=1e-6)
    assert scalars["lowland/critical_learning_rate"] == pytest.approx(2 / expected, rel=1e-6)


def adam(params):
    return torch.optim.Adam(params, lr=0.05)


def momentum(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1)


def sam(params):
    return ll.optim.SAM(params, torch.optim.SGD, rho=0.1, lr=0.05)


@pytest.mark.parametrize("make", [momentum, adam, sam])
def test_critical_sharpness_is_that_of_the_optimisers_own_update(make):
    model, (inputs, targets) = quadratic()
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    probe = ll.Probe(
        model, "mse", (inputs, targets), every=1, max_overhead=None, optimizer=optimizer
    )
    A = torch.diag(torch.tensor([9.0, 1.0], dtype=torch.float64))

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    assert probe(0) == {}  # no update was seen yet
    for step in range(1, 4):
        rate, before = optimizer.param_groups[0]["lr"], model.weight.detach()[0].clone()
        optimizer.step(closure)
        schedule.step()
        direction = (before - model.weight.detach()[0]) / rate
        expected = direction @ A @ direction / (A @ before @ direction)
        scalars = probe(step)
        assert scalars["lowland/critical_sharpness"] == pytest.approx(float(expected), rel=1e-6)


def test_the_eigenvalue_is_that_of_the_hessian_and_starts_from_the_last_one():
    model = network().eval()
    probe = ll.Probe(
        model, "cross_entropy", (X, Y), every=1, measures="largest_eigenvalue", max_overhead=None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
        H = ll.hessian(ll.Problem(model, "cross_entropy", (X, Y))).dense()
        exact = float(torch.linalg.eigvalsh(H)[-1])
        assert probe(step)["lowland/largest_eigenvalue"] == pytest.approx(exact, rel=0.01)
    H = ll.hessian(probe.problem)
    again = ll.eigsh(H, k=1, tol=0.01, start=probe._eigenvector)
    assert again.matvecs <= 12  # that no larger one is left out takes some, however good the start


def test_other_measures_by_name_are_those_of_measure():
    model = network()
    probe = ll.Probe(model, "cross_entropy", (X, Y), measures=["trace", "weight_norm"])
    rows = ll.measure(ll.Problem(model, "cross_entropy", (X, Y)), ["trace", "weight_norm"])
    scalars = probe(0)
    assert scalars["lowland/trace"] == pytest.approx(rows["trace"].value)
    assert scalars["lowland/weight_norm"] == pytest.approx(rows["weight_norm"].value)


def test_a_half_precision_model_is_measured_as_it_is_now():
    model = network().bfloat16()
    probe = ll.Probe(model, "cross_entropy", (X, Y), every=1, measures=["train_loss"])
    first = probe(0)["lowland/train_loss"]
    with torch.no_grad():
        model[4].weight.mul_(3)
        model[1].running_mean.add_(1)
    probe._pace = Pace(1, None)
    expected = ll.Problem(model, "cross_entropy", (X, Y)).losses().mean()
    second = probe(1)["lowland/train_loss"]
    assert second == pytest.approx(float(expected))
    assert second != pytest.approx(first)


# No trace -----------------------------------------------------------------------------------------


def trained(probed, tmp_path=None):
    """Weights, buffers, gradients, state and random numbers of a training with or without."""
    random.seed(0), np.random.seed(0)  # noqa: NPY002
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    probe = None
    if probed:
        probe = ll.Probe(
            model,
            "cross_entropy",
            (X, Y),
            every=2,
            measures=["critical_sharpness", "largest_eigenvalue", "sam_sharpness"],
            max_overhead=None,
            optimizer=optimizer,
            log=tmp_path / "probe.csv",
            trajectory=ll.Trajectory(model, every=3),
        )
    for step in range(12):
        rows = torch.randperm(48)[:16]  # from the global generator, as a loader draws
        noise = random.random() + np.random.random()  # noqa: NPY002
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X[rows] + 0.01 * noise), Y[rows])
        loss.backward()
        optimizer.step()
        schedule.step()
        if probe:
            probe(step)
    state = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    state += [t for s in optimizer.state.values() for t in s.values()]
    drawn = (torch.rand(1).item(), random.random(), np.random.random())  # noqa: NPY002
    modes = [m.training for m in model.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return [t.clone() for t in state], (drawn, modes, hooks), probe


def test_the_run_is_bit_for_bit_what_it_would_have_been(tmp_path):
    plain, rest, _ = trained(False)
    tensors, others, probe = trained(True, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(plain, tensors, strict=True))
    assert rest == others
    steps = [row["step"] for row in probe.history]
    assert steps == [1, 2, 4, 6, 8, 10]
    assert list(probe.to_frame().index) == steps
    assert probe.trajectory.steps == [0, 3, 6, 9]
    rows = list(csv.DictReader((tmp_path / "probe.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == steps
    for row, scalars in zip(rows, probe.history, strict=True):
        for name in probe.columns:
            assert row[name] == str(scalars.get(name, ""))
    assert all("lowland/largest_eigenvalue" in scalars for scalars in probe.history)


def test_inference_mode_autocast_and_no_grad_change_nothing():
    model = network()
    probe = ll.Probe(
        model, "cross_entropy", (X, Y), every=1,
        measures=["critical_sharpness", "largest_eigenvalue"], max_overhead=None,
    )  # fmt: skip
    plain = probe(0)
    del plain["lowland/overhead"]
    probe._guess = probe._eigenvector = None
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert probe(1).items() >= plain.items()


# Pace and logs ------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless a test moves it: ``clock.now``."""
    clock = types.SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr("lowland.probe.pace.time", clock)
    return clock


def measured_steps(pace, clock, steps, seconds, cost):
    """The steps that are measured, where a step takes so many seconds, and a measurement cost."""
    due = []
    for number, step in enumerate(steps):
        clock.now += seconds(number)
        pace.enter(step)
        if pace.is_due(step) and pace.affords(step):
            allowed = pace.max_overhead * pace.trained * (1 + 1e-9)
            assert not due or pace.spent + cost <= allowed
            clock.now += cost
            pace.leave()
            pace.plan(step, cost)
            due.append(step)
        pace.leave()
    return due


def test_measurements_keep_to_their_share_of_the_time(clock):
    """Steps of 1 s, measurements of 2 s, a tenth of the time."""
    due = measured_steps(Pace(5, 0.1), clock, range(300), lambda number: 1.0, 2.0)
    assert due == [0, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220, 240, 260, 280]


@pytest.mark.parametrize("first", [0.0, 1e-4, 50.0])
def test_the_first_step_tells_little_of_the_others(clock, first):
    """It may be no step at all, or take very long: what is compiled, or a pause before it."""
    steps = range(1000)
    due = measured_steps(Pace(5, 0.1), clock, steps, lambda number: 1.0 if number else first, 2.0)
    begin = 0 if first == 50 else 40
    assert due[1] == pytest.approx(begin, abs=10)
    assert due[-1] > 970  # every 20 seconds


def test_steps_that_are_done_twice_count_twice(clock):
    """A training that goes back to a checkpoint has taken the time of all of its steps."""
    steps = (*range(100), *range(400))
    due = measured_steps(Pace(1, 0.1), clock, steps, lambda number: 1.0, 20.0)
    assert due == [0, 299]  # 40 s are a tenth of 400 s, of which 100 were before going back


def test_making_a_probe_is_a_cost_of_it(clock, monkeypatch):
    """And not a time of the training: it would be taken for that of the first step."""
    check = ll.Probe._check_measures

    def slow(probe):
        clock.now += 7.0
        check(probe)

    monkeypatch.setattr(ll.Probe, "_check_measures", slow)
    probe = ll.Probe(network(), "cross_entropy", (X, Y))
    clock.now += 70.0
    assert probe(0)["lowland/overhead"] == pytest.approx(0.1)


def test_cheap_measurements_come_every_so_many_steps():
    pace = Pace(5, None)
    pace.enter(3)
    due = []
    for step in range(3, 22):
        if pace.is_due(step):
            pace.plan(step, 100.0)
            due.append(step)
    assert due == [3, 5, 10, 15, 20]


def test_the_cost_is_reported():
    probe = ll.Probe(network(), "cross_entropy", (X, Y))
    time.sleep(0.01)
    assert probe(0)["lowland/overhead"] > 0
    assert "1 measured" in repr(probe)


def test_logs_go_to_a_function_or_on_in_the_same_file(tmp_path):
    logged = []
    probe = ll.Probe(
        network(), "cross_entropy", (X, Y), log=lambda scalars, step: logged.append((step, scalars))
    )
    assert logged == [(5, probe(5))]
    path = tmp_path / "deep" / "probe.csv"
    for step in (0, 1):
        ll.Probe(network(), "cross_entropy", (X, Y), log=path)(step)
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["step", "0", "1"]
    with pytest.raises(InputError, match="has other columns"):
        ll.Probe(network(), "cross_entropy", (X, Y), measures="trace", log=path)


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measures": ["largest_eigenvalu"]}, "did you mean 'largest_eigenvalue'"),
        ({"measures": "test_loss"}, "needs test data, which a probe has not"),
        ({"measures": "distance_from_initial"}, "needs the initial weights"),
        ({"every": 0}, "at least 1; got 0"),
        ({"max_overhead": 0}, "a share of the training's time"),
        ({"batch": (X, Y[:5])}, "both need one entry per sample"),
        ({"batch": (X[:, :4], Y)}, "the model cannot run on the training inputs"),
        ({"batch": X}, "got a tensor"),
        ({"loss": "hinge"}, "hinge"),
        ({"optimizer": "adam"}, "optimizer must be one of torch.optim's kind"),
        ({"optimizer": torch.optim.SGD(network().parameters(), 0.1)}, "none of the model's"),
        ({"model": "resnet"}, "must be a torch.nn.Module"),
        ({"measures": "path_norm"}, "measure 'path_norm' of the probe: does not apply"),
        ({"measures": []}, "measures must name at least one"),
        ({"measures": [3]}, "measures must be names"),
        ({"measures": 3}, "measures must be names"),
        ({"max_overhead": "5%"}, "a share of the training's time"),
        ({"log": 5}, "log must be a file's path or a function"),
        ({"trajectory": "way"}, "trajectory must be a lowland.Trajectory of this model"),
        ({"trajectory": ll.Trajectory(network())}, "trajectory must be a lowland.Trajectory of"),
    ],
)
def test_mistakes_are_told_before_the_training(options, message):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    with pytest.raises(InputError, match=message):
        ll.Probe(**{"model": model, "loss": "cross_entropy", "batch": (X, Y), **options})


def test_steps_that_skip_updates_are_told_at_the_second_call():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = ll.Probe(model, "cross_entropy", (X, Y), optimizer=optimizer)
    probe(0)
    assert probe(0) == {}
    with pytest.raises(InputError, match="called at steps 0 and 10"):
        probe(10)


@pytest.mark.parametrize("step", ["3", 1.5, None, True])
def test_a_step_is_a_whole_number(step):
    probe = ll.Probe(network(), "cross_entropy", (X, Y))
    with pytest.raises(InputError, match="step counts updates, in whole numbers; got"):
        probe(step)
    assert probe(np.int64(3))  # of whatever kind
    assert probe.history[0]["step"] == 3


@pytest.mark.parametrize("followed", [False, True])
def test_weights_that_are_no_numbers_leave_the_training_alone(followed):
    """Numbers are left out, in words, while the loss is not finite, and come again when it is."""
    model = network()
    names = ["critical_sharpness", "largest_eigenvalue", "trace"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = ll.Probe(
        model, "cross_entropy", (X, Y), every=1, measures=names, max_overhead=None,
        optimizer=optimizer if followed else None,
    )  # fmt: skip
    whole = {name: t.clone() for name, t in model.state_dict().items()}

    def step(number):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model.eval()(X), Y).backward()
        optimizer.step()
        return set(probe(number)) - {"lowland/overhead"}

    step(0)
    expected = step(1)
    assert len(expected) == 4
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    for number in range(2, 6):
        with pytest.warns(UserWarning, match="the probe has no trace: .* NaN"):
            assert not step(number)
    model.load_state_dict(whole)
    step(6)  # from weights that are no numbers to weights that are
    assert step(7) == expected


def test_a_training_that_goes_back_to_a_checkpoint_is_measured_from_there_on():
    probe = ll.Probe(network(), "cross_entropy", (X, Y), every=5, max_overhead=None)
    for steps in (range(31), range(7, 20), range(2, 9)):
        for step in steps:
            probe(step)
    steps = [row["step"] for row in probe.history]
    assert steps == [0, 5, 10, 15, 20, 25, 30, 7, 10, 15, 2, 5]


def test_a_layer_that_is_replaced_on_the_way_is_measured():
    model = network()
    probe = ll.Probe(
        model, "cross_entropy", (X, Y), every=1, measures="largest_eigenvalue", max_overhead=None
    )
    probe(0)
    model[4] = nn.Linear(12, 5)
    exact = torch.linalg.eigvalsh(ll.hessian(ll.Problem(model, "cross_entropy", (X, Y))).dense())
    assert probe(1)["lowland/largest_eigenvalue"] == pytest.approx(float(exact[-1]), rel=0.01)


def test_no_update_no_number():
    """A learning rate of zero, as a warm-up begins, leaves critical sharpness out."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    probe = ll.Probe(model, "cross_entropy", (X, Y), optimizer=optimizer)
    probe(0)
    assert list(probe(1)) == ["lowland/overhead"]
