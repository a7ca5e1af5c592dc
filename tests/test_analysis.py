import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

import lowland as ll
from cases import CASES, some_fast
from lowland.dual import decomposition
from lowland.errors import InputError
from lowland.findings import Results, to_json
from lowland.problem import Problem
from lowland.training import lenet
from test_duality import Around, make_problem

DUALITY = ("sharp_part", "flat_part", "total_sigma_g", "total_sigma_w")


def checks(analysis: ll.Analysis) -> dict[str, bool]:
    return {check.name: check.passed for check in analysis.results.checks}


@pytest.fixture
def decomposed(monkeypatch) -> list[tuple[str, str]]:
    """Layer and gauge of each decomposition, in the order in which they are computed."""
    return count_decompositions(monkeypatch)


def count_decompositions(patch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    done = []
    original = decomposition._decomposed

    def counted(problem, layer, asked, *rest):
        done.append((layer.name, asked.gauge))
        return original(problem, layer, asked, *rest)

    patch.setattr(decomposition, "_decomposed", counted)
    return done


@dataclass(frozen=True)
class Made:
    """One whole analysis, with what it was made of and what it did."""

    problem: Problem
    analysis: ll.Analysis
    out: Path
    decomposed: list[tuple[str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    problem, out = make_problem(), tmp_path_factory.mktemp("made") / "deep" / "result"
    with pytest.MonkeyPatch.context() as patch:
        done = count_decompositions(patch)
        analysis = ll.analyze(problem, out=out, title="a <b>title</b>")
    return Made(problem, analysis, out, done)


def test_an_analysis_holds_what_the_rooms_compute(made):
    problem, analysis = made.problem, made.analysis
    expected = ll.duality(problem, "2")
    results = analysis.results
    assert results.subject.layer == "2"
    assert results.duality.sharp == expected.sharp
    assert results.outcome.gap == pytest.approx(expected.gap)
    np.testing.assert_array_equal(results.duality.sigma_g, expected.sigma_g)
    assert list(checks(analysis).values()) == [True] * 5
    assert results.convergence.curvature is not None  # read off the decomposition
    assert analysis.answer.count(". ") == 1
    assert [row.layer for row in results.layer_rows] == ["0", "2", "4"]
    for row, split in zip(results.layer_rows, ll.duality(problem).values(), strict=True):
        assert row.sharp == pytest.approx(split.sharp, rel=1e-9)
        assert row.sigma_g == pytest.approx(split.totals.total_g**0.5, rel=1e-9)


def test_an_analysis_keeps_the_spectrum_that_its_measures_computed(made):
    """All eigenvalues of a small network, against the dense Hessian; nothing for the outcome."""
    spectrum = made.analysis.results.spectrum
    expected = torch.linalg.eigvalsh(ll.hessian(made.problem).dense().double()).numpy()
    assert spectrum.exact
    assert spectrum.size == spectrum.products == len(spectrum.nodes) == len(expected)
    assert spectrum.samples == made.problem.count()
    np.testing.assert_allclose(spectrum.nodes, expected, atol=1e-6 * expected.max())
    leading = spectrum.leading(3)
    np.testing.assert_allclose(leading.values, expected[::-1][:3], rtol=1e-6)
    area = np.trapezoid(spectrum.density, spectrum.grid)
    assert area == pytest.approx(1, abs=1e-3)
    measured = {row.name: row.value for row in made.analysis.results.measures}
    assert measured["largest_eigenvalue"] == pytest.approx(spectrum.nodes[-1], rel=1e-6)
    assert ll.analyze(made.problem, measures=[], brief=True).results.spectrum is None
    assert {"Python", "torch"} <= made.analysis.results.versions.keys()


def test_what_is_saved_is_what_is_loaded(made, tmp_path):
    problem, analysis, out = made.problem, made.analysis, made.out
    assert sorted(p.name for p in out.iterdir()) == [
        "SHA256SUMS",
        "arrays.npz",
        "report.html",
        "results.json",
        "weights.safetensors",
    ]
    loaded = ll.load(out)
    (document, arrays), (again, others) = (to_json(a.results) for a in (analysis, loaded))
    assert json.dumps(again) == json.dumps(document)
    assert others.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(others[name], array)
    for name, weight in load_file(out / "weights.safetensors").items():
        assert torch.equal(weight, problem.params[name])
    page = loaded.to_html(tmp_path / "again.html").read_text()
    assert page == (out / "report.html").read_text()
    assert "<b>title" not in page
    assert list(out.parent.iterdir()) == [out]  # nothing is left beside it


@pytest.mark.parametrize("name", some_fast("mlp-relu", "tied"))
def test_every_kind_of_model_gets_a_report(name, tmp_path):
    case = CASES[name]
    results = ll.analyze(case.problem(n=12), out=tmp_path / "out").results
    assert (tmp_path / "out" / "report.html").stat().st_size > 1e6
    assert results.duality.trusted
    for row in results.measures:
        assert (row.value is None) != (row.reason is None), row.name
        assert row.value is None or math.isfinite(row.value), row.name
    if name == "transformer":  # tokens are no points in space, and data goes around most layers
        assert results.subject.layer == "head"
        assert any("paired by what layer" in note for note in results.notes)


# --- one choice, one decomposition ---------------------------------------------------------------


def test_each_layer_is_decomposed_once_and_the_chosen_one_once_more_balanced(made):
    expected = [("0", "given"), ("2", "balanced"), ("2", "given"), ("4", "given")]
    assert sorted(made.decomposed) == expected


def test_a_brief_analysis_decomposes_one_layer(decomposed):
    ll.analyze(make_problem(), brief=True, measures=DUALITY)
    assert decomposed == [("2", "given")]


def test_measures_alone_decompose_one_layer(decomposed):
    ll.measure(make_problem(), list(DUALITY))
    assert decomposed == [("2", "given")]


def test_a_layer_that_data_goes_around_is_not_decomposed_twice_either(decomposed):
    analysis = ll.analyze(CASES["resnet"].problem(n=12), measures=[])
    assert analysis.results.subject.layer == "head"
    assert len([layer for layer, gauge in decomposed if gauge == "given"]) == 3
    assert len(set(decomposed)) == len(decomposed)


def assert_the_table_tells_what_the_cards_show(results: Results) -> None:
    rows = {row.name: row for row in results.measures if row.name in DUALITY}
    split = results.duality
    assert {name: row.value for name, row in rows.items()} == {
        "sharp_part": split.sharp,
        "flat_part": split.flat,
        "total_sigma_g": split.totals.total_g**0.5,
        "total_sigma_w": split.totals.total_w_data**0.5,
    }
    assert all(row.method.startswith(f"layer {split.layer!r}") for row in rows.values())


@pytest.mark.parametrize(
    "options",
    [{}, {"gauge": "balanced"}, {"basis": "fisher"}, {"n_sharp": 4}, {"layer_name": "0"}],
)
def test_cards_and_measures_show_one_decomposition(options):
    problem = make_problem()
    results = ll.analyze(problem, measures=DUALITY, **options).results
    assert_the_table_tells_what_the_cards_show(results)
    if options:
        assert results.duality.sharp != ll.duality(problem, "2").sharp


def test_cards_and_measures_choose_one_layer_of_lenet():
    """The cards once split 84 -> 10 and the table 120 -> 84."""
    g = torch.Generator().manual_seed(0)
    X, Z = (torch.randn(24, 1, 28, 28, generator=g) for _ in range(2))
    y = torch.arange(24) % 10
    problem = Problem(lenet((1, 28, 28), 10), train=(X, y), test=(Z, y))
    results = ll.analyze(problem, brief=True, measures=DUALITY).results
    assert_the_table_tells_what_the_cards_show(results)
    alone = ll.measure(problem, "sharp_part")["sharp_part"]
    assert alone.value == pytest.approx(results.duality.sharp, rel=1e-5)


class FromImages(nn.Module):
    """Takes bytes, as they come from a file."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(x.flatten(1).double() / 255)))


class FromTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.head = nn.Embedding(9, 4), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(self.embed(input_ids).mean(1))))


def data(kind: str) -> tuple[nn.Module, list]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(24) % 3
    torch.manual_seed(0)
    if kind == "uint8":
        images = (torch.randint(256, (24, 2, 4), generator=g, dtype=torch.uint8) for _ in range(2))
        return FromImages().double(), [(X, y) for X in images]
    tokens = (torch.randint(9, (24, 5), generator=g) for _ in range(2))
    model = FromTokens().double()
    if kind == "int":
        return model, [(X, y) for X in tokens]
    rows = ([{"input_ids": x, "labels": t} for x, t in zip(X, y, strict=True)] for X in tokens)
    return model, [DataLoader(split, batch_size=24) for split in rows]


@pytest.mark.parametrize("kind", ["uint8", "int", "dict"])
def test_inputs_of_any_kind_are_split_by_cards_and_measures_alike(kind):
    model, (train, test) = data(kind)
    results = ll.analyze(Problem(model, train=train, test=test), measures=DUALITY).results
    assert_the_table_tells_what_the_cards_show(results)
    by_layer = any("paired by what layer 'first' sees" in note for note in results.notes)
    assert by_layer == (kind != "uint8")


# --- checks that can fail ------------------------------------------------------------------------


def test_a_path_around_the_layer_fails_its_check():
    analysis = ll.analyze(CASES["resnet"].problem(n=12), measures=[])
    assert analysis.results.duality.layer == "head"
    assert all(checks(analysis).values())  # nothing goes around the head
    plain = make_problem()
    sides = [
        (plain.data(s).take(slice(None)).inputs, plain.data(s).targets) for s in ("train", "test")
    ]
    torch.manual_seed(0)
    problem = Problem(Around().double(), train=sides[0], test=sides[1])
    around = ll.analyze(problem, "layer", dual="activity", measures=[])
    assert checks(around) == {
        "Eq. 9 equals the paired gap": True,
        "The dual weights reproduce the activities": True,
        "The dual weights reproduce the losses": False,
        "Eq. 12 holds both ways": True,
        "The pairs stand for all samples": True,
    }
    assert not around.results.duality.trusted
    # unless it is named, another layer is taken
    other = ll.analyze(problem, dual="activity", measures=[])
    assert other.results.subject.layer == "head"
    # by what the network puts out: not more than tanh can move it
    bounded = ll.analyze(problem, "layer", measures=[]).results
    assert bounded.duality.setting.dual == "output"
    assert any("the outputs cannot be reached through this layer" in n for n in bounded.notes)


@pytest.mark.parametrize("angle", [20, 40, 50, 70])
def test_directions_that_may_be_missing_are_a_failed_check(angle):
    """Of a layer with 4,400 weights 50 directions are computed, and the gradients lie beside them.

    The layer's inputs are multiples of one vector v, so that its dual shifts and its effective
    gradients are multiples of one matrix, ``along v^T``. The directions with curvature are
    ``q_i v^T``, and ``along`` lies between the sharpest and the flattest of them: of the spread of
    the gradients cos(angle) is along the first, and sin(angle) along one that is not computed.
    """
    g = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(110, 110, generator=g, dtype=torch.float64))[0]
    v = nn.functional.normalize(torch.randn(40, generator=g, dtype=torch.float64), dim=0)
    radians = math.radians(angle)
    along = math.cos(radians) * Q[:, 0] + math.sin(radians) * Q[:, -1]
    sizes = ((1, 40), (40, 110), (110, 110))
    model = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes)).double()
    with torch.no_grad():
        model[0].weight.copy_(v[:, None])
        model[1].weight.copy_(torch.outer(along, v))
        model[2].weight.copy_(torch.logspace(0, -3, 110, dtype=torch.float64)[:, None] * Q.T)
    X, Z = (1 + torch.rand(40, 1, generator=g, dtype=torch.float64) for _ in range(2))
    y = torch.zeros(40, 110, dtype=torch.float64)
    problem = Problem(model, "mse", train=(X, y), test=(Z, y))
    analysis = ll.analyze(problem, "1", n_sharp=1, measures=[], brief=True)
    assert len(analysis.results.duality.sigma_g) == 50
    # by definition, if not all directions are listed
    assert "Eq. 9 equals the paired gap" not in checks(analysis)
    name = "No direction that was not computed is as sharp"
    check = next(check for check in analysis.results.checks if check.name == name)
    assert check.value == pytest.approx(math.tan(radians), rel=1e-3)
    assert check.passed == (angle < 45)


STAND = "The pairs stand for all samples"


def classifier(seed: int, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Problem:
    torch.manual_seed(seed)
    leaky = nn.LeakyReLU(0.3)  # no unit is dead: what is far away has a large loss
    model = nn.Sequential(nn.Linear(3, 5), leaky, nn.Linear(5, 4), leaky, nn.Linear(4, 2))
    return Problem(model.double(), train=train, test=test)


@pytest.mark.parametrize("seed", range(4))
def test_pairs_that_are_not_typical_of_the_data_are_a_failed_check(seed):
    """Half of the training data lie far away, with wrong labels, and are nobody's partner."""
    g = torch.Generator().manual_seed(seed)
    near, Z, far = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (60, 40, 60))
    problem = classifier(seed, (near, near[:, 0].gt(0).long()), (Z, Z[:, 0].gt(0).long()))
    far = 50 + far
    wrong = 1 - problem.model(far).argmax(1)
    X, y = torch.cat([near, far]), torch.cat([near[:, 0].gt(0).long(), wrong])
    problem = classifier(seed, (X, y), (Z, Z[:, 0].gt(0).long()))
    analysis = ll.analyze(problem, "2", measures=[], brief=True)
    (check,) = (check for check in analysis.results.checks if check.name == STAND)
    losses = [nn.functional.cross_entropy(problem.model(X), y, reduction="none").detach()]
    losses += [problem.losses("test")]
    gap, paired = losses[1].mean() - losses[0].mean(), analysis.results.duality.paired_gap
    assert gap < 0
    assert not check.passed
    partners = losses[0][ll.pair(problem).train].mean()
    assert check.value == pytest.approx(float(losses[0].mean() - partners))
    assert f"{float(gap):.3g}" in check.meaning
    assert analysis.results.duality.excluded or f"{paired:.3g}" in check.meaning
    assert sum(not one.passed for one in analysis.results.checks) == 1


@pytest.mark.slow
def test_pairs_by_chance_fail_as_seldom_as_two_standard_errors():
    """Labels by chance, so that partners have losses like any other training sample's."""
    passed = []
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        X, Z = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (80, 40))
        y, z = (torch.randint(0, 2, (n,), generator=g) for n in (80, 40))
        results = ll.analyze(classifier(seed, (X, y), (Z, z)), "2", measures=[], brief=True).results
        passed += [check.passed for check in results.checks if check.name == STAND]
    assert len(passed) == 40
    assert sum(passed) >= 34


@pytest.mark.parametrize("seed", range(3))
def test_where_targets_make_most_of_the_gap_no_shares_are_given(seed):
    """Test targets with noise that the training targets have not: only they make a gap."""
    g = torch.Generator().manual_seed(seed)
    X, Z = (torch.rand(n, 2, generator=g, dtype=torch.float64) for n in (80, 40))
    noise = torch.randn(40, 1, generator=g, dtype=torch.float64)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    model = model.double()
    with torch.no_grad():
        y, z = model(X), model(Z)
    found = {}
    for size in (0.0, 1.0):
        problem = Problem(model, "mse", (X, y), (Z, z + 0.05 + size * noise))
        analysis = ll.analyze(problem, "2", measures=["gap"], brief=True)
        split = analysis.results.duality
        assert split.trusted
        assert split.eq9 == pytest.approx(split.paired_gap, rel=1e-9)
        found[size] = analysis
    split = found[1.0].results.duality
    assert split.targets_dominate
    partner = ll.pair(problem).train
    expected = (y[partner] - z - 0.05 - noise).square().mean()
    assert split.totals.target_gap == pytest.approx(float(expected))
    answer = found[1.0].answer
    why = answer[answer.index(").") + 2 :]
    assert why.strip().startswith("It comes mostly from test samples whose targets differ")
    assert "%" not in why
    assert not found[0.0].results.duality.targets_dominate or "mostly" in found[0.0].answer


# --- errors and odd cases ------------------------------------------------------------------------


def test_errors_come_before_the_work(tmp_path):
    problem = make_problem()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        ll.analyze(problem, out=tmp_path / "file")
    with pytest.raises(InputError, match="there is no layer '9'"):
        ll.analyze(problem, "9", out=tmp_path / "out")
    whole = problem.train.take(slice(None))
    with pytest.raises(InputError, match="in layer '2' needs test data"):
        ll.analyze(Problem(problem.model, train=(whole.inputs, whole.targets)), "2")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(InputError, match=r"holds no results\.json"):
        ll.load(tmp_path)


def test_a_model_without_a_layer_to_decompose_gets_its_measures():
    """A model of one parameter: no split, and measures of it do not apply."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x

    X, y = torch.randn(30, 3), torch.arange(30) % 3
    results = ll.analyze(Problem(Scale(), train=(X, y), test=(X + 1, y))).results
    assert (results.duality, results.layer_rows, results.checks) == (None, (), ())
    assert results.notes == (
        "The gap was not decomposed: the model has no dense layer that can be seen through.",
    )
    rows = {row.name: row for row in results.measures}
    assert rows["sharp_part"].reason == (
        "does not apply: the model has no dense layer that can be seen through"
    )
    assert rows["weight_norm"].value == pytest.approx(3**0.5)


def test_a_regression_has_a_dual_and_its_targets_are_told():
    """Partners have other targets: the dual weights stand for the inputs all the same."""
    g = torch.Generator().manual_seed(0)
    X, Z = (torch.rand(n, 2, generator=g, dtype=torch.float64) for n in (60, 30))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    sides = ((inputs, inputs.prod(1, keepdim=True).sin()) for inputs in (X, Z))
    analysis = ll.analyze(Problem(model.double(), "mse", next(sides), next(sides)), "2")
    assert analysis.results.duality.trusted
    assert all(checks(analysis).values())
    assert any("have different targets" in note for note in analysis.results.notes)


def test_a_training_loss_of_zero_leaves_the_decomposition_whole():
    problem = make_problem()
    with torch.no_grad():
        problem.model[4].weight.mul_(1e6)
        problem.model[4].bias.zero_()
    train = problem.train.take(slice(None))
    right = problem.model(train.inputs).argmax(1)
    sides = (train.inputs, right), (train.inputs + 0.3, right)
    results = ll.analyze(Problem(problem.model, train=sides[0], test=sides[1]), "2").results
    assert results.outcome.train_loss == 0
    assert results.duality.paired_gap > 0
    assert any("no width F_n" in note for note in results.notes)


def test_data_in_any_precision_and_batches_has_one_fingerprint():
    X, y = torch.randn(30, 4).bfloat16(), torch.arange(30) % 3

    def mark(dtype, size):
        problem = Problem(
            nn.Linear(4, 3).to(dtype),
            train=(X.to(dtype), y),
            test=(X.to(dtype) + 1, y),
            batch_size=size,
        )
        return ll.analyze(problem, measures=[]).results.subject.fingerprint

    assert mark(torch.float32, 7) == mark(torch.float64, 30)
    assert mark(torch.bfloat16, 30)  # its own numbers, but no error


@pytest.mark.parametrize("trained", [True, False])
def test_without_test_data_the_rest_is_told(tmp_path, trained):
    problem = make_problem()
    whole = problem.train.take(slice(None))
    X, y = whole.inputs, whole.targets
    model = problem.model if trained else nn.Sequential(nn.Linear(X[0].numel(), 10))
    alone = Problem(model, train=(X if trained else X.flatten(1), y))
    analysis = ll.analyze(alone, out=tmp_path / "out")
    results = ll.load(tmp_path / "out").results
    assert results.outcome.train_loss is not None
    assert (results.outcome.gap, results.unseen, results.duality) == (None, None, None)
    assert "Without test data there is no gap" in analysis.answer
    assert ("not trained" in analysis.answer) == (not trained)
    rows = {row.name: row for row in results.measures}
    assert rows["trace"].value is not None
    assert rows["gap"].reason == "does not apply: needs test data"
    assert results.landscape is not None
    page = (tmp_path / "out" / "report.html").read_text()
    assert "there are no test data" in page
    assert "not recorded" not in page
    with pytest.raises(InputError, match="no decomposition of single pairs"):
        ll.compare(analysis, analysis)
