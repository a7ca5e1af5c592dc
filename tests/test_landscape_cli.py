"""`lowland landscape` as a user calls it."""

import json
from pathlib import Path

import pytest
import torch

import lowland as ll
from commandline import MINE, entries, run, run_inside

OWN = ("--model", "mine:model", "--data", "mine:data", "--out", "out")


@pytest.fixture
def desk(tmp_path) -> Path:
    """A directory with a model of the user's and three checkpoints of it."""
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "mine.py").write_text(MINE)
    scope: dict = {}
    exec(MINE, scope)
    for seed, name in enumerate("abc"):
        model = scope["model"]()
        torch.manual_seed(seed)
        for module in model:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        torch.save(model.state_dict(), desk / f"{name}.pt")
    return desk


@pytest.mark.slow
def test_a_surface_with_cuts_marks_and_a_trajectory_as_a_process(desk):
    more = ("--steps", "7", "--span", "0.5", "--trajectory", "a.pt", "b.pt", "c.pt")
    done = run("landscape", "c.pt", *more, *OWN, "--json", "--quiet", cwd=desk)
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert [mark["name"] for mark in document["surface"]["marks"]] == ["c.pt"]
    assert [mark["step"] for mark in document["surface"]["trajectory"]] == [0, 1, 2]
    assert [line["axis"]["kind"] for line in document["lines"]] == ["random", "hessian"]
    again = ll.load_landscape(desk / "out")
    assert again.surface.train.shape == (7, 7)
    files = {"landscape.json", "arrays.npz", "report.html", "SHA256SUMS", "landscape.png"}
    assert files <= entries(desk / "out")
    assert not (desk / "out.unfinished").exists()
    assert "<html" in (desk / "out" / "report.html").read_text()[:200]


def test_a_line_a_plane_and_a_path(desk):
    line = run_inside(
        "landscape", "--kind", "line", "--directions", "b.pt", "--span", "1", "--steps", "5",
        *OWN, "--quiet", cwd=desk,
    )  # fmt: skip
    assert line.code == 0, line.err
    assert "Cut, towards the other model, -1.00 to 1.00" in line.out
    plane = run_inside(
        "landscape", "a.pt", "b.pt", "c.pt", "--kind", "plane", "--steps", "15", *OWN, cwd=desk
    )
    assert plane.code == 0, plane.err
    assert "plane: " in plane.err
    assert "checkpoint b.pt: (1.00, 0), 0 away" in plane.out
    path = run_inside(
        "landscape", "a.pt", "b.pt", "--kind", "path", "--steps", "5", "--align", "--renormalize",
        "--no-curve", *OWN, "--quiet", cwd=desk,
    )  # fmt: skip
    assert path.code == 0, path.err
    assert "straight line after alignment" in path.out
    assert max(map(len, path.out.splitlines())) <= 80
    found = ll.load_landscape(desk / "out").path
    assert list(found.routes) == ["straight", "aligned", "renormalised"]


def test_a_line_along_a_training_without_test_data_and_models_of_one_name(desk):
    with (desk / "mine.py").open("a") as file:
        file.write("\n\ndef alone():\n    return data()[0], None\n")
    own = ("--model", "mine:model", "--data", "mine:alone", "--out", "out")
    for name in "ab":
        (desk / name).mkdir()
        (desk / f"{name}.pt").rename(desk / name / "last.pt")
    done = run_inside(
        "landscape", "a/last.pt", "b/last.pt", "--kind", "line", "--trajectory", "a/last.pt",
        "c.pt", "--steps", "5", *own, "--json", "--quiet", cwd=desk,
    )  # fmt: skip
    assert done.code == 0, done.err
    (line,) = json.loads(done.out)["lines"]
    assert line["test"] is None
    assert line["axis"]["kind"] == "trajectory"
    assert [Path(mark["name"]).parent.name for mark in line["marks"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--kind", "plane", "a.pt"), "--kind plane needs 3 checkpoints"),
        (("--kind", "path"), "--kind path needs 2 checkpoints"),
        (("--span", "wide"), "--span is a number or auto; got 'wide'"),
        (("--directions", "up,random"), "--directions up is neither random, hessian, sam"),
        (("--directions", "trajectory"), "needs --trajectory CHECKPOINTS"),
        (("--kind", "line", "--directions", "sam,random"), "expected one direction; got sam,rand"),
        (("--directions", "sam"), "expected two directions with a comma between them; got sam"),
        (("--steps", "2"), "at least 3"),
        (("--steps", "0"), "at least 3"),
        (("--refine", "-1"), "refine is a number of more points"),
        (("--kind", "line", "d.pt"), "d.pt"),
    ],
)
def test_mistakes_are_one_line(desk, args, words):
    done = run_inside("landscape", *args, *OWN, "--quiet", cwd=desk)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (desk / "out").exists()
