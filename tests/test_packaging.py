"""What is published: the check before a release. `make package` tries the wheel itself."""

import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from cyclopts import App

import lowland
from commandline import run_inside
from lowland.cli import others
from lowland.errors import InputError

ROOT = Path(__file__).parent.parent
RELEASE = runpy.run_path(str(ROOT / ".ci/release.py"))
agreement, completeness = RELEASE["agreement"], RELEASE["completeness"]
CHANGELOG = "# Changelog\n\n## 0.2.0 (2026-01-31)\n\n- New.\n\n## 0.1.0 (2025-12-01)\n"


def test_a_release_agrees_with_itself():
    assert agreement("0.2.0", CHANGELOG, ["v0.2.0"], "") == []


@pytest.mark.parametrize(
    ("version", "changelog", "tags", "changed", "told"),
    [
        ("0.2.dev", CHANGELOG, ["v0.2.dev"], "", "expected a number such as"),
        ("0.1.0", CHANGELOG, ["v0.1.0"], "", "begins with '0.2.0 (2026-01-31)'"),
        ("0.2.0", CHANGELOG.replace("2026-01-31", "unreleased"), ["v0.2.0"], "", "YYYY-MM-DD"),
        ("0.2.0", CHANGELOG, ["v0.1.0"], "", "no tag v0.2.0"),
        ("0.2.0", CHANGELOG, ["v0.2.0"], "README.md\n", "not committed: README.md"),
    ],
)
def test_a_release_says_what_is_left_to_do(version, changelog, tags, changed, told):
    assert told in " ".join(agreement(version, changelog, tags, changed))


TRACKED = ["README.md", "src/lowland/__init__.py", "src/lowland/report/style.css"]
SDIST = [f"lowland-0.2.0/{name}" for name in (*TRACKED, "PKG-INFO")]
WHEEL = [name.removeprefix("src/") for name in TRACKED[1:]]
WHEEL += ["lowland-0.2.0.dist-info/licenses/LICENSE"]


def test_built_files_have_what_git_tracks():
    assert completeness("0.2.0", TRACKED, WHEEL, SDIST) == []
    figures = [*TRACKED, "studies/published/fig2.svg"]  # left out on purpose
    assert completeness("0.2.0", figures, WHEEL, SDIST) == []


def test_built_files_that_are_not_complete_are_told():
    lacking = [name for name in WHEEL if not name.endswith("css")]
    told = completeness("0.2.0", TRACKED, lacking, SDIST)
    assert told == ["the wheel lacks lowland/report/style.css"]
    told = completeness("0.2.0", TRACKED, [*WHEEL, "lowland/old.py"], SDIST[1:])
    assert told == [
        "the wheel has what git does not track: lowland/old.py",
        "the sdist lacks README.md",
    ]
    assert "licence" in completeness("0.2.0", TRACKED, WHEEL[:-1], SDIST)[0]


def test_the_wheel_of_the_studies_is_looked_at_as_well():
    tracked = [*TRACKED, "studies/src/lowland_studies/verb.py", "studies/tests/test_claims.py"]
    wheel = ["lowland_studies/verb.py", "lowland_studies-0.2.0.dist-info/licenses/LICENSE"]
    shipped = RELEASE["shipped"]
    assert shipped("lowland_studies", "0.2.0", tracked, wheel) == []
    told = shipped("lowland_studies", "0.2.0", tracked, [*wheel[1:], "lowland_studies/x.py"])
    assert told == [
        "the wheel lacks lowland_studies/verb.py",
        "the wheel has what git does not track: lowland_studies/x.py",
    ]


def test_the_verb_of_the_studies_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(others, "entry_points", lambda group: [])
    monkeypatch.setattr(others, "app", without := App(result_action="return_value"))
    others.join.__wrapped__()
    with pytest.raises(InputError, match="^reproduce is in .*: pip install lowland-studies"):
        without(["reproduce", "feng-tu:fig3", "--quick", "--out", "x"], exit_on_error=False)


def test_both_distributions_have_one_version():
    studies = tomllib.loads((ROOT / "studies" / "pyproject.toml").read_text("utf-8"))["project"]
    assert studies["version"] == lowland.__version__
    assert studies["entry-points"]["lowland.verbs"].keys() == others._ELSEWHERE.keys()


def test_an_extra_that_is_missing_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    ran = run_inside("train", "--quiet", cwd=tmp_path)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "pip install 'lowland[data]'" in ran.err


def test_the_package_is_typed():
    assert (Path(lowland.__file__).parent / "py.typed").is_file()
