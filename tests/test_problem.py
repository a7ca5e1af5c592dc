import random

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES
from lowland.errors import InputError
from lowland.problem import Problem

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) % 3


def snapshot(model: nn.Module) -> dict:
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "modes": [m.training for m in model.modules()],
        "grad": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "python": random.getstate(),
    }


def assert_same(before: dict, after: dict) -> None:
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, rtol=0, atol=0, msg=f"{key} changed")


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_on_the_model(name):
    case = CASES[name]
    problem = case.problem()
    model = problem.model
    model.train()
    first = next(model.parameters())
    first.requires_grad_(False)
    first.grad = torch.ones_like(first)
    before = snapshot(model)
    ll.measure(problem)
    assert_same(before, snapshot(model))


class Fragile(nn.Module):
    """Counts its calls in a buffer and fails when told to."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.broken = False

    def forward(self, x):
        self.calls += 1
        if self.broken:
            raise RuntimeError("broken on purpose")
        return self.dropout(self.layer(x))


def test_nothing_is_left_after_an_exception_either():
    model = Fragile().train()
    before = snapshot(model)
    problem = Problem(model, train=(X, Y))
    assert_same(before, snapshot(model))
    model.broken = True
    with pytest.raises(RuntimeError, match="on purpose"):
        ll.layer_hessian(problem, "layer")
    with pytest.raises(RuntimeError, match="on purpose"):
        ll.hessian(problem) @ torch.ones(15)
    assert_same(before, snapshot(model))


def test_a_shuffling_loader_does_not_advance_the_users_generator():
    data = torch.utils.data.TensorDataset(X, Y)
    model = nn.Linear(4, 3)
    state = torch.get_rng_state()
    Problem(model, train=torch.utils.data.DataLoader(data, shuffle=True, batch_size=2))
    assert torch.equal(state, torch.get_rng_state())


def test_losses_are_those_of_eval_mode_in_data_order():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    problem = Problem(model.train(), train=(X, Y), batch_size=3)
    expected = nn.functional.cross_entropy(model.eval()(X), Y, reduction="none")
    torch.testing.assert_close(problem.losses("train"), expected)


def test_it_works_where_gradients_are_switched_off():
    problem = Problem(nn.Linear(4, 3), train=(X, Y))
    expected = ll.layer_hessian(problem, "")
    with torch.no_grad():
        torch.testing.assert_close(ll.layer_hessian(problem, ""), expected)
    with torch.inference_mode():
        torch.testing.assert_close(ll.layer_hessian(problem, ""), expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ll.layer_hessian(problem, ""), expected)
    H, v = ll.hessian(problem), torch.ones(15)
    product = H @ v
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            torch.testing.assert_close(H @ v, product)


def test_dtype_measures_a_copy():
    model = nn.Linear(4, 3)
    problem = Problem(model, train=(X, Y), dtype=torch.float64)
    assert problem.losses().dtype == torch.float64
    assert model.weight.dtype == torch.float32


def test_the_problem_follows_the_model_as_it_trains():
    model = nn.Linear(4, 3)
    problem = Problem(model, train=(X, Y))
    before = problem.losses().mean()
    with torch.no_grad():
        model.weight.mul_(10)
    assert problem.losses().mean() != before


class Named(nn.Module):
    """Takes and returns what a Transformers model does."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, inputs_embeds, scale):
        return {"logits": self.head(inputs_embeds * scale)}


def test_dict_inputs_and_logits_in_a_dict():
    data = {"inputs_embeds": X, "scale": torch.ones(10, 1), "labels": Y}
    problem = Problem(Named(), train=data, batch_size=4)
    assert problem.losses().shape == (10,)
    assert ll.layer_hessian(problem, "head").shape == (12, 12)


def test_compiled_models_are_unwrapped():
    model = nn.Linear(4, 3)
    assert Problem(torch.compile(model), train=(X, Y)).model is model
    assert Problem(nn.DataParallel(model), train=(X, Y)).model is model


def test_select_by_name_glob_and_list():
    problem = CASES["mlp-relu"].problem()
    assert list(problem.select("*.weight")) == ["0.weight", "2.weight", "4.weight"]
    assert list(problem.select(["4.bias", "0.*"])) == ["0.weight", "0.bias", "4.bias"]
    with pytest.raises(InputError, match="there are 0.weight"):
        problem.select("1.weight")


def diverged() -> nn.Module:
    model = nn.Linear(4, 3)
    model.weight.data[0, 0] = float("nan")
    return model


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return nn.functional.dropout(self.layer(x))


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (nn.Linear(4, 3), {"train": None}, "no training data"),
        (lambda x: x, {}, "torch.nn.Module; got function"),
        (nn.ReLU(), {}, "no parameters"),
        (diverged(), {}, "'weight' holds 1 NaN"),
        (nn.Linear(5, 3), {}, "cannot run on the training inputs"),
        (nn.Linear(4, 2), {}, "labels run from 0 to 2, but the model has 2 outputs"),
        (nn.Linear(4, 3), {"train": (X, Y - 1)}, "labels run from -1 to 1"),
        (nn.Linear(4, 3), {"test": (X, Y + 5)}, "test labels run from 5 to 7"),
        (nn.Linear(4, 3), {"loss": "mse"}, r"\(8, 3\).*targets of shape \(8,\)"),
        (nn.LSTM(4, 3), {}, "returns tuple"),
        (nn.Linear(4, 3), {"batch_size": 0}, "batch_size must be at least 1"),
        (Random(), {}, "other outputs for the same inputs"),
    ],
)
def test_unusable_problems_are_refused_in_words(model, options, words):
    with pytest.raises(InputError, match=words):
        Problem(model, **{"train": (X, Y), **options})


def test_infinite_losses_are_reported():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.mul_(1e38)
    with pytest.raises(InputError, match="outputs on the training inputs are NaN or infinite"):
        Problem(model, train=(1e10 * X, Y))
    overflowing = torch.cat([X[:8], 1e10 * X[8:]])
    with pytest.raises(InputError, match="2 of 10 train losses are NaN or infinite"):
        Problem(model, train=(overflowing, Y)).losses()


def test_missing_test_data_is_said():
    with pytest.raises(InputError, match=r"pass test=\(inputs, targets\)"):
        Problem(nn.Linear(4, 3), train=(X, Y)).losses("test")


def test_half_precision_models_are_measured_in_float32():
    model = nn.Linear(4, 3).to(torch.bfloat16)
    problem = Problem(model, train=(X, Y))
    assert problem.dtype == torch.float32
    assert model.weight.dtype == torch.bfloat16
    assert ll.eigsh(ll.hessian(problem), 1).converged


class Mixing(nn.Module):
    """Normalises by the batch, also in eval mode."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x):
        return self.norm(self.layer(x))


def damaged() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    model[1].running_var[0] = float("inf")
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.LazyLinear(3), "'weight' has no values yet"),
        (nn.Linear(4, 3, device="meta"), "'weight' has no values yet"),
        (damaged(), "buffer '1.running_var' holds 1 NaN or infinite"),
        (Mixing(), "other samples of its batch"),
    ],
)
def test_models_without_a_loss_of_their_own_are_refused(model, words):
    with pytest.raises(InputError, match=words):
        Problem(model, train=(X, Y))
