"""The generalised dual against pseudo-inverses written out, and against the model itself."""

import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES
from lowland.curvature import layers, matrices
from lowland.dual import Pairs, dual_shifts, shifts

LAYERS = [
    (name, layer)
    for name in ("mlp-relu", "mlp-gelu", "lenet", "conv1d", "resnet", "transformer")
    for layer in matrices(CASES[name].problem())
    if layer != "embed"
]


def make(name: str, layer: str):
    problem = CASES[name].problem(n=9, batch_size=4)
    pairs = Pairs(torch.tensor([0, 3, 3, 5, 8]), torch.tensor([1, 0, 4, 6, 2]), 0, "by hand")
    at = layers(problem)[layer]
    return problem, pairs, at, dual_shifts(problem, [at], pairs)


def positions(problem, at, inputs):
    """What the layer sees of one sample, (G, in, T): unfolded by torch from the module's input."""
    module, seen = problem.model.get_submodule(at.name), []
    handle = module.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    with problem.measuring(), torch.no_grad():
        problem.outputs(inputs[None])
    handle.remove()
    (x,) = seen
    if isinstance(module, nn.Linear):
        return x.reshape(1, -1, x.shape[-1]).mT
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = nn.functional.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    sizes = [module.kernel_size, module.dilation, (0, 0), module.stride]
    if x.ndim == 3:
        x, sizes = x.unsqueeze(2), [(1, *s) if len(s) == 1 else s for s in sizes]
    return nn.functional.unfold(x, *sizes)[0].unflatten(0, (module.groups, -1))


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_shifts_are_w_dx_times_the_pseudo_inverse(name, layer):
    problem, pairs, at, found = make(name, layer)
    shifts = found.shifts[layer]
    rows = torch.cat(list(shifts.written_out(2)))
    weight = problem.params[at.parameter]
    W = weight.view(at.shape)
    train, test = (problem.data(s).take(slice(None)) for s in ("train", "test"))
    for k, (i, j) in enumerate(zip(pairs.train, pairs.test, strict=True)):
        X, X_new = (positions(problem, at, d.inputs[n]) for d, n in ((train, i), (test, j)))
        expected = W @ (X_new - X) @ torch.linalg.pinv(X, rtol=shifts.cut)
        torch.testing.assert_close(rows[k], expected.flatten(), rtol=1e-6, atol=1e-9)
        change = W @ (X_new - X)
        miss = (expected @ X - change).norm() / change.norm() if change.any() else 0.0
        assert float(shifts.residual[k]) == pytest.approx(float(miss), abs=1e-8)
        assert float(shifts.size[k]) == pytest.approx(float(expected.square().sum()), rel=1e-6)
        # The loss at the dual weights, with the weights really put into the model
        params = {at.parameter: weight + expected.view_as(weight)}
        with problem.measuring(), torch.no_grad():
            loss = problem.loss(
                problem.outputs(train.inputs[i][None], params), test.targets[j][None]
            )
        assert float(shifts.dual_loss[k]) == pytest.approx(float(loss), rel=1e-6)


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_the_dual_is_exact_where_positions_are_independent(name, layer):
    _, _, at, found = make(name, layer)
    shifts = found.shifts[layer]
    full = shifts.rank == shifts.positions
    assert (shifts.residual[full] < 1e-7).all()
    if shifts.positions > at.shape[2]:  # more positions than inputs: a fit
        assert not full.any()
        assert (shifts.residual > 1e-3).all()


def test_many_convolutions_have_an_exact_dual():
    # Contrary to the paper's discussion: 4 positions of 2 x 4 inputs in each group
    problem = CASES["lenet"].problem(n=12)
    found = dual_shifts(problem, [layers(problem)["3"]], ll.pair(problem))
    assert found.shifts["3"].positions == 4
    assert (found.shifts["3"].residual < 1e-7).all()
    torch.testing.assert_close(found.shifts["3"].dual_loss, found.test_loss, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("name", "layer"), [("lenet", "3"), ("lenet", "6"), ("resnet", "stem")])
def test_sums_and_products_are_those_of_the_rows(name, layer):
    _, _, at, found = make(name, layer)
    shifts = found.shifts[layer]
    rows = torch.cat(list(shifts.written_out(3)))
    M = at.size
    assert rows.shape == (5, M)
    v, weights = torch.randn(M).double(), torch.randn(5).double()
    torch.testing.assert_close(shifts.dot(v), rows @ v)
    torch.testing.assert_close(shifts.weighted_sum(weights), weights @ rows)
    torch.testing.assert_close(shifts.size, rows.square().sum(1))
    E = torch.randn(M, 3).double()
    torch.testing.assert_close(shifts.components(E), rows @ E)
    torch.testing.assert_close(shifts.components(E[:, :1]), rows @ E[:, :1])  # in factors
    kept = torch.tensor([True, False, True, True, False])
    torch.testing.assert_close(shifts.where(kept).components(E), (rows @ E)[kept])


def test_positions_that_repeat_lower_the_rank_and_nothing_breaks():
    problem = CASES["transformer"].problem(n=9)
    train, test = (problem.data(split).take(slice(None)) for split in ("train", "test"))
    tokens = train.inputs.clone()
    tokens[:] = tokens[:, :1]  # one token five times: without a place of its own, it looks the same
    problem = ll.Problem(
        problem.model, train=(tokens, train.targets), test=(test.inputs, test.targets)
    )
    at = layers(problem)["up"]
    pairs = Pairs(torch.arange(7), torch.arange(7), 0, "by hand")
    shifts = dual_shifts(problem, [at], pairs).shifts["up"]
    assert (shifts.rank == 1).all()
    assert shifts.size.isfinite().all()
    found = ll.duality(problem, "up", pairs=ll.pair(problem, space="head"), dual="activity")
    assert found.fit.degenerate["positions that are not independent"] == 7


def test_a_larger_cut_gives_smaller_shifts_and_a_larger_residual():
    problem, pairs, at, found = make("transformer", "down")
    exact = found.shifts["down"]
    rough = dual_shifts(problem, [at], pairs, cut=0.3).shifts["down"]
    assert (rough.size <= exact.size + 1e-12).all()
    assert rough.size.sum() < 0.9 * exact.size.sum()
    assert (rough.residual >= exact.residual - 1e-9).all()
    assert rough.cut == 0.3


def test_the_first_convolution_of_a_deep_image_network_has_no_useful_dual():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 8, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 3),
    ).double()
    X, y = torch.randn(60, 1, 10, 10).double(), torch.arange(60) % 3
    problem = ll.Problem(model, train=(X[:40], y[:40]), test=(X[40:], y[40:]))
    found = ll.duality(problem, dual="activity")
    assert not found["0"].trusted
    assert "NO useful dual" in repr(found["0"])
    assert found["2"].trusted  # 9 positions, 64 inputs
    assert found["2"].fit.mean_residual < 1e-6
    assert found["5"].fit.loss_defect < 1e-9
    frame = found.to_frame()
    assert list(frame.index) == ["0", "2", "5"]
    assert frame.loc["5", "explained"] == pytest.approx(1)


@pytest.mark.parametrize("name", ["mlp-relu", "mlp-gelu", "lenet"])
def test_losses_of_what_shifts_add_are_those_at_written_out_weights(name, monkeypatch):
    problem = CASES[name].problem(n=9, batch_size=4)
    plain = [at.name for at in matrices(problem).values() if at.positions == 1]
    assert plain
    for layer in plain:
        added = make(name, layer)[-1].shifts[layer].dual_loss
        with monkeypatch.context() as patch:
            patch.setattr(shifts, "losses_with_own_changes", lambda *args: None)
            written = make(name, layer)[-1].shifts[layer].dual_loss
        torch.testing.assert_close(added, written, rtol=1e-9, atol=1e-12)
