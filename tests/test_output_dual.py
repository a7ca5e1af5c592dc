"""The output-level dual: closed forms, SciPy, conditions of optimality, and the model itself."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import lowland as ll
import zoo
from cases import CASES
from commandline import ANALYZE, MINE, run_inside
from generated import KINDS
from lowland.curvature import layer, opaque
from lowland.dual import Matching, Pairs, Shifted, dual_shifts, layers_with_dual, output_shifts
from lowland.dual.least_norm import least_norm
from lowland.dual.shifts import Shifts
from lowland.errors import InputError
from lowland.problem import Problem
from zoo import ZOO

FEW = Pairs(torch.arange(3), torch.arange(3), 0, "by hand")


def make(model: nn.Module, *shape: int, n: int = 12, loss: str = "cross_entropy") -> Problem:
    g = torch.Generator().manual_seed(1)
    X = torch.randn(2 * n, *shape, generator=g, dtype=torch.float64)
    y = torch.arange(n) % 3
    if loss == "mse":
        y = torch.randn(n, 3, generator=g, dtype=torch.float64)
    return Problem(model.double(), loss, train=(X[:n], y), test=(X[n:], y))


def moved(problem: Problem, shifts: Shifts, k: int) -> nn.Module:
    """A copy of the user's model with the shift of pair k really put in."""
    model = copy.deepcopy(problem.model).eval()
    parameter = dict(model.named_parameters())[shifts.layer.parameter]
    dW = list(shifts.written_out(1))[k][0].view(shifts.layer.shape)
    with torch.no_grad():
        parameter += shifts.layer.flat(dW).view_as(parameter)
    return model


def miss(problem: Problem, shifts: Shifts, pairs: Pairs, k: int) -> float:
    """How far the moved model's outputs at x are from the model's at x', but for a shift."""
    x = problem.train.take(pairs.train[k : k + 1]).inputs
    x_new = problem.test.take(pairs.test[k : k + 1]).inputs
    with torch.no_grad():
        z, z_new = moved(problem, shifts, k)(x), problem.model.eval()(x_new)
        before = problem.model(x)
    apart, gap = z - z_new, before - z_new
    if problem.loss.classes:
        apart, gap = (t - t.mean(-1, keepdim=True) for t in (apart, gap))
    return float(apart.norm() / gap.norm())


def test_a_linear_network_has_the_closed_form():
    torch.manual_seed(0)
    first, second = nn.Linear(5, 6, bias=False), nn.Linear(6, 3, bias=False)
    problem = make(nn.Sequential(first, second), 5)
    pairs = ll.pair(problem)
    shifts = output_shifts(problem, [layer(problem, "0")], pairs, None)["0"]
    X, X_new = problem.train.take(pairs.train).inputs, problem.test.take(pairs.test).inputs
    centre = torch.eye(3).double() - 1 / 3
    down = torch.linalg.pinv(centre @ second.weight.detach())
    change = (X_new - X) @ (centre @ second.weight @ first.weight).detach().T
    expected = torch.einsum("ko,ki->koi", change @ down.T, X / X.square().sum(1, keepdim=True))
    assert shifts.solved.all()
    dW = torch.cat(list(shifts.written_out())).view(-1, 6, 5)
    torch.testing.assert_close(dW, expected, rtol=1e-7, atol=1e-9)
    # regression: every output counts, a common shift as well
    problem = make(nn.Sequential(first, second), 5, loss="mse")
    found = output_shifts(problem, [layer(problem, "0")], pairs, None)["0"]
    X, X_new = problem.train.take(pairs.train).inputs, problem.test.take(pairs.test).inputs
    change = (X_new - X) @ (second.weight @ first.weight).detach().T
    down = torch.linalg.pinv(second.weight.detach())
    size = (change @ down.T).square().sum(1) / X.square().sum(1)
    torch.testing.assert_close(found.size, size, rtol=1e-7, atol=0)
    assert found.search.matched == 3


def test_the_last_layer_has_the_activity_level_dual_without_the_common_shift():
    problem = make(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), 4)
    last = list(layers_with_dual(problem).values())[-1]
    pairs = ll.pair(problem)
    activity = dual_shifts(problem, [last], pairs).shifts[last.name]
    output = output_shifts(problem, [last], pairs, activity)[last.name]
    rows = torch.cat(list(activity.written_out())).view(-1, *last.shape[1:])
    expected = rows - rows.mean(1, keepdim=True)
    found = torch.cat(list(output.written_out())).view(-1, *last.shape[1:])
    kept = output.kept
    torch.testing.assert_close(found[kept], expected[kept], rtol=1e-6, atol=1e-8)


TRAINED = [kind for kind in KINDS if kind.epochs and kind.factor == 1]


@pytest.mark.parametrize(
    "kind",
    [k if i in (0, 6) else pytest.param(k, marks=pytest.mark.slow) for i, k in enumerate(TRAINED)],
    ids=str,
)
def test_where_all_data_passes_it_is_never_longer_than_the_activity_level_dual(kind):
    trained = kind.problem(0)
    X, y = trained.train.take(slice(None)).inputs, trained.train.targets
    problem = Problem(trained.model, kind.loss, train=(X[:40], y[:40]), test=(X[40:], y[40:]))
    pairs = ll.pair(problem)
    for name, chosen in layers_with_dual(problem).items():
        activity = dual_shifts(problem, [chosen], pairs).shifts[name]
        output = output_shifts(problem, [chosen], pairs, activity)[name]
        exact = (activity.residual < 1e-6) & output.kept
        assert (output.size[exact] <= (1 + 1e-6) * activity.size[exact]).all()
        assert output.solved[activity.residual < 1e-6].all()
        for k in output.solved.nonzero()[:2, 0]:
            assert miss(problem, output, pairs, int(k)) < 1e-8


FAST = ["sorted_batch", "encoder_sequence_first", "gru"]
# Their weights are no matrix, or another one in each use.
NO_MATRIX = ["tied_embedding", "squared_parameter"]


@pytest.mark.parametrize(
    "name",
    [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ZOO],
)
def test_every_network_is_right_or_refused(name):
    build, shape = ZOO[name]
    torch.manual_seed(0)
    model = build().double()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
    X = zoo.inputs(shape, 9, torch.Generator().manual_seed(1))  # the first three are zeros
    y = torch.arange(3)
    problem = Problem(model, train=(X[3:6], y), test=(X[6:], y))
    state = copy.deepcopy(model.state_dict())
    some = layers_with_dual(problem, "output")
    assert bool(some) == (name not in NO_MATRIX)
    if not some:
        with pytest.raises(InputError, match="no layer has a dual"):
            ll.duality(problem)
    for chosen in some.values():
        shifts = output_shifts(problem, [chosen], FEW, None)[chosen.name]
        for k in range(3):
            if shifts.solved[k] and not shifts.same[k]:
                assert miss(problem, shifts, FEW, k) < 1e-8
            elif not shifts.same[k]:  # and says how far it is
                assert miss(problem, shifts, FEW, k) == pytest.approx(float(shifts.residual[k]))
    for unseen in opaque(problem):
        with pytest.raises(InputError, match=unseen):
            ll.duality(problem, unseen)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])


def tiny(activation: type[nn.Module]) -> tuple[Problem, Pairs]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 6), activation())
    model.append(nn.Linear(6, 3))
    problem = make(model, 4, n=6)
    return problem, Pairs(torch.arange(6), torch.arange(6), 0, "by hand")


def equations(problem: Problem, pairs: Pairs, name: str) -> tuple[Shifted, Tensor]:
    old, new = problem.train.take(pairs.train), problem.test.take(pairs.test)
    z = problem.outputs(new.inputs).detach()
    matching = Matching.within(problem.loss, z, new.targets, 10)
    return Shifted(problem, layer(problem, name), old, matching), matching(z)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_scipy_finds_nothing_shorter(activation):
    problem, pairs = tiny(activation)
    with problem.measuring():
        systems, target = equations(problem, pairs, "2")
        zero = torch.zeros(6, 6, dtype=torch.float64)
        scale = (target - systems(zero)[0]).norm(dim=1)
        found = least_norm(systems, target, zero, scale)
        assert found.solved[found.rank > 0].all()  # the others have no unit that is on
        for k in found.solved.nonzero()[:, 0].tolist():
            alone = systems.of(torch.tensor([k]))

            def values(v: np.ndarray, alone: Shifted = alone) -> tuple[Tensor, Tensor]:
                return alone(torch.from_numpy(v).unsqueeze(0))

            peer = minimize(
                lambda v: (v @ v / 2, v),
                np.full(6, 1e-3),
                jac=True,
                method="SLSQP",
                constraints={
                    "type": "eq",
                    "fun": lambda v, k=k: (values(v)[0][0] - target[k]).numpy(),
                    "jac": lambda v: values(v)[1][0].numpy(),
                },
                options={"maxiter": 300, "ftol": 1e-12},
            )
            if np.linalg.norm((values(peer.x)[0][0] - target[k]).numpy()) < 1e-8 * scale[k]:
                assert found.v[k].norm() <= 1.02 * np.linalg.norm(peer.x)


def test_in_a_smooth_network_a_shift_is_a_combination_of_gradients():
    problem, pairs = tiny(nn.Tanh)
    with problem.measuring():
        systems, target = equations(problem, pairs, "2")
        zero = torch.zeros(6, 6, dtype=torch.float64)
        scale = (target - systems(zero)[0]).norm(dim=1)
        found = least_norm(systems, target, zero, scale)
    X = problem.train.take(pairs.train).inputs
    shifts = output_shifts(problem, [layer(problem, "2")], pairs, None)["2"]
    for k in range(6):  # by autograd with respect to the weight itself
        model = moved(problem, shifts, k)
        z = model(X[k : k + 1])[0]
        rows = [torch.autograd.grad(z[c] - z.mean(), model[2].weight, retain_graph=True)[0]
                for c in range(2)]  # fmt: skip
        J = torch.stack([row.flatten() for row in rows])
        dW = list(shifts.written_out(1))[k][0]
        multipliers = torch.linalg.lstsq(J.T, dW.unsqueeze(1)).solution
        assert (J.T @ multipliers - dW.unsqueeze(1)).norm() < 5e-3 * dW.norm()
    assert found.along.max() < 5e-3


def test_equations_without_a_solution_are_not_solved_and_others_are():
    class Circle:
        """|v|^2 = target, and v_0 = 1: no solution where the target is below 1."""

        def __call__(self, v: Tensor) -> tuple[Tensor, Tensor]:
            e = torch.zeros_like(v)
            e[:, 0] = 1
            return torch.stack([v.square().sum(1), v[:, 0]], 1), torch.stack([2 * v, e], 1)

        def of(self, places: Tensor) -> "Circle":
            return self

    target = torch.tensor([[5.0, 1.0], [0.5, 1.0]]).double()
    start = torch.tensor([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]]).double()
    found = least_norm(Circle(), target, start, torch.ones(2).double())
    assert found.solved.tolist() == [True, False]
    assert found.v[0].norm() == pytest.approx(5**0.5)


def test_auto_takes_the_activity_level_where_all_data_passes():
    every = ll.duality(CASES["resnet"].problem(n=12))
    assert {name: split.setting.dual for name, split in every.items()} == {
        "stem": "output", "conv": "output", "head": "activity",
    }  # fmt: skip
    for split in every.values():
        assert split.eq9 == pytest.approx(split.paired_gap, rel=1e-9)
    assert list(every.to_frame()["dual"]) == ["output", "output", "activity"]
    alone = ll.duality(CASES["resnet"].problem(n=12), "head", dual="output")
    assert alone.setting.dual == "output"
    assert alone.fit.solving.solved == 1
    assert alone.fit.loss_defect < 1e-8
    for function in (ll.duality, ll.analyze):
        with pytest.raises(InputError, match="dual must be 'auto', 'activity' or 'output'"):
            function(CASES["resnet"].problem(n=12), dual="both")


def test_joint_parts_of_the_layers_add_up_to_the_gap():
    problem = CASES["resnet"].problem(n=12)
    joint = ll.duality(problem, joint=True)
    assert all(split.setting.joint for split in joint.values())
    gaps = [split.paired_gap for split in joint.values()]
    assert max(gaps) == pytest.approx(min(gaps))
    assert sum(split.eq9 for split in joint.values()) == pytest.approx(gaps[0], rel=1e-9)
    assert joint.to_frame()["carried"].sum() == pytest.approx(gaps[0], rel=1e-9)
    assert all(split.fit.loss_defect < 1e-8 for split in joint.values())
    size = sum(split.per_pair.size for split in joint.values())
    alone = ll.duality(problem, dual="output")
    for split in alone.values():  # one layer alone has to go further
        assert (size <= 1.05 * split.per_pair.size).mean() > 0.9
    with pytest.raises(InputError, match="name them in a list"):
        ll.duality(problem, "head", joint=True)


class Sometimes(nn.Module):
    """A block whose ReLU lets nothing through for half of the samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.head = (nn.Linear(4, n) for n in (4, 4, 3))
        with torch.no_grad():
            self.block.bias.zero_()
            self.block.weight[:, 0] += 20

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.block(x).relu())


def test_a_layer_without_a_part_in_a_joint_shift_carries_nothing_of_that_pair():
    joint = ll.duality(make(Sometimes(), 4), joint=True)
    size = joint["block"].per_pair.size
    assert 0 < (size == 0).sum() < len(size)
    gap = joint["head"].paired_gap
    assert joint.to_frame()["carried"].sum() == pytest.approx(gap, rel=1e-9)
    assert {split.fit.excluded for split in joint.values()} == {0}
    assert np.isfinite([split.fit.solving.norm_spread for split in joint.values()]).all()


def test_only_joint_shifts_are_called_joint():
    problem = CASES["resnet"].problem(n=12)
    alone = ll.duality(problem, dual="output")
    assert not any(split.setting.joint for split in alone.values())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


@pytest.mark.slow
def test_an_analysis_has_every_layer_of_a_recurrent_network():
    torch.manual_seed(0)
    problem = make(Recurrent(), 4, 3)
    chosen = "lstm.weight_ih_l0"  # which torch computes in one call with all the rest
    results = ll.analyze(problem, chosen, measures=["trace"], landscape=False).results
    layers = [row.layer for row in results.layer_rows]
    assert layers == ["lstm.weight_ih_l0", "lstm.weight_hh_l0", "head"] == list(ll.duality(problem))
    assert any("Leading-order terms were not computed" in note for note in results.notes)


class Next(nn.Module):
    """Scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(5, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).cumsum(1)
        return self.head(nn.functional.leaky_relu(self.mix(x)) + x)


def test_an_embedding_that_is_also_the_head_is_named_with_the_reason():
    torch.manual_seed(0)
    model = Next()
    model.head = nn.Linear(6, 5, bias=False)
    model.head.weight = model.embed.weight
    tokens = torch.randint(0, 5, (8, 4))
    problem = Problem(model.double(), "next_token", train=(tokens[:4],) * 2, test=(tokens[4:],) * 2)
    every = ll.duality(problem, pairs=FEW)
    assert list(every) == ["mix"]
    assert "it is used by 2 products as different matrices" in every.skipped["embed"]
    with pytest.raises(InputError, match="'embed' is used by 2 products as different matrices"):
        ll.duality(problem, "embed", pairs=FEW)


def test_of_tokens_the_counted_ones_are_matched_or_random_combinations():
    torch.manual_seed(0)
    tokens = torch.randint(0, 5, (12, 4))
    labels = tokens.clone()
    labels[:, -1] = -100  # the last does not count
    data = [(tokens[:6], labels[:6]), (tokens[6:], labels[6:])]
    problem = Problem(Next().double(), "next_token", train=data[0], test=data[1])
    pairs = Pairs(torch.arange(6), torch.arange(6), 0, "by hand")
    found = ll.duality(problem, "mix", pairs=pairs, dual="output")
    assert found.fit.solving.matched == found.fit.solving.outputs == 3 * 4
    assert found.fit.rank <= 2 * 4  # two of the three positions have a label
    assert found.duality_residual < 1e-8
    assert found.totals.dual_gap == pytest.approx(found.paired_gap, rel=1e-6)
    rough = ll.duality(problem, "mix", pairs=pairs, dual="output", matched=3)
    assert (rough.fit.solving.matched, rough.fit.solving.outputs) == (3, 12)
    assert rough.fit.solving.solved == 1
    assert not rough.trusted  # the losses say that not all was matched
    assert rough.totals.dual_gap != pytest.approx(rough.paired_gap, rel=1e-3)
    assert rough.fit.solving.relative_norm < found.fit.solving.relative_norm


def test_single_precision_is_solved_to_its_own_accuracy():
    problem, pairs = tiny(nn.ReLU)
    single = Problem(
        copy.deepcopy(problem.model).float(),
        train=tuple(t for t in (problem.train.take(slice(None)).inputs, problem.train.targets)),
        test=tuple(t for t in (problem.test.take(slice(None)).inputs, problem.test.targets)),
    )
    double = ll.duality(problem, "2", pairs=pairs, dual="output")
    found = ll.duality(single, "2", pairs=pairs, dual="output")
    assert found.fit.loss_defect < 1e-3
    assert found.eq9 == pytest.approx(found.paired_gap, rel=1e-10)  # an identity in any precision
    np.testing.assert_allclose(found.per_pair.size, double.per_pair.size, rtol=0.02)


def test_analyses_by_different_duals_are_not_compared():
    problem, _ = tiny(nn.ReLU)
    one, other = (ll.analyze(problem, dual=dual, measures=[]) for dual in ("activity", "output"))
    assert one.results.duality.setting.dual == "activity"
    assert other.results.duality.setting.dual == "output"
    with pytest.raises(InputError, match="activity-level dual, the other the output-level"):
        ll.compare(one, other)
    assert ll.compare(other, other).results.dual == "output"


def test_doubt_is_said_in_words():
    problem, pairs = tiny(nn.ReLU)
    fit = ll.duality(problem, "2", pairs=pairs, dual="output").fit
    assert fit.trusted
    assert fit.doubt is None
    few = replace(fit, solving=replace(fit.solving, solved=0.03), loss_defect=0.9)
    assert few.doubt == (
        "the outputs cannot be reached through this layer: 3% of the pairs were solved"
    )
    lost = replace(fit, excluded_share=0.37)
    assert "37% of the gap is in pairs that were not solved" in lost.doubt


def test_the_command_says_which_dual(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    done = run_inside(*ANALYZE, "--dual", "output", "--measures", "none", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "layer '2' by the output-level dual" in done.out
    results = ll.load(tmp_path / "out").results
    assert results.duality.setting.dual == "output"
    assert results.duality.fit.solving.matched == 1  # two scores, but for their common shift
    assert {row.dual for row in results.layer_rows} == {"output"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "output-level" in page
    assert "Spread of norms over starts" in page


def test_a_weight_that_is_copied_before_it_is_used_has_the_same_dual():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    names = {"w": plain[0].weight.detach().clone(), "head": plain[2]}

    def forward(m: zoo.Written, x: Tensor) -> Tensor:
        return m.head(torch.tanh(nn.functional.linear(x, m.w.clone(), plain[0].bias.detach())))

    one, other = make(plain, 4), make(zoo.Written(forward, **names), 4)
    pairs = ll.pair(one)
    shifts = output_shifts(one, [layer(one, "0")], pairs, None)["0"]
    copied = output_shifts(other, [layer(other, "w")], pairs, None)["w"]
    both = shifts.solved & copied.solved
    assert both.double().mean() > 0.7
    torch.testing.assert_close(copied.size[both], shifts.size[both], rtol=1e-3, atol=0)


def test_weights_in_series_are_decomposed_by_their_outputs():
    build, shape = ZOO["tied_in_series"]
    torch.manual_seed(0)
    problem = make(build(), *shape)
    every = ll.duality(problem)
    assert every["layer"].setting.dual == "output"
    assert every["layer"].fit.loss_defect < 0.1
    assert every["layer"].eq9 == pytest.approx(every["layer"].paired_gap, rel=1e-9)
    with pytest.raises(InputError, match="in series, so that it has no activity-level dual"):
        ll.duality(problem, "layer", dual="activity")
