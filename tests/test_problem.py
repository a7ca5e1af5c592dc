import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import lowland as ll
from cases import CASES, some_fast
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


def assert_untouched(before: dict, after: dict) -> None:
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, rtol=0, atol=0, msg=f"{key} changed")


@pytest.mark.parametrize("name", some_fast("mlp-relu", "resnet", "tied"))
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
    assert_untouched(before, snapshot(model))


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
    assert_untouched(before, snapshot(model))
    model.broken = True
    with pytest.raises(RuntimeError, match="on purpose"):
        ll.layer_hessian(problem, "layer")
    with pytest.raises(RuntimeError, match="on purpose"):
        ll.hessian(problem) @ torch.ones(15)
    assert_untouched(before, snapshot(model))


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


def test_a_gradient_takes_as_many_samples_at_once_as_fit_the_memory():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 100), nn.Tanh(), nn.Linear(100, 3)).double()
    batches = []
    model.register_forward_hook(lambda module, args, outputs: batches.append(len(outputs)))
    loss, slopes = Problem(model, train=(X.double(), Y)).gradient()
    few = Problem(model, train=(X.double(), Y), memory=4 * 3000)  # three graphs of some 100 numbers
    batches.clear()
    same_loss, same = few.gradient()
    assert max(batches) < 4
    assert same_loss == pytest.approx(loss)
    for name, slope in slopes.items():
        torch.testing.assert_close(same[name], slope)


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
    overflowing = torch.cat([X, X, 1e10 * X[8:]])
    with pytest.raises(InputError, match="2 of 22 train losses are NaN or infinite"):
        Problem(model, train=(overflowing, torch.cat([Y, Y, Y[8:]]))).losses()


class Reassigning(nn.Module):
    """Puts new tensors in the place of its buffers, and keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.free = nn.Parameter(torch.ones(3))  # differentiated sample by sample, in vmap
        self.register_buffer("count", torch.tensor(1.0))
        self.register_buffer("mean", torch.zeros(4))
        self.calls, self.seen = 0, None

    def forward(self, x):
        self.count, self.mean = self.count + 1, 0.9 * self.mean + 0.1 * x.mean(0)
        self.calls, self.seen = self.calls + 1, x
        return self.layer(x) * self.free


def test_buffers_and_attributes_that_a_forward_pass_replaces_are_put_back():
    model = Reassigning()
    count, mean = model.count, model.mean
    problem = Problem(model, train=(X, Y), test=(X, Y))
    for use in (
        lambda: None,
        lambda: ll.measure(problem, ["trace", "gradient_variance", "keskar_sharpness"]),
        lambda: ll.hessian(problem) @ torch.ones(18),
        lambda: ll.layer_hessian(problem, "layer"),
    ):
        use()
        assert model.count is count
        assert model.mean is mean
        assert (count.item(), mean.tolist()) == (1.0, [0.0] * 4)
        assert (model.calls, model.seen) == (0, None)


@pytest.mark.parametrize(
    "replace",
    [
        lambda m: nn.utils.vector_to_parameters(torch.linspace(-1, 1, 15), m.parameters()),
        lambda m: m.load_state_dict(
            {"weight": torch.ones(3, 4), "bias": torch.arange(3.0)}, assign=True
        ),
        lambda m: setattr(m.weight, "data", 2 * m.weight.data),
    ],
)
def test_weights_that_are_replaced_are_followed_everywhere(replace):
    model = nn.Linear(4, 3)
    problem = Problem(model, train=(X, Y))
    replace(model)
    fresh = Problem(model, train=(X, Y))
    torch.testing.assert_close(
        problem.losses(), nn.functional.cross_entropy(model(X), Y, reduction="none").detach()
    )
    torch.testing.assert_close(ll.layer_hessian(problem, ""), ll.layer_hessian(fresh, ""))
    torch.testing.assert_close(ll.hessian(problem).dense(), ll.hessian(fresh).dense())
    assert problem.gradient()[0] == fresh.gradient()[0]


def test_a_model_that_lost_a_parameter_is_said():
    model = nn.Linear(4, 3)
    problem = Problem(model, train=(X, Y))
    nn.utils.parametrizations.weight_norm(model)
    with pytest.raises(InputError, match="no parameter 'weight' any more"):
        problem.losses()


def test_frozen_parameters_are_constants_unless_asked_for():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    data = (X.double(), Y)
    problem = Problem(model, train=data)
    assert list(problem.params) == ["0.bias", "2.weight"]
    assert list(problem.frozen) == ["0.weight", "2.bias"]
    every = Problem(model, train=data, params="all")
    assert list(every.params) == [n for n, _ in model.named_parameters()]
    assert every.frozen == {}
    torch.testing.assert_close(problem.losses(), every.losses())
    H = ll.hessian(problem)
    whole = ll.hessian(every, ["0.bias", "2.weight"]).dense()
    torch.testing.assert_close(H.dense(), whole)
    assert ll.trace(H).value == pytest.approx(whole.trace().item())
    diagonal = torch.cat([d.flatten() for d in ll.diagonal(problem).values()])
    torch.testing.assert_close(diagonal, whole.diagonal())
    assert list(problem.gradient()[1]) == ["0.bias", "2.weight"]
    with pytest.raises(InputError, match=r"'0' is frozen .Problem.params='all'."):
        ll.layer_hessian(problem, "0")
    with pytest.raises(InputError, match=r"every parameter of the model is frozen"):
        Problem(model.requires_grad_(False), train=data)
    assert Problem(model, train=data, params="all").losses().shape == (10,)


def penalised(model, batch):
    """Cross-entropy and the squared slope of the inputs: a second pass through the model."""
    x = batch.inputs.detach().requires_grad_()
    losses = nn.functional.cross_entropy(model(x), batch.targets, reduction="none")
    (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    return losses + slope.square().sum(1)


def test_a_loss_that_runs_the_model_itself():
    """Against dense autograd; what needs outputs says that it does not apply."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    x = X.double()
    problem = Problem(model, ll.ModelLoss(penalised), (x, Y), (x + 0.1, Y), batch_size=4)
    w = nn.utils.parameters_to_vector(model.parameters()).detach()

    class Whole:
        inputs, targets = x, Y

    def mean_loss(v: torch.Tensor) -> torch.Tensor:
        params = shaped(v)
        return penalised(lambda z: torch.func.functional_call(model, params, (z,)), Whole).mean()

    def shaped(v: torch.Tensor) -> dict:
        parts = v.split([p.numel() for p in model.parameters()])
        named = model.named_parameters()
        return {n: part.view_as(p) for (n, p), part in zip(named, parts, strict=True)}

    exact = torch.autograd.functional.hessian(mean_loss, w)
    H = ll.hessian(problem)
    torch.testing.assert_close(H.dense(), exact)
    assert ll.trace(H).value == pytest.approx(exact.trace().item())
    value, slopes = problem.gradient()
    assert value == pytest.approx(mean_loss(w).item())
    (slope,) = torch.autograd.grad(mean_loss(w.requires_grad_()), w)
    torch.testing.assert_close(torch.cat([g.flatten() for g in slopes.values()]), slope)
    assert problem.losses("test").shape == (10,)
    for needs_outputs in (
        lambda p: ll.ggn(p).dense(),
        lambda p: ll.fisher(p, labels="model").dense(),
        lambda p: ll.layer_hessian(p, "0"),
        Problem.wrong,
    ):
        with pytest.raises(InputError, match="penalised"):
            needs_outputs(problem)
    found = ll.measure(problem, ["trace", "train_error", "flat_part", "fisher_trace"])
    each = [
        torch.autograd.grad(part, list(model.parameters()), retain_graph=True)
        for part in penalised(model, Whole).unbind()
    ]
    squares = sum(float(g.square().sum()) for gs in each for g in gs) / 10
    assert found["fisher_trace"].value == pytest.approx(squares)
    assert "does not apply" in found["train_error"].reason
    assert "does not apply" in found["flat_part"].reason


def mixing(z, y):
    losses = nn.functional.cross_entropy(z, y, reduction="none")
    return losses * (1 + losses.mean())


def mixing_model(model, batch):
    losses = nn.functional.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
    return losses * (1 + losses.mean())


@pytest.mark.parametrize("loss", [mixing, ll.ModelLoss(mixing_model)])
def test_a_loss_that_mixes_samples_is_refused(loss):
    with pytest.raises(InputError, match=r"mixes samples|other samples of its batch"):
        Problem(nn.Linear(4, 3), loss, train=(X, Y))


class Sometimes(nn.Module):
    """Random in half of its calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * (1 + (torch.rand(()) < 0.5))


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_models_that_are_random_now_and_then_do_not_slip_through(batch_size):
    for seed in range(40):
        torch.manual_seed(seed)
        with pytest.raises(InputError, match=r"other outputs for the same inputs|on chance"):
            Problem(Sometimes(), train=(X, Y), batch_size=batch_size)


@pytest.mark.parametrize(
    ("model", "targets", "words"),
    [
        (nn.Linear(4, 1), torch.randn(10, 1), "pass loss='mse' for a regression"),
        (nn.Linear(4, 1), torch.randn(10), "pass loss='mse' for a regression"),
        (nn.Linear(4, 1), torch.zeros(10).long(), "two classes or more"),
        (nn.Linear(4, 3), torch.randn(10, 3), "no shares of classes"),
        (nn.Linear(4, 3), torch.rand(10, 3), "no shares of classes"),
        (nn.Linear(4, 3), torch.rand(10, 3) - 0.5, "not negative and add up to 1"),
        (nn.Linear(4, 3), Y.double(), r"whole numbers \(targets.long\(\)\) for class labels"),
    ],
)
def test_a_forgotten_loss_is_noticed(model, targets, words):
    with pytest.raises(InputError, match=words):
        Problem(model, train=(X, targets))
    shares = torch.rand(10, 3).softmax(1)
    assert Problem(nn.Linear(4, 3), train=(X, shares)).losses().shape == (10,)


class Vector(nn.Module):
    """No matrix among its parameters, and one of them without a dimension."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4)), nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        return (x * self.weight * self.scale)[:, :3]


class Single(nn.Module):
    """Outputs of shape (N,)."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x))).squeeze(1)


@pytest.mark.parametrize(
    ("model", "loss", "targets"),
    [
        (Vector(), "cross_entropy", Y),
        (Single(), "mse", X[:, 0]),
        (Single(), nn.BCEWithLogitsLoss(), (Y == 0).float()),
    ],
)
def test_unusual_shapes_are_measured(model, loss, targets):
    model = model.double()
    problem = Problem(model, loss, (X.double(), targets), (X.double() + 0.1, targets))
    H = ll.hessian(problem)
    assert ll.trace(H).value == pytest.approx(H.dense().trace().item())
    torch.testing.assert_close(
        torch.cat([d.flatten() for d in ll.diagonal(problem).values()]), H.dense().diagonal()
    )
    names = ["trace", "condition_number", "fisher_trace", "relative_flatness", "flat_part"]
    for row in ll.measure(problem, names).values():
        assert row.value is not None or row.reason.startswith("does not apply"), row


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_every_public_call_works_whatever_the_caller_has_switched_off(context):
    def everything() -> list[float]:
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3))
        nn.utils.vector_to_parameters(torch.linspace(-1, 1, 33).sin(), model.parameters())
        x = X.clone()  # of inference mode, as the model is, where that is on
        problem = Problem(model, train=(x, Y), test=(x + 0.1, Y))
        H = ll.hessian(problem)
        rows = ll.measure(problem, ["trace", "gradient_variance", "keskar_sharpness", "pac_bayes"])
        return [
            *(ll.trace(A).value for A in (H, ll.ggn(problem), ll.fisher(problem))),
            *(H @ torch.ones(33)).tolist(),
            *ll.eigsh(H, 2).values.tolist(),
            float(ll.diagonal(problem)["0.weight"].sum()),
            float(ll.spectral_density(H).weights.sum()),
            float(ll.layer_hessian(problem, "0").sum()),
            ll.trace(ll.layer_operator(problem, "0")).value,
            ll.duality(problem, "3").eq9,
            float(ll.rescale(problem, "layers", 2.0).losses().sum()),
            problem.gradient()[0],
            *(row.value for row in rows.values()),
        ]

    expected = everything()
    with context():
        assert everything() == pytest.approx(expected, rel=1e-5)


class Recomputing(nn.Module):
    """Activation checkpointing, of either kind."""

    def __init__(self, reentrant: bool):
        super().__init__()
        self.first, self.last, self.reentrant = nn.Linear(4, 5), nn.Linear(5, 3), reentrant

    def forward(self, x):
        return self.last(checkpoint(self.first, x, use_reentrant=self.reentrant))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_is_off_while_a_model_is_measured(reentrant):
    torch.manual_seed(0)
    model = Recomputing(reentrant)
    plain = nn.Sequential(model.first, model.last)
    one, two = (ll.hessian(Problem(m, train=(X, Y))) for m in (model, plain))
    torch.testing.assert_close(one.dense(), two.dense())
    torch.testing.assert_close(
        ll.layer_hessian(one.problem, "first"), ll.layer_hessian(two.problem, "0")
    )


class PartlyCompiled(nn.Module):
    """A submodule, a submodule in place, and a function that torch.compile made."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.first.compile(backend="aot_eager")
        self.compiled = torch.compile(self.last, backend="aot_eager")
        self.bend = torch.compile(torch.tanh, backend="aot_eager")

    def forward(self, x):
        return self.compiled(self.bend(self.first(x)))


def test_compiled_parts_of_a_model_run_as_they_were_written_while_it_is_measured():
    torch.manual_seed(0)
    model = PartlyCompiled()
    plain = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    weights = dict(zip(plain.state_dict(), model.state_dict().values(), strict=False))
    plain.load_state_dict(weights)
    one, two = (ll.hessian(Problem(m, train=(X, Y))) for m in (model, plain))
    assert one.strategy == two.strategy
    torch.testing.assert_close(one.dense(), two.dense())
    assert ll.trace(one).value == pytest.approx(ll.trace(two).value)


class Saving(nn.Module):
    """Keeps for the backward pass something else than what was computed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t + 1):
            return self.layer(x).tanh()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Saving(), "hooks on saved tensors"),
        (Complex(), "'weight' is complex"),
        (nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3).double()), "several precisions"),
        (
            nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(0, 1)),
            r"outputs of shape \(10, 3\) for 5 samples",
        ),
    ],
)
def test_models_that_cannot_be_measured_are_refused_in_words(model, words):
    with pytest.raises(InputError, match=words):
        Problem(model, train=(X, Y))


def test_one_precision_can_be_asked_for():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3).double())
    assert Problem(model, train=(X, Y), dtype=torch.float64).losses().dtype == torch.float64


class Backward(torch.autograd.Function):
    """A tanh that can be differentiated only once."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * (1 - ctx.saved_tensors[0].tanh() ** 2)


class Once(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(Backward.apply(self.first(x)))


def test_finite_differences_of_single_samples():
    torch.manual_seed(0)
    model = Once().double()
    H = ll.hessian(Problem(model, train=(X.double(), Y), batch_size=1))
    assert H.strategy == "finite differences of gradients"
    twice = nn.Sequential(model.first, nn.Tanh(), model.last)
    exact = ll.hessian(Problem(twice, train=(X.double(), Y))).dense()
    torch.testing.assert_close(H.dense(), exact, rtol=1e-4, atol=1e-6)


class Breaking(nn.Module):
    """Fails in its own way once it is told to."""

    def __init__(self):
        super().__init__()
        self.layer, self.broken = nn.Linear(4, 3), False

    def forward(self, x):
        if self.broken:
            raise KeyError("broken on purpose")
        return self.layer(x)


def test_a_measure_that_fails_says_why_and_the_others_stand():
    model = Breaking()
    problem = Problem(model, train=(X, Y), test=(X, Y))
    model.broken = True
    found = ll.measure(problem, ["trace", "weight_norm"])
    assert found["weight_norm"].value == pytest.approx(
        nn.utils.parameters_to_vector(model.parameters()).norm().item()
    )
    assert found["trace"].value is None
    assert "failed: KeyError: 'broken on purpose' (test_problem.py" in found["trace"].reason


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


class Causal(nn.Module):
    """Attention with a mask of minus infinity in a buffer, and an infinite one it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Linear(4, 12), nn.Linear(4, 3)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))
        self.register_buffer("best", torch.tensor(torch.inf))

    def forward(self, x):
        q, k, v = self.mix(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) + self.mask
        return self.head((scores.softmax(-1) @ v).mean(1))


class Written(Causal):
    """The same network with the mask in its forward pass."""

    def forward(self, x):
        q, k, v = self.mix(x).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2)).masked_fill(self.mask < 0, -torch.inf)
        return self.head((scores.softmax(-1) @ v).mean(1))


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_masks_of_minus_infinity_in_buffers_are_measured(dtype):
    torch.manual_seed(0)
    data = torch.randn(12, 5, 4), torch.arange(12) % 3
    model, other = Causal(), Written()
    other.load_state_dict(model.state_dict())
    names = ["trace", "largest_eigenvalue", "frobenius_norm", "normalized_sharpness"]
    rows, expected = (
        ll.measure(Problem(m, train=data, dtype=dtype), names) for m in (model, other)
    )
    for name in names:
        assert rows[name].value == pytest.approx(expected[name].value, rel=1e-4)


def pruned() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    prune.random_unstructured(model[0], "weight", 0.5)
    return model


def remembering() -> nn.Module:
    """It keeps what its last forward pass computed, in a list."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model.seen = []
    model[0].register_forward_hook(lambda module, inputs, output: model.seen.append(output))
    return model


@pytest.mark.parametrize("make", [pruned, remembering])
def test_models_that_hold_what_they_computed_are_copied(make):
    torch.manual_seed(0)
    model = make()
    X, y = torch.randn(12, 4), torch.arange(12) % 3
    model(X)  # as the last step of a training leaves it
    rows = ll.measure(Problem(model, train=(X, y)), ["trace", "largest_eigenvalue", "width"])
    assert all(row.value is not None for row in rows.values())
    copied = Problem(model, train=(X, y), dtype=torch.float64)
    assert float(ll.trace(ll.hessian(copied)).value) == pytest.approx(rows["trace"].value, rel=1e-4)


def test_a_copy_that_was_made_while_measuring_reads_the_weights_of_today():
    """It once kept the weights that were being measured then, and measured those for ever."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    train = torch.randn(6, 4), torch.arange(6) % 3
    problem = Problem(model, train=train)
    with problem.measuring():
        copies = problem.with_loss("normalized_cross_entropy"), problem.subset(torch.arange(3))
    with torch.no_grad():
        model[0].weight.mul_(2)
    for other in copies:
        assert torch.equal(other.params["0.weight"], model[0].weight)
    assert torch.equal(copies[1].losses(), Problem(model, train=train).losses()[:3])
