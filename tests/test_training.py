"""One network against the update rule by hand; many at once against one at a time."""

import contextlib
import dataclasses
import math
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowland.errors import InputError
from lowland.training import METHODS, TrainingSettings, lenet, mlp, train, train_many
from lowland.training.settings import epochs_left
from lowland.training.stack import Dropouts
from sameness import assert_same


def test_weights_are_xavier_uniform_times_the_scale():
    network = mlp((100, 80, 10), scale=2.0)
    weight = network[1].weight
    bound = 2 * math.sqrt(6 / 180)
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    assert weight.var().item() == pytest.approx(bound**2 / 3, rel=0.05)
    assert network[1].bias is None
    assert torch.equal(weight, mlp((100, 80, 10), scale=2.0)[1].weight)
    assert not torch.equal(weight, mlp((100, 80, 10), scale=2.0, seed=1)[1].weight)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    return torch.randn(60, 3, generator=g) + 4.0 * y[:, None], y


def test_one_epoch_is_the_update_rule_by_hand():
    X, y = data()
    model, by_hand = mlp((3, 4, 2)), mlp((3, 4, 2))
    settings = TrainingSettings(learning_rate=0.3, batch_size=20, max_epochs=1, seed=5)
    train(model, (X, y), settings)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(5))
    for batch in order.split(20):
        loss = nn.functional.cross_entropy(by_hand(X[batch]), y[batch])
        grads = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for p, g in zip(by_hand.parameters(), grads, strict=True):
                p -= 0.3 * g
    for a, b in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_it_stops_when_the_whole_training_loss_is_below_the_goal():
    X, y = data()
    model = mlp((3, 4, 2))
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    done = train(model, (X, y), TrainingSettings(batch_size=10, stop_loss=0.05))
    assert done.converged
    assert done.losses[-1] < 0.05 <= min(done.losses[:-1])
    assert done.losses[-1] == pytest.approx(nn.functional.cross_entropy(model(X), y).item())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_the_epoch_limit_is_recorded_and_divergence_is_said():
    assert not train(
        mlp((3, 4, 2)), data(), TrainingSettings(batch_size=60, max_epochs=2)
    ).converged
    X, y = data()
    with pytest.raises(InputError, match="training diverged in epoch"):
        train(mlp((3, 4, 2)), (1e20 * X, y), TrainingSettings(learning_rate=1e10))
    with pytest.raises(InputError, match="batch_size is 61, but there are 60"):
        train(mlp((3, 4, 2)), data(), TrainingSettings(batch_size=61))
    with pytest.raises(InputError, match="learning_rate must be positive; got 0"):
        TrainingSettings(learning_rate=0)
    with pytest.raises(InputError, match="got \\(3,\\)"):
        mlp((3,))


@pytest.mark.parametrize("penalty", ["squared", "norm", "global_norm"])
def test_the_penalty_is_part_of_the_loss_for_its_epochs(penalty):
    X, y = data()
    model, by_hand = mlp((3, 4, 2), bias=True), mlp((3, 4, 2), bias=True)
    settings = TrainingSettings(
        batch_size=60, max_epochs=3, decay=0.1, penalty=penalty, decay_epochs=2
    )
    train(model, (X, y), settings)
    for epoch in (1, 2, 3):
        loss = F.cross_entropy(by_hand(X), y)
        if epoch <= 2:
            V, W = by_hand[1].weight, by_hand[3].weight
            loss = (
                loss
                + 0.1
                * {
                    "squared": V.square().sum() + W.square().sum(),
                    "norm": V.norm() + W.norm(),
                    "global_norm": (V.square().sum() + W.square().sum()).sqrt(),
                }[penalty]
            )
        grads = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for p, g in zip(by_hand.parameters(), grads, strict=True):
                p -= 0.1 * g
    for a, b in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_each_epoch_tells_loss_error_and_size():
    X, y = data()
    model = mlp((3, 4, 2))
    done = train(model, (X, y), TrainingSettings(batch_size=20, max_epochs=4))
    last = done.epochs[-1]
    assert last.error == (model(X).argmax(1) != y).double().mean().item()
    assert last.weight_norm == pytest.approx(
        math.sqrt(sum(p.square().sum().item() for p in model.parameters())), rel=1e-6
    )
    assert done.record().epochs == 4


@pytest.mark.parametrize("optimizer", [m for m in METHODS if m not in ("sgd", "sam_on")])
def test_every_optimiser_reaches_the_goal_and_leaves_the_random_state(optimizer):
    model, state = mlp((3, 8, 2)), torch.get_rng_state()
    rate = 0.01 if optimizer in ("adam", "rmsprop") else 0.1
    settings = TrainingSettings(
        optimizer, rate, batch_size=6, stop_loss=0.05, max_epochs=300, momentum=0.0
    )
    done = train(model, data(), settings)
    assert done.converged
    assert done.losses[-1] == pytest.approx(F.cross_entropy(model(data()[0]), data()[1]).item())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_the_estimate_of_epochs_is_exact_for_a_power_law():
    settings = TrainingSettings(stop_loss=1e-3, max_epochs=1000)
    losses = [2 * n**-1.5 for n in range(1, 41)]
    needed = (2 / 1e-3) ** (1 / 1.5)
    assert epochs_left(losses, settings) == pytest.approx(needed - 40)
    assert epochs_left([1.0, 1.0], settings) == 998  # no progress: until the limit
    assert epochs_left([1e-4, 1e-5], settings) == 0


# Many at once. In float64, so that only a wrong rule could make a difference.


def images(n: int = 44, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    pictures = torch.randn(n, 1, 12, 12, generator=g, dtype=torch.float64) + y[:, None, None, None]
    pictures[..., : 2 + seed] = 0  # a black edge, whose weights learn nothing
    return pictures, y


def dense(seed: int, dropout: float = 0.0) -> nn.Module:
    return mlp((144, 7, 5, 3), bias=seed % 2 == 0, dropout=dropout, scale=1 + seed / 4).double()


def conv(seed: int, dropout: float = 0.0) -> nn.Module:
    return lenet((1, 12, 12), 3, seed=seed, dropout=dropout).double()


class Residual(nn.Module):
    """Neither a sequence nor free of normalisation, but without batch statistics."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.norm, self.last = nn.Linear(144, 6), nn.LayerNorm(6), nn.Linear(6, 3)
            self.register_buffer("shift", torch.full((6,), 0.1 * seed))
        self.double()

    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last(h + self.norm(h).tanh() + self.shift)


RULES = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {"optimizer": "adam", "learning_rate": 0.003},
    "sam": {"optimizer": "sam", "momentum": 0.5, "radius": 0.2},
    "asam": {"optimizer": "asam"},
    "rmsprop": {"optimizer": "rmsprop", "learning_rate": 0.003},
    "rmsprop momentum": {"optimizer": "rmsprop", "learning_rate": 0.001, "momentum": 0.5},
    "friendly_sam": {"optimizer": "friendly_sam", "momentum": 0.5, "radius": 0.2},
    "look_sam": {"optimizer": "look_sam", "radius": 0.2},
    "functional_sam": {"optimizer": "functional_sam", "radius": 0.2},
    "ivon": {"optimizer": "ivon"},
    "ivon decay": {"optimizer": "ivon", "decay": 0.02, "decay_epochs": 2},
    "entropy_sgd": {"optimizer": "entropy_sgd"},
    "entropy_sgd momentum": {"optimizer": "entropy_sgd", "momentum": 0.5},
    "decay": {"decay": 0.02, "decay_epochs": 2},
    "norm": {"decay": 0.02, "penalty": "norm", "decay_epochs": None},
    "global_norm": {"decay": 0.02, "penalty": "global_norm", "decay_epochs": None},
}


@pytest.mark.parametrize("make", [dense, conv, Residual])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_stack_does_what_each_does_alone(make, rule):
    """With other learning rates, goals, data and label noise in one call; a ragged last batch."""
    X, y = images()
    noisy = y.clone()
    noisy[:5] = 0
    pairs = [(X, y), (X, noisy), images(seed=1), (X, y), images(n=30)]
    settings = [
        dataclasses.replace(
            TrainingSettings(**{"learning_rate": 0.02 + 0.01 * i, **rule}),
            batch_size=10 if i < 4 else 16,
            max_epochs=2 + i,
            stop_loss=1e-3,
            seed=i,
        )
        for i in range(5)
    ]
    models, alone = ([make(i) for i in range(5)] for _ in range(2))
    done = train_many(models, pairs, settings)
    for model, one, pair, its, trained in zip(models, alone, pairs, settings, done, strict=True):
        expected = train(one, pair, its)
        assert_same(model, one, rtol=1e-9)
        assert len(trained.epochs) == len(expected.epochs)
        assert trained.losses == pytest.approx(expected.losses, rel=1e-8)
        assert [e.error for e in trained.epochs] == [e.error for e in expected.epochs]
        assert [e.weight_norm for e in trained.epochs] == pytest.approx(
            [e.weight_norm for e in expected.epochs], rel=1e-8
        )


SCHEDULES = {
    "cosine": {"schedule": "cosine", "rate_floor": 0.1},
    "cyclical": {"schedule": "cyclical", "cycle": 3, "rate_floor": 0.2},
    "warm_restarts": {"schedule": "warm_restarts", "cycle": 2},
}
AVERAGES = [
    {"average": "swa", "average_from": 1},
    {"average": "ema", "average_decay": 0.7},
    {},
    {"average": "swa"},
    {"average": "ema", "average_from": 3, "average_decay": 0.9},
]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "sam", "ivon", "entropy_sgd"])
def test_a_stack_of_schedules_and_averages_does_what_each_does_alone(optimizer):
    """All in one stack, since a sweep may vary them; some end before the others."""
    X, y = images()
    kinds = [*SCHEDULES.values(), {}, SCHEDULES["warm_restarts"]]
    settings = [
        TrainingSettings(
            optimizer, 0.01 + 0.01 * i, batch_size=10, max_epochs=3 + i, seed=i, **kind, **average
        )
        for i, (kind, average) in enumerate(zip(kinds, AVERAGES, strict=True))
    ]
    models, alone = ([dense(1) for _ in settings] for _ in range(2))
    done = train_many(models, (X, y), settings)
    for model, one, its, trained in zip(models, alone, settings, done, strict=True):
        expected = train(one, (X, y), its)
        assert_same(model, one, rtol=1e-9)
        assert trained.losses == pytest.approx(expected.losses, rel=1e-8)
        assert trained.losses[-1] == pytest.approx(F.cross_entropy(model(X), y).item())


def test_sam_on_norms_in_a_stack_and_alone():
    X, y = images()
    settings = [TrainingSettings("sam_on", radius=0.5, max_epochs=2, seed=i) for i in range(2)]
    models, alone, plain = ([Residual(i) for i in range(2)] for _ in range(3))
    train_many(models, (X, y), settings)
    for i in range(2):
        train(alone[i], (X, y), settings[i])
        assert_same(models[i], alone[i], rtol=1e-9)
        train(plain[i], (X, y), dataclasses.replace(settings[i], optimizer="sam"))
        assert not torch.allclose(plain[i].last.weight, alone[i].last.weight)
    for trainer in (
        lambda m: train_many([m], (X, y), settings[:1]),
        lambda m: train(m, (X, y), settings[0]),
    ):
        with pytest.raises(InputError, match="no normalisation layer with weights"):
            trainer(dense(1))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_those_of_torch(name):
    its = TrainingSettings(learning_rate=0.3, max_epochs=7, **SCHEDULES[name])
    steps, low = 4, 0.3 * its.rate_floor
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = {
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7 * steps, low),
        "cyclical": lambda o: torch.optim.lr_scheduler.CyclicLR(
            o, low, 0.3, its.cycle * steps / 2, cycle_momentum=False
        ),
        "warm_restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
            o, its.cycle * steps, eta_min=low
        ),
    }[name](optimizer)
    for step in range(7 * steps):
        assert its.rate_at(step / steps) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "ivon", "entropy_sgd", "replicated_sgd"])
def test_a_schedule_sets_the_rate_of_every_optimiser(optimizer):
    """With a floor of 1 it is constant; a rate of nothing moves nothing."""
    X, y = images()
    its = TrainingSettings(optimizer, 0.01, batch_size=11, max_epochs=2)
    models = [dense(1) for _ in range(3)]
    train(models[0], (X, y), its)
    train(models[1], (X, y), dataclasses.replace(its, schedule="cosine", rate_floor=1.0))
    assert_same(models[1], models[0], rtol=1e-9)
    train(models[2], (X, y), dataclasses.replace(its, schedule="cosine"))
    assert not torch.allclose(models[2][1].weight, models[0][1].weight)


@pytest.mark.parametrize("average", ["swa", "ema"])
def test_an_average_is_that_of_the_weights_by_hand(average):
    """With BatchNorm, whose statistics are those of the averaged network."""
    X, y = images()
    its = TrainingSettings(
        learning_rate=0.05, batch_size=11, max_epochs=4, average=average, average_from=3, seed=2,
        average_decay=0.8,
    )  # fmt: skip
    model, by_hand = Normed(0), Normed(0)
    train(model, (X, y), its)
    order = torch.Generator().manual_seed(2)
    weights, mean, count = None, None, 0
    for epoch in range(1, 5):
        if epoch == 3:
            mean = [p.detach().clone() for p in by_hand.parameters()]
        for rows in torch.randperm(44, generator=order).split(11):
            loss = F.cross_entropy(by_hand(X[rows]), y[rows])
            grads = torch.autograd.grad(loss, list(by_hand.parameters()))
            with torch.no_grad():
                for p, g in zip(by_hand.parameters(), grads, strict=True):
                    p -= 0.05 * g
            weights = [p.detach().clone() for p in by_hand.parameters()]
            if epoch >= 3 and average == "ema":
                mean = [0.8 * m + 0.2 * w for m, w in zip(mean, weights, strict=True)]
        if epoch >= 3 and average == "swa":
            count += 1
            mean = [(m * (count - 1) + w) / count for m, w in zip(mean, weights, strict=True)]
    for p, m in zip(model.parameters(), mean, strict=True):
        torch.testing.assert_close(p.detach(), m, rtol=1e-9, atol=1e-10)
    torch.optim.swa_utils.update_bn(X.split(11), model)  # which it did itself
    (again,) = [b.clone() for n, b in model.named_buffers() if n.endswith("running_mean")]
    other = Normed(0)
    train(other, (X, y), its)
    torch.testing.assert_close(other.norm.running_mean, again)


def test_an_average_begins_where_it_should_and_is_never_missing():
    its = TrainingSettings(average="swa", max_epochs=8)
    assert [e for e in range(1, 9) if its.collects_after(e)] == [7, 8]
    cycles = dataclasses.replace(its, schedule="cyclical", cycle=2, average_from=3)
    assert [e for e in range(1, 9) if cycles.collects_after(e)] == [4, 6, 8]
    assert (its.least_epochs, cycles.least_epochs) == (7, 4)
    assert TrainingSettings(average="ema").least_epochs == 1
    done = train(mlp((3, 4, 2)), data(), dataclasses.replace(its, batch_size=10, stop_loss=10.0))
    assert (len(done.epochs), done.converged) == (7, True)
    with pytest.raises(InputError, match="would begin after epoch 9, but max_epochs is 8"):
        dataclasses.replace(its, average_from=9)


def test_an_optimiser_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "my_optimiser.py").write_text(
        "import torch\n"
        "def make(model, settings):\n"
        "    return torch.optim.SGD(model.parameters(), settings.learning_rate, nesterov=True,"
        " momentum=0.5)\n"
        "def nothing(model, settings):\n    return None\n"
        "def few(model):\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    X, y = images()
    its = TrainingSettings("my_optimiser:make", 0.01, batch_size=44, max_epochs=3)
    model, by_hand = dense(1), dense(1)
    train_many([model], (X, y), [its])
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.01, nesterov=True, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(by_hand(X), y).backward()
        optimizer.step()
    assert_same(model, by_hand, rtol=1e-9)
    for name, message in (
        ("nothing", r"must return a torch\.optim\.Optimizer; it returned NoneType"),
        ("few", "raised TypeError"),
    ):
        with pytest.raises(InputError, match=message):
            train(dense(1), (X, y), dataclasses.replace(its, optimizer=f"my_optimiser:{name}"))


def residual(seed: int, dropout: float) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(dropout), Residual(seed))


@pytest.mark.parametrize("make", [dense, conv, residual])
def test_a_run_does_not_depend_on_the_others_in_its_stack(make):
    """Initial weights, data order and dropout, also when others leave in the middle."""
    settings = [
        TrainingSettings(batch_size=8, learning_rate=0.02, max_epochs=9 - 3 * i, seed=i)
        for i in range(3)
    ]
    rates = (0.1, 0.2, 0.3)
    together = [make(i, rates[i]) for i in range(3)]
    train_many(together, images(), settings)
    for i in range(3):
        alone = [make(i, rates[i])]
        train_many(alone, images(), [settings[i]])
        assert_same(alone[0], together[i], rtol=1e-9)


def test_masks_have_the_rate_and_the_mean_of_dropout():
    models = [mlp((4, 50, 2), dropout=rate) for rate in (0.1, 0.6)]
    masks = Dropouts(models, torch.zeros(1, 4), [3, 4]).draw(400)["3.mask"]
    assert masks.shape == (2, 400, 50)
    for mask, rate in zip(masks, (0.1, 0.6), strict=True):
        assert mask.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)])
        # Five standard errors of 20,000 coins.
        assert (mask == 0).double().mean().item() == pytest.approx(
            rate, abs=5 * math.sqrt(rate * (1 - rate) / 20_000)
        )


def test_the_masks_are_applied_in_training_and_not_where_the_loss_is_taken():
    X, y = images()
    its = TrainingSettings(batch_size=44, max_epochs=1, learning_rate=0.5)
    dropped, whole = dense(1, 0.5), dense(1, 0.0)
    (trained,) = train_many([dropped], (X, y), [its])
    train_many([whole], (X, y), [its])
    assert trained.losses[0] == pytest.approx(F.cross_entropy(dropped.eval()(X), y).item())
    assert not torch.allclose(dropped[1].weight, whole[1].weight)


class Noisy(Residual):
    def forward(self, x):
        return super().forward(F.dropout(x, 0.5, self.training))


class Normed(Residual):
    def __init__(self, seed):
        super().__init__(seed)
        self.norm = nn.BatchNorm1d(6).double()


class Sloped(Residual):
    """Models that differ in a number which is neither a weight nor printed."""

    def __init__(self, seed):
        super().__init__(seed)
        self.slope = 1.0 + seed

    def forward(self, x):
        return super().forward(self.slope * x)


@pytest.mark.parametrize("make", [Noisy, Normed, Sloped])
def test_what_cannot_be_stacked_trains_alone(make):
    X, y = images()
    settings = [TrainingSettings(batch_size=11, max_epochs=3, seed=i) for i in range(2)]
    models, alone = ([make(i) for i in range(2)] for _ in range(2))
    train_many(models, (X, y), settings)
    for model, one, its in zip(models, alone, settings, strict=True):
        train(one, (X, y), its)
        assert_same(model, one, rtol=1e-9)
        assert model.training


def tied():
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 144), nn.Tanh(), nn.Linear(144, 144))
    model[3].weight = model[1].weight
    return nn.Sequential(*model, nn.Linear(144, 3))


def hooked():
    model = mlp((144, 5, 3))
    model[1].register_forward_hook(lambda module, args, out: 2 * out)
    return model


class Sum(nn.Module):
    """Its two parameters get one gradient."""

    def __init__(self):
        super().__init__()
        self.A, self.B = (nn.Parameter(torch.full((3, 144), 0.01 * i)) for i in (1, 2))
        self.unused = nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        return x.flatten(1) @ (self.A + self.B).mT


class Running(nn.Module):
    """Keeps statistics of its own, as a batch normalisation does."""

    def __init__(self):
        super().__init__()
        self.net = mlp((144, 5, 3))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        z = self.net(x)
        if self.training:
            self.mean = 0.9999 * self.mean + 1e-4 * z.detach().mean(0)
        return z - self.mean


class Doubled(nn.Sequential):
    """A sequence only by name."""

    def forward(self, x):
        return super().forward(x) * (2 if self.training else 1)


def doubled():
    return Doubled(*mlp((144, 5, 3)))


class Squeezed(nn.Module):
    """Its dropout does not see samples along the first dimension."""

    def __init__(self):
        super().__init__()
        self.net, self.drop = mlp((144, 5, 3)), nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(self.net(x).mT).mT


def shared_dropout():
    drop = nn.Dropout(0.3)
    one, two, three = nn.Linear(144, 5), nn.Linear(5, 5), nn.Linear(5, 3)
    return nn.Sequential(nn.Flatten(), one, drop, two, drop, three)


ODD = [tied, hooked, Sum, Running, doubled, Squeezed, shared_dropout]


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
def test_odd_modules_come_out_as_from_the_loop(make):
    X, y = images()
    its = TrainingSettings(
        batch_size=11, max_epochs=2, decay=0.01, momentum=0.5, learning_rate=0.01
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, alone = make().double(), make().double()
        alone.load_state_dict(model.state_dict())
    train_many([model], (X, y), [its])
    train(alone, (X, y), its)
    assert_same(model, alone, rtol=1e-9)


def test_a_loss_that_looks_at_the_batch_sees_one_run():
    X, y = images()

    def centred(z, y):
        return F.cross_entropy(z - z.mean(0), y, reduction="none")

    its = [TrainingSettings(batch_size=11, max_epochs=2, seed=i) for i in range(2)]
    models, alone = ([Residual(i) for i in range(2)] for _ in range(2))
    train_many(models, (X, y), its, loss=centred)
    for i in range(2):
        train(alone[i], (X, y), its[i], loss=centred)
        assert_same(models[i], alone[i], rtol=1e-9)


class OnlyInTraining(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.net, self.drop = mlp((144, 5, 3)), nn.Dropout(p)

    def forward(self, x):
        x = x.flatten(1)
        return self.net(self.drop(x) if self.training else x)


class Words(nn.Module):
    def __init__(self, p):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.words, self.drop, self.last = nn.Embedding(9, 4), nn.Dropout(p), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.drop(self.words(x)).mean(1))


@pytest.mark.parametrize("make", [OnlyInTraining, Words])
def test_dropout_acts_wherever_it_stands(make):
    """Whole numbers as inputs, a pass that training alone takes, and a share of all."""
    X, y = images()
    X = X if make is OnlyInTraining else torch.randint(9, (44, 6))
    its = TrainingSettings(batch_size=44, max_epochs=1, learning_rate=1.0)
    weights = []
    for p in (0.0, 0.5, 1.0):
        model = make(p).double()
        (done,) = train_many([model], (X, y), [its])
        assert done.failure is None
        weights.append(next(model.parameters()).detach())
        masks = Dropouts([model], X, [0]).draw(44)["drop.mask"]
        assert masks.dtype == torch.float64
        assert masks.max() == pytest.approx(1 / (1 - p) if p < 1 else 0.0)
    assert not torch.allclose(weights[0], weights[1])
    assert torch.equal(weights[2], next(make(1.0).double().parameters()))  # nothing gets through


def test_soft_labels_have_no_error_rate():
    X, y = images()
    soft = F.one_hot(y).double() * 0.8 + 0.2 / 3
    models = [dense(1), dense(1)]
    (many,) = train_many(models[:1], (X, soft), [TrainingSettings(max_epochs=2)])
    one = train(models[1], (X, soft), TrainingSettings(max_epochs=2))
    assert many.losses == pytest.approx(one.losses)
    assert many.epochs[0].error is one.epochs[0].error is None


@pytest.mark.parametrize("make", [Residual, Normed])  # in a stack, and alone
def test_training_leaves_only_weights_behind(make):
    X, y = images()
    model = make(0)
    model.norm.eval()
    model.first.weight.grad = torch.full_like(model.first.weight, 7.0)

    def stop(now):
        raise KeyboardInterrupt

    for progress in (lambda now: None, stop):
        with contextlib.suppress(KeyboardInterrupt):
            its = TrainingSettings("sam", batch_size=11, max_epochs=2)
            train_many([model], (X, y), [its], progress)
        assert [m.training for m in (model, model.first, model.norm)] == [True, True, False]
        assert (model.first.weight.grad == 7).all()
        assert model.last.weight.grad is None
        assert all(p.requires_grad for p in model.parameters())


def test_an_interrupt_between_the_two_passes_of_sam_leaves_no_perturbed_weights():
    X, y = images()
    calls = 0

    def loss(z, y):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return F.cross_entropy(z, y, reduction="none")

    its = TrainingSettings("sam", learning_rate=1e-9, radius=10.0, batch_size=11)
    model = dense(1)
    with pytest.raises(KeyboardInterrupt):
        train_many([model], (X, y), [its], loss=loss)
    assert_same(model, dense(1), rtol=1e-9)


def test_a_run_that_diverges_says_so_and_the_rest_go_on():
    X, y = images()
    settings = [
        TrainingSettings(batch_size=11, max_epochs=5, seed=i, learning_rate=rate)
        for i, rate in enumerate((0.01, 1e200, 0.02))
    ]
    models, alone = ([dense(i) for i in range(3)] for _ in range(2))
    good, bad, other = train_many(models, (X, y), settings)
    assert "diverged in epoch" in bad.failure
    assert "below 1e+200" in bad.failure
    assert not bad.converged
    assert (good.failure, other.failure) == (None, None)
    for i in (0, 2):
        train(alone[i], (X, y), settings[i])
        assert_same(models[i], alone[i], rtol=1e-9)


def test_progress_tells_runs_done_losses_and_time_left():
    told = []
    settings = [TrainingSettings(batch_size=11, max_epochs=2 + 2 * i) for i in range(3)]
    state, models = torch.get_rng_state(), [dense(i) for i in range(3)]
    done = train_many(models, images(), settings, told.append)
    # Models 0 and 2 have biases and form one stack, model 1 another.
    assert [now.done for now in told] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert [sorted(now.losses) for now in told] == [[0, 2]] * 2 + [[2]] * 4 + [[1]] * 4
    assert told[1].losses[2] == done[2].losses[1]
    assert all(now.total == 3 and now.seconds_left >= 0 for now in told)
    assert told[-1].seconds_left == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_the_time_of_a_stack_is_shared_among_its_runs():
    settings = [TrainingSettings(batch_size=8, max_epochs=n, seed=n) for n in (1, 2, 8)]
    began = time.perf_counter()
    done = train_many([dense(1) for _ in settings], images(), settings)
    elapsed = time.perf_counter() - began
    seconds = [trained.seconds for trained in done]
    assert seconds == sorted(seconds)
    assert 0 < sum(seconds) < elapsed


def test_an_interrupt_leaves_the_weights_reached_so_far():
    def stop(now):
        if now.epoch == 2:
            raise KeyboardInterrupt

    its = TrainingSettings(batch_size=11, max_epochs=5)
    model, expected = dense(1), dense(1)
    with pytest.raises(KeyboardInterrupt):
        train_many([model], images(), [its], stop)
    train(expected, images(), dataclasses.replace(its, max_epochs=2))
    assert_same(model, expected, rtol=1e-9)


def test_any_torch_loss():
    X, y = images()
    its = TrainingSettings(batch_size=11, max_epochs=3)
    for loss, targets in (
        (nn.CrossEntropyLoss(label_smoothing=0.1), y),
        ("mse", F.one_hot(y).double()),
        (nn.SmoothL1Loss(), F.one_hot(y).double()),
    ):
        model, alone = dense(1), dense(1)
        (done,) = train_many([model], (X, targets), [its], loss=loss)
        assert done.losses == pytest.approx(train(alone, (X, targets), its, loss=loss).losses)
        assert (done.epochs[0].error is None) == (targets is not y)


def test_what_does_not_fit_is_said():
    its = TrainingSettings()
    with pytest.raises(InputError, match="2 models, 2 data sets and 1 settings"):
        train_many([dense(0), dense(1)], images(), [its])
    with pytest.raises(InputError, match="batch_size is 25, but there are 20"):
        train_many([dense(0)], images(20), [its])
    for wrong, message in (
        ({"optimizer": "sdg"}, "optimizer must be one of sgd, adam"),
        ({"penalty": "l1"}, "penalty must be one of squared, norm, global_norm"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"decay": -1.0}, "decay must not be negative"),
        ({"radius": 0.1}, "belongs to sam, asam, sam_on, friendly_sam, look_sam, functional_sam"),
        ({"schedule": "cosinus"}, "schedule must be one of constant, cosine, cyclical, warm_res"),
        ({"average": "mean"}, "average must be one of none, swa, ema"),
        ({"average": "swa", "optimizer": "replicated_sgd"}, "is an average already"),
        ({"rate_floor": 1.5}, "rate_floor must be from 0 to 1"),
        ({"cycle": 0}, "cycle must be positive"),
        ({"optimizer": "ivon", "momentum": 0.5}, "ivon has its own momentum"),
    ):
        with pytest.raises(InputError, match=message):
            TrainingSettings(**wrong)
    with pytest.raises(InputError, match="12 x 12"):
        lenet((1, 8, 8))


def test_a_lenet_of_its_shape_and_without_global_randomness():
    state = torch.get_rng_state()
    network = lenet((3, 32, 32), 7)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert torch.equal(torch.get_rng_state(), state)
    dense = [
        m for m in lenet((3, 32, 32), hidden=(120, 25), padding=0) if hasattr(m, "in_features")
    ]
    assert [m.in_features for m in dense] == [400, 120, 25]  # Feng & Tu, Methods
    again = lenet((3, 32, 32), 7).state_dict()
    assert all(torch.equal(p, again[name]) for name, p in network.state_dict().items())
