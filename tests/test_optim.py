"""Optimisers against hand-computed steps on a quadratic, and as torch and others call them."""

import copy
import gc
import io
import math
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam

import lowland as ll
from lowland.errors import InputError
from sameness import assert_same

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
        assert_same(w, expected)


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
        assert_same(w, expected)


def test_asam_without_units_for_biases_is_the_code_of_its_authors():
    a, b = start(), nn.Parameter(torch.tensor([0.5], dtype=torch.float64))

    def loss(a, b):
        return quadratic(a) + b[0] * a.sum() + b[0] ** 4

    optimizer = ll.optim.ASAM(
        [{"params": [a]}, {"params": [b], "adaptive": False}], SGD, rho=0.3, eta=0.05, lr=0.2
    )
    loss(a, b).backward()
    T = a.detach().abs() + 0.05
    norm = torch.cat([T * a.grad, b.grad]).norm()
    up = a + 0.3 * T**2 * a.grad / norm, b + 0.3 * b.grad / norm
    optimizer.first_step()
    assert_same(a, up[0])
    assert_same(b, up[1])


def test_asam_does_not_change_when_layers_are_rescaled():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    rescaled = copy.deepcopy(model)
    with torch.no_grad():
        for p in rescaled[0].parameters():
            p.mul_(4.0)
        rescaled[2].weight.div_(4.0)

    def perturbed(make, model, **options):
        optimizer = make(model.parameters(), SGD, lr=0.1, **options)
        nn.functional.cross_entropy(model(X.double()), Y).backward()
        optimizer.first_step()
        values = model(X.double()).detach()
        optimizer.restore()
        return values

    asam = [perturbed(ll.optim.ASAM, one, rho=0.5, eta=0.0) for one in (model, rescaled)]
    assert_same(*asam)
    sam = [perturbed(ll.optim.SAM, one, rho=0.5) for one in (model, rescaled)]
    assert float((sam[0] - sam[1]).abs().max()) > 1e-3  # so that the claim means something


BASES = ["SGD", "Adam", "AdamW", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD"]


@pytest.mark.parametrize("name", BASES)
def test_any_base_steps_with_the_gradient_of_the_worst_point(name):
    base = getattr(torch.optim, name)
    w, plain = start(), start()
    optimizer, expected = ll.optim.SAM([w], base, rho=0.1, lr=0.05), base([plain], lr=0.05)
    for _ in range(5):
        optimizer.step(closure_of(optimizer, w))
        g = H @ plain.detach()
        plain.grad = H @ (plain.detach() + 0.1 * g / g.norm())
        expected.step()
        assert_same(w, plain)


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
        assert_same(w, expected)
    assert optimizer.param_groups[0]["gamma"] == pytest.approx(gamma)


def test_inner_steps_of_entropy_sgd_can_be_taken_one_by_one():
    settings = {"langevin": 3, "noise": 0.1, "gamma": 0.5, "lr": 0.7, "seed": 4}
    points = [start(), start(), start()]
    closed, called, named = (ll.optim.EntropySGD([w], SGD, **settings) for w in points)
    for _ in range(3):
        closed.step(closure_of(closed, points[0]))
        for _ in range(3):
            closure_of(called, points[1])()
            called.step()
            closure_of(named, points[2])()
            named.inner_step()
            assert points[2].grad is None
        with pytest.raises(InputError, match="all 3 inner steps are taken: call step, or restore"):
            named.inner_step()
        named.step()
        assert torch.equal(points[0], points[1])
        assert torch.equal(points[0], points[2])
    before = points[1].detach().clone()
    closure_of(called, points[1])()
    called.step()
    assert not torch.equal(points[1], before)
    called.restore()
    assert torch.equal(points[1], before)


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


def test_the_noise_of_groups_and_steps_is_independent():
    a, b = (nn.Parameter(torch.zeros(4000, dtype=torch.float64)) for _ in range(2))
    optimizer = ll.optim.EntropySGD(
        [{"params": [a]}, {"params": [b]}], langevin=2, noise=1.0, inner_lr=1.0, gamma=0.0
    )
    places = []
    for _ in range(2):
        (a.sum() * 0 + b.sum() * 0).backward()
        optimizer.inner_step()
        places.append(torch.stack([a.detach(), b.detach()]))
    draws = torch.cat([places[0], places[1] - places[0]])  # (4, 4000)
    assert float((torch.corrcoef(draws) - torch.eye(4)).abs().max()) < 5 / 4000**0.5


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
            assert_same(r, w)
    assert_same(optimizer.mean_weights()[0], sum(expected) / 2)


def test_groups_of_replicas_have_their_own_attraction():
    def replica(shift):
        return start(), nn.Parameter(torch.tensor([1.0, shift], dtype=torch.float64))

    def groups(a, b):
        return [{"params": [a]}, {"params": [b], "gamma": 0.9, "scoping": 0.0, "lr": 0.3}]

    replicas = [replica(0.0), replica(3.0), replica(-1.0)]
    optimizer = ll.optim.ReplicatedSGD(
        [groups(*one) for one in replicas], SGD, gamma=0.5, scoping=0.2, lr=0.1
    )
    expected = [[p.detach().clone() for p in one] for one in replicas]
    gamma, lr = [0.5, 0.9], [0.1, 0.3]
    for _ in range(3):
        optimizer.zero_grad()
        sum(quadratic(p) for one in replicas for p in one).backward()
        optimizer.step()
        for k in range(2):
            centre = sum(one[k] for one in expected) / 3
            for one in expected:
                one[k] = one[k] - lr[k] * (H @ one[k] + gamma[k] * (one[k] - centre))
        gamma[0] *= 1.2
    for found, one in zip(replicas, expected, strict=True):
        for p, w in zip(found, one, strict=True):
            assert_same(p, w)
    assert [g["gamma"] for g in optimizer.param_groups] == pytest.approx(gamma)
    for k, mean in enumerate(optimizer.mean_weights()):
        assert_same(mean, sum(one[k] for one in expected) / 3)
    more = [start() for _ in range(3)]
    optimizer.add_param_group({"params": more, "lr": 0.0})
    assert [one[2] is p for one, p in zip(optimizer.replicas, more, strict=True)] == [True] * 3


OPTIMISERS = [
    *(ll.optim.SAM, ll.optim.ASAM, ll.optim.FriendlySAM, ll.optim.LookSAM),
    ll.optim.EntropySGD,
]


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


def optimiser_of(make, models, **options):
    """Any of the four, with two groups."""
    groups = [
        [{"params": m[:2].parameters()}, {"params": m[2:].parameters(), "lr": 0.2}] for m in models
    ]
    return make(groups if make is ll.optim.ReplicatedSGD else groups[0], lr=0.1, **options)


def joint_closure(models, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = sum(nn.functional.cross_entropy(model(X), Y) for model in models)
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("base", [SGD, Adam])
@pytest.mark.parametrize("make", [*OPTIMISERS, ll.optim.ReplicatedSGD])
def test_a_saved_state_goes_on_as_if_nothing_had_happened(make, base):
    number = 2 if make is ll.optim.ReplicatedSGD else 1
    options = {"base": base, **({"momentum": 0.9} if base is SGD else {})}
    own = {ll.optim.EntropySGD: {"noise": 0.1, "gamma": 0.3, "langevin": 3}}.get(make, {})
    models = [network(seed) for seed in range(number)]
    optimizer = optimiser_of(make, models, **options, **own)
    for _ in range(3):
        optimizer.step(joint_closure(models, optimizer))
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), *(m.state_dict() for m in models)], file)
    file.seek(0)
    state, *weights = torch.load(file, weights_only=True)
    others = [network(7) for _ in models]
    for model, saved in zip(others, weights, strict=True):
        model.load_state_dict(saved)
    resumed = optimiser_of(make, others, **options)  # gamma, noise and eta come from the state
    if make is ll.optim.EntropySGD:
        resumed.langevin = 3
    resumed.load_state_dict(state)
    for _ in range(3):
        optimizer.step(joint_closure(models, optimizer))
        resumed.step(joint_closure(others, resumed))
    for one, other in zip(models, others, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
    assert [{**g, "params": 0} for g in resumed.param_groups] == [
        {**g, "params": 0} for g in optimizer.param_groups
    ]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("make", [*OPTIMISERS, ll.optim.ReplicatedSGD])
def test_copies_go_on_alone(make, copied):
    models = [network(0), network(1)] if make is ll.optim.ReplicatedSGD else [network()]
    optimizer = optimiser_of(make, models, base=Adam)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step(joint_closure(models, optimizer))
    others, resumed = copied((models, optimizer))
    optimizer.step(joint_closure(models, optimizer))
    assert not torch.equal(models[0][0].weight, others[0][0].weight)
    resumed.step(joint_closure(others, resumed))
    for one, other in zip(models, others, strict=True):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name


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


def test_inner_steps_leave_running_statistics_alone_after_the_first_pass():
    model, plain = network(), network()
    optimizer = ll.optim.EntropySGD(model.parameters(), SGD, langevin=4, lr=0.0)
    optimizer.step(closure_on(model, optimizer))
    plain(X)
    for name, value in plain[1].named_buffers():
        assert torch.equal(dict(model[1].named_buffers())[name], value), name


def test_statistics_are_kept_in_the_own_model_only_but_in_all_of_it():
    model, other = network(), network(1)
    rest = nn.Sequential(nn.BatchNorm1d(2, affine=False))
    for p in model[1].parameters():
        p.requires_grad_(False)
    optimizer = ll.optim.SAM(model[3].parameters(), SGD, lr=0.1)  # not the normalisation
    closure_on(model, optimizer)()
    optimizer.first_step()
    closure_on(model, optimizer)()
    rest(other(X))
    optimizer.step()
    counts = [model[1], other[1], rest[0]]
    assert [int(norm.num_batches_tracked) for norm in counts] == [1, 1, 1]


# Torch warns that a hook on all modules also sees its wrapper, which is what it should.
@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
def test_a_compiled_model_keeps_its_statistics():
    model = network()
    optimizer = ll.optim.SAM(model.named_parameters(), SGD, lr=0.1)
    closure = closure_on(torch.compile(model, backend="eager"), optimizer)
    for count in range(1, 4):
        optimizer.step(closure)
        assert int(model[1].num_batches_tracked) == count


@pytest.mark.parametrize("whole", [False, True])
def test_a_model_that_is_compiled_in_place_keeps_its_statistics(whole):
    """All of it, or a part that is called by itself."""
    model, plain = network(), network()
    for each in (model, plain):
        optimizer = ll.optim.SAM(each.parameters(), SGD, rho=0.1, lr=0.1)
        parts = (each,) if whole else (each[:2], each[2:])
        if each is model:
            parts[0].compile(backend="aot_eager")
        for _ in range(3):
            optimizer.zero_grad()
            for climbs in (True, False):
                x = X
                for part in parts:
                    x = part(x)
                nn.functional.cross_entropy(x, Y).backward()
                if climbs:
                    optimizer.first_step()
            optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_an_optimiser_that_is_dropped_on_the_way_leaves_nothing_behind():
    gc.collect()
    model = network()
    optimizer = ll.optim.SAM(model.parameters(), SGD, lr=0.1)
    closure_on(model, optimizer)()
    optimizer.first_step()
    hooks = list(torch.nn.modules.module._global_forward_pre_hooks.values())
    assert hooks
    model(X)
    dropped = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert dropped() is None
    assert not torch.nn.modules.module._has_any_global_hook()
    for hook in hooks:  # torch goes on with those it found, whatever is collected meanwhile
        hook(model, (X,))


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


def scaled_pass(model, scaler) -> None:
    scaler.scale(nn.functional.cross_entropy(model(X), Y)).backward()


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("make", [ll.optim.SAM, ll.optim.ASAM])
def test_a_gradient_scaler_changes_nothing(make, clipped):
    a, b = network().double(), network().double()
    plain, scaled = (make(m.parameters(), SGD, rho=0.1, lr=0.1, momentum=0.9) for m in (a, b))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    loss = nn.functional.cross_entropy
    for _ in range(5):
        for step in (plain.first_step, plain.step):
            plain.zero_grad()
            loss(a(X.double()), Y).backward()
            if clipped and step == plain.step:
                clip_grad_norm_(a.parameters(), 0.01)
            step()
        scaled.zero_grad()
        scaler.scale(loss(b(X.double()), Y)).backward()
        scaled.first_step()
        scaler.scale(loss(b(X.double()), Y)).backward()
        if clipped:
            scaler.unscale_(scaled)
            clip_grad_norm_(b.parameters(), 0.01)
        scaler.step(scaled)
        scaler.update()
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert_same(p, q)
    assert scaler.get_scale() == 4096.0


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_step_skipped_for_overflow_puts_the_weights_back(unscaled):
    model = network()
    optimizer = ll.optim.SAM(model.parameters(), Adam, rho=0.5, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled_pass(model, scaler)
    before = copy.deepcopy(model.state_dict())
    optimizer.first_step()
    assert not torch.equal(model[0].weight, before["0.weight"])
    scaled_pass(model, scaler)
    model[3].bias.grad[0] = torch.inf
    if unscaled:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not optimizer.state
    assert scaler.get_scale() == 512.0
    model(X)
    assert int(model[1].num_batches_tracked) == 2  # no hook is left behind
    optimizer.zero_grad()
    for step in (optimizer.first_step, lambda: scaler.step(optimizer)):
        scaled_pass(model, scaler)
        step()
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert all(p.isfinite().all() for p in model.parameters())


def test_an_overflow_costs_entropy_sgd_one_inner_step():
    models = [network(), network()]
    plain, scaled = (
        ll.optim.EntropySGD(m.parameters(), SGD, langevin=3, gamma=0.5, lr=1.0) for m in models
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number in range(6):
        plain.zero_grad()
        nn.functional.cross_entropy(models[0](X), Y).backward()
        clip_grad_norm_(models[0].parameters(), 0.1)  # the gradients of the inner steps
        plain.step()
        if number == 1:
            scaled_pass(models[1], scaler)
            models[1][0].weight.grad[0] = torch.inf
            scaler.step(scaled)
            scaler.update()
            scaled.zero_grad()
        scaled_pass(models[1], scaler)
        scaler.unscale_(scaled)
        clip_grad_norm_(models[1].parameters(), 0.1)
        scaler.step(scaled)
        scaler.update()
        scaled.zero_grad()
        for p, q in zip(*(m.parameters() for m in models), strict=True):
            torch.testing.assert_close(p, q)
    assert scaler.get_scale() == 512.0
    assert not torch.equal(models[0][0].weight, network()[0].weight)


def test_an_overflow_leaves_replicas_and_their_attraction_as_they_were():
    models = [network(0), network(1)]
    optimizer = optimiser_of(ll.optim.ReplicatedSGD, models)
    before = [copy.deepcopy(list(m.parameters())) for m in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for model in models:
        scaled_pass(model, scaler)
    models[1][0].weight.grad[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    for found, kept in zip(models, before, strict=True):
        for p, q in zip(found.parameters(), kept, strict=True):
            assert torch.equal(p, q)
    assert {group["gamma"] for group in optimizer.param_groups} == {0.01}


def test_under_autocast_both_passes_run_in_half_precision():
    model, expected = network(), network()
    optimizer = ll.optim.SAM(model.parameters(), SGD, rho=0.1, lr=0.1)
    seen = []

    def closure():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(X)
            seen.append(out.dtype)
            loss = nn.functional.cross_entropy(out.float(), Y)
        loss.backward()
        return loss

    def gradients():
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(expected(X).float(), Y)
        return torch.autograd.grad(loss, list(expected.parameters()))

    for _ in range(3):
        optimizer.step(closure)
        with torch.no_grad():
            before = [p.clone() for p in expected.parameters()]
            with torch.enable_grad():
                g = gradients()
            norm = torch.cat([part.flatten() for part in g]).norm()
            for p, part in zip(expected.parameters(), g, strict=True):
                p.add_(0.1 * part / norm)
            with torch.enable_grad():
                up = gradients()
            for p, w, part in zip(expected.parameters(), before, up, strict=True):
                p.copy_(w - 0.1 * part)
        for p, q in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(p, q)
    assert seen == [torch.bfloat16] * 6


@pytest.mark.parametrize("make", [ll.optim.SAM, ll.optim.ASAM])
def test_clipping_changes_only_the_step(make):
    a, b = start(), start()
    closed, explicit = (make([w], SGD, lr=0.2) for w in (a, b))

    def closure():
        closed.zero_grad()
        loss = quadratic(a)
        loss.backward()
        clip_grad_norm_([a], 0.5)  # as Lightning does: after both passes
        return loss

    for _ in range(3):
        before = b.detach().clone()
        closed.step(closure)
        explicit.zero_grad()
        quadratic(b).backward()
        explicit.first_step()
        assert not torch.equal(b, before)
        quadratic(b).backward()
        up = b.grad.clone()
        clip_grad_norm_([b], 0.5)
        explicit.step()
        assert_same(b, before - 0.2 * 0.5 * up / (up.norm() + 1e-6))  # the 1e-6 is torch's
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)


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


@pytest.mark.parametrize("base", [SGD, Adam])
def test_cyclical_schedules_are_those_of_torch(base):
    momentum = {"momentum": 0.9} if base is SGD else {}
    schedules = torch.optim.lr_scheduler
    for schedule in (
        lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        lambda o: schedules.OneCycleLR(o, 0.1, total_steps=6),
        lambda o: schedules.CosineAnnealingWarmRestarts(o, 2),
    ):
        w, plain = start(), start()
        optimizer, expected = (
            ll.optim.SAM([w], base, rho=0.1, lr=0.05, **momentum),
            base([plain], lr=0.05, **momentum),
        )
        ours, theirs = schedule(optimizer), schedule(expected)
        for _ in range(5):
            optimizer.step(closure_of(optimizer, w))
            g = H @ plain.detach()
            plain.grad = H @ (plain.detach() + 0.1 * g / g.norm())
            expected.step()
            ours.step()
            theirs.step()
            assert ours.get_last_lr() == theirs.get_last_lr()
            assert_same(w, plain)


def test_weight_averaging_is_that_of_torch():
    model = network()
    optimizer = ll.optim.SAM(model.parameters(), SGD, lr=0.1, momentum=0.9)
    average = torch.optim.swa_utils.AveragedModel(model)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    seen = []
    for _ in range(4):
        optimizer.step(closure_on(model, optimizer))
        schedule.step()
        average.update_parameters(model)
        seen.append(model[0].weight.detach().clone())
    torch.testing.assert_close(average.module[0].weight, sum(seen) / 4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    torch.optim.swa_utils.update_bn([X], average)
    torch.testing.assert_close(
        average.module[1].running_mean, average.module[0](X).detach().mean(0)
    )


@pytest.mark.parametrize("make", OPTIMISERS)
def test_a_closure_must_not_add_to_old_gradients(make):
    w = start()
    optimizer = make([w], SGD, lr=0.1)

    def accumulating():
        loss = quadratic(w)
        loss.backward()
        return loss

    def in_place():
        optimizer.zero_grad(set_to_none=False)
        return accumulating()

    optimizer.step(in_place)
    optimizer.step(in_place)
    before = w.detach().clone()
    with pytest.raises(InputError, match="closure must clear gradients with zero_grad"):
        optimizer.step(accumulating)
    assert torch.equal(w, before)


@pytest.mark.parametrize("make", OPTIMISERS)
def test_nothing_is_saved_while_the_weights_are_away(make):
    w, other = start(), start()
    optimizer, fresh = make([w], SGD, lr=0.1), make([other], SGD, lr=0.2)
    away = optimizer.inner_step if make is ll.optim.EntropySGD else optimizer.first_step
    quadratic(w).backward()
    away()
    with pytest.raises(InputError, match="save after step or restore"):
        optimizer.state_dict()
    optimizer.load_state_dict(fresh.state_dict())  # the weights are loaded by whoever loads this
    assert not torch.equal(w, start())
    assert optimizer.param_groups[0]["lr"] == 0.2
    optimizer.restore()
    assert not torch.equal(w, start())
    with torch.no_grad():
        w.copy_(start())
    for one, weights in ((optimizer, w), (fresh, other)):
        one.step(closure_of(one, weights))
    assert torch.equal(w, other)


def test_what_cannot_work_is_said():
    w, other = start(), start()
    with pytest.raises(InputError, match="call first_step before step, or give step a closure"):
        ll.optim.SAM([w], SGD, lr=0.1).step()
    with pytest.raises(InputError, match="rho must .* not be negative"):
        ll.optim.SAM([w], SGD, rho=-1, lr=0.1)
    for wrong in (math.nan, math.inf, "big", None):
        with pytest.raises(InputError, match="rho must be a number and must not be negative; got"):
            ll.optim.SAM([w], SGD, rho=wrong, lr=0.1)
    with pytest.raises(InputError, match="rho must .* not be negative; got -1"):
        ll.optim.SAM([{"params": [w], "rho": -1}], SGD, lr=0.1)
    with pytest.raises(InputError, match="eta must .* not be negative"):
        ll.optim.ASAM([w], SGD, eta=-1, lr=0.1)
    for name in ("inner_lr", "gamma", "noise"):
        with pytest.raises(InputError, match=f"{name} must .* not be negative"):
            ll.optim.EntropySGD([w], lr=0.1, **{name: -0.1})
    with pytest.raises(InputError, match="gamma must .* not be negative"):
        ll.optim.ReplicatedSGD([[w], [other]], SGD, lr=0.1, gamma=-1)
    with pytest.raises(InputError, match="different tensors; one of shape"):
        ll.optim.ReplicatedSGD([[w], [w]], SGD, lr=0.1)
    with pytest.raises(InputError, match=r"\[m.parameters\(\) for m in models\]; got Linear"):
        ll.optim.ReplicatedSGD([nn.Sequential(nn.Linear(2, 2)) for _ in range(2)], SGD, lr=0.1)
    with pytest.raises(InputError, match="langevin must be at least 1, and a whole number; got"):
        ll.optim.EntropySGD([w], langevin=2.5)
    with pytest.raises(InputError, match=r"class of torch\.optim"):
        ll.optim.SAM([w], SGD([w], lr=0.1))
    with pytest.raises(InputError, match="LBFGS computes its own"):
        ll.optim.SAM([w], torch.optim.LBFGS)
    with pytest.raises(InputError, match="Adadelta cannot be the base: its option 'rho' means"):
        ll.optim.SAM([w], torch.optim.Adadelta)
    with pytest.raises(InputError, match="langevin must be at least 1"):
        ll.optim.EntropySGD([w], langevin=0)
    with pytest.raises(InputError, match="seed must not be negative"):
        ll.optim.EntropySGD([w], seed=-1)
    with pytest.raises(InputError, match="at least two"):
        ll.optim.ReplicatedSGD([[w]], SGD, lr=0.1)
    for wrong in ([], [nn.Parameter(torch.zeros(3))], [start(), start()]):
        with pytest.raises(InputError, match="same parameters in the same order; got shapes"):
            ll.optim.ReplicatedSGD([[w], wrong], SGD, lr=0.1)
    with pytest.raises(InputError, match=r"same number of groups; got \[1, 2\]"):
        ll.optim.ReplicatedSGD([[w], [{"params": [other]}, {"params": [start()]}]])
    with pytest.raises(InputError, match=r"same options; got {'lr': 0.1} and {'lr': 0.2}"):
        ll.optim.ReplicatedSGD([[{"params": [p], "lr": r}] for p, r in ((w, 0.1), (other, 0.2))])
    optimizer = ll.optim.SAM([w], SGD, lr=0.1)
    quadratic(w).backward()
    optimizer.first_step()
    with pytest.raises(InputError, match="called twice; call step or restore"):
        optimizer.first_step()
    optimizer.restore()
    assert torch.equal(w, start())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(quadratic(w)).backward()
    with pytest.raises(InputError, match="a GradScaler takes no closure"):
        scaler.step(optimizer, closure_of(optimizer, w))
