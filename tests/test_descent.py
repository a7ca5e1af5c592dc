"""The compiled loop against the stack in float64, and against the update rule by hand."""

import dataclasses
import itertools
import math
import os
import random
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowland.errors import InputError
from lowland.losses import resolve
from lowland.training import Training, TrainingSettings, mlp, train_many
from lowland.training.compiled import library
from lowland.training.descent import Descent, SparseInputs

Data = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    """Compile anew, into a cache of our own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        library.cache_clear()
        yield
        library.cache_clear()


def images(n: int, inputs: int, classes: int, seed: int = 0) -> Data:
    """Images of which a fifth is not zero, the first one black; the last class has no sample."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(max(1, classes - 1), (n,), generator=g)
    ink = torch.rand(classes, inputs, generator=g)[y] + torch.rand(n, inputs, generator=g) / 4
    X = ink * (torch.rand(n, inputs, generator=g) < 0.2)
    X[0] = 0
    return X, y


def loop_of(model: nn.Module, data: Data, settings: TrainingSettings, loss="cross_entropy"):
    return Descent.of(model, data, settings, resolve(loss).on(data[1]), None, SparseInputs())


def both_ways(
    model: nn.Module, data: Data, settings: TrainingSettings, judged: int | None = None
) -> tuple[tuple[nn.Module, Training], tuple[nn.Module, Training]]:
    """The model trained by the loop, and by the stack in float64."""
    assert loop_of(model, data, settings) is not None
    other = type(model)(*(type(m)(**_arguments(m)) for m in model)).double()
    other.load_state_dict({name: v.double() for name, v in model.state_dict().items()})
    (loops,) = train_many([model], data, [settings], judged=[judged])
    (stacks,) = train_many([other], (data[0].double(), data[1]), [settings], judged=[judged])
    return (model, loops), (other, stacks)


def _arguments(module: nn.Module) -> dict[str, object]:
    if isinstance(module, nn.Linear):
        sizes = {"in_features": module.in_features, "out_features": module.out_features}
        return {**sizes, "bias": module.bias is not None}
    return {"p": module.p} if isinstance(module, nn.Dropout) else {}


def assert_alike(loops: tuple[nn.Module, Training], stacks: tuple[nn.Module, Training]) -> None:
    """Up to the rounding of a few steps in float32."""
    for p, q in zip(loops[0].parameters(), stacks[0].parameters(), strict=True):
        torch.testing.assert_close(p.double(), q, rtol=1e-4, atol=1e-5)
    a, b = (done.epochs for _, done in (loops, stacks))
    assert [e.loss for e in a] == pytest.approx([e.loss for e in b], rel=1e-4, abs=1e-6)
    assert [e.weight_norm for e in a] == pytest.approx([e.weight_norm for e in b], rel=1e-5)
    assert [e.error for e in a] == [e.error for e in b]


def network(seed: int) -> nn.Sequential:
    """One to five layers of one to a hundred units, some with biases, some with dropout."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 100) for _ in range(draw.randint(1, 5))]
    sizes = [draw.randint(5, 100), *sizes[:-1], draw.randint(2, 40)]
    modules: list[nn.Module] = [nn.Flatten()] if seed % 2 else []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for i, (before, after) in enumerate(itertools.pairwise(sizes)):
            if i:
                modules.append(nn.ReLU())
                if draw.random() < 0.4:
                    modules.append(nn.Dropout(draw.choice([0.1, 0.5])))
            modules.append(nn.Linear(before, after, bias=draw.random() < 0.5))
            nn.init.xavier_uniform_(modules[-1].weight)
        return nn.Sequential(*modules)


@pytest.mark.parametrize("seed", range(12))
def test_a_few_epochs_are_those_of_the_stack(seed):
    model, draw = network(seed), random.Random(seed + 100)
    linears = [m for m in model if isinstance(m, nn.Linear)]
    n = draw.randint(1, 70)
    data = images(n, linears[0].in_features, linears[-1].out_features, seed)
    settings = TrainingSettings(
        learning_rate=draw.choice([0.05, 0.2]),
        batch_size=draw.randint(1, n),
        schedule=draw.choice(["constant", "cosine", "cyclical", "warm_restarts"]),
        cycle=2,
        rate_floor=0.1,
        decay=draw.choice([0.0, 0.02]),
        penalty=draw.choice(["squared", "norm", "global_norm"]),
        decay_epochs=draw.choice([1, None]),
        max_epochs=2,
        seed=seed,
    )
    assert_alike(*both_ways(model, data, settings, judged=draw.choice([None, 1 + n // 2])))


RULES = {
    "plain": {},
    "squared": {"decay": 0.02},
    "norm": {"decay": 0.02, "penalty": "norm"},
    "global_norm": {"decay": 0.02, "penalty": "global_norm"},
    "decay that ends": {"decay": 0.05, "decay_epochs": 1},
    "cosine": {"schedule": "cosine", "rate_floor": 0.1},
    "cyclical": {"schedule": "cyclical", "cycle": 2},
    "ragged": {"batch_size": 17},
    "one by one": {"batch_size": 1, "learning_rate": 0.01},
    "all at once": {"batch_size": 60},
}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_setting_is_that_of_the_stack(rule, dropout):
    settings = TrainingSettings(**{"batch_size": 20, "max_epochs": 2, "seed": 3, **rule})
    model = mlp((90, 20, 9, 5), bias=True, dropout=dropout)
    assert_alike(*both_ways(model, images(60, 90, 5), settings))


def test_one_epoch_is_the_update_rule_by_hand():
    X, y = images(50, 64, 4)
    model, by_hand = mlp((64, 12, 4)), mlp((64, 12, 4)).double()
    settings = TrainingSettings(learning_rate=0.3, batch_size=20, max_epochs=1, seed=5)
    assert loop_of(model, (X, y), settings) is not None
    (done,) = train_many([model], (X, y), [settings])
    for rows in torch.randperm(50, generator=torch.Generator().manual_seed(5)).split(20):
        loss = F.cross_entropy(by_hand(X[rows].double()), y[rows])
        grads = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for p, g in zip(by_hand.parameters(), grads, strict=True):
                p -= 0.3 * g
    for p, q in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(p.double(), q, rtol=1e-5, atol=1e-6)
    outputs = by_hand(X.double())
    assert done.losses == pytest.approx([F.cross_entropy(outputs, y).item()], rel=1e-5)
    assert done.epochs[0].error == (outputs.argmax(1) != y).double().mean().item()


def test_many_runs_reach_the_goal_in_about_the_epochs_of_the_stack(monkeypatch):
    """With data of their own; each as if it were alone."""
    pairs = [images(120, 100, 4, seed) for seed in range(4)]
    settings = [TrainingSettings(batch_size=10, stop_loss=0.02, seed=seed) for seed in range(4)]
    heard = []
    models = [mlp((100, 16, 4), seed=seed) for seed in range(4)]
    loops = train_many(models, pairs, settings, heard.append)
    alone = mlp((100, 16, 4), seed=2)
    assert train_many([alone], pairs[2], settings[2:3])[0].losses == loops[2].losses
    assert all(map(torch.equal, models[2].parameters(), alone.parameters()))
    monkeypatch.setenv("LOWLAND_KERNEL", "off")
    stacks = train_many([mlp((100, 16, 4), seed=seed) for seed in range(4)], pairs, settings)
    for model, (X, y), a, b in zip(models, pairs, loops, stacks, strict=True):
        assert a.converged
        assert b.converged
        assert abs(len(a.epochs) - len(b.epochs)) <= 1 + len(b.epochs) // 20
        assert a.losses[-1] == pytest.approx(F.cross_entropy(model(X), y).item(), rel=1e-4)
    assert (heard[-1].done, heard[-1].total, heard[-1].part) == (4, 4, 1.0)
    assert len(heard) == sum(len(done.epochs) for done in loops)


def test_divergence_is_told_and_the_others_go_on():
    data, settings = images(60, 90, 5), TrainingSettings(batch_size=20, max_epochs=3)
    wild = dataclasses.replace(settings, learning_rate=1e20)
    tried = [mlp((90, 20, 9, 5)) for _ in range(2)]
    assert all(loop_of(m, data, s) for m, s in zip(tried, (wild, settings), strict=True))
    first, second = train_many(tried, data, [wild, settings])
    assert first.failure is not None
    assert "training diverged in epoch" in first.failure
    assert second.failure is None
    assert all(math.isfinite(loss) for loss in second.losses)


def test_an_interrupt_leaves_the_weights_of_the_last_epoch():
    data, settings = images(60, 90, 5), TrainingSettings(batch_size=20, max_epochs=9)
    model, expected = mlp((90, 20, 9, 5)), mlp((90, 20, 9, 5))

    def interrupt(now):
        if now.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_many([model], data, [settings], interrupt)
    train_many([expected], data, [dataclasses.replace(settings, max_epochs=2)])
    assert all(map(torch.equal, model.parameters(), expected.parameters()))


def test_nothing_but_the_weights_is_changed():
    model, data = mlp((90, 20, 9, 5), dropout=0.3).eval(), images(60, 90, 5)
    model[1].train()
    state, modes = torch.get_rng_state(), [m.training for m in model.modules()]
    train_many([model], data, [TrainingSettings(batch_size=20, max_epochs=1)])
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(data[0], images(60, 90, 5)[0])


def test_runs_of_another_kind_are_left_to_torch():
    (X, y), plain = images(60, 90, 5), TrainingSettings(batch_size=20)
    chain = mlp((90, 20, 9, 5))
    assert loop_of(chain, (X, y), plain) is not None
    assert loop_of(chain, (X, y), plain, nn.CrossEntropyLoss()) is not None
    for loss in (nn.CrossEntropyLoss(label_smoothing=0.1), "normalized_cross_entropy"):
        assert loop_of(chain, (X, y), plain, loss) is None
    assert loop_of(chain, (X, y), plain, nn.CrossEntropyLoss(weight=torch.ones(5))) is None
    for other in ({"optimizer": "adam"}, {"momentum": 0.9}, {"average": "ema"}):
        assert loop_of(chain, (X, y), TrainingSettings(batch_size=20, **other)) is None
    assert loop_of(chain, (X + 1, y), plain) is None
    assert loop_of(chain, (X, torch.full_like(y, -100)), plain) is None
    assert loop_of(chain, (X, y + 1 + (y == 0)), plain) is not None
    assert loop_of(chain, (X, y + 5), plain) is None
    assert loop_of(mlp((90, 20, 9, 5)).double(), (X.double(), y), plain) is None
    first, relu, last = nn.Linear(90, 5), nn.ReLU(), nn.Linear(5, 5)
    for modules in (
        (first, nn.Tanh(), last),
        (first, last),
        (first, relu),
        (nn.Dropout(), first, relu, last),
        (first, relu, relu, last),
        (first, relu, last, relu, last),
        (relu, first),
        (),
    ):
        assert loop_of(nn.Sequential(*modules), (X, y), plain) is None
    first.register_forward_hook(lambda *_: None)
    assert loop_of(nn.Sequential(first, relu, last), (X, y), plain) is None


def test_it_can_be_switched_off(monkeypatch):
    given = mlp((90, 20, 9, 5)), images(60, 90, 5), TrainingSettings(batch_size=20)
    monkeypatch.setenv("LOWLAND_KERNEL", "off")
    assert loop_of(*given) is None
    monkeypatch.setenv("LOWLAND_KERNEL", "fast")
    with pytest.raises(InputError, match="LOWLAND_KERNEL is 'fast'; it must be 'on' or 'off'"):
        loop_of(*given)


# As a process of its own: what it trains with, and the loss it ends with.
PROCESS = """if True:
    import torch
    from test_descent import images, loop_of
    from lowland.training import TrainingSettings, mlp, train_many
    settings = TrainingSettings(batch_size=20, max_epochs=2)
    model, data = mlp((91, 7, 5)), images(60, 91, 5)
    loop = loop_of(model, data, settings)
    print("torch" if loop is None else "loop", train_many([model], data, [settings])[0].losses[-1])
"""


def started(cache: object, **environment: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    variables = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache), **environment}
    command = [sys.executable, "-W", "error", "-c", PROCESS]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True)


def printed(process: "subprocess.Popen[str]") -> list[str]:
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    return out.split()


@pytest.mark.slow
def test_without_a_compiler_torch_trains(tmp_path):
    """Nor is anything said, or left in the cache."""
    by, loss = printed(started(tmp_path, PATH=str(tmp_path)))
    assert by == "torch"
    assert [*tmp_path.rglob("*.so")] == []
    assert float(loss) == pytest.approx(float(printed(started(tmp_path))[1]), rel=1e-4)


@pytest.mark.slow
def test_processes_may_compile_at_once_and_share_the_result(tmp_path):
    processes = [started(tmp_path) for _ in range(2)]
    results = {tuple(printed(process)) for process in processes}
    assert len(results) == 1
    assert {by for by, _ in results} == {"loop"}
    file, mark = sorted((tmp_path / "lowland").iterdir())
    assert (file.suffix, mark.suffix) == (".so", ".sha256")
    made = file.stat().st_mtime_ns
    assert tuple(printed(started(tmp_path, PATH=""))) in results  # no compiler any more
    file.write_bytes(b"")
    assert tuple(printed(started(tmp_path))) in results
    assert file.stat().st_mtime_ns != made


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    assert printed(started(tmp_path / "file"))[0] == "loop"
    assert (tmp_path / "file").read_text() == "not a directory"
