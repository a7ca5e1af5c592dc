"""A landscape by itself as a page, as `lowland landscape` writes it."""

from datetime import UTC, datetime

from lowland import __version__
from lowland.findings import Landscape
from lowland.report.glossary import GLOSSARY
from lowland.report.landscapes import landscape_figures
from lowland.report.page import show


def render_landscape(landscape: Landscape, title: str, command: str | None = None) -> str:
    """Make one self-contained HTML page of a landscape."""
    drawn = landscape_figures(landscape)
    return show(
        "landscape.html.j2",
        drawn,
        [(f"def-{key}", definition) for key, definition in GLOSSARY.items()],
        __version__,
        title=title,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        landscape=landscape,
    )
