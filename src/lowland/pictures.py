"""Landscapes on disk: numbers as JSON and arrays, a page, and figures. Reading needs no torch."""

import io
import json
from pathlib import Path

import numpy as np

from lowland import __version__, figures, report
from lowland.atomic import replaced_directory
from lowland.errors import InputError
from lowland.findings import FORMAT, Landscape, decode, encode
from lowland.manifest import REPORT, Damaged, read_listed
from lowland.reading import arrays

DOCUMENT, ARRAYS = "landscape.json", "arrays.npz"


def save_landscape(
    landscape: Landscape,
    directory: str | Path,
    title: str = "Loss landscape",
    command: str | None = None,
    kind: str | None = "png",
) -> Path:
    """Write a landscape as one directory, whole or not at all: numbers, arrays, page and figures.

    ``kind`` is that of the figures: png, pdf or svg, or None for no figures.
    """
    arrays: dict[str, np.ndarray] = {}
    document = {
        "format": FORMAT,
        "lowland": __version__,
        "title": title,
        "command": command,
        "landscape": encode(landscape, arrays),
    }
    archive = io.BytesIO()
    np.savez(archive, **arrays)  # type: ignore[arg-type]
    with replaced_directory(Path(directory)) as beside:
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        (beside / DOCUMENT).write_text(text, encoding="utf-8")
        (beside / ARRAYS).write_bytes(archive.getvalue())
        for name, content in figure_files(landscape, kind).items():
            (beside / name).write_bytes(content)
        page = report.render_landscape(landscape, title, command)
        (beside / REPORT).write_text(page, encoding="utf-8")
    return Path(directory)


def figure_files(landscape: Landscape, kind: str | None) -> dict[str, bytes]:
    """The figures of a landscape by the names of their files."""
    if kind is None:
        return {}
    drawn = {
        f"cut-{i}": figures.saved(figures.draw_line, line, kind)
        for i, line in enumerate(landscape.lines, 1)
    }
    if landscape.surface is not None:
        drawn["landscape"] = figures.saved(figures.draw_surface, landscape.surface, kind)
        drawn["landscape-3d"] = figures.saved(
            figures.draw_solid, landscape.surface, kind, projection="3d"
        )
    if landscape.path is not None:
        drawn["path"] = figures.saved(figures.draw_path, landscape.path, kind)
    return {f"{name}.{kind}": content for name, content in drawn.items()}


def load_landscape(directory: str | Path) -> Landscape:
    """Read what :func:`save_landscape` wrote, each file checked against its checksum."""
    directory = Path(directory)
    if not (directory / DOCUMENT).is_file():
        raise InputError(
            f"{directory} holds no {DOCUMENT}; expected a directory that `lowland landscape` wrote"
        )
    try:
        contents = read_listed(directory)
        document = json.loads(contents[DOCUMENT])
        stored = arrays(contents[ARRAYS], ARRAYS)
    except Exception as error:
        known = isinstance(error, Damaged | InputError)
        said = str(error) if known else type(error).__name__
        raise InputError(
            f"the landscape in {directory} is damaged: {said}; draw it again"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        came = document.get("format") if isinstance(document, dict) else None
        raise InputError(
            f"the landscape in {directory} has format {came!r} and this Lowland reads format "
            f"{FORMAT}; draw it again"
        )
    return decode(Landscape, document.get("landscape"), stored)
