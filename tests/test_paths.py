"""Ways between models: planes, alignment, renormalisation and curves, against planted answers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowland as ll
import zoo
from lowland.errors import InputError
from lowland.landscape import align, model_at, state_of
from lowland.landscape.renormalisation import renormalised
from lowland.landscape.units import permuted, units
from test_landscape import FEW, Residual, data, mlp, trained


def normed(seed: int = 0, epochs: int = 20) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)).double()
    return trained(model.train(), epochs)


def images(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(12, 2, 8, 8, generator=g, dtype=torch.float64), torch.arange(12) % 3


def residual_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), Residual(6),
        nn.MaxPool2d(2), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 8), nn.Tanh(),
        nn.Linear(8, 3),
    ).double()  # fmt: skip
    model(images()[0])  # statistics
    return model.eval()


@pytest.mark.parametrize("make", [mlp, normed], ids=["dense", "BatchNorm"])
def test_a_plane_goes_through_its_models_with_their_own_losses(make):
    models = [make(seed) for seed in (0, 1, 2)]
    p = ll.Problem(models[0], train=data(), test=data(seed=1))
    found = ll.plane(p, *models, steps=7)
    assert [mark.name for mark in found.marks] == ["model a", "model b", "model c"]
    for mark, model in zip(found.marks, models, strict=True):
        (i,), (j,) = np.where(found.y == mark.y)[0], np.where(found.x == mark.x)[0]
        other = p.of(model)
        assert mark.train == pytest.approx(float(other.losses().mean()), rel=1e-12)
        assert found.train[i, j] == pytest.approx(mark.train, rel=1e-9)
        assert found.test[i, j] == pytest.approx(float(other.losses("test").mean()), rel=1e-9)
        assert mark.distance == pytest.approx(0, abs=1e-9)
    assert abs(found.cosine) < 1e-12
    assert found.x.min() < min(m.x for m in found.marks) < max(m.x for m in found.marks)


def test_models_on_one_line_span_no_plane():
    a, b = mlp(0), mlp(1)
    p = ll.Problem(a, train=data())
    middle = {n: (t + b.state_dict()[n]) / 2 for n, t in a.state_dict().items()}
    with pytest.raises(InputError, match="on the line of the first two"):
        ll.plane(p, a, b, middle)


def depthwise_network() -> nn.Module:
    """A convolution of each channel by itself, with a ReLU that is done in place."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(inplace=True), nn.Conv2d(6, 6, 3, groups=6), nn.Tanh(),
        nn.Flatten(), nn.Linear(96, 3),
    ).double().eval()  # fmt: skip


def layer_normed() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, 3)).double()
    return trained(model, 20)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 10, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (1, 6)), layer, nn.Flatten(), nn.Linear(6, 3))
    return model.double().eval()


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (mlp, 2),
        (normed, 1),
        (residual_network, 4),
        (depthwise_network, 1),
        (layer_normed, 1),
        (encoder, 1),
    ],
)
def test_alignment_recovers_a_planted_permutation(make, count):
    model = make()
    X, y = images() if make in (residual_network, depthwise_network) else data()
    p = ll.Problem(model, train=(X, y))
    groups = units(p)
    assert len(groups) == count
    g = torch.Generator().manual_seed(1)
    orders = [torch.randperm(group.size, generator=g) for group in groups]
    a = state_of(p)
    b = permuted(a, groups, orders)
    assert any(not torch.equal(a[n], b[n]) for n in a)
    assert torch.allclose(p.of(model_at(p, b)).losses(), p.losses())  # the same function
    aligned = align(p, a, b)
    assert all(torch.equal(aligned.state[n], t) for n, t in a.items())
    assert len(aligned.words) == len(groups)
    found = ll.path(p, a, b, steps=7, alignment=True, curve=False)
    assert found.routes["straight"].barrier > 1e-3
    assert found.routes["aligned"].barrier == pytest.approx(0, abs=1e-12)
    assert found.aligned_distance == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in sorted(zoo.ZOO)]
)
def test_permutations_of_any_network_are_right_or_refused(name):
    make, shape = zoo.ZOO[name]
    torch.manual_seed(0)
    model = make().double().eval()
    X = zoo.inputs(shape, 11, torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = model(X)
    y = torch.arange(11) % 2 if out.ndim == 2 else torch.zeros(11, *out.shape[1:-1]).long()
    try:
        p = ll.Problem(model, train=(X, y))
        groups = units(p)
    except InputError:
        return
    orders = [torch.randperm(g.size, generator=torch.Generator().manual_seed(2)) for g in groups]
    other = model_at(p, permuted(state_of(p), groups, orders))
    with torch.no_grad():
        torch.testing.assert_close(other(X), out, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_aligned_is_refused_in_words_and_the_rest_is_drawn():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Linear(6, 6, dtype=torch.float64) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.cumsum(self.a(x), 1))  # the order of units matters

    torch.manual_seed(0)
    first, second = Mixed(), Mixed()
    X, y = data()
    p = ll.Problem(first, train=(X, y))
    found = ll.path(p, first, second, steps=5, alignment=True, curve=False)
    assert list(found.routes) == ["straight"]
    assert "known to be permutable" in found.refused["aligned"]


def test_the_curve_ends_at_its_ends_and_is_no_higher_than_the_line():
    a, b = mlp(0, epochs=150), mlp(1, epochs=150)
    p = ll.Problem(a, train=data(), test=data(seed=1))
    found = ll.path(p, a, b, steps=21, iterations=60)
    line, curve = found.routes["straight"], found.routes["curve"]
    assert line.barrier > 0.05
    assert curve.barrier < 0.5 * line.barrier
    for route in (line, curve):
        assert route.t[[0, -1]].tolist() == [0, 1]
        for end, model in ((0, a), (-1, b)):
            other = p.of(model)
            assert route.train[end] == pytest.approx(float(other.losses().mean()), rel=1e-9)
            assert route.test_error[end] == pytest.approx(float(other.wrong("test").mean()))
    chord = line.train[0] + line.t * (line.train[-1] - line.train[0])
    assert line.barrier == pytest.approx((line.train - chord).max())
    assert curve.length >= line.length == pytest.approx(found.distance)


def test_batchnorm_statistics_are_estimated_again_between_the_models():
    a, b = normed(0), normed(3)
    p = ll.Problem(a, train=data())
    found = ll.path(p, a, b, steps=5, renormalize=True, curve=False)
    route = found.routes["renormalised"]
    for end, model in ((0, a), (-1, b)):
        assert route.train[end] == pytest.approx(float(p.of(model).losses().mean()), rel=1e-9)
    # By hand, half way: the statistics of all samples.
    state = {n: (t + b.state_dict()[n]) / 2 for n, t in state_of(p).items()}
    middle = model_at(p, state)
    X, _ = data()
    with torch.no_grad():
        h = middle[0](X)
        middle[1].running_mean.copy_(h.mean(0))
        middle[1].running_var.copy_(h.var(0))
    assert route.train[2] == pytest.approx(float(p.of(middle).losses().mean()), rel=1e-9)


def test_repair_gives_units_the_statistics_between_the_models():
    a, b = mlp(0), mlp(1)
    p = ll.Problem(a, train=data())
    X, _ = data()
    first, second = state_of(p), state_of(p, b)
    state = {n: 0.75 * first[n] + 0.25 * second[n] for n in first}
    repaired = renormalised(p, first, second)(0.25, state)
    with torch.no_grad():
        for layers in (1, 3):
            own, there, here = (m[:layers](X) for m in (a, b, repaired))
            for statistic in (torch.mean, torch.std):
                wanted = 0.75 * statistic(own, 0) + 0.25 * statistic(there, 0)
                torch.testing.assert_close(statistic(here, 0), wanted)


def test_a_saved_landscape_is_read_again(tmp_path):
    a, b = mlp(0), mlp(1)
    p = ll.Problem(a, train=data())
    drawn = ll.Landscape(
        lines=(ll.line(p, "random", steps=5),),
        surface=ll.surface(p, steps=5),
        path=ll.path(p, a, b, steps=5, iterations=2),
    )
    folder = ll.save_landscape(drawn, tmp_path / "out", "A title", kind=None)
    again = ll.load_landscape(folder)
    np.testing.assert_array_equal(again.surface.train, drawn.surface.train)
    assert again.path.routes["curve"].barrier == drawn.path.routes["curve"].barrier
    assert again.lines[0].quadratic == drawn.lines[0].quadratic
    (folder / "arrays.npz").write_bytes(b"damaged")
    with pytest.raises(InputError, match="is damaged"):
        ll.load_landscape(folder)
    with pytest.raises(InputError, match=r"holds no landscape\.json"):
        ll.load_landscape(tmp_path)


def test_checkpoints_are_models(tmp_path):
    a, b = mlp(0), mlp(1)
    for name, model in (("a.pt", a), ("b.pt", b)):
        torch.save(model.state_dict(), tmp_path / name)
    p = ll.Problem(a, train=data())
    found = ll.path(p, tmp_path / "a.pt", tmp_path / "b.pt", steps=3, curve=False)
    assert found.names == ("a.pt", "b.pt")
    with torch.no_grad():
        own = float(F.cross_entropy(b(data()[0]), data()[1]))
    assert found.routes["straight"].train[-1] == pytest.approx(own, rel=1e-9)
