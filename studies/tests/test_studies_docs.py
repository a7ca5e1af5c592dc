"""What the studies' pages and docstrings show runs."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import lowland_studies
from test_docs import desk, follow  # noqa: F401
from test_docs import test_docstring_examples as examples_run

PUBLISHED = Path(__file__).parents[1] / "published"
MODULES = [m.name for m in pkgutil.walk_packages(lowland_studies.__path__, "lowland_studies.")]


def test_the_study_of_your_own_runs(desk):  # noqa: F811
    printed = follow(PUBLISHED / "index.md", desk, "python")
    assert re.search(r"Finding\(effect=-?\d.*4 seeds", printed)
    assert (desk / "runs/studies/mine-rates/mine-rates.svg").is_file()


@pytest.mark.parametrize("name", ["lowland_studies", *MODULES])
def test_docstring_examples(name):
    examples_run(name)


def test_each_picture_is_there_once_and_is_on_a_page():
    pages = "".join(page.read_text("utf-8") for page in PUBLISHED.glob("*.md"))
    named = set(re.findall(r"\]\(([\w.-]+\.(?:png|csv|svg|html))\)", pages))
    assert named == {path.name for path in PUBLISHED.iterdir() if path.suffix != ".md"}


def test_every_public_name_is_there():
    for name in lowland_studies.__all__:
        found = getattr(lowland_studies, name)
        assert not isinstance(found, type(importlib)), f"{name} is a module"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lowland_studies.no_such_name
