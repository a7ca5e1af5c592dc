"""The decomposition against a naive transcription of the paper, and its identities."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from lowland.dual import decomposition
from lowland.dual.pairing import nearest_same_label
from lowland.errors import InputError
from lowland.problem import Problem


def make_problem(seed: int = 0, activation=lambda: nn.LeakyReLU(0.2), **options) -> Problem:
    """A network trained a little on three overlapping clouds.

    Its units are never off, so that the Hessian block has no null space: there, eigenvectors are
    not unique and only sums over directions can be compared.
    """
    g = torch.Generator().manual_seed(seed)

    def cloud(n):
        y = torch.arange(n) % 3
        centre = torch.tensor([[2.0, 0, 0, 1], [0, 2, 0, 1], [0, 0, 2, 1]])
        return (centre[y] + torch.randn(n, 4, generator=g)).double(), y

    train, test = cloud(60), cloud(30)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, 6, bias=False),
        activation(),
        nn.Linear(6, 5),
        activation(),
        nn.Linear(5, 3),
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train[0]), train[1]).backward()
        optimizer.step()
    return Problem(model, train=train, test=test, **{"batch_size": 13, **options})


def transcription(problem: Problem, name: str, n_sharp: int) -> dict[str, np.ndarray | float]:
    """Feng & Tu's Methods word for word: loops over samples, autograd row by row."""
    X, y = problem.train.take(slice(None)).inputs, problem.train.targets
    Xt, yt = problem.test.take(slice(None)).inputs, problem.test.targets
    model = copy.deepcopy(problem.model)
    layer = dict(model.named_modules())[name]
    weight = layer.weight

    seen = {}
    layer.register_forward_hook(lambda m, args, out: seen.update(x=args[0]))

    def loss(inputs, target):
        return nn.functional.cross_entropy(model(inputs[None]), target[None])

    total = nn.functional.cross_entropy(model(X), y)
    (gradient,) = torch.autograd.grad(total, weight, create_graph=True)
    rows = [
        torch.autograd.grad(g, weight, retain_graph=True)[0].flatten() for g in gradient.flatten()
    ]
    values, E = torch.linalg.eigh(torch.stack(rows))

    w_nk, g_nk, dls = [], [], []
    for k in range(len(Xt)):
        same = [j for j in range(len(X)) if y[j] == yt[k]]
        j = min(same, key=lambda j: float((X[j] - Xt[k]).norm()))
        l_test = loss(Xt[k], yt[k])
        x_test = seen["x"][0]
        l_train = loss(X[j], y[j])
        x = seen["x"][0]
        W = weight.detach()
        dW = torch.zeros_like(W)
        for o in range(W.shape[0]):
            for i in range(W.shape[1]):  # Eq. 6
                dW[o, i] = sum(W[o, m] * (x_test - x)[m] * x[i] for m in range(len(x))) / x.dot(x)
        dl = (l_test - l_train).item()
        flat = dW.flatten()
        if not flat.any():
            continue
        dls.append(dl)
        w_nk.append((E.T @ flat).detach().numpy())
        g_nk.append((E.T @ (dl * flat / flat.dot(flat))).detach().numpy())  # Eq. 7
    w, g = np.array(w_nk), np.array(g_nk)
    sigma_w, sigma_g = w.std(0), g.std(0)
    c = ((g - g.mean(0)) * (w - w.mean(0))).mean(0) / (sigma_g * sigma_w)
    order = np.argsort(-sigma_g)
    contribution = (c * sigma_g * sigma_w)[order]
    return {
        "sigma_g": sigma_g[order],
        "sigma_w": sigma_w[order],
        "c": c[order],
        "mu_g": g.mean(0)[order],
        "mu_w": w.mean(0)[order],
        "contribution": contribution,
        "eigenvalue": values.numpy()[order],
        "paired_gap": float(np.mean(dls)),
        "eq9": float((c * sigma_g * sigma_w + g.mean(0) * w.mean(0)).sum()),
        "eq11": float(contribution.sum()),
        "sharp": float(contribution[:n_sharp].sum()),
        "flat": float(contribution[n_sharp:].sum()),
        "total_w": float((sigma_w**2).sum()),
        "pairs": len(dls),
    }


def test_everything_equals_the_naive_transcription():
    problem = make_problem()
    found = ll.duality(problem, "2", n_sharp=4)
    expected = transcription(problem, "2", 4)
    for key, value in expected.items():
        got = getattr(found, key)
        if key in ("mu_g", "mu_w"):  # an eigenvector's sign is arbitrary
            got, value = np.abs(got), np.abs(value)
        np.testing.assert_allclose(got, value, rtol=1e-7, atol=1e-12, err_msg=key)


def test_sums_equal_the_naive_transcription_in_the_last_layer():
    # Softmax does not see a common shift of the logits: the block has a null space.
    problem = make_problem()
    found = ll.duality(problem, "4")
    expected = transcription(problem, "4", 10)
    for key in ("paired_gap", "eq9", "total_w", "pairs"):
        assert getattr(found, key) == pytest.approx(expected[key], rel=1e-9), key


@pytest.mark.parametrize("seed", range(5))
def test_identities(seed):
    problem = make_problem(seed)
    found = ll.duality(problem, "2")
    assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-10)
    assert found.duality_residual < 1e-14
    assert found.loss_defect < 1e-12
    assert found.sharp + found.flat == pytest.approx(found.eq11, rel=1e-12)
    assert np.all(np.diff(found.sigma_g) <= 0)
    # Eq. 12 by the covariance of dx / |x|, less the square of the mean shift that sigma leaves out
    partner = nearest_same_label(problem)
    hidden = problem.model[:2]
    X, Xt = (problem.data(s).take(slice(None)).inputs for s in ("train", "test"))
    x, x_test = hidden(X)[partner].detach(), hidden(Xt).detach()
    W = problem.params["2.weight"]
    relative = (x_test - x) / x.norm(dim=1, keepdim=True)
    C = relative.T @ relative / len(x)
    mean_shift = torch.einsum("oi,ki,kj->oj", W, relative, x / x.norm(dim=1, keepdim=True)) / len(x)
    expected = torch.einsum("ij,oi,oj->", C, W, W) - mean_shift.square().sum()
    assert found.total_w == pytest.approx(float(expected), rel=1e-10)


def test_the_gap_is_test_minus_train_and_a_float32_model_keeps_the_identity():
    problem = make_problem()
    found = ll.duality(problem, "2")
    expected = problem.losses("test").mean() - problem.losses("train").mean()
    assert found.gap == pytest.approx(float(expected), rel=1e-12)
    single = ll.duality(make_problem(dtype=torch.float32), "2")
    assert single.eq9 == pytest.approx(single.paired_gap, rel=1e-10)
    assert single.paired_gap == pytest.approx(found.paired_gap, rel=1e-4)


def test_chunks_do_not_change_the_result(monkeypatch):
    whole = ll.duality(make_problem(), "2")
    monkeypatch.setattr(decomposition, "_SHIFTS", 100)
    parts = ll.duality(make_problem(batch_size=7), "2")
    np.testing.assert_allclose(parts.sigma_g, whole.sigma_g, rtol=1e-9, atol=1e-12)
    assert parts.sharp == pytest.approx(whole.sharp, rel=1e-9)


def test_pairs_are_the_nearest_of_the_same_label_by_brute_force(monkeypatch):
    monkeypatch.setattr("lowland.dual.pairing._DISTANCES", 50)
    problem = make_problem()
    X, Xt = (problem.data(s).take(slice(None)).inputs for s in ("train", "test"))
    distance = torch.cdist(Xt, X)
    distance[problem.test.targets[:, None] != problem.train.targets[None]] = torch.inf
    assert torch.equal(nearest_same_label(problem), distance.argmin(1))


class Around(nn.Module):
    """The data also goes around the layer, so the layer alone cannot account for it."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.layer(x)) + x)


def test_a_path_around_the_layer_shows_as_a_loss_defect():
    problem = make_problem()
    data = [
        (problem.data(s).take(slice(None)).inputs, problem.data(s).targets)
        for s in ("train", "test")
    ]
    torch.manual_seed(0)
    around = ll.duality(Problem(Around().double(), train=data[0], test=data[1]), "layer")
    assert around.loss_defect > 0.1
    assert around.duality_residual < 1e-14


def test_samples_without_a_dual_are_counted_and_left_out():
    problem = make_problem(activation=nn.ReLU)
    X, y = problem.train.take(slice(None)).inputs, problem.train.targets
    Xt, yt = problem.test.take(slice(None)).inputs.clone(), problem.test.targets
    Xt[0] = X[(y == yt[0]).nonzero()[0, 0]]  # a test sample equal to its partner: no shift
    dead = -100 * torch.ones(1, 4, dtype=torch.float64)  # a partner whose hidden units are all off
    with torch.no_grad():
        problem.model[0].weight.abs_()
    X, y = torch.cat([X, dead]), torch.cat([y, yt[1:2]])
    Xt[1] = 0.9 * dead[0]
    found = ll.duality(Problem(problem.model, train=(X, y), test=(Xt, yt)), "2")
    assert found.excluded == 2
    assert found.pairs == 28
    assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-10)
    for name, value in found.arrays().items():
        assert np.isfinite(value).all(), name


def test_dead_directions_contribute_zero_and_never_nan():
    problem = make_problem(activation=nn.ReLU)
    with torch.no_grad():
        problem.model[4].weight[:, 0] = 0  # the loss does not see unit 0 of the layer
        problem.model[0].weight[0] = 0  # and input 0 is always zero
    found = ll.duality(problem, "2")
    for name, value in found.arrays().items():
        assert np.isfinite(value).all(), name
    assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-10)


def test_layer_wise_rescaling_leaves_every_contribution_unchanged():
    problem = make_problem()
    before = ll.duality(problem, "2")
    with torch.no_grad():  # Dinh et al.: the function stays the same
        problem.model[0].weight.mul_(1e3)
        problem.model[2].weight.mul_(1e-3)
    after = ll.duality(problem, "2")
    assert after.paired_gap == pytest.approx(before.paired_gap, rel=1e-9)
    scale = np.abs(before.contribution).max()
    np.testing.assert_allclose(after.contribution, before.contribution, atol=1e-7 * scale)
    np.testing.assert_allclose(after.sigma_g[:9], 1e3 * before.sigma_g[:9], rtol=1e-7)


def test_what_cannot_be_decomposed_is_said():
    problem = make_problem()
    X, y = problem.train.take(slice(None)).inputs, problem.train.targets
    Xt, yt = problem.test.take(slice(None)).inputs, problem.test.targets
    with pytest.raises(InputError, match="pass test="):
        ll.duality(Problem(problem.model, train=(X, y)), "2")
    with pytest.raises(InputError, match="label 2, which no training sample has"):
        ll.duality(Problem(problem.model, train=(X[y < 2], y[y < 2]), test=(Xt, yt)), "2")
    with pytest.raises(InputError, match="between 1 and the layer's 30 weights; got 31"):
        ll.duality(problem, "2", n_sharp=31)
    with pytest.raises(InputError, match="no test sample has a dual shift"):
        ll.duality(Problem(problem.model, train=(X, y), test=(X, y)), "2")
    conv = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Flatten(), nn.Linear(4, 3)).double()
    with pytest.raises(InputError, match="Conv1d; the duality is computed for dense layers"):
        ll.duality(Problem(conv, train=(X[:, None], y), test=(Xt[:, None], yt)), "0")
    regression = Problem(problem.model, "mse", (X, torch.randn(60, 3)), (Xt, torch.randn(30, 3)))
    with pytest.raises(InputError, match="one class label per sample"):
        ll.duality(regression, "2")
