"""What every page has: the common template, its figures, style, scripts and security policy."""

import base64
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
from lowland.report.traces import Figure


def show(
    template: str,
    drawn: list[Figure],
    definitions: list[tuple[str, Definition]],
    version: str,
    **content: Any,
) -> str:
    """Fill a template that extends the common page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=FunctionLoader(_text)
    )
    environment.filters |= {
        "formula": formula,
        "number": numbers.number,
        "percent": numbers.percent,
        "duration": numbers.duration,
        "date": numbers.date,
    }
    environment.tests["finite"] = lambda value: value is not None and math.isfinite(value)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    environment.globals |= {"definitions": definitions}
    return environment.get_template(template).render(
        figures=drawn,
        pictures=_pictures(drawn),
        version=version,
        style=Markup(_text("style.css")),
        plotly=Markup(get_plotlyjs()),
        hashed=_hashed,
        **content,
    )


def formula(text: str) -> Markup:
    """Escape a text, then set its `_{...}` and `^{...}` as small letters."""
    escaped = str(escape(text))
    escaped = re.sub(r"_\{([^{}]*)\}", r"<sub>\1</sub>", escaped)
    return Markup(re.sub(r"\^\{([^{}]*)\}", r"<sup>\1</sup>", escaped))


def _pictures(drawn: list[Figure]) -> list[dict[str, Any]]:
    return [{"key": f.key, "data": f.data, "layout": f.layout} for f in drawn if f.data]


def _hashed(script: str) -> str:
    """Name a script in the content security policy by its content."""
    digest = hashlib.sha256(str(script).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
