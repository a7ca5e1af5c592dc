"""The saved form of an analysis. Reading and showing it needs no torch."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowland import report
from lowland.atomic import replaced_directory, write_page
from lowland.errors import InputError
from lowland.figures import FORMATS
from lowland.findings import Results, from_json, to_json
from lowland.manifest import REPORT, SUMS, Damaged, read_listed
from lowland.reading import arrays
from lowland.wording import cell

RESULTS, ARRAYS, WEIGHTS, EPOCHS = (
    "results.json",
    "arrays.npz",
    "weights.safetensors",
    "epochs.csv",
)
FILES = (RESULTS, ARRAYS, WEIGHTS, EPOCHS, REPORT, SUMS)


@dataclass(frozen=True)
class Analysis:
    """All that was found, and the weights it was found at, as safetensors."""

    results: Results
    weights: bytes

    def __repr__(self) -> str:
        return f"Analysis({self.results.subject.title!r}): {self.answer}"

    @property
    def answer(self) -> str:
        """What was found, in two sentences."""
        return report.answer(self.results)

    def to_html(self, path: str | Path) -> Path:
        """Write the report, one self-contained HTML file."""
        write_page(Path(path), report.render(self.results))
        return Path(path)

    def plot(self, ax: Any = None) -> Any:
        """Draw where the gap builds up, over the directions of its layer, on matplotlib axes."""
        if self.results.duality is None:
            raise InputError("the gap was not decomposed, so there is nothing to draw of it")
        return self.results.duality.plot(ax)

    def _repr_html_(self) -> str:
        return report.notebook(self.results)

    def save_figures(self, directory: str | Path, kind: str = "pdf") -> list[Path]:
        """Write every figure for a paper into a directory, as pdf, svg or png."""
        if kind not in FORMATS:
            raise InputError(f"figures can be {', '.join(FORMATS)}; got {kind!r}")
        files = report.figure_files(self.results, kind)
        with replaced_directory(Path(directory)) as beside:
            for name, content in files.items():
                (beside / name).write_bytes(content)
        return [Path(directory) / name for name in files]

    def files(self) -> dict[str, bytes]:
        """What is saved, by the names of the files; ``epochs.csv`` only after a training."""
        document, parts = to_json(self.results)
        archive = io.BytesIO()
        np.savez(archive, **parts)  # type: ignore[arg-type]
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        files = {RESULTS: text.encode(), ARRAYS: archive.getvalue(), WEIGHTS: self.weights}
        training = self.results.origin.training
        if training is not None and training.curves:
            files[EPOCHS] = epochs_csv(training.curves)
        return files

    def save(self, directory: str | Path) -> Path:
        """Write results, arrays, weights and report as one directory, whole or not at all.

        Its SHA256SUMS lists the checksums, against which :func:`load` checks them.
        """
        with replaced_directory(Path(directory)) as beside:
            for name, content in self.files().items():
                (beside / name).write_bytes(content)
            self.to_html(beside / REPORT)
        return Path(directory)


def epochs_csv(curves: Mapping[str, Iterable[float]]) -> bytes:
    """Curves over the epochs as a table, with every digit."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["epoch", *map(cell, curves)])
    table.writerows(
        [i, *map(repr, map(float, row))]
        for i, row in enumerate(zip(*curves.values(), strict=True), 1)
    )
    return text.getvalue().encode()


def load(directory: str | Path) -> Analysis:
    """Read what :meth:`Analysis.save` wrote, each file checked against its checksum."""
    directory = Path(directory)
    if not directory.is_dir():
        came = "is a file" if directory.exists() else "does not exist"
        raise InputError(f"{directory} {came}; expected a directory that `lowland analyze` wrote")
    if not (directory / RESULTS).is_file():
        if (directory / "run.json").is_file():
            raise InputError(f"{directory} is a run that failed, see its run.json; take another")
        raise InputError(
            f"{directory} holds no {RESULTS}; expected a directory that `lowland analyze` wrote"
        )
    try:
        contents = read_listed(directory)
        for name in (RESULTS, ARRAYS, WEIGHTS):
            if name not in contents:
                raise Damaged(f"{name} is not in {SUMS}")
    except Damaged as damage:
        raise InputError(
            f"the results in {directory} are damaged: {damage}; run the analysis again"
        ) from damage
    try:
        stored = arrays(contents[ARRAYS], ARRAYS)
        return Analysis(from_json(contents[RESULTS], stored), contents[WEIGHTS])
    except InputError as error:
        raise InputError(
            f"the results in {directory} cannot be read: {error}; run the analysis again"
        ) from error
