"""What every page has: the common template, its figures, style, scripts and security policy."""

import base64
import functools
import gzip
import hashlib
import math
import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from lowland.report import numbers
from lowland.report.glossary import Definition
from lowland.report.mathml import mathml
from lowland.report.traces import Figure

# Browsers have a limit on drawings by their graphics hardware: beyond it, early ones go blank.
IN_SPACE = 4


def show(
    template: str,
    drawn: list[Figure],
    definitions: list[tuple[str, Definition]],
    version: str,
    script: str | None = None,
    package: str = __package__,
    **content: Any,
) -> str:
    """Fill a template that extends the common page; ``script`` is a file of its own behaviour.

    Both are files of this ``package``; the common page is always ours.
    """

    def load(name: str) -> str:
        return _text(name, package if name in (template, script) else __package__)

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=FunctionLoader(load)
    )
    environment.filters |= {
        "formula": formula,
        "mathml": mathml,
        "number": numbers.number,
        "percent": numbers.percent,
        "duration": numbers.duration,
        "date": numbers.date,
    }
    environment.tests["finite"] = lambda value: value is not None and math.isfinite(value)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals |= {"definitions": definitions}
    assert sum(figure.turns for figure in drawn) <= IN_SPACE
    packed, plotly_hash = _plotly()
    source = load(script) + load("page.js") if script else load("page.js")
    return environment.get_template(template).render(
        figures=drawn,
        pictures=_pictures(drawn),
        version=version,
        style=Markup(load("style.css")),
        plotly=Markup(packed),
        plotly_hash=Markup(plotly_hash),
        script=Markup(source),
        script_hash=Markup(_hashed(source)),
        **content,
    )


def formula(text: str) -> Markup:
    """Escape a text, then set its `_{...}` and `^{...}` as small letters."""
    escaped = str(escape(text))
    escaped = re.sub(r"_\{([^{}]*)\}", r"<sub>\1</sub>", escaped)
    return Markup(re.sub(r"\^\{([^{}]*)\}", r"<sup>\1</sup>", escaped))


def _pictures(drawn: list[Figure]) -> list[dict[str, Any]]:
    return [
        {
            "key": figure.key,
            "views": [{"data": view.data, "layout": view.layout} for view in figure.views],
            "columns": _columns(figure),
        }
        for figure in drawn
        if figure.data
    ]


def _columns(figure: Figure) -> list[str]:
    """What the axes of a figure show, as heads of the columns of its data."""
    layout = figure.layout.get("scene", figure.layout)
    names = ["xaxis", "yaxis", "zaxis"] if figure.turns else ["xaxis", "yaxis"]
    titles = [
        re.sub("<[^>]*>", "", layout[name].get("title", {}).get("text", "")) for name in names
    ]
    if any(trace["type"] == "contour" for trace in figure.data):
        titles.append("value")
    return [title or name[0] for title, name in zip(titles, ["x", "y", "z"], strict=False)]


@functools.cache
def _plotly() -> tuple[str, str]:
    """Plotly.js as base64 of gzip, three fifths smaller, and the hash of what it unpacks to."""
    source = get_plotlyjs()
    packed = gzip.compress(source.encode(), 9, mtime=0)
    return base64.b64encode(packed).decode(), _hashed(source)


def _hashed(script: str) -> str:
    """Name a script in the content security policy by its content."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@functools.cache
def _text(name: str, package: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
