"""What the published pages say is what today's claims conclude from the numbers beside them."""

import csv
import io
import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest

from lowland.errors import InputError
from lowland.sweep import key
from lowland_studies import find
from lowland_studies.evidence import Runs, words_of
from lowland_studies.pages import effect_of, in_letters
from lowland_studies.reproduction import Outcome

PAGES = Path(__file__).parents[1] / "published"
DATA = os.environ.get("LOWLAND_DATA", "")
AT_HAND = [Path(DATA, "MNIST", "raw"), Path(DATA, "cifar-10-batches-py")]
STUDIES = [s for s in find("all") if (PAGES / f"{s.file}-runs.csv").is_file()]
EFFECT = re.compile(r"(−?[\d.e−+]+)(?: %)? \[(−?[\d.e−+]+), (−?[\d.e−+]+)\]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not DATA or not all(folder.is_dir() for folder in AT_HAND),
        reason="the studies were run with LOWLAND_DATA, and have other runs without",
    ),
]


class Published(Runs):
    """Runs of which the published numbers are known: columns under their names, and no arrays."""

    def _column(self, of):
        name = words_of(of) if callable(of) else of
        if self.rows and f"{name} (2)" in self.rows[0]:
            raise LookupError(f"there are several columns {name!r}")
        if self.rows and name in self.rows[0]:
            of = name
        return np.asarray(of(self), dtype=float) if callable(of) else super()._column(of)

    def array(self, of):
        raise LookupError("arrays are not published")


def as_written(value):
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list) else str(value)


def published(reading, file):
    """The runs of a reading, with the numbers of its file."""
    text = (PAGES / f"{file}-runs.csv").read_text(encoding="utf-8")
    lines = list(csv.DictReader(io.StringIO(text)))
    varied = list(lines[0])[: list(lines[0]).index("seed") + 1]
    for line in lines:  # lists in settings, however they were written
        line |= {
            n: json.dumps(json.loads(v.replace("'", '"'))) for n, v in line.items() if "[" in v
        }
    known = {tuple(line[name] for name in varied): line for line in lines}
    documents = [run.to_dict() for run in reading.grid]
    settings = {name: None for document in documents for name in document}
    rows: tuple[list, list] = ([], [])
    for run, document in zip(reading.grid, documents, strict=True):
        line = known[tuple(as_written(document.get(name)) for name in varied)]
        own = {n: tuple(v) if isinstance(v, list) else v for n, v in document.items()}
        numbers = {n: float(v) if v else None for n, v in line.items() if n not in varied}
        row = {**settings, **own, **numbers, "key": key(run), "status": "done"}
        row["converged"] = line["counts"] == "1"
        rows[not row["converged"]].append(row)
    return Published(tuple(rows[0]), tuple(rows[1]), Path("nowhere"), settings=tuple(settings))


def told(study):
    """The cells of each claim on the page, by its text: one for each reading."""
    text = (PAGES / f"{study.paper}.md").read_text(encoding="utf-8")
    heading = Outcome(study.name, study.title, "full", (), (), "").heading
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if "<br>*" in line]
    cells = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in lines]
    return {c[0].partition("<br>")[0].replace("\\|", "|"): c[1:] for c in cells}


def concluded(claim, runs):
    """What a claim says of published numbers; None where it needs more than these."""
    try:
        finding = claim.test(runs)
    except (LookupError, TypeError, ValueError, InputError):
        return None
    return finding if math.isfinite(finding.effect) else None


def numbers(effect):
    found = EFFECT.match(effect)
    return [float(number.replace("−", "-")) for number in found.groups()] if found else []


RECHECKED: list[bool] = []
# Numbers that another layer's took the place of, when columns of one name were not both kept.
LOST = {"The output-level dual holds 95 % of the gap, in the attention's values."}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_verdicts_follow_from_the_published_numbers(study):
    cells = told(study)
    assert set(cells) == {in_letters(claim.text) for claim in study.claims}
    for i, reading in enumerate(study.readings_of("full")):
        runs = published(reading, f"{study.file}{reading.suffix}")
        for claim in study.claims:
            cell = cells[in_letters(claim.text)][i]
            finding = concluded(claim, runs) if claim.text not in LOST else None
            RECHECKED.append(finding is not None)
            if finding is not None:
                assert f"**{finding.verdict}**" in cell, claim.text
                # The files have eight digits; of what differs by rounding these tell nothing.
                expected = pytest.approx(numbers(effect_of(finding)), rel=1e-2, abs=1e-6)
                assert numbers(cell) == expected, claim.text


def test_nearly_all_of_them_can_be_rechecked_as_the_docs_say():
    if len(RECHECKED) != sum(len(s.claims) * len(s.readings_of("full")) for s in STUDIES):
        pytest.skip("some studies were not asked for")
    assert np.mean(RECHECKED) > 0.9
    words = " ".join((PAGES / "index.md").read_text(encoding="utf-8").split())
    assert f"for {sum(RECHECKED):,} of the {len(RECHECKED):,} verdicts of all pages" in words
