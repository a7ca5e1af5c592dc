"""Kin of SAM, IVON and weight averages against formulas written out on tiny networks, float64."""

import copy
import functools
import io
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, vjp
from torch.optim import SGD, Adam, RMSprop

import lowland as ll
from lowland.errors import InputError
from sameness import assert_same

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=G, dtype=torch.float64)
Y = torch.arange(24) % 2
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 24, 4)]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2)
    return nn.Sequential(*layers).double()


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def closure_of(model, optimizer, batch):
    logits = getattr(optimizer, "logits", lambda outputs: outputs)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(logits(model(batch[0])), batch[1])
        loss.backward()
        return loss

    return closure


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


def gradient(model, batch, w: torch.Tensor) -> torch.Tensor:
    """Of the batch's loss at flat weights."""
    params = dict(zip(dict(model.named_parameters()), shaped(model, w), strict=True))
    params = {name: p.requires_grad_() for name, p in params.items()}
    loss = nn.functional.cross_entropy(functional_call(model, params, (batch[0],)), batch[1])
    return flat(torch.autograd.grad(loss, list(params.values())))


def shaped(model, w: torch.Tensor) -> list[torch.Tensor]:
    sizes = [p.numel() for p in model.parameters()]
    parts = w.split(sizes)
    return [part.view_as(p).clone() for part, p in zip(parts, model.parameters(), strict=True)]


def run(model, optimizer, batches=BATCHES) -> None:
    for batch in batches:
        optimizer.step(closure_of(model, optimizer, batch))


def test_friendly_sam_climbs_along_the_noise():
    model = network()
    w, m = flat(model.parameters()), 0.0
    run(
        model, ll.optim.FriendlySAM(model.parameters(), SGD, rho=0.1, sigma=0.7, memory=0.6, lr=0.2)
    )
    for batch in BATCHES:
        g = gradient(model, batch, w)
        m = 0.6 * m + 0.4 * g
        d = g - 0.7 * m
        w = w - 0.2 * gradient(model, batch, w + 0.1 * d / d.norm())
    assert_same(flat(model.parameters()), w)


def test_friendly_sam_without_friendliness_is_sam():
    models = network(), network()
    run(models[0], ll.optim.FriendlySAM(models[0].parameters(), Adam, sigma=0.0, lr=0.05))
    run(models[1], ll.optim.SAM(models[1].parameters(), Adam, lr=0.05))
    assert_same(flat(models[0].parameters()), flat(models[1].parameters()))


def look_by_hand(model, w, step, every=3, rho=0.1, alpha=0.4):
    across = None
    for turn, batch in enumerate(BATCHES):
        g = gradient(model, batch, w)
        if turn % every == 0:
            up = gradient(model, batch, w + rho * g / g.norm())
            cosine = g @ up / (g.norm() * up.norm())
            across = up - up.norm() * cosine * g / g.norm()
            w = step(w, up)
        else:
            w = step(w, g + alpha * g.norm() / across.norm() * across)
    return w


def test_looksam_remembers_the_part_across_the_gradient():
    model = network()
    expected = look_by_hand(model, flat(model.parameters()), lambda w, g: w - 0.2 * g)
    run(
        model,
        ll.optim.LookSAM(model.parameters(), SGD, rho=0.1, every=3, reuse=0.4, lr=0.2),
    )
    assert_same(flat(model.parameters()), expected)


def test_looksam_in_the_explicit_form_with_a_base_and_a_scaler():
    model, plain = network(), network()
    w = nn.Parameter(flat(plain.parameters()))
    base = Adam([w], lr=0.05)

    def step(_, g):
        w.grad = g
        base.step()
        return w.detach().clone()

    expected = look_by_hand(plain, w.detach().clone(), step)
    optimizer = ll.optim.LookSAM(model.parameters(), Adam, rho=0.1, every=3, reuse=0.4, lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    climbs = []
    for batch in BATCHES:
        climbs.append(optimizer.climbs)
        scaler.scale(loss_of(model, batch)).backward()
        if optimizer.climbs:
            optimizer.first_step()
            scaler.scale(loss_of(model, batch)).backward()
        else:
            with pytest.raises(InputError, match=r"this step has one pass: ask optimizer\.climbs"):
                optimizer.first_step()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert climbs == [True, False, False] * 2
    assert_same(flat(model.parameters()), expected)


def functional_by_hand(model, w, rho=0.1, lr=0.2):
    """Both paths: J(w + e)^T times the slope of the loss at w, by torch.func."""
    names = list(dict(model.named_parameters()))
    for x, y in BATCHES:
        g = gradient(model, (x, y), w)
        z = functional_call(model, dict(zip(names, shaped(model, w), strict=True)), (x,)).detach()
        slope = (z.softmax(1) - nn.functional.one_hot(y, 2)) / len(x)
        up = shaped(model, w + rho * g / g.norm())
        _, pull = vjp(
            lambda params, x=x: functional_call(model, params, (x,)),
            dict(zip(names, up, strict=True)),
        )
        w = w - lr * flat(pull(slope)[0].values())
    return w


def test_functional_sam_keeps_the_slope_of_the_loss():
    model = network()
    start = flat(model.parameters())
    expected = functional_by_hand(model, start)
    optimizer = ll.optim.FunctionalSAM(model.parameters(), SGD, rho=0.1, lr=0.2)
    run(model, optimizer)
    assert_same(flat(model.parameters()), expected)
    other = network()
    run(other, ll.optim.SAM(other.parameters(), SGD, rho=0.1, lr=0.2))
    assert float((flat(other.parameters()) - expected).norm()) > 1e-3  # so that it means something


def test_functional_sam_with_parts_of_a_batch_and_a_scaler():
    model, expected = network(), network()
    optimizer = ll.optim.FunctionalSAM(model.parameters(), SGD, rho=0.1, lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in BATCHES:
        for step in (optimizer.first_step, lambda: scaler.step(optimizer)):
            for part in (slice(0, 1), slice(1, 4)):
                logits = optimizer.logits(model(x[part]))
                loss = nn.functional.cross_entropy(logits, y[part], reduction="sum") / 4
                scaler.scale(loss).backward()
            step()
        scaler.update()
        optimizer.zero_grad()
    assert_same(flat(model.parameters()), functional_by_hand(expected, flat(expected.parameters())))


def test_what_functional_sam_cannot_do_is_said():
    model = network()
    optimizer = ll.optim.FunctionalSAM(model.parameters(), SGD, lr=0.2)
    loss_of(model, BATCHES[0]).backward()
    with pytest.raises(InputError, match=r"from optimizer\.logits\(model\(inputs\)\)"):
        optimizer.first_step()
    before = flat(model.parameters())
    closure_of(model, optimizer, BATCHES[0])()
    optimizer.first_step()
    with pytest.raises(InputError, match=r"must see the batches of the first.*shape \(2, 2\)"):
        closure_of(model, optimizer, (X[:2], Y[:2]))()
    optimizer.restore()
    assert_same(flat(model.parameters()), before)
    with torch.no_grad():
        outputs = model(X)
        assert optimizer.logits(outputs) is outputs


@pytest.mark.parametrize("make", [ll.optim.SAM, ll.optim.ASAM])
def test_sam_on_norms_perturbs_nothing_else(make):
    model = network()
    optimizer = make(ll.optim.norms_only(model), SGD, rho=0.3, lr=0.2)
    w = flat(model.parameters())
    mask = flat(torch.full_like(p, float(p.ndim == 1 and len(p) == 5)) for p in model.parameters())
    mask[15:20] = 0  # the bias of the first layer, which has five numbers as well
    for batch in BATCHES:
        g = gradient(model, batch, w) * mask
        T = (w.abs() + 0.01) if make is ll.optim.ASAM else torch.ones_like(w)
        up = gradient(model, batch, w + 0.3 * T**2 * g / (T * g).norm())
        optimizer.step(closure_of(model, optimizer, batch))
        w = w - 0.2 * up
        assert_same(flat(model.parameters()), w)


def test_norms_are_found_by_their_name():
    class LlamaRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    model = nn.ModuleList([nn.BatchNorm1d(3), nn.Linear(2, 2), nn.GroupNorm(1, 2), LlamaRMSNorm()])
    scales, rest = ll.optim.norms_only(model)
    assert [len(p) for p in scales["params"]] == [3, 3, 2, 2, 4]
    assert (len(rest["params"]), rest["perturbed"]) == (2, False)
    assert len(ll.optim.norms_only(nn.LayerNorm(2))) == 1
    with pytest.raises(InputError, match="has no normalisation layer with weights"):
        ll.optim.norms_only(nn.Linear(2, 2))


IVON = {"lr": 0.3, "ess": 50.0, "h0": 0.7, "delta": 0.02, "beta1": 0.8, "beta2": 0.9, "seed": 3}


def ivon_by_hand(model, draws):
    """Algorithm 1 of the paper with given standard normal numbers."""
    lr, ess, h0, delta, beta1, beta2, _ = IVON.values()
    m, g = flat(model.parameters()), 0.0
    h = torch.full_like(m, h0)
    for t, (batch, draw) in enumerate(zip(BATCHES, draws, strict=True), 1):
        sigma = 1 / (ess * (h + delta)).sqrt()
        theta = m + sigma * draw
        slope = gradient(model, batch, theta)
        hat = slope * (theta - m) / sigma**2
        g = beta1 * g + (1 - beta1) * slope
        h = beta2 * h + (1 - beta2) * hat + 0.5 * (1 - beta2) ** 2 * (h - hat) ** 2 / (h + delta)
        m = m - (h0 + delta) * lr * (g / (1 - beta1**t) + delta * m) / (h + delta)
    return m


def draws_of(model) -> list[torch.Tensor]:
    """What IVON draws, seen from outside: the samples in units of the known first sigma."""
    fresh = copy.deepcopy(model)
    optimizer = ll.optim.IVON(fresh.parameters(), **IVON)
    before, draws = flat(fresh.parameters()), []
    for _ in BATCHES:
        optimizer.sample()
        draws.append((flat(fresh.parameters()) - before) * (50.0 * 0.72) ** 0.5)
        optimizer.restore()
    return draws


@pytest.mark.parametrize("explicit", [False, True])
def test_ivon_is_the_algorithm_of_its_paper(explicit):
    model = network()
    draws = draws_of(model)
    expected = ivon_by_hand(model, draws)
    optimizer = ll.optim.IVON(model.parameters(), **IVON)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for batch in BATCHES:
        if explicit:
            optimizer.sample()
            scaler.scale(loss_of(model, batch)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        else:
            optimizer.step(closure_of(model, optimizer, batch))
    torch.testing.assert_close(flat(model.parameters()), expected, rtol=1e-9, atol=1e-10)
    numbers = torch.cat(draws)
    assert float(torch.corrcoef(torch.stack(draws)).fill_diagonal_(0).abs().max()) < 0.8
    assert abs(float(numbers.mean())) < 5 / len(numbers) ** 0.5
    assert float(numbers.std()) == pytest.approx(1.0, abs=5 / (2 * len(numbers)) ** 0.5)


def test_the_hessian_of_ivon_is_that_of_a_quadratic():
    """On ``sum c w^2 / 2`` the estimates are c z^2 in the mean: h goes to c."""
    curvature = torch.tensor([0.5, 2.0, 8.0], dtype=torch.float64).repeat_interleave(1000)
    w = nn.Parameter(torch.zeros(3000, dtype=torch.float64))
    optimizer = ll.optim.IVON([w], lr=0.0, ess=100.0, beta2=0.99)

    def closure():
        optimizer.zero_grad()
        loss = 0.5 * (curvature * w.square()).sum()
        loss.backward()
        return loss

    for _ in range(1500):
        optimizer.step(closure)
    means = optimizer.state[w]["hessian"].view(3, 1000).mean(1)
    torch.testing.assert_close(means, curvature[::1000], rtol=0.03, atol=0.0)


def test_ivon_updates_running_averages_at_the_sample():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=1.0), nn.Linear(4, 2)
    ).double()
    optimizer = ll.optim.IVON(model.parameters(), ess=10)
    optimizer.sample()
    loss_of(model, BATCHES[0]).backward()
    expected = model[0](BATCHES[0][0]).detach().mean(0)
    optimizer.step()
    torch.testing.assert_close(model[1].running_mean, expected)
    assert int(model[1].num_batches_tracked) == 1


def test_ivon_comes_back_and_says_what_is_wrong():
    model = network()
    optimizer = ll.optim.IVON(model.parameters(), ess=10)
    with pytest.raises(InputError, match="call sample before the forward pass"):
        optimizer.step()
    before = flat(model.parameters())
    optimizer.sample()
    with pytest.raises(InputError, match="sample was called twice"):
        optimizer.sample()
    with pytest.raises(InputError, match="save after step or restore"):
        optimizer.state_dict()
    assert not torch.equal(flat(model.parameters()), before)
    optimizer.restore()
    assert_same(flat(model.parameters()), before)
    for wrong in (
        {"ess": 0},
        {"ess": 1, "h0": 0},
        {"ess": 1, "beta2": 1.0},
        {"ess": 1, "seed": -1},
    ):
        with pytest.raises(InputError, match="must"):
            ll.optim.IVON(model.parameters(), **wrong)


@pytest.mark.parametrize("decay", [None, 0.999])
def test_averages_of_half_precision_do_not_round_off_what_is_small(decay):
    w = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    average = ll.optim.WeightAverage([w], decay)
    values = [1 + step / 128 for step in range(128)]  # all of them exact in half precision
    mean = 1.0
    for value in values:
        w.data.fill_(value)
        average.update()
        mean = 0.999 * mean + 0.001 * value
    expected = sum(values) / len(values) if decay is None else mean
    assert float(average.weights[0]) == pytest.approx(expected, rel=1e-5)
    with average.in_place():
        assert float(w.detach()) == pytest.approx(expected, rel=2**-8)
        assert w.dtype == torch.bfloat16


def test_what_cannot_be_averaged_is_said():
    model = network()
    for wrong in (model, [], "weights", model.named_parameters(), None):
        with pytest.raises(InputError, match="of an optimizer or of parameters, such as"):
            ll.optim.WeightAverage(wrong)
    average = ll.optim.WeightAverage(model.parameters())
    with pytest.raises(InputError, match="the saved mean is of other parameters"):
        average.load_state_dict(ll.optim.WeightAverage(nn.Linear(1, 1).parameters()).state_dict())


SPARSE = [
    ll.optim.SAM, ll.optim.ASAM, ll.optim.FriendlySAM, ll.optim.LookSAM, ll.optim.EntropySGD,
    functools.partial(ll.optim.IVON, ess=20),
]  # fmt: skip


@pytest.mark.parametrize("make", SPARSE, ids=lambda make: getattr(make, "__name__", "IVON"))
def test_sparse_gradients_of_an_embedding_are_those_of_a_dense_one(make):
    tokens = torch.tensor([[0, 3], [3, 3], [5, 1], [0, 0]])  # 2 and 4 never occur
    weights = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Embedding(6, 4, sparse=sparse), nn.Flatten(), nn.Linear(8, 3)
        ).double()
        optimizer = make(model.parameters(), lr=0.1)
        closure = closure_of(model, optimizer, (tokens, torch.tensor([0, 1, 2, 1])))
        for _ in range(7):
            optimizer.step(closure)
        weights.append(flat(model.parameters()).detach())
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("climbing", [False, True])
def test_averages_are_means_of_the_weights(climbing):
    """Plain and exponential; around SAM they are WASAM."""
    model = network()
    w = flat(model.parameters())
    optimizer = (
        ll.optim.SAM(model.parameters(), SGD, rho=0.1, lr=0.2)
        if climbing
        else SGD(model.parameters(), lr=0.2)
    )
    plain, exponential = ll.optim.WeightAverage(optimizer), ll.optim.WeightAverage(optimizer, 0.9)
    seen, mean = [], w
    for batch in BATCHES:
        g = gradient(model, batch, w)
        w = w - 0.2 * (gradient(model, batch, w + 0.1 * g / g.norm()) if climbing else g)
        optimizer.step(closure_of(model, optimizer, batch))
        plain.update()
        exponential.update()
        seen.append(w)
        mean = 0.9 * mean + 0.1 * w
    with plain.in_place():
        assert_same(flat(model.parameters()), torch.stack(seen).mean(0))
    torch.testing.assert_close(flat(exponential.weights), mean)
    assert_same(flat(model.parameters()), w)
    resumed = ll.optim.WeightAverage(model.parameters())
    resumed.load_state_dict(plain.state_dict())
    resumed.update()
    torch.testing.assert_close(flat(resumed.weights), torch.stack([*seen, w]).mean(0))
    with pytest.raises(InputError, match="decay must be at least 0 and below 1"):
        ll.optim.WeightAverage(model.parameters(), decay=1.0)


def test_an_averaged_model_gets_statistics_of_its_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    optimizer = SGD(model.parameters(), lr=0.5)
    average = ll.optim.WeightAverage(optimizer)
    for batch in BATCHES:
        optimizer.step(closure_of(nn.Sequential(model, nn.Linear(4, 2).double()), optimizer, batch))
        average.update()
    with average.in_place():
        torch.optim.swa_utils.update_bn([X], model)
        torch.testing.assert_close(model[1].running_mean, model[0](X).detach().mean(0))


KINDS = {
    "sam": lambda params: ll.optim.SAM(params, Adam, lr=0.05),
    "asam": lambda params: ll.optim.ASAM(params, RMSprop, lr=0.05),
    "friendly": lambda params: ll.optim.FriendlySAM(params, Adam, lr=0.05),
    "look": lambda params: ll.optim.LookSAM(params, Adam, every=2, lr=0.05),
    "functional": lambda params: ll.optim.FunctionalSAM(params, Adam, lr=0.05),
    "ivon": lambda params: ll.optim.IVON(params, lr=0.05, ess=24, beta2=0.9),
    "entropy": lambda params: ll.optim.EntropySGD(params, Adam, langevin=2, noise=0.1, lr=0.05),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_goes_on_as_if_nothing_had_happened(kind):
    model, other = network(), network(7)
    optimizer, resumed = (KINDS[kind](m.parameters()) for m in (model, other))
    run(model, optimizer, BATCHES[:3])
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), model.state_dict()], file)
    file.seek(0)
    state, weights = torch.load(file, weights_only=True)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    for m, o in ((model, optimizer), (other, resumed)):
        run(m, o, BATCHES[3:])
    assert torch.equal(flat(model.parameters()), flat(other.parameters()))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_go_on_alone_and_share_with_their_own_base(kind, copied):
    model = network()
    optimizer = KINDS[kind](model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    run(model, optimizer, BATCHES[:2])
    other, resumed = copied((model, optimizer))
    assert resumed.param_groups is resumed.base.param_groups
    assert resumed.state is resumed.base.state
    assert resumed.param_groups[0]["params"][0] is next(other.parameters())
    run(model, optimizer, BATCHES[2:])
    assert not torch.equal(flat(model.parameters()), flat(other.parameters()))
    run(other, resumed, BATCHES[2:])
    assert torch.equal(flat(model.parameters()), flat(other.parameters()))


SCHEDULES = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6),
    "restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.7),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_acts_on_the_outer_and_on_the_base_alike(kind, schedule):
    outer, inner, fixed = network(), network(), network()
    optimizers = [KINDS[kind](m.parameters()) for m in (outer, inner, fixed)]
    schedules = [schedule(optimizers[0]), schedule(optimizers[1].base)]
    for batch in BATCHES:
        for model, optimizer in zip((outer, inner, fixed), optimizers, strict=True):
            optimizer.step(closure_of(model, optimizer, batch))
        for one in schedules:
            one.step()
        rates = [o.param_groups[0]["lr"] for o in optimizers]
        assert rates[0] == rates[1] == optimizers[0].base.param_groups[0]["lr"]
    assert torch.equal(flat(outer.parameters()), flat(inner.parameters()))
    assert not torch.equal(flat(outer.parameters()), flat(fixed.parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_groups_stay_shared_whoever_loads_or_sets_them(kind):
    model, other = network(), network(1)
    optimizer, fresh = (KINDS[kind](m.parameters()) for m in (model, other))
    run(model, optimizer, BATCHES[:2])
    saved = optimizer.state_dict()
    for loader in (fresh, fresh.base):  # the base may be loaded behind the back of the outer
        loader.load_state_dict(saved)
        assert fresh.param_groups is fresh.base.param_groups
        assert fresh.state is fresh.base.state
        assert fresh.state_dict()["param_groups"] == saved["param_groups"]
    extra = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    fresh.add_param_group({"params": [extra], "lr": 0.5})
    assert fresh.base.param_groups[-1]["params"] == [extra]
    fresh.param_groups = fresh.param_groups[:1]
    assert len(fresh.base.param_groups) == 1


def test_friendly_sam_takes_no_scaler_and_wrong_options_are_said():
    model = network()
    optimizer = ll.optim.FriendlySAM(model.parameters(), SGD, lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, BATCHES[0])).backward()
    optimizer.first_step()
    scaler.scale(loss_of(model, BATCHES[0])).backward()
    with pytest.raises(InputError, match="FriendlySAM takes no GradScaler"):
        scaler.step(optimizer)
    with pytest.raises(InputError, match="memory must be at least 0 and below 1"):
        ll.optim.FriendlySAM(model.parameters(), SGD, memory=1.0, lr=0.1)
    with pytest.raises(InputError, match="sigma must .* not be negative"):
        ll.optim.FriendlySAM(model.parameters(), SGD, sigma=-1.0, lr=0.1)
    with pytest.raises(InputError, match="every must be at least 1"):
        ll.optim.LookSAM(model.parameters(), SGD, every=0, lr=0.1)
