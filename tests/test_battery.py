"""Random networks, losses and loaders: every number is right within its bar, or refused in words.

Truth comes from outside of Lowland: the model's own gradients in plain torch, their differences in
float64, and torch's own mean of the loss.
"""

import contextlib
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lowland as ll
from lowland.curvature import parameters
from test_derivatives import Constant, Once

WIDTH, CLASSES = 3, 3
# By what their targets are.
TORCH_LOSSES = {
    "l1": (nn.L1Loss(), "numbers"),
    "smooth l1": (nn.SmoothL1Loss(beta=0.5), "numbers"),
    "poisson": (nn.PoissonNLLLoss(), "counts"),
    "soft margin": (nn.SoftMarginLoss(), "signs"),
    "multi-label": (nn.MultiLabelSoftMarginLoss(), "yes or no"),
    "multi-margin": (nn.MultiMarginLoss(p=2), "labels"),
    "divergence": (nn.KLDivLoss(reduction="batchmean"), "shares"),
    "log-likelihood": (nn.NLLLoss(), "labels"),
}
BLOCKS = (
    *("dense", "folded", "sequence first", "sorted", "routed", "functional", "convolution"),
    *("tied", "gated", "residual", "norm", "weight norm", "scaled", "attention", "recurrent"),
    *("shared bias", "squared", "in place", "transposed", "loop", "batch norm", "dropout"),
    *("once", "constant", "embedded", "experts"),
)
ACTIVATIONS = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu}
LOSSES = ("cross_entropy", "mse", "smoothed", "weighted", "binary", "huber", "own", *TORCH_LOSSES)


class Network(nn.Module):
    """Blocks along a sequence (n, T, WIDTH), then the mean over T and a dense head."""

    def __init__(self, blocks: list[str], activation: str) -> None:
        super().__init__()
        self.blocks, self.activation = blocks, ACTIVATIONS[activation]
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList(_part(block) for block in blocks)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block, part in zip(self.blocks, self.parts, strict=True):
            x = self.activation(self._through(block, part, x))
        return self.head(x.mean(1))

    def _through(self, block: str, part: nn.Module, x: Tensor) -> Tensor:
        n, T, d = x.shape
        if block == "folded":
            return part(x.reshape(n * T, d)).view(n, T, d)
        if block == "sequence first":
            return part(x.transpose(0, 1).reshape(T * n, d)).view(T, n, d).transpose(0, 1)
        if block == "sorted":
            order = x[:, 0, 0].argsort()
            return part(x[order])[order.argsort()]
        if block == "routed":
            chosen = (x.sum((1, 2)) > 0).nonzero()[:, 0]
            return x.index_add(0, chosen, part(x[chosen]))
        if block == "functional":
            return torch.einsum("ntd,ed->nte", x, part.weight) + part.bias
        if block == "convolution":
            return part(x.transpose(1, 2)).transpose(1, 2)
        if block == "tied":
            return self.shared(x)
        if block == "gated":
            return x * torch.sigmoid(part(x))
        if block == "residual":
            return x + part(x)
        if block == "attention":
            return part(x, x, x, need_weights=False)[0]
        if block == "recurrent":
            return part(x)[0]
        if block == "shared bias":
            return F.linear(x, part.weight, self.shared.bias)
        if block == "squared":
            return x * part.weight[0].square()
        if block == "in place":
            return part(x).relu_()
        if block == "transposed":
            return part(x.transpose(1, 2))[..., :T].transpose(1, 2)
        if block == "loop":
            for _ in range(2):
                x = torch.tanh(F.linear(x, part.weight)) + part.bias
            return x
        if block == "batch norm":
            return part(x.transpose(1, 2)).transpose(1, 2)
        if block in ("once", "constant"):
            return {"once": Once, "constant": Constant}[block].apply(part(x))
        if block == "embedded":
            return x + part((x.detach().sum(2) > 0).long() + (x.detach()[..., 0] > 1).long())
        if block == "experts":
            gate = torch.softmax(part(x), -1)
            return x + gate[..., :1] * self.shared(x) - gate[..., 1:2] * part(x)
        return part(x)


def _part(block: str) -> nn.Module:
    if block == "convolution":
        return nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
    if block == "norm":
        return nn.LayerNorm(WIDTH)
    if block == "weight norm":
        return nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
    if block == "scaled":
        return nn.PReLU(1)
    if block == "transposed":
        return nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1)
    if block == "batch norm":
        norm = nn.BatchNorm1d(WIDTH)
        norm.running_mean, norm.running_var = torch.randn(WIDTH), 0.5 + torch.rand(WIDTH)
        return norm
    if block == "dropout":
        return nn.Sequential(nn.Dropout(0.4), nn.Linear(WIDTH, WIDTH))
    if block == "embedded":
        return nn.Embedding(3, WIDTH, padding_idx=0)
    if block == "attention":
        return nn.MultiheadAttention(WIDTH, 1, batch_first=True)
    if block == "recurrent":
        return nn.GRU(WIDTH, WIDTH, batch_first=True)
    return nn.Linear(WIDTH, WIDTH)


@dataclass(frozen=True)
class Case:
    """A network with its loss and data, all from one seed."""

    blocks: list[str]
    activation: str
    loss: str
    samples: int
    length: int
    batch_size: int
    loader: bool
    named: bool
    frozen: bool
    seed: int

    def make(self) -> "tuple[ll.Problem, nn.Module, Tensor, Tensor, object]":
        torch.manual_seed(self.seed)
        model = Network(self.blocks, self.activation).double()
        X = torch.randn(self.samples, self.length, WIDTH, dtype=torch.float64)
        labels = torch.randint(0, CLASSES, (self.samples,))
        y = {"binary": F.one_hot(labels, CLASSES).double()}.get(self.loss, labels)
        numbers = torch.randn(self.samples, CLASSES, dtype=torch.float64)
        if self.loss in ("mse", "huber"):
            y = numbers
        if self.loss in TORCH_LOSSES:
            y = {
                "numbers": numbers,
                "counts": numbers.abs().round(),
                "signs": numbers.sign(),
                "yes or no": (numbers > 0).double(),
                "labels": labels,
                "shares": numbers.softmax(1),
            }[TORCH_LOSSES[self.loss][1]]
        weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
        loss = {
            "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
            "weighted": nn.CrossEntropyLoss(weight=weight),
            "binary": nn.BCEWithLogitsLoss(),
            "huber": nn.HuberLoss(delta=0.7),
            "own": lambda z, t: F.cross_entropy(z, t, reduction="none") + 0.1 * z.square().sum(1),
        }.get(self.loss, self.loss)
        if self.loss in TORCH_LOSSES:
            loss = TORCH_LOSSES[self.loss][0]
        if self.frozen:
            model.head.bias.requires_grad_(False)
        data = TensorDataset(X, y)
        source = DataLoader(data, self.batch_size, shuffle=True) if self.loader else (X, y)
        if self.named:
            source = ({"x": X}, y)
        problem = ll.Problem(model, loss, source, batch_size=self.batch_size)
        return problem, model, X, y, loss


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return Case(
        blocks=draw(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=3)),
        activation=draw(st.sampled_from(sorted(ACTIVATIONS))),
        loss=draw(st.sampled_from(LOSSES)),
        samples=draw(st.integers(1, 7)),
        length=draw(st.integers(1, 3)),
        batch_size=draw(st.integers(1, 7)),
        loader=draw(st.booleans()),
        named=draw(st.booleans()),
        frozen=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


def mean_loss(model: nn.Module, X: Tensor, y: Tensor, loss: object) -> Tensor:
    """Torch's own mean over all samples."""
    z = model(X)
    if isinstance(loss, str):
        return {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}[loss](z, y)
    value = loss(z, y)  # type: ignore[operator]
    return value.mean()


def truth(
    model: nn.Module, X: Tensor, y: Tensor, loss: object, names: list[str], h: float = 1e-6
) -> Tensor:
    """The Hessian by central differences of gradients, one weight at a time."""
    params = [dict(model.named_parameters())[name] for name in names]

    def gradient() -> Tensor:
        slopes = torch.autograd.grad(
            mean_loss(model, X, y, loss), params, allow_unused=True, materialize_grads=True
        )
        return torch.cat([g.flatten() for g in slopes])

    rows = []
    for p in params:
        for i in range(p.numel()):
            ends = []
            for step in (h, -h):
                with torch.no_grad():
                    p.view(-1)[i] += step
                ends.append(gradient())
                with torch.no_grad():
                    p.view(-1)[i] -= step
            rows.append((ends[0] - ends[1]) / (2 * h))
    H = torch.stack(rows)
    return (H + H.T) / 2


def check(case: Case) -> None:
    problem, model, X, y, loss = case.make()
    model.eval()
    expected = float(mean_loss(model, X, y, loss).detach())
    assert float(problem.losses().mean()) == pytest.approx(expected)
    names = list(problem.params)
    assert ("head.bias" in names) == (not case.frozen)
    kept = _reached(problem).double()
    dense = truth(model, X, y, loss, names) * kept * kept.unsqueeze(1)
    scale = float(dense.abs().max())
    # Not where a unit stands exactly at its kink: there differences have no limit.
    other = truth(model, X, y, loss, names, 1e-5) * kept * kept.unsqueeze(1)
    assume(float((dense - other).abs().max()) <= 1e-3 * scale)
    close = {"rtol": 1e-4, "atol": 1e-6 * scale + 1e-8}
    _check_gauss_newton(problem, model, X, y, loss)
    H = ll.hessian(problem)
    torch.testing.assert_close(H.dense(), dense, **close)
    found = ll.trace(H)
    limit = max(5 * found.stderr, 1e-4 * float(dense.diagonal().abs().sum()), 1e-7)
    assert abs(found.value - float(dense.trace())) <= limit
    diagonal = ll.diagonal(problem)
    for name, place in H.slices.items():
        error = 6 * diagonal.stderr[name].flatten() if name in diagonal.stderr else 0.0
        missed = (diagonal[name].flatten() - dense.diagonal()[place]).abs()
        assert (missed <= error + close["rtol"] * scale + close["atol"]).all(), name
    for name in parameters(problem):
        place = H.slices[name]
        with contextlib.suppress(ll.InputError):  # second derivatives that torch does not have
            block = ll.layer_hessian(problem, name)
            torch.testing.assert_close(block, dense[place, place], **close)


def _check_gauss_newton(
    problem: ll.Problem, model: nn.Module, X: Tensor, y: Tensor, loss: object, h: float = 1e-6
) -> None:
    """``J^T A J`` with J from differences of the outputs."""
    columns = []
    with torch.no_grad():
        for p in (dict(model.named_parameters())[name] for name in problem.params):
            flat = p.data.view(-1)
            for i in range(p.numel()):
                before, ends = flat[i].item(), []
                for side in (h, -h):
                    flat[i] = before + side
                    ends.append(model(X).flatten())
                flat[i] = before
                columns.append((ends[0] - ends[1]) / (2 * h))
    J = torch.stack(columns, 1)
    z = model(X).detach()

    def slope(z: Tensor) -> Tensor:
        z = z.requires_grad_()
        value = mean_loss(lambda _: z, X, y, loss)
        return torch.autograd.grad(value, z)[0].flatten()

    steps = (h * torch.eye(z.numel(), dtype=z.dtype)).view(-1, *z.shape)
    A = torch.stack([(slope(z + s) - slope(z - s)) / (2 * h) for s in steps])
    expected = J.T @ A @ J
    close = {"rtol": 1e-4, "atol": 1e-6 * float(expected.abs().max()) + 1e-8}
    try:
        G = ll.ggn(problem)
        dense, found = G.dense(), ll.trace(G)
    except ll.InputError:  # refused in words
        return
    kept = _reached(problem)
    torch.testing.assert_close(dense, expected * kept * kept.unsqueeze(1), **close)
    limit = max(5 * found.stderr, 1e-4 * float(dense.diagonal().sum()), 1e-7)
    assert abs(found.value - float(dense.trace())) <= limit


def _reached(problem: ll.Problem) -> Tensor:
    """All weights but rows of padding, which act on the outputs and are kept from learning."""
    kept = []
    for name, p in problem.params.items():
        part = torch.ones(p.shape, dtype=torch.bool)
        module = problem.model.get_submodule(name.rpartition(".")[0])
        if isinstance(module, nn.Embedding):
            part[module.padding_idx] = False
        kept.append(part.flatten())
    return torch.cat(kept)


FAST = settings(
    max_examples=8,  # the slow run has 60, these among them
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@given(cases())
@FAST
def test_every_number_of_a_random_network_is_right_or_refused(case):
    with contextlib.suppress(ll.InputError):  # refused in words
        check(case)


@pytest.mark.slow
@given(cases())
@settings(FAST, max_examples=60)
def test_every_number_of_many_random_networks_is_right_or_refused(case):
    with contextlib.suppress(ll.InputError):
        check(case)


def test_most_networks_are_not_refused():
    """The battery would be worth nothing if refusing were the rule."""
    refused = []

    @given(cases())
    @settings(FAST, max_examples=25)
    def count(case: Case) -> None:
        try:
            case.make()
            refused.append(False)
        except ll.InputError:
            refused.append(True)

    count()
    assert sum(refused) <= 0.1 * len(refused)
