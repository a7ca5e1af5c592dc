"""The saved form of an analysis. Reading and showing it needs no torch."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowland import report
from lowland.atomic import replaced_directory, write_file
from lowland.errors import InputError
from lowland.findings import Results, from_json, to_json

FILES = RESULTS, ARRAYS, WEIGHTS, EPOCHS, REPORT = (
    "results.json",
    "arrays.npz",
    "weights.safetensors",
    "epochs.csv",
    "report.html",
)


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
        write_file(Path(path), report.render(self.results))
        return Path(path)

    def files(self) -> dict[str, bytes]:
        """What is saved, by the names of the files; ``epochs.csv`` only after a training."""
        document, arrays = to_json(self.results)
        archive = io.BytesIO()
        np.savez_compressed(archive, **arrays)  # type: ignore[arg-type]
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        files = {RESULTS: text.encode(), ARRAYS: archive.getvalue(), WEIGHTS: self.weights}
        training = self.results.origin.training
        if training is not None and training.curves:
            files[EPOCHS] = epochs_csv(training.curves)
        return files

    def save(self, directory: str | Path) -> Path:
        """Write results, arrays, weights and report as one directory, whole or not at all."""
        with replaced_directory(Path(directory), FILES) as beside:
            for name, content in self.files().items():
                (beside / name).write_bytes(content)
            self.to_html(beside / REPORT)
        return Path(directory)


def epochs_csv(curves: Mapping[str, Iterable[float]]) -> bytes:
    """Curves over the epochs as a table, with every digit."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["epoch", *curves])
    table.writerows(
        [i, *map(repr, map(float, row))]
        for i, row in enumerate(zip(*curves.values(), strict=True), 1)
    )
    return text.getvalue().encode()


def load(directory: str | Path) -> Analysis:
    """Read what :meth:`Analysis.save` wrote."""
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
        text = (directory / RESULTS).read_text(encoding="utf-8")
        # Opened here, because numpy leaves a file open that it finds damaged.
        with open(directory / ARRAYS, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        weights = (directory / WEIGHTS).read_bytes()
    except Exception as error:  # zip, zlib and numpy each have their own for damaged bytes
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"the results in {directory} are damaged or incomplete ({said}); run the analysis again"
        ) from error
    try:
        return Analysis(from_json(text, arrays), weights)
    except InputError as error:
        raise InputError(
            f"the results in {directory} cannot be read: {error}; run the analysis again"
        ) from error
