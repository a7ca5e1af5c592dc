import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import lowland as ll
from cases import CASES
from lowland.errors import InputError
from lowland.problem import Problem
from test_duality import make_problem


def test_an_analysis_holds_what_the_rooms_compute():
    problem = make_problem()
    analysis = ll.analyze(problem)
    expected = ll.duality(problem, "2")
    assert analysis.results["subject"]["layer"] == "2"
    assert analysis.results["duality"]["sharp"] == expected.sharp
    assert analysis.results["outcome"]["gap"] == pytest.approx(expected.gap)
    np.testing.assert_array_equal(analysis.arrays["duality/sigma_g"], expected.sigma_g)
    assert [c["passed"] for c in analysis.results["checks"]] == [True] * 4
    assert analysis.answer.count(". ") == 1


def test_what_is_saved_is_what_is_loaded(tmp_path):
    problem = make_problem()
    out = tmp_path / "deep" / "result"
    analysis = ll.analyze(problem, out=out, title="a <b>title</b>")
    assert sorted(p.name for p in out.iterdir()) == [
        "arrays.npz",
        "report.html",
        "results.json",
        "weights.safetensors",
    ]
    loaded = ll.load(out)
    assert loaded.results == json.loads(json.dumps(analysis.results))
    for name, array in analysis.arrays.items():
        np.testing.assert_array_equal(loaded.arrays[name], array)
    for name, weight in load_file(out / "weights.safetensors").items():
        assert torch.equal(weight, problem.params[name])
    again = loaded.to_html(tmp_path / "again.html").read_text()
    assert again == (out / "report.html").read_text()
    assert "<b>title" not in again
    assert list(out.parent.iterdir()) == [out]  # nothing is left beside it


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_model_gets_a_report(name, tmp_path):
    case = CASES[name]
    analysis = ll.analyze(case.problem(n=12), out=tmp_path / "out")
    assert (tmp_path / "out" / "report.html").stat().st_size > 1e6
    assert analysis.results["duality"]["paired_gap"] is not None
    assert analysis.results["duality"]["trusted"]
    if name == "transformer":  # tokens are no points in space, and data goes around most layers
        assert analysis.results["subject"]["layer"] == "head"
        assert any("paired by what layer" in note for note in analysis.results["notes"])


def test_a_path_around_the_layer_fails_its_check():
    analysis = ll.analyze(CASES["resnet"].problem(n=12))
    assert analysis.results["duality"]["layer"] == "head"
    assert all(c["passed"] for c in analysis.results["checks"])  # nothing goes around the head
    around = ll.analyze(CASES["tied"].problem(n=12), "head")
    assert all(c["passed"] for c in around.results["checks"])


def test_errors_come_before_the_work(tmp_path):
    problem = make_problem()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        ll.analyze(problem, out=tmp_path / "file")
    with pytest.raises(InputError, match="there is no layer '9'"):
        ll.analyze(problem, "9", out=tmp_path / "out")
    whole = problem.train.take(slice(None))
    with pytest.raises(InputError, match="needs test data"):
        ll.analyze(Problem(problem.model, train=(whole.inputs, whole.targets)))
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(InputError, match=r"holds no results\.json"):
        ll.load(tmp_path)


def test_a_regression_has_a_dual_and_its_targets_are_told():
    """Partners have other targets: the dual weights stand for the inputs all the same."""
    g = torch.Generator().manual_seed(0)
    X, Z = (torch.rand(n, 2, generator=g, dtype=torch.float64) for n in (60, 30))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    sides = ((inputs, inputs.prod(1, keepdim=True).sin()) for inputs in (X, Z))
    analysis = ll.analyze(Problem(model.double(), "mse", next(sides), next(sides)), "2")
    assert analysis.results["duality"]["trusted"]
    assert all(check["passed"] for check in analysis.results["checks"])
    assert any("have different targets" in note for note in analysis.results["notes"])


def test_a_training_loss_of_zero_leaves_the_decomposition_whole():
    problem = make_problem()
    with torch.no_grad():
        problem.model[4].weight.mul_(1e6)
        problem.model[4].bias.zero_()
    train = problem.train.take(slice(None))
    right = problem.model(train.inputs).argmax(1)
    sides = (train.inputs, right), (train.inputs + 0.3, right)
    analysis = ll.analyze(Problem(problem.model, train=sides[0], test=sides[1]), "2")
    assert analysis.results["outcome"]["train_loss"] == 0
    assert analysis.results["duality"]["paired_gap"] > 0
    assert any("no width F_n" in note for note in analysis.results["notes"])


def test_directions_that_may_be_missing_are_a_failed_check():
    """Of a large layer some are computed: if another may be sharper, the answer says caution."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 3)
    )
    X, Z = torch.randn(40, 4), torch.randn(40, 4)
    y = torch.arange(40) % 3
    analysis = ll.analyze(Problem(model, train=(X, y), test=(Z, y)), "2", measures=[])
    checks = {check["name"]: check for check in analysis.results["checks"]}
    assert "Eq. 9 equals the paired gap" not in checks  # by definition, where not all are listed
    check = checks["No direction that was not computed is as sharp"]
    sharp = analysis.arrays["duality/sigma_g"][9]
    unseen = analysis.results["duality"]["unseen_sigma_g"]
    assert check["passed"] == (unseen <= sharp)


def test_data_in_any_precision_and_batches_has_one_fingerprint():
    X, y = torch.randn(30, 4).bfloat16(), torch.arange(30) % 3

    def mark(dtype, size):
        problem = Problem(
            nn.Linear(4, 3).to(dtype),
            train=(X.to(dtype), y),
            test=(X.to(dtype) + 1, y),
            batch_size=size,
        )
        return ll.analyze(problem, measures=[]).results["subject"]["fingerprint"]

    assert mark(torch.float32, 7) == mark(torch.float64, 30)
    assert mark(torch.bfloat16, 30)  # its own numbers, but no error
