"""What an outsider broke, knowing only the docs: each of these was wrong once."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowland as ll
import zoo
from lowland.curvature import opaque
from lowland.problem import Problem

Y = torch.arange(30) % 3


def test_a_module_that_stands_in_the_model_twice_is_left_as_it_was():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 3))
    X, weight = torch.randn(30, 4), layer.weight
    F.cross_entropy(model(X), Y).backward()
    before = weight.grad.clone()
    problem = Problem(model, train=(X, Y))
    ll.trace(ll.hessian(problem))
    assert layer.weight is weight
    assert isinstance(layer.weight, nn.Parameter)
    assert torch.equal(weight.grad, before)


@pytest.mark.parametrize("layout", [(9, 1, 5), (9, 1, 2, 3)])
def test_labels_for_every_position_in_torchs_layout(layout):
    torch.manual_seed(0)
    conv = nn.Conv1d if len(layout) == 3 else nn.Conv2d
    X = torch.randn(layout).double()
    y = torch.randint(0, 3, (9, *layout[2:]))
    model = nn.Sequential(conv(1, 4, 1), nn.ReLU(), conv(4, 3, 1)).double()
    problem = Problem(model, train=(X, y), batch_size=4)
    H = ll.hessian(problem)
    assert ll.trace(H).value == pytest.approx(float(H.dense().trace()))
    assert ll.trace(ll.ggn(problem)).value == pytest.approx(float(ll.ggn(problem).dense().trace()))


@pytest.mark.parametrize("operator", [ll.hessian, ll.ggn, ll.fisher])
def test_a_network_that_fits_its_data_well_is_exact_in_single_precision(operator):
    torch.manual_seed(0)
    X = torch.randn(60, 4)
    X = X[X[:, 0].abs() > 0.5]
    y = (X[:, 0] < 0).long()
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[18.0, 0, 0, 0], [-18.0, 0, 0, 0]]))
    single, double = (
        ll.trace(operator(Problem(model, train=(X, y), dtype=d))) for d in (None, torch.float64)
    )
    assert single.value == pytest.approx(double.value, rel=1e-4)


class Clamped(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


def test_a_forward_pass_that_writes_into_its_weights_is_refused_and_undone():
    embedding = nn.Embedding(5, 3, max_norm=0.5)
    tokens = torch.randint(0, 5, (30, 4))
    clamped = Clamped(4, 3)
    for model, X, weight in (
        (nn.Sequential(embedding, nn.Flatten(), nn.Linear(12, 3)), tokens, embedding.weight),
        (clamped, torch.randn(30, 4), clamped.weight),
    ):
        before = weight.detach().clone()
        with pytest.raises(ll.InputError, match="writes into parameter"):
            Problem(model, train=(X, Y))
        assert torch.equal(weight, before)


def test_curvature_that_overflows_is_an_error():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    problem = Problem(model, train=(torch.randn(30, 4) * 1e20, Y))
    for call in (
        lambda: ll.trace(ll.hessian(problem)),
        lambda: ll.layer_hessian(problem, "0"),
        lambda: ll.diagonal(problem, "fisher"),
    ):
        with pytest.raises(ll.InputError, match="NaN or infinite"):
            call()


NEEDING_GRADIENTS = (ll.trace, ll.diagonal, lambda p: ll.hessian(p).dense())


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g


class Binary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Sign.apply(self.first(x)))


def test_gradients_that_are_not_those_of_the_loss_have_no_hessian():
    torch.manual_seed(0)
    counted = nn.Embedding(5, 3, scale_grad_by_freq=True)
    for model, X in (
        (Binary(), torch.randn(30, 4)),
        (
            nn.Sequential(counted, nn.Flatten(), nn.Linear(12, 3)),
            torch.randint(0, 5, (30, 4)),
        ),
    ):
        for use in NEEDING_GRADIENTS:
            with pytest.raises(ll.InputError, match="is not that of the loss"):
                use(Problem(model, train=(X, Y)))


class Leaning(torch.autograd.Function):
    """The identity, with a gradient that is a twentieth too large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 1.05 * g


class DeepButOne(nn.Module):
    """Ten layers; the gradient by one bias, of the smallest or of a common size, is wrong."""

    def __init__(self, wrong: int, scale: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(10))
        self.head, self.wrong, self.scale = nn.Linear(6, 3), wrong, scale

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            bias = Leaning.apply(layer.bias) if i == self.wrong else layer.bias
            x = torch.tanh(F.linear(x, 2 * layer.weight) + self.scale * bias)
        return self.head(x)


@pytest.mark.parametrize("wrong", [0, 9])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_one_wrong_gradient_among_many_is_found_by_name(wrong, scale):
    torch.manual_seed(0)
    problem = Problem(DeepButOne(wrong, scale), train=(torch.randn(30, 6), Y))
    right = Problem(DeepButOne(-1, scale), train=(torch.randn(30, 6), Y))
    found = [
        [name for name, why in opaque(p).items() if "not that of the loss" in why]
        for p in (problem, right)
    ]
    assert found == [[f"layers.{wrong}.bias"], []]


def test_what_a_straight_through_estimator_reaches_is_not_called_exact():
    """Written by detaching, so that the graph shows additions only."""
    torch.manual_seed(0)

    def forward(m, x):
        h = m.a(x)
        return m.b(h + (h.sign() - h).detach())

    model = zoo.Written(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3)).double()
    X = torch.randn(30, 4).double()
    problem = Problem(model, train=(X, Y), test=(X.flip(0), Y))
    for use in (ll.layer_hessian, ll.layer_operator, ll.duality):
        with pytest.raises(ll.InputError, match="not that of the loss"):
            use(problem, "a")
    with pytest.raises(ll.InputError, match="not that of the loss"):
        ll.diagonal(problem)
    H = torch.func.hessian(
        lambda w: F.cross_entropy(torch.func.functional_call(model, {"b.weight": w}, X), Y)
    )(model.b.weight.detach())
    torch.testing.assert_close(ll.layer_hessian(problem, "b"), H.reshape(15, 15))


def test_mistakes_in_a_call_are_told_in_words():
    model, X = nn.Linear(4, 3), torch.randn(30, 4)
    with pytest.raises(ll.InputError, match="TorchScript"):
        Problem(torch.jit.trace(model, X), train=(X, Y))
    with pytest.raises(ll.InputError, match=r"at least 1, and whole; got 1\.5"):
        Problem(model, train=(X, Y), batch_size=1.5)
    with pytest.raises(ll.InputError, match="floating-point type; got torch.int32"):
        Problem(model, train=(X, Y), dtype=torch.int32)
    with pytest.raises(ll.InputError, match="as a tensor; got ndarray"):
        ll.hessian(Problem(model, train=(X, Y))) @ np.ones(15)


class Shifted(nn.Module):
    """A network with a buffer, and a tensor that is neither buffer nor parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.shift = torch.linspace(0.5, 2, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.shift * self.norm(self.first(x))))


USES = {
    "losses": lambda p: p.losses(),
    "hessian": lambda p: ll.hessian(p).dense(),
    "ggn": lambda p: ll.ggn(p).dense(),
    "fisher": lambda p: ll.fisher(p).dense(),
    "eigsh": lambda p: ll.eigsh(ll.hessian(p), 2).values,
    "trace": lambda p: torch.tensor(ll.trace(ll.hessian(p)).value),
    "diagonal": lambda p: ll.diagonal(p)["first.weight"],
    "layer_hessian": lambda p: ll.layer_hessian(p, "first"),
    "duality": lambda p: torch.tensor(ll.duality(p, "last").sharp),
    "density": lambda p: ll.spectral_density(ll.hessian(p)).density,
    "rescale": lambda p: ll.rescale(p, "outputs", 3.0).losses(),
    "analyze": lambda p: torch.tensor(ll.analyze(p, measures=[]).results.duality.sharp),
}


@pytest.mark.parametrize("use", USES)
def test_a_model_made_under_inference_mode_is_measured_like_any_other(use):
    with torch.inference_mode():
        frozen, X = Shifted(), torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    plain = Shifted()
    one, other = (
        Problem(model, train=(X[:20], Y[:20]), test=(X[20:], Y[20:])) for model in (frozen, plain)
    )
    torch.testing.assert_close(USES[use](one), USES[use](other))
    assert frozen.first.weight.is_inference()


def test_every_measure_of_a_model_made_under_inference_mode():
    with torch.inference_mode():
        frozen, X = Shifted(), torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    one, other = (
        ll.measure(Problem(model, train=(X[:20], Y[:20]), test=(X[20:], Y[20:])))
        for model in (frozen, Shifted())
    )
    for name, row in one.items():
        assert row.value == pytest.approx(other[name].value, nan_ok=True), name
        assert row.reason == other[name].reason, name


def test_gradients_that_do_not_add_up_over_samples_have_no_hessian():
    """Whatever tokens the first samples happen to have."""
    counted = zoo.Written(
        lambda m, x: m.head(F.embedding(x, m.table, scale_grad_by_freq=True).flatten(1)),
        table=nn.Parameter(torch.randn(6, 2)),
        head=nn.Linear(8, 3),
    )
    for seed in range(4):
        torch.manual_seed(seed)
        tokens, labels = torch.randint(0, 6, (12, 4)), torch.arange(12) % 3
        for use in NEEDING_GRADIENTS:
            with pytest.raises(ll.InputError, match="that of the loss"):
                use(Problem(counted, train=(tokens, labels)))


def test_a_loader_of_single_samples_is_told_to_batch_them():
    data = torch.utils.data.TensorDataset(torch.randn(6, 4), torch.arange(6) % 3)
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    with pytest.raises(ll.InputError, match="gives single samples, not batches"):
        Problem(nn.Linear(4, 3), train=loader)


def test_a_trace_takes_no_longer_than_a_product_for_each_weight():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, activation="gelu", dropout=0.0)
    model = zoo.Written(lambda m, x: m.head(m.layer(x).mean(1)), layer=layer, head=nn.Linear(4, 3))
    problem = Problem(model, train=(torch.randn(6, 3, 4), torch.arange(6) % 3), dtype=torch.float64)
    H = ll.hessian(problem)
    estimate = ll.trace(H)
    assert estimate.stderr == 0
    assert estimate.samples <= H.size
    assert estimate.value == pytest.approx(float(H.dense().trace()), rel=1e-9)


class Sorted(nn.Module):
    """Two experts; samples of the second come after those of the first."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        out = torch.zeros(len(x), 3, dtype=x.dtype)
        for mask, expert in ((x[:, 0] <= 0, self.a), (x[:, 0] > 0, self.b)):
            if mask.any():
                out = out.index_put((mask.nonzero()[:, 0],), expert(x[mask]))
        return out


def test_an_expert_that_the_first_samples_do_not_reach_counts():
    torch.manual_seed(0)
    x = torch.randn(90, 4)
    x = x[x[:, 0].argsort()]
    problem = ll.Problem(Sorted().double(), train=(x.double(), torch.arange(90) % 3), batch_size=7)
    H = ll.hessian(problem).dense()
    assert ll.trace(ll.hessian(problem)).value == pytest.approx(float(H.trace()))
    diagonal = torch.cat([d.flatten() for d in ll.diagonal(problem).values()])
    torch.testing.assert_close(diagonal, H.diagonal())
    place = ll.hessian(problem).slices["b.weight"]
    torch.testing.assert_close(ll.layer_hessian(problem, "b"), H[place, place])
    rows = ll.measure(problem, ["relative_flatness", "fisher_trace", "normalized_sharpness"])
    assert not [row.reason for row in rows.values() if row.value is None]


class Amplitude(nn.Module):
    """What a detector sees of a wave: the amplitude of complex numbers, ``|C W x|``."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 3)
        self.register_buffer("C", torch.randn(3, 3, dtype=torch.cfloat))

    def forward(self, x):
        return self.b((self.a(x).to(self.C.dtype) @ self.C).abs())


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_amplitudes_of_complex_numbers_are_not_piecewise_linear(dtype):
    torch.manual_seed(0)
    model, X = Amplitude(), torch.randn(30, 4)
    problem = Problem(model, train=(X, Y), dtype=dtype)
    H = torch.func.hessian(
        lambda w: F.cross_entropy(torch.func.functional_call(model, {"a.weight": w}, X), Y)
    )(model.a.weight.detach()).reshape(12, 12)
    torch.testing.assert_close(
        problem.losses().float(), F.cross_entropy(model(X), Y, reduction="none")
    )
    torch.testing.assert_close(ll.layer_hessian(problem, "a").float(), H, rtol=1e-3, atol=1e-4)
    place = ll.hessian(problem).slices["a.weight"]
    torch.testing.assert_close(
        ll.hessian(problem).dense()[place, place].float(), H, rtol=1e-3, atol=1e-4
    )
    measured = ll.measure(problem, ["trace"])["trace"].value
    assert measured == pytest.approx(ll.trace(ll.hessian(problem)).value, rel=1e-4)


MULTIPLIERS = {
    "mask": lambda w, x: w * (x > 0),
    "counts": lambda w, x: w * (3 * x).long(),
    "factor": lambda w, x: x * (w * 2) * 0.5,
    "entry": lambda w, x: w[0] * x + w[1],
    "double": lambda w, x: (x.double() * w.double()).to(x.dtype),
}


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("name", MULTIPLIERS)
def test_whatever_multiplies_a_parameter_is_seen_through(name, batch_size):
    """Also what is no real number of the model's precision."""
    torch.manual_seed(0)
    model = zoo.Written(
        lambda m, x: m.head(MULTIPLIERS[name](m.w, x).tanh()),
        w=nn.Parameter(torch.randn(4)),
        head=nn.Linear(4, 3),
    )
    problem = Problem(model, train=(torch.randn(30, 4), Y), batch_size=batch_size)
    H = ll.hessian(problem).dense()
    assert ll.trace(ll.hessian(problem)).value == pytest.approx(float(H.trace()), rel=1e-3)
    fisher = torch.cat([d.flatten() for d in ll.diagonal(problem, "fisher").values()])
    expected = ll.fisher(problem).dense().diagonal()
    torch.testing.assert_close(fisher.float(), expected.float(), rtol=1e-3, atol=1e-5)


class Sine(torch.autograd.Function):
    """Without a second derivative, of which nothing is said where outputs are linear in it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope * x.cos()


@pytest.mark.parametrize("rest", [0.0, 1.0])
def test_a_function_without_second_derivative_that_few_samples_use_is_found(rest):
    """Those samples are none of the first, nor of those with large losses."""
    torch.manual_seed(0)

    def forward(m, x):
        z = m.a(x)
        return m.b(torch.where(x[:, :1] > 5, Sine.apply(z), rest * z))

    model = zoo.Written(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 3)).double()
    X = torch.randn(90, 4).double()
    X[70:75, 0] += 10
    with torch.no_grad():
        model.a.weight[:, 0] = 0.0
        y = torch.where(X[:, 0] > 5, model(X).argmax(1), model(X).argmin(1))
    problem = Problem(model, train=(X, y))
    w = model.a.weight.detach()

    def gradient(w):
        w = w.requires_grad_()
        loss = F.cross_entropy(torch.func.functional_call(model, {"a.weight": w}, X), y)
        return torch.autograd.grad(loss, w)[0].flatten()

    h = 1e-5 * torch.eye(16).double().view(16, 4, 4)
    H = torch.stack([(gradient(w + d) - gradient(w - d)) / 2e-5 for d in h])
    place = ll.hessian(problem).slices["a.weight"]
    torch.testing.assert_close(ll.hessian(problem).dense()[place, place], H, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        ll.diagonal(problem)["a.weight"].flatten(), H.diagonal(), rtol=1e-4, atol=1e-6
    )
    with pytest.raises(ll.InputError, match="differentiate this model backwards twice"):
        ll.layer_hessian(problem, "a")


def test_what_a_forward_pass_puts_into_lists_is_taken_out_again():
    class Listed(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.seen, self.by_name, self.sizes = [], {}, {30}

        def forward(self, x):
            self.seen.append(super().forward(x))
            self.by_name[len(self.seen)] = x
            self.sizes.add(len(x))
            return self.seen[-1]

    model = Listed()
    X = torch.randn(30, 4)
    seen, _ = model.seen, model(X)
    first = seen[0]
    ll.trace(ll.hessian(Problem(model, train=(X, Y))))
    assert model.seen is seen
    assert seen == [first]
    assert list(model.by_name) == [1]
    assert model.sizes == {30}


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_tensors_that_are_no_buffers_are_used_in_any_precision(dtype):
    torch.manual_seed(0)

    class Rotated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 3)
            self.turn = torch.linalg.qr(torch.randn(3, 3))[0]

        def forward(self, x):
            return self.b((self.a(x) @ self.turn).tanh())

    model, X = Rotated(), torch.randn(30, 4)
    problem = Problem(model, train=(X, Y), dtype=dtype)
    H = torch.func.hessian(
        lambda w: F.cross_entropy(torch.func.functional_call(model, {"a.weight": w}, X), Y)
    )(model.a.weight.detach()).reshape(12, 12)
    place = ll.hessian(problem).slices["a.weight"]
    dense = ll.hessian(problem).dense()[place, place].float()
    torch.testing.assert_close(dense, H, rtol=1e-3, atol=1e-5)
    assert ll.measure(problem, ["frobenius_norm"])["frobenius_norm"].value is not None


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_of_embeddings_are_switched_off(kind):
    torch.manual_seed(0)

    def forward(m, x):
        z = m.table(x)
        return m.head((z.sum(1) if z.ndim == 3 else z).tanh())

    model = zoo.Written(forward, table=kind(6, 4, sparse=True), head=nn.Linear(4, 3))
    tokens = torch.randint(0, 6, (30, 5))
    problem = Problem(model, train=(tokens, Y))
    sparse = ll.trace(ll.hessian(problem)).value
    assert model.table.sparse
    model.table.sparse = False
    assert ll.trace(ll.hessian(Problem(model, train=(tokens, Y)))).value == pytest.approx(sparse)


def test_sparse_gradients_of_functions_are_refused():
    model = zoo.Written(
        lambda m, x: m.head(F.embedding(x, m.table, sparse=True).flatten(1)),
        table=nn.Parameter(torch.randn(6, 2)),
        head=nn.Linear(8, 3),
    )
    with pytest.raises(ll.InputError, match="sparse=False"):
        Problem(model, train=(torch.randint(0, 6, (30, 4)), Y))


def test_a_model_that_asks_whether_it_is_differentiated_is_refused():
    def forward(m, x):
        z = m.a(x)
        return m.b(z.tanh() if z.requires_grad else z)

    model = zoo.Written(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 3))
    with pytest.raises(ll.InputError, match="something else when its gradients are asked for"):
        Problem(model, train=(torch.randn(30, 4), Y))
