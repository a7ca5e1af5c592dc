import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import lowland as ll
from lowland.errors import InputError
from lowland.losses import resolve
from lowland.problem import Problem


def test_normalized_cross_entropy_is_equation_20_and_ignores_the_scale_of_logits():
    z, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    expected = []
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        mean = sum(row) / 4
        deviation = math.sqrt(sum((v - mean) ** 2 for v in row) / 4)
        scaled = [v / deviation for v in row]
        expected.append(math.log(sum(map(math.exp, scaled))) - scaled[label])
    loss = resolve("normalized_cross_entropy")
    torch.testing.assert_close(loss(z, y), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(loss(1000 * z, y), loss(z, y))


def test_constant_logits_give_the_uniform_loss_and_a_finite_gradient():
    z = torch.full((1, 5), 3.0, requires_grad=True)
    loss = resolve("normalized_cross_entropy")(z, torch.tensor([2]))
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(5))
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("name", ["cross_entropy", "normalized_cross_entropy", "mse"])
def test_second_derivatives_in_closed_form_are_those_of_autograd(name):
    loss = resolve(name)
    z = torch.randn(6, 5, dtype=torch.float64)
    z[1] = 1.5  # constant logits
    z[2] *= 100
    y = torch.randn(6, 5, dtype=torch.float64) if name == "mse" else torch.arange(6) % 5
    for row, target, found in zip(z, y, loss.second(z, y), strict=True):
        exact = torch.autograd.functional.hessian(
            lambda r, t=target: loss(r[None], t[None]).sum(), row
        )
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-14)


def test_mse_averages_over_outputs_and_never_broadcasts():
    loss = resolve("mse")
    z = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert loss(z, torch.zeros(2, 2)).tolist() == [5.0, 0.0]
    assert loss(torch.tensor([[2.0], [1.0]]), torch.tensor([0.0, 0.0])).tolist() == [4.0, 1.0]
    with pytest.raises(InputError, match=r"\(2, 2\).*\(3, 2\)"):
        loss(z, torch.zeros(3, 2))


def labels(n: int, C: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randint(0, C, (n,), generator=draw)


def reals(*shape: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def shares(n: int, C: int, draw: torch.Generator) -> torch.Tensor:
    return reals(n, C, draw=draw).softmax(1)


def zeros_and_ones(n: int, C: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2, (n, C), generator=draw).double()


def weights(C: int) -> torch.Tensor:
    return torch.linspace(0.5, 3, C, dtype=torch.float64)


# Each of torch's losses with options: the module for C outputs, what the last layer's outputs go
# through, and targets.
TORCH = {
    "cross entropy": (lambda C: nn.CrossEntropyLoss(), None, labels),
    "cross entropy of shares": (lambda C: nn.CrossEntropyLoss(), None, shares),
    "weighted": (lambda C: nn.CrossEntropyLoss(weight=weights(C)), None, labels),
    "weighted shares": (lambda C: nn.CrossEntropyLoss(weight=weights(C)), None, shares),
    "smoothed": (lambda C: nn.CrossEntropyLoss(label_smoothing=0.2), None, labels),
    "smoothed, weighted": (
        lambda C: nn.CrossEntropyLoss(weight=weights(C), label_smoothing=0.2),
        None,
        labels,
    ),
    "nll": (lambda C: nn.NLLLoss(), "log_softmax", labels),
    "nll, weighted": (lambda C: nn.NLLLoss(weight=weights(C)), "log_softmax", labels),
    "margin": (lambda C: nn.MultiMarginLoss(), None, labels),
    "margin, squared": (
        lambda C: nn.MultiMarginLoss(p=2, margin=0.5, weight=weights(C)),
        None,
        labels,
    ),
    "bce": (lambda C: nn.BCEWithLogitsLoss(), None, zeros_and_ones),
    "bce, weighted": (
        lambda C: nn.BCEWithLogitsLoss(weight=weights(C), pos_weight=weights(C).flip(0)),
        None,
        zeros_and_ones,
    ),
    "bce of probabilities": (lambda C: nn.BCELoss(weight=weights(C)), "sigmoid", shares),
    "many labels": (lambda C: nn.MultiLabelSoftMarginLoss(weight=weights(C)), None, zeros_and_ones),
    "soft margin": (
        lambda C: nn.SoftMarginLoss(),
        None,
        lambda n, C, draw: 2 * zeros_and_ones(n, C, draw) - 1,
    ),
    "mse": (lambda C: nn.MSELoss(), None, lambda n, C, draw: reals(n, C, draw=draw)),
    "huber": (lambda C: nn.HuberLoss(delta=0.7), None, lambda n, C, draw: reals(n, C, draw=draw)),
    "smooth l1": (
        lambda C: nn.SmoothL1Loss(beta=0.5),
        None,
        lambda n, C, draw: reals(n, C, draw=draw),
    ),
    "l1": (lambda C: nn.L1Loss(), None, lambda n, C, draw: reals(n, C, draw=draw)),
    "poisson": (
        lambda C: nn.PoissonNLLLoss(full=True),
        None,
        lambda n, C, draw: labels(n * C, 5, draw).view(n, C).double(),
    ),
    "kl": (lambda C: nn.KLDivLoss(), "log_softmax", shares),
    "kl, batchmean": (lambda C: nn.KLDivLoss(reduction="batchmean"), "log_softmax", shares),
    "hinge embedding": (
        lambda C: nn.HingeEmbeddingLoss(margin=0.8),
        None,
        lambda n, C, draw: 2 * zeros_and_ones(n, C, draw) - 1,
    ),
}
WARNS = "ignore:reduction. 'mean' divides the total loss"  # of torch's KLDivLoss
LAST = {"log_softmax": nn.LogSoftmax(1), "sigmoid": nn.Sigmoid(), None: nn.Identity()}


@pytest.mark.filterwarnings(WARNS)
@pytest.mark.parametrize("name", TORCH)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(n=st.integers(1, 9), C=st.integers(2, 5), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_mean_over_samples_is_what_torch_gives_for_all_data(name, n, C, size, seed):
    """With torch's own reduction, in whatever batches the data is cut."""
    make, last, targets_of = TORCH[name]
    draw = torch.Generator().manual_seed(seed)
    z, y = LAST[last](2 * reals(n, C, draw=draw)), targets_of(n, C, draw)
    module = make(C)
    loss = resolve(module).on(y)
    parts = [loss(a, b) for a, b in zip(z.split(size), y.split(size), strict=True)]
    torch.testing.assert_close(torch.cat(parts).mean(), module(z, y))
    assert module.reduction in ("mean", "batchmean")  # the user's own is left alone


@pytest.mark.filterwarnings(WARNS)
@pytest.mark.parametrize("name", TORCH)
def test_the_hessian_is_that_of_torchs_own_reduction(name):
    """Dense autograd of the module on all data; exact layers, products and GGN agree with it."""
    make, last, targets_of = TORCH[name]
    draw = torch.Generator().manual_seed(3)
    C, X = 3, reals(7, 4, draw=draw)
    y, module = targets_of(7, C, draw), make(C)
    model = nn.Sequential(nn.Linear(4, C), LAST[last]).double()
    problem = Problem(model, module, train=(X, y), batch_size=3)
    w = nn.utils.parameters_to_vector(model.parameters()).detach()

    def whole(v: torch.Tensor) -> torch.Tensor:
        W, b = v[: 4 * C].view(C, 4), v[4 * C :]
        return module(LAST[last](X @ W.T + b), y)

    def gradient(v: torch.Tensor) -> torch.Tensor:
        v = v.detach().requires_grad_()
        return torch.autograd.grad(whole(v), v)[0]

    if "margin" in name and "soft" not in name:  # torch's own has no second derivative
        steps = 1e-6 * torch.eye(len(w), dtype=w.dtype)
        expected = torch.stack([(gradient(w + h) - gradient(w - h)) / 2e-6 for h in steps])
    else:
        expected = torch.autograd.functional.hessian(whole, w)
    H = ll.hessian(problem)
    torch.testing.assert_close(H.dense(), expected, rtol=1e-6, atol=1e-9)
    block = ll.layer_hessian(problem, "0")
    torch.testing.assert_close(block, expected[: 4 * C, : 4 * C], rtol=1e-6, atol=1e-9)
    assert ll.trace(H).value == pytest.approx(expected.trace().item(), rel=1e-6, abs=1e-9)
    if last is None:  # a linear model
        torch.testing.assert_close(ll.ggn(problem).dense(), expected, rtol=1e-6, atol=1e-9)
    value, slopes = problem.gradient()
    assert value == pytest.approx(whole(w).item())
    torch.testing.assert_close(torch.cat([g.flatten() for g in slopes.values()]), gradient(w))


def test_torchs_defaults_are_the_named_losses_and_a_users_namesake_is_not():
    assert resolve(nn.CrossEntropyLoss()) is resolve("cross_entropy")
    assert resolve(nn.MSELoss()) is resolve("mse")

    def mse(outputs, targets):
        return (outputs - targets).abs().sum(1)

    own = resolve(mse)
    assert own.name not in ("mse", "cross_entropy")
    z = torch.randn(2, 3)
    assert own.second(z, z) is None
    with pytest.raises(InputError, match="how the model draws targets"):
        own.fisher(z)
    assert resolve(nn.HuberLoss(delta=2.0)).name == "HuberLoss(delta=2.0)"


def test_the_mean_weight_is_that_of_the_training_data_for_test_data_too():
    z, y = torch.randn(6, 3), torch.tensor([0, 0, 0, 1, 2, 2])
    module = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]))
    problem = Problem(nn.Linear(3, 3), module, train=(z, y), test=(z[3:], y[3:]))
    plain = nn.functional.cross_entropy(problem.model(z[3:]), y[3:], reduction="none")
    mean_weight = (3 * 1 + 2 + 2 * 4) / 6
    expected = torch.tensor([2.0, 4.0, 4.0]) / mean_weight * plain
    torch.testing.assert_close(problem.losses("test"), expected.detach())


class Focal(nn.Module):
    """A loss that takes a reduction as torch's do, and may do something else with it."""

    def __init__(self, honest: bool = True, reduction: str = "mean"):
        super().__init__()
        self.honest, self.reduction = honest, reduction

    def forward(self, outputs, targets):
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        losses = (1 - (-losses).exp()) ** 2 * losses
        if self.reduction == "none":
            return losses
        return losses.mean() if self.honest else 2 * losses.mean()


def test_a_module_of_the_users_own_is_compared_with_its_own_reduction():
    X, y = torch.randn(9, 4), torch.arange(9) % 3
    problem = Problem(nn.Linear(4, 3), Focal(), train=(X, y))
    torch.testing.assert_close(problem.losses().mean(), Focal()(problem.model(X), y).detach())
    with pytest.raises(InputError, match="but the mean of its losses with reduction='none' is"):
        Problem(nn.Linear(4, 3), Focal(honest=False), train=(X, y))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.MSELoss(reduction="sum"), "reduction='sum', which grows with the number of samples"),
        (Focal(reduction="sum"), "reduction='sum'"),
        (nn.GaussianNLLLoss(), "takes the variance as a third argument"),
        (nn.CTCLoss(), "lengths"),
        (nn.TripletMarginLoss(), "three outputs"),
        (nn.CosineEmbeddingLoss(), "two outputs"),
        (nn.MultiLabelMarginLoss(), "cannot be differentiated twice"),
        (nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3]), "weights of its own"),
        (nn.MSELoss, r"pass an object, MSELoss\(\)"),
    ],
)
def test_modules_that_have_no_loss_per_sample_are_refused_in_words(module, words):
    with pytest.raises(InputError, match=words):
        resolve(module)


def test_weights_of_single_samples_in_a_batch_are_refused():
    loss = resolve(nn.BCEWithLogitsLoss(weight=torch.rand(4, 1)))
    with pytest.raises(InputError, match="one for each sample of a batch"):
        loss(torch.randn(4, 3), torch.ones(4, 3))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 6),
    T=st.integers(1, 5),
    V=st.integers(2, 5),
    beside=st.booleans(),
    hidden=st.floats(0, 0.6),
    seed=st.integers(0, 99),
)
def test_a_sample_of_tokens_has_the_mean_over_those_that_count(n, T, V, beside, hidden, seed):
    """Against torch's own mean of each sequence, in both layouts; as many classes as positions
    cannot be told apart and are refused."""
    draw = torch.Generator().manual_seed(seed)
    z, y = reals(n, T, V, draw=draw), torch.randint(0, V, (n, T), generator=draw)
    ignored = torch.rand(n, T, generator=draw) < hidden
    ignored[:, 0] = False
    y[ignored] = -100
    loss, outputs = resolve("cross_entropy"), z.mT if beside else z
    if T == V:
        with pytest.raises(InputError, match="as many classes as positions"):
            loss(outputs, y)
        return
    expected = torch.stack([nn.functional.cross_entropy(a, b) for a, b in zip(z, y, strict=True)])
    torch.testing.assert_close(loss(outputs, y), expected)
    right = [
        sum(int(a.argmax()) == int(b) for a, b in zip(rows, own, strict=True) if b != -100)
        / int((own != -100).sum())
        for rows, own in zip(z, y, strict=True)
    ]
    torch.testing.assert_close(loss.wrong(outputs, y), 1 - torch.tensor(right, dtype=torch.float64))


class Tokens(nn.Module):
    """Scores (n, T, V) of every token, as Transformers has them."""

    def __init__(self, V: int):
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, V)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def test_tokens_have_the_curvature_of_the_mean_over_their_samples():
    torch.manual_seed(0)
    tokens, y = torch.randint(0, 6, (5, 3)), torch.randint(0, 4, (5, 3))
    y[0, 1:] = -100
    model = Tokens(4).double()
    problem = Problem(model, train=(tokens, y), batch_size=2)

    def mean_loss(W: torch.Tensor) -> torch.Tensor:
        z = model.embed(tokens).detach() @ W.T + model.head.bias.detach()
        each = [nn.functional.cross_entropy(a, b) for a, b in zip(z, y, strict=True)]
        return torch.stack(each).mean()

    exact = torch.autograd.functional.hessian(mean_loss, model.head.weight.detach())
    torch.testing.assert_close(ll.layer_hessian(problem, "head"), exact.reshape(16, 16))
    with pytest.raises(InputError, match="one label per sample"):
        ll.fisher(problem, labels="model").dense()
    y[3] = -100
    with pytest.raises(InputError, match="1 of 5 train samples have no label that counts"):
        Problem(model, train=(tokens, y))
    y[3] = 4
    with pytest.raises(InputError, match="labels run from 0 to 4, but the model has 4 outputs"):
        Problem(model, train=(tokens, y))


def test_positions_of_a_sample_are_averaged():
    z, y = torch.randn(4, 3, 6), torch.randint(0, 3, (4, 6))
    torch.testing.assert_close(resolve("cross_entropy")(z, y).mean(), nn.CrossEntropyLoss()(z, y))


def test_what_is_no_per_sample_loss_is_refused():
    z, y = torch.randn(4, 3), torch.arange(4) % 3
    with pytest.raises(InputError, match=r"one loss per sample, shape \(4,\)"):
        resolve(lambda z, y: nn.functional.cross_entropy(z, y))(z, y)
    with pytest.raises(InputError, match="did you mean 'cross_entropy'"):
        resolve("crossentropy")
    with pytest.raises(InputError, match="got int"):
        resolve(3)


@pytest.mark.parametrize(
    ("module", "last", "expected"),
    [
        (nn.BCEWithLogitsLoss(), nn.Identity(), lambda p: p * (1 - p)),
        (nn.BCELoss(), nn.Sigmoid(), lambda p: p * (1 - p)),
        (nn.MSELoss(), nn.Identity(), lambda p: 2 * torch.ones_like(p)),
    ],
)
def test_the_true_fisher_of_one_output_in_closed_form(module, last, expected):
    """With the Jacobian x of a linear model: the mean of var(y | x) x x^T."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1, bias=False), last).double()
    X, y = torch.randn(8, 4).double(), (torch.arange(8) % 2).double()
    problem = Problem(model, module, train=(X, y), batch_size=3)
    p = (X @ model[0].weight.detach()[0]).sigmoid()
    F = (X.T * expected(p)) @ X / 8
    torch.testing.assert_close(ll.fisher(problem, labels="model").dense(), F)


def test_yes_and_no_are_right_or_wrong_for_each_label():
    z = torch.tensor([[2.0, -1.0, 0.5, -3.0], [1.0, 1.0, 1.0, 1.0]])
    y = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert resolve(nn.BCEWithLogitsLoss()).wrong(z, y).tolist() == [0.25, 1.0]
    assert resolve(nn.BCELoss()).wrong(z.sigmoid(), y).tolist() == [0.25, 1.0]
    assert resolve(nn.SoftMarginLoss()).wrong(z, 2 * y - 1).tolist() == [0.25, 1.0]
    with pytest.raises(InputError, match="shares between them"):
        resolve(nn.BCEWithLogitsLoss()).wrong(z, y + 0.5 * (1 - y))
    with pytest.raises(InputError, match="needs them between 0 and 1"):
        Problem(nn.Linear(4, 4), nn.BCEWithLogitsLoss(), train=(z, 2 * y - 1))
    problem = Problem(nn.Linear(4, 4), nn.BCEWithLogitsLoss(), train=(z, y), test=(z, y))
    expected = ((problem.model(z) > 0) != (y > 0)).double().mean(1)
    found = ll.measure(problem, ["train_error", "test_error"])
    assert found["train_error"].value == pytest.approx(expected.mean().item())
    share = expected.mean().item()
    centre, half = (2 * share + 2) / 6, math.sqrt(2 * share * (1 - share) + 1) / 3  # Wilson
    farther = max(centre + half - share, share - centre + half)
    assert found["test_error"].stderr == pytest.approx(farther / 2)
