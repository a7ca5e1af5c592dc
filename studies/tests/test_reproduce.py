"""The command that makes the papers' figures again."""

import json

import pytest

from commandline import entries, run, run_inside
from lowland.errors import InputError
from lowland.sweep import Grid, trials
from lowland_studies import Claim, Study, reproduce
from lowland_studies.claims import between
from lowland_studies.panels import Against


def test_without_a_name_the_studies_are_listed(tmp_path):
    ran = run("reproduce", cwd=tmp_path)
    assert ran.code == 0, ran.err
    for name in ("feng-tu:fig3", "feng-tu:figS11", "tsuzuku:fig4"):
        assert name in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    rows = json.loads(run("reproduce", "--json", cwd=tmp_path).out)
    assert {"name": "feng-tu:fig3", "runs": 480}.items() <= {r["name"]: r for r in rows}[
        "feng-tu:fig3"
    ].items()
    assert entries(tmp_path) == set()


def test_mistakes_are_told_in_a_line(tmp_path):
    (tmp_path / "file").touch()
    for args, words in (
        (("feng-tu:figS1", "--pages", "file"), "there can be no pages in file"),  # at once
        (("feng-tu:fig33",), "did you mean 'feng-tu:fig3'?"),
        (("--pages", "docs"), "holds no study that was reproduced"),
        (("xor", "--original"), "xor has no original version"),
        (("feng-tu", "--original"), "no study of feng-tu has an original version"),
        (("xor", "--original", "--quick"), "are two versions of a study"),
    ):
        ran = run_inside("reproduce", *args, "--quiet", cwd=tmp_path)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
        assert len(ran.err.splitlines()) == 1


def test_a_study_that_lacks_its_data_is_told_and_tried_again(tmp_path, monkeypatch):
    """Runs that failed are kept; a study of nothing else was judged by them for ever."""
    (tmp_path / "wanting.py").write_text(
        "import os\n"
        "def trial(settings, seed):\n"
        "    return {'found': float(os.environ['WANTED']) + seed}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("WANTED", raising=False)
    grid = trials("wanting:trial", width=[1, 2], seed=range(2))
    study = Study(
        name="wanting",
        title="What is wanting",
        grid=grid,
        quick=grid,
        panels=(Against("width", {"found": "found"}, "found"),),
        claims=(Claim("It is found.", "a guess", between("found", 0, 9)),),
    )
    out = tmp_path / "out"
    with pytest.raises(InputError, match="wanting: every one of its 4 runs failed: .*WANTED"):
        reproduce(study, out, executor="serial")
    assert not (out / "studies").exists()
    monkeypatch.setenv("WANTED", "2")
    assert reproduce(study, out, executor="serial").claims[0].findings[0].effect == 2.5


def test_pages_tell_of_studies_of_ones_own(tmp_path):
    grid = Grid(
        data="xor",
        network="2-4-2",
        max_epochs=2,
        stop_loss=9.0,
        n_sharp=2,
        learning_rate=[0.1, 0.2],
        seed=range(2),
    )
    study = Study(
        name="mine:rates",
        title="Rates",
        grid=grid,
        quick=grid,
        panels=(Against("learning_rate", {"gap": "gap"}, "gap"),),
        claims=(Claim("The loss is small.", "a guess", between("train_loss", 0, 1)),),
    )
    reproduce(study, tmp_path / "store", executor="serial")
    ran = run_inside("reproduce", "--out", "store", "--pages", "docs", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "page: docs/mine.md" in ran.out
    assert "# mine" in (tmp_path / "docs" / "mine.md").read_text()
    assert (tmp_path / "docs" / "mine-rates.png").is_file()
    reproduce(study, tmp_path / "store", executor="serial")  # takes the place of the first
    assert run_inside("reproduce", "--out", "store", "--pages", "docs", cwd=tmp_path).code == 0

    for name in ("mine.md", "mine-rates.png"):  # a file of the user's does not give way
        (tmp_path / name / "pages").mkdir(parents=True)
        (tmp_path / name / "pages" / name).write_text("of the user")
        ran = run_inside("reproduce", "--out", "store", "--pages", f"{name}/pages", cwd=tmp_path)
        assert (ran.code, ran.out) == (2, "")
        assert f"pages holds '{name}', which Lowland did not write" in ran.err
        assert entries(tmp_path / name / "pages") == {name}
        assert (tmp_path / name / "pages" / name).read_text() == "of the user"
    figure = tmp_path / "store" / "studies" / "mine-rates" / "mine-rates.csv"
    figure.write_text("of the user")
    with pytest.raises(InputError, match=r"holds 'mine-rates\.csv', which Lowland did not write"):
        reproduce(study, tmp_path / "store", executor="serial")
    assert figure.read_text() == "of the user"
