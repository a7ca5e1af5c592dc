"""What is published: the check before a release. `make package` tries the wheel itself."""

import runpy
import sys
from pathlib import Path

import pytest

import lowland
from commandline import run_inside

RELEASE = runpy.run_path(str(Path(__file__).parent.parent / ".ci/release.py"))
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
    figures = [*TRACKED, "docs/reproduction/fig2.pdf"]  # left out on purpose
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


def test_an_extra_that_is_missing_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    ran = run_inside("train", "--quiet", cwd=tmp_path)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "pip install 'lowland[data]'" in ran.err


def test_the_package_is_typed():
    assert (Path(lowland.__file__).parent / "py.typed").is_file()
