import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

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
