"""The decomposition against a naive transcription of the paper, and its identities."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from cases import descend
from lowland.curvature import layer_hessian
from lowland.dual import moments, shifts
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
    descend(model, train, 60, 0.2)
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
    assert found.fit.loss_defect < 1e-12
    assert found.sharp + found.flat == pytest.approx(found.eq11, rel=1e-12)
    assert np.all(np.diff(found.sigma_g) <= 0)
    # Eq. 12 by the covariance of dx / |x|, less the square of the mean shift that sigma leaves out
    partner = ll.pair(problem).train
    hidden = problem.model[:2]
    X, Xt = (problem.data(s).take(slice(None)).inputs for s in ("train", "test"))
    x, x_test = hidden(X)[partner].detach(), hidden(Xt).detach()
    W = problem.params["2.weight"]
    relative = (x_test - x) / x.norm(dim=1, keepdim=True)
    C = relative.T @ relative / len(x)
    mean_shift = torch.einsum("oi,ki,kj->oj", W, relative, x / x.norm(dim=1, keepdim=True)) / len(x)
    expected = torch.einsum("ij,oi,oj->", C, W, W) - mean_shift.square().sum()
    assert found.total_w == pytest.approx(float(expected), rel=1e-10)
    assert found.totals.total_w_data == pytest.approx(float(expected), rel=1e-10)
    assert found.totals.total_g == pytest.approx(float((found.sigma_g**2).sum()), rel=1e-10)
    assert found.totals.dual_gap == pytest.approx(found.paired_gap, rel=1e-10)


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
    monkeypatch.setattr(shifts, "_SHIFTS", 100)
    monkeypatch.setattr(moments, "_COMPONENTS", 100)
    parts = ll.duality(make_problem(batch_size=7), "2")
    np.testing.assert_allclose(parts.sigma_g, whole.sigma_g, rtol=1e-9, atol=1e-12)
    assert parts.sharp == pytest.approx(whole.sharp, rel=1e-9)


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
    around = ll.duality(
        Problem(Around().double(), train=data[0], test=data[1]), "layer", dual="activity"
    )
    assert around.fit.loss_defect > 0.1
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
    for name, value in vars(found.per_direction).items():
        assert np.isfinite(value).all(), name


def test_dead_directions_contribute_zero_and_never_nan():
    problem = make_problem(activation=nn.ReLU)
    with torch.no_grad():
        problem.model[4].weight[:, 0] = 0  # the loss does not see unit 0 of the layer
        problem.model[0].weight[0] = 0  # and input 0 is always zero
    found = ll.duality(problem, "2")
    for name, value in vars(found.per_direction).items():
        assert np.isfinite(value).all(), name
    assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-10)


def test_a_correlation_is_at_most_one_and_zero_where_a_spread_is_rounding():
    usual = ll.duality(make_problem(), "2")
    assert (np.abs(usual.c) <= 1).all()
    assert (usual.c != 0).all()
    # seven test samples that differ in their last digits: a spread is what cancellation leaves
    problem = make_problem()
    train, first = problem.train.take(slice(None)), problem.test.take(slice(0, 1))
    nearly = first.inputs * (1 + 1e-9 * torch.arange(7)[:, None])
    test = nearly, first.targets.expand(7)
    same = Problem(problem.model, train=(train.inputs, train.targets), test=test)
    found = ll.duality(same, "2")
    assert found.sigma_g.max() > 0
    assert (np.abs(found.contribution) > found.sigma_g * found.sigma_w).any()
    assert (found.c == 0).all()


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
    with pytest.raises(InputError, match="between 1 and the layer's 30 weights; got 31"):
        ll.duality(problem, "2", n_sharp=31)
    with pytest.raises(InputError, match="no pair has a dual shift"):
        ll.duality(Problem(problem.model, train=(X, y), test=(X, y)), "2")
    with pytest.raises(InputError, match="between 1 and the 20 directions computed; got 21"):
        ll.duality(problem, "2", n_sharp=21, directions=20)
    for option, value in (("n_sharp", "some"), ("gauge", "mine"), ("basis", "adam")):
        with pytest.raises(InputError, match=f"got '{value}'"):
            ll.duality(problem, "2", **{option: value})
    with pytest.raises(InputError, match="memory budget is 0 MiB"):
        ll.duality(Problem(problem.model, train=(X, y), test=(Xt, yt), memory=20_000), "2")
    norm = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)).double()
    with pytest.raises(
        InputError, match="is a normalisation; the duality is of weights that are one"
    ):
        ll.duality(Problem(norm, train=(X, y), test=(Xt, yt)), "0")


def test_the_sum_does_not_depend_on_the_basis():
    problem = make_problem()
    found = {basis: ll.duality(problem, "2", basis=basis) for basis in ("hessian", "ggn", "fisher")}
    for basis, one in found.items():
        assert one.eq9 == pytest.approx(one.paired_gap, rel=1e-10), basis
        assert one.eq11 == pytest.approx(found["hessian"].eq11, rel=1e-10), basis
        assert one.total_w == pytest.approx(found["hessian"].total_w, rel=1e-10), basis
    # a piecewise linear network: the two blocks are one
    assert found["ggn"].sharp == pytest.approx(found["hessian"].sharp, rel=1e-6)
    assert found["fisher"].sharp != pytest.approx(found["hessian"].sharp, rel=1e-2)


def test_the_fisher_block_is_the_mean_outer_product_of_gradients():
    problem = make_problem()
    X, y = problem.train.take(slice(None)).inputs, problem.train.targets
    weight = problem.model[2].weight
    expected = torch.zeros(30, 30, dtype=torch.float64)
    for x, t in zip(X, y, strict=True):
        loss = nn.functional.cross_entropy(problem.model(x[None]), t[None])
        (g,) = torch.autograd.grad(loss, weight)
        expected += torch.outer(g.flatten(), g.flatten()) / len(X)
    torch.testing.assert_close(layer_hessian(problem, "2", kind="fisher"), expected)


def test_leading_directions_agree_with_all_of_them():
    problem = make_problem()
    dense = ll.duality(problem, "2", n_sharp=4)
    some = ll.duality(problem, "2", n_sharp=4, directions=12)
    assert dense.complete
    assert not some.complete
    assert "Lanczos" in some.setting.route
    assert len(some.sigma_g) == 12
    for key in ("sharp", "flat", "eq9", "eq11", "total_w_data", "total_g", "paired_gap"):
        got, expected = (getattr(split.totals, key) for split in (some, dense))
        assert got == pytest.approx(expected, rel=1e-6), key
    np.testing.assert_allclose(some.sigma_g[:4], dense.sigma_g[:4], rtol=1e-6)
    # The bound on what was not computed holds, and is reached by some direction, if not by an
    # eigenvector.
    unseen = [
        v for v, s in zip(dense.eigenvalue, dense.sigma_g, strict=True) if v not in some.eigenvalue
    ]
    rest = set(np.argsort(-np.abs(dense.eigenvalue))[12:])
    largest = max(dense.sigma_g[n] for n in rest)
    assert len(unseen) >= 18
    assert largest <= some.totals.unseen_sigma_g <= np.sqrt(some.totals.total_g)
    for name, ends in vars(dense.totals.intervals).items():
        assert getattr(some.totals.intervals, name) == pytest.approx(ends, rel=1e-6), name


def test_all_layers_at_once_are_the_layers_one_by_one():
    problem = make_problem()
    every = ll.duality(problem)
    assert list(every) == ["0", "2", "4"]
    for name, found in every.items():
        alone = ll.duality(problem, name)
        for key in ("sharp", "flat", "sigma_w", "loss_defect", "dual_gap"):
            got, expected = (getattr(split.row, key) for split in (found, alone))
            assert got == pytest.approx(expected, rel=1e-9), (name, key)
        assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-10)
    rows = every.to_frame()
    assert rows["explained"].tolist() == pytest.approx([1, 1, 1])
    assert rows.loc["2", "weight_norm"] == pytest.approx(float(problem.params["2.weight"].norm()))
    # with a budget that holds one layer at a time, the same
    small = ll.duality(make_problem(memory=60_000))
    for name in every:
        assert small[name].sharp == pytest.approx(every[name].sharp, rel=1e-9)
    assert list(ll.duality(problem, ["4", "0"])) == ["4", "0"]


def test_a_layer_without_a_dual_is_skipped_and_the_others_go_on():
    problem = make_problem(activation=nn.ReLU)
    with torch.no_grad():
        problem.model[2].weight.fill_(-1)
        problem.model[2].bias.fill_(-1)  # every unit is off: the last layer sees zeros
    every = ll.duality(problem)
    assert list(every) == ["0", "2"]
    assert "inputs are all zero" in every.skipped["4"]
    with pytest.raises(InputError, match="no pair has a dual shift in layer '4'"):
        ll.duality(problem, "4")


def test_one_pair_has_a_gap_and_no_spread():
    problem = make_problem()
    X, y = problem.train.take(slice(None)).inputs, problem.train.targets
    Xt, yt = problem.test.take(slice(None)).inputs, problem.test.targets
    found = ll.duality(Problem(problem.model, train=(X, y), test=(Xt[:1], yt[:1])), "2")
    assert found.pairs == 1
    assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-9)
    assert found.totals.total_w_data == pytest.approx(0, abs=1e-12)
    assert found.eq11 == pytest.approx(0, abs=1e-9)
    assert found.totals.total_w_data >= 0
    assert found.totals.total_g >= 0
    assert found.totals.intervals.paired_gap == pytest.approx((found.paired_gap,) * 2)


def test_a_layer_with_one_unit_and_one_weight_in_closed_form():
    x, x_new = torch.tensor([1.0, 2, -1, 4]).double(), torch.tensor([1.5, 1, -2, 5]).double()
    y = torch.zeros(4, 1).double()
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(3.0)
    problem = Problem(model, "mse", (x[:, None], y), (x_new[:, None], y))
    pairs = ll.Pairs(torch.arange(4), torch.arange(4), 0, "by hand")
    found = ll.duality(problem, "", pairs=pairs)
    dw = 3 * (x_new - x) / x
    dl = 9 * (x_new**2 - x**2)
    g = dl / dw
    assert found.n_sharp == 1
    assert found.eigenvalue == pytest.approx([2 * float((x**2).mean())])
    assert found.mu_w == pytest.approx([float(dw.mean())]) or found.mu_w == pytest.approx(
        [-float(dw.mean())]
    )
    assert found.sigma_w == pytest.approx([float(dw.std(unbiased=False))])
    assert found.sigma_g == pytest.approx([float(g.std(unbiased=False))])
    assert found.paired_gap == pytest.approx(float(dl.mean()))
    assert found.sharp == pytest.approx(float(dl.mean() - g.mean() * dw.mean()))
    assert found.flat == pytest.approx(0, abs=1e-12)


def test_a_linear_network_in_closed_form():
    # Two dense layers and nothing between: l = |V W x - y|^2 / C, so the block of W is
    # 2 / (N C) V^T V kron X^T X.
    g = torch.Generator().manual_seed(0)
    X, Xt = (torch.randn(n, 3, generator=g).double() for n in (40, 20))
    Y, Yt = (torch.randn(n, 2, generator=g).double() for n in (40, 20))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
    problem = Problem(model, "mse", (X, Y), (Xt, Yt))
    found = ll.duality(problem, "0", n_sharp=2)
    W, V = (p.detach() for p in model.parameters())
    H = torch.kron(V.T @ V, X.T @ X) * 2 / (40 * 2)
    values, E = torch.linalg.eigh(H)
    partner = torch.cdist(Xt, X).argmin(1)
    x = X[partner]
    dW = torch.einsum("ko,ki->koi", (Xt - x) @ W.T, x / x.square().sum(1, keepdim=True)).flatten(1)
    # at the test samples' targets: no weight stands for another one
    dl = ((Xt @ W.T @ V.T - Yt) ** 2).mean(1) - ((x @ W.T @ V.T - Yt) ** 2).mean(1)
    w = dW @ E
    gn = w * (dl / dW.square().sum(1))[:, None]
    sigma_g = gn.std(0, unbiased=False)
    order = sigma_g.argsort(descending=True)
    contribution = ((gn * w).mean(0) - gn.mean(0) * w.mean(0))[order]
    np.testing.assert_allclose(found.sigma_g, sigma_g[order], rtol=1e-9)
    np.testing.assert_allclose(found.eigenvalue, values[order], rtol=1e-9)
    np.testing.assert_allclose(found.contribution, contribution, rtol=1e-7, atol=1e-12)
    # The dual weights stand for the inputs, and what the partners' other targets make is told.
    assert found.duality_residual < 1e-14
    assert found.fit.loss_defect < 1e-14
    assert found.trusted
    outputs = x @ W.T @ V.T
    other = ((outputs - Yt) ** 2).mean(1) - ((outputs - Y[partner]) ** 2).mean(1)
    assert found.totals.target_gap == pytest.approx(float(other.mean()))
    whole = ((Xt @ W.T @ V.T - Yt) ** 2).mean() - ((outputs - Y[partner]) ** 2).mean()
    assert found.paired_gap + found.totals.target_gap == pytest.approx(float(whole))
    assert found.totals.dual_gap == pytest.approx(found.paired_gap)
    assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-10)


def test_whole_numbers_of_other_libraries_are_numbers_of_directions():
    problem = make_problem()
    assert ll.duality(problem, "2", n_sharp=np.int64(5)).n_sharp == 5
    for wrong in (2.5, 5.0):
        with pytest.raises(InputError, match="n_sharp is a whole number"):
            ll.duality(problem, "2", n_sharp=wrong)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": []}, "no layer is named"),
        ({"name": "2", "widths": -1}, "widths is True or a number"),
        ({"name": "2", "cut": 2.0}, "from 0 to 1; got 2.0"),
        ({"name": "2", "cut": math.nan}, "from 0 to 1; got nan"),
        ({"name": "2", "n_sharp": 20, "directions": 12}, "12 directions computed"),
    ],
)
def test_options_that_cannot_be_are_told(options, words):
    with pytest.raises(InputError, match=words):
        ll.duality(make_problem(), **options)


def test_a_hook_of_the_model_acts_on_the_dual_outputs_as_well():
    """The dual is exact, and it was once called useless for a hook that doubles the outputs."""
    problem = make_problem()
    handle = problem.model[2].register_forward_hook(lambda module, args, out: 2 * out)
    try:
        found = ll.duality(problem, "2")
    finally:
        handle.remove()
    assert found.fit.loss_defect < 1e-12


def test_tokens_that_are_nearly_equal_keep_the_identity():
    """|dW|^2 once took rows for orthogonal that rounding had turned."""
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.Flatten(), nn.Linear(3 * 16, 3)).double()

    def tokens(n):
        one = torch.randn(n, 1, 12, generator=g, dtype=torch.float64)
        return one + 1e-5 * torch.randn(n, 3, 12, generator=g, dtype=torch.float64)

    y = torch.arange(30) % 3
    found = ll.duality(Problem(model, train=(tokens(30), y), test=(tokens(30), y)), "0")
    assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-10)


def test_degenerate_pairs_are_counted_by_kind():
    problem = make_problem(activation=nn.ReLU)
    X, y = problem.train.take(slice(None)).inputs, problem.train.targets
    Xt, yt = problem.test.take(slice(None)).inputs.clone(), problem.test.targets
    Xt[0] = X[(y == yt[0]).nonzero()[0, 0]]
    dead = -100 * torch.ones(1, 4, dtype=torch.float64)
    with torch.no_grad():
        problem.model[0].weight.abs_()
    Xt[1] = 0.9 * dead[0]
    train = torch.cat([X, dead]), torch.cat([y, yt[1:2]])
    keep = train[1] != yt[2]
    found = ll.duality(
        Problem(problem.model, train=(train[0][keep], train[1][keep]), test=(Xt, yt)), "2"
    )
    assert found.fit.degenerate == {
        "inputs of the layer are all zero": 1,
        "test sample equal to its partner": 1,
        "no change of the layer's outputs": 0,
        "no partner of the same label": int((yt == yt[2]).sum()),
        "positions that are not independent": 0,
    }
    assert found.excluded == 2


def test_the_number_of_sharp_directions_by_rule():
    problem = make_problem()
    found = ll.duality(problem, "2", n_sharp="variance")
    held = np.cumsum(found.sigma_g**2) / found.totals.total_g
    assert held[found.n_sharp - 1] >= 0.5
    assert found.n_sharp == 1 or held[found.n_sharp - 2] < 0.5
    drop = ll.duality(problem, "2", n_sharp="drop")
    steps = found.sigma_g[:-1] / found.sigma_g[1:]
    high = found.sigma_g[1:] > 1e-3 * found.sigma_g[0]
    assert drop.n_sharp == np.argmax(np.where(high, steps, 0)[:15]) + 1
    assert drop.sharp == pytest.approx(found.contribution[: drop.n_sharp].sum())


def test_the_null_space_does_not_depend_on_the_solver():
    # Hidden units in another order: another matrix for the solver, the same network. Softmax makes
    # a null space in the last layer, where eigenvectors would otherwise be any.
    problem = make_problem()
    turned = copy.deepcopy(problem.model)
    order = torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        turned[2].weight.copy_(turned[2].weight[order])
        turned[2].bias.copy_(turned[2].bias[order])
        turned[4].weight.copy_(turned[4].weight[:, order])
    data = {s: problem.data(s).take(slice(None)) for s in ("train", "test")}
    other = Problem(turned, **{s: (b.inputs, b.targets) for s, b in data.items()})
    a, b = ll.duality(problem, "4"), ll.duality(other, "4")
    np.testing.assert_allclose(a.sigma_g, b.sigma_g, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(a.contribution, b.contribution, atol=1e-9)


def test_intervals_are_those_of_resampled_pairs():
    """Bootstrap-t of the parts themselves, each with its means and its spread anew."""
    problem = make_problem()
    found = ll.duality(problem, "2", n_sharp=4)
    w = found.per_pair.components.astype(float)
    dl, size = found.per_pair.dl, found.per_pair.size
    g = w * (dl / size)[:, None]

    def parts(k):
        each = (g[k] - g[k].mean(0)) * (w[k] - w[k].mean(0))
        sharp, flat = each[:, :4].sum(1), each[:, 4:].sum(1)
        rows = np.stack([dl[k], sharp, flat, sharp - flat], 1)
        return rows.mean(0), rows.std(0, ddof=1) / len(k) ** 0.5

    rng = np.random.default_rng(1)
    value, error = parts(np.arange(30))
    resampled = [parts(rng.integers(30, size=30)) for _ in range(2000)]
    distances = [(mean - value) / own for mean, own in resampled]
    expected = value - np.percentile(distances, [97.5, 2.5], axis=0) * error
    for (low, high), (low_, high_) in zip(
        vars(found.totals.intervals).values(), expected.T, strict=True
    ):
        # other draws: a tenth of the width is four standard errors of a quantile; and means that
        # are taken off stay the same in ours, a change of one part in the number of pairs
        assert [low, high] == pytest.approx([low_, high_], abs=0.15 * (high_ - low_))
    again = ll.duality(problem, "2", n_sharp=4)
    assert again.totals.intervals == found.totals.intervals
    assert ll.duality(problem, "2", n_sharp=4, seed=1).totals.intervals != found.totals.intervals
    low, high = found.totals.intervals.paired_gap
    assert low < found.paired_gap < high
