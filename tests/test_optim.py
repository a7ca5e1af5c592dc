"""Optimisers against hand-computed steps on a quadratic, and as torch and others call them."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

import lowland as ll
from lowland.errors import InputError

H = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64)


def quadratic(w: torch.Tensor) -> torch.Tensor:
    return 0.5 * w @ H @ w


def start() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))


def closure_of(optimizer, w):
    def closure():
        optimizer.zero_grad()
        loss = quadratic(w)
        loss.backward()
        return loss

    return closure


def test_sam_takes_the_gradient_of_the_worst_point_of_the_ball():
    w = start()
    optimizer = ll.optim.SAM([w], SGD, rho=0.1, lr=0.2)
    expected = w.detach().clone()
    for _ in range(3):
        g = H @ expected
        up = H @ (expected + 0.1 * g / g.norm())
        loss = optimizer.step(closure_of(optimizer, w))
        assert loss.item() == pytest.approx(float(quadratic(expected)))  # at w, not up there
        expected = expected - 0.2 * up
        torch.testing.assert_close(w.detach(), expected)


def test_asam_measures_the_ball_in_units_of_the_weights():
    w = start()
    optimizer = ll.optim.ASAM([w], SGD, rho=0.3, eta=0.05, lr=0.2)
    expected = w.detach().clone()
    for _ in range(3):
        T = expected.abs() + 0.05
        g = H @ expected
        up = H @ (expected + 0.3 * T**2 * g / (T * g).norm())
        optimizer.step(closure_of(optimizer, w))
        expected = expected - 0.2 * up
        torch.testing.assert_close(w.detach(), expected)


def test_two_explicit_steps_are_one_step_with_a_closure():
    a, b = start(), start()
    one, two = (ll.optim.SAM([w], Adam, rho=0.1, lr=0.05) for w in (a, b))
    for _ in range(4):
        one.step(closure_of(one, a))
        quadratic(b).backward()
        two.first_step()
        assert b.grad is None
        quadratic(b).backward()
        two.step()
        two.zero_grad()
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=0)


def test_entropy_sgd_descends_the_local_entropy():
    w = start()
    settings = {"langevin": 5, "inner_lr": 0.1, "gamma": 0.5, "scoping": 0.1, "memory": 0.6}
    optimizer = ll.optim.EntropySGD([w], SGD, noise=0.0, lr=0.7, **settings)
    expected, gamma = w.detach().clone(), 0.5
    for _ in range(3):
        point, mean = expected.clone(), expected.clone()
        for _ in range(5):
            point = point - 0.1 * (H @ point + gamma * (point - expected))
            mean = 0.6 * mean + 0.4 * point
        optimizer.step(closure_of(optimizer, w))
        expected = expected - 0.7 * gamma * (expected - mean)
        gamma *= 1.1
        torch.testing.assert_close(w.detach(), expected)
    assert optimizer.param_groups[0]["gamma"] == pytest.approx(gamma)


def test_the_noise_of_entropy_sgd_is_seeded_and_has_its_size():
    def run(seed):
        w = nn.Parameter(torch.zeros(4000, dtype=torch.float64))
        optimizer = ll.optim.EntropySGD(
            [w], SGD, langevin=1, inner_lr=0.25, noise=2.0, memory=0.0, gamma=1.0, lr=1.0, seed=seed
        )

        def closure():
            optimizer.zero_grad()
            (w.sum() * 0).backward()
            return torch.tensor(0.0)

        optimizer.step(closure)
        return w.detach()  # gamma lr (mean - w): the one inner point

    a, b = run(0), run(0)
    assert torch.equal(a, b)
    assert not torch.equal(a, run(1))
    assert float(a.std()) == pytest.approx(2.0 * 0.25**0.5, rel=0.05)


def test_replicas_attract_each_other():
    replicas = [start(), nn.Parameter(torch.tensor([0.0, 3.0], dtype=torch.float64))]
    optimizer = ll.optim.ReplicatedSGD([[r] for r in replicas], SGD, gamma=0.5, scoping=0.2, lr=0.1)
    expected, gamma = [r.detach().clone() for r in replicas], 0.5
    for _ in range(3):
        optimizer.zero_grad()
        sum(quadratic(r) for r in replicas).backward()
        optimizer.step()
        centre = sum(expected) / 2
        expected = [w - 0.1 * (H @ w + gamma * (w - centre)) for w in expected]
        gamma *= 1.2
        for r, w in zip(replicas, expected, strict=True):
            torch.testing.assert_close(r.detach(), w)
    torch.testing.assert_close(optimizer.mean_weights()[0], sum(expected) / 2)


OPTIMISERS = [ll.optim.SAM, ll.optim.ASAM, ll.optim.EntropySGD]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 2


def closure_on(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("make", OPTIMISERS)
def test_a_saved_state_goes_on_as_if_nothing_had_happened(make):
    model = network()
    options = {"base": SGD, "lr": 0.1, "momentum": 0.9}
    if make is ll.optim.EntropySGD:
        options["noise"] = 0.0
    optimizer = make(model.parameters(), **options)
    for _ in range(3):
        optimizer.step(closure_on(model, optimizer))
    other = network(1)
    other.load_state_dict(model.state_dict())
    resumed = make(other.parameters(), **options)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        optimizer.step(closure_on(model, optimizer))
        resumed.step(closure_on(other, resumed))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("make", OPTIMISERS)
def test_groups_and_schedulers_act_on_the_base(make):
    model = network()
    optimizer = make(
        [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[3].parameters()}],
        SGD,
        lr=0.1,
    )
    optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.3})
    assert [g["lr"] for g in optimizer.param_groups] == [0.0, 0.1, 0.3]
    assert optimizer.base.param_groups is optimizer.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    before = model[0].weight.detach().clone(), model[3].weight.detach().clone()
    optimizer.step(closure_on(model, optimizer))
    scheduler.step()
    assert torch.equal(model[0].weight, before[0])
    assert not torch.equal(model[3].weight, before[1])
    assert [g["lr"] for g in optimizer.param_groups] == [0.0, 0.05, 0.15]


def test_a_group_has_a_radius_of_its_own():
    a, b = start(), start()
    optimizer = ll.optim.SAM([{"params": [a], "rho": 0.0}, {"params": [b]}], SGD, rho=0.2, lr=0.1)
    (quadratic(a) + quadratic(b)).backward()
    before = a.detach().clone()
    g = torch.cat([a.grad, b.grad])
    optimizer.first_step(zero_grad=False)
    assert torch.equal(a.detach(), before)
    torch.testing.assert_close(b.detach(), before + 0.2 * b.grad / g.norm())


def test_the_perturbed_pass_leaves_running_statistics_alone():
    model, plain = network(), network()
    optimizer = ll.optim.SAM(model.parameters(), SGD, rho=0.5, lr=0.0)
    optimizer.step(closure_on(model, optimizer))
    plain(X)  # one ordinary pass
    for name, value in plain[1].named_buffers():
        assert torch.equal(dict(model[1].named_buffers())[name], value), name
    # afterwards all is as usual, also for the two explicit steps
    closure_on(model, optimizer)()
    optimizer.first_step()
    closure_on(model, optimizer)()
    optimizer.step()
    plain(X)
    torch.testing.assert_close(model[1].running_mean, plain[1].running_mean)
    assert int(model[1].num_batches_tracked) == 2
    model(X)
    assert int(model[1].num_batches_tracked) == 3


def test_an_error_in_the_closure_puts_the_weights_back():
    for make in OPTIMISERS:
        w = start()
        optimizer = make([w], SGD, lr=0.1)
        calls = []

        def closure(optimizer=optimizer, w=w, calls=calls):
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("no more data")
            return closure_of(optimizer, w)()

        with pytest.raises(RuntimeError, match="no more data"):
            optimizer.step(closure)
        assert torch.equal(w.detach(), start().detach())
        model = network()
        model(X)
        assert int(model[1].num_batches_tracked) == 1  # no hook is left behind


def test_a_gradient_scaler_changes_nothing():
    a, b = (nn.Parameter(start().detach().float()) for _ in range(2))
    plain, scaled = (ll.optim.SAM([w], SGD, rho=0.1, lr=0.1) for w in (a, b))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def loss(w):
        return 0.5 * w @ H.float() @ w

    for _ in range(3):
        loss(a).backward()
        plain.first_step()
        loss(a).backward()
        plain.step()
        plain.zero_grad()
        scaler.scale(loss(b)).backward()
        scaled.first_step()
        scaler.scale(loss(b)).backward()
        scaler.step(scaled)
        scaler.update()
        scaled.zero_grad()
    torch.testing.assert_close(a.detach(), b.detach())


def test_accumulated_gradients_are_one_gradient():
    a, b = network(), network()
    one, two = (ll.optim.SAM(m.parameters(), SGD, rho=0.1, lr=0.1) for m in (a, b))
    a.eval()  # batch statistics of halves are not those of the whole
    b.eval()
    one.step(closure_on(a, one))
    for step in (two.first_step, two.step):
        for part in (slice(0, 8), slice(8, 16)):
            (nn.functional.cross_entropy(b(X[part]), Y[part]) / 2).backward()
        step()
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_gradient_of_zero_or_nan_moves_nothing():
    w = start()
    optimizer = ll.optim.SAM([w], SGD, rho=0.1, lr=0.1)
    w.grad = torch.zeros(2, dtype=torch.float64)
    optimizer.first_step()
    assert torch.equal(w.detach(), start().detach())
    w.grad = torch.zeros(2, dtype=torch.float64)
    optimizer.step()
    w.grad = torch.full((2,), torch.nan, dtype=torch.float64)
    optimizer.first_step()
    assert torch.equal(w.detach(), start().detach())


def test_weight_averaging_and_cyclical_schedules_are_those_of_torch():
    model = network()
    optimizer = ll.optim.SAM(model.parameters(), SGD, lr=0.1, momentum=0.9)
    average = torch.optim.swa_utils.AveragedModel(model)
    cycle = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2)
    for _ in range(4):
        optimizer.step(closure_on(model, optimizer))
        cycle.step()
        average.update_parameters(model)
    assert int(average.n_averaged) == 4


def test_what_cannot_work_is_said():
    w = start()
    with pytest.raises(InputError, match=r"call first_step\(\) before step"):
        ll.optim.SAM([w], SGD, lr=0.1).step()
    with pytest.raises(InputError, match="rho must not be negative"):
        ll.optim.SAM([w], SGD, rho=-1, lr=0.1)
    with pytest.raises(InputError, match=r"class of torch\.optim"):
        ll.optim.SAM([w], SGD([w], lr=0.1))
    with pytest.raises(InputError, match="needs a closure"):
        ll.optim.EntropySGD([w], SGD, lr=0.1).step()
    with pytest.raises(InputError, match="at least two"):
        ll.optim.ReplicatedSGD([[w]], SGD, lr=0.1)
    with pytest.raises(InputError, match="same parameters"):
        ll.optim.ReplicatedSGD([[w], [nn.Parameter(torch.zeros(3))]], SGD, lr=0.1)
    optimizer = ll.optim.SAM([w], SGD, lr=0.1)
    quadratic(w).backward()
    optimizer.first_step()
    with pytest.raises(InputError, match="called twice"):
        optimizer.first_step()
