"""Results to HTML: collects what the template shows, and shows it."""

import base64
import hashlib
import math
import re
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from lowland.errors import InputError
from lowland.report import numbers
from lowland.report.drawing import Figure
from lowland.report.figures import figures
from lowland.report.glossary import GLOSSARY, Definition
from lowland.report.words import answer

FORMAT = 2
SECTIONS = (
    *("subject", "outcome", "training", "duality", "layers", "measures", "checks", "notes"),
)
DECOMPOSITION = (
    *("gap", "paired_gap", "dual_gap", "eq9", "eq11", "mean_term", "sharp", "flat", "n_sharp"),
    *("directions", "unseen_sigma_g", "weight_norm", "total_w", "total_w_data", "total_g"),
    *("pairs", "excluded", "excluded_gap", "positions", "rank", "duality_residual"),
    *("mean_residual", "loss_defect"),
)

Row = dict[str, Any]


def render(results: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Make one HTML page of saved results, with its figures, style and scripts inside.

    The page fetches nothing: its content security policy allows no source at all and only those
    scripts whose hashes it names, so that text of the user could not run even if it were not
    escaped.
    """
    _validate(results)
    drawn = figures(results, arrays)
    return show(
        "report.html.j2",
        drawn,
        _definitions(results),
        results["lowland"],
        results=results,
        answer=answer(results),
        failed=sum(not check["passed"] for check in results["checks"]),
        cards=_cards(results),
        decomposition=_decomposition(results["duality"]),
        making=_making(results),
    )


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


def _validate(results: dict[str, Any]) -> None:
    if results.get("format") != FORMAT:
        raise InputError(
            f"these results have format {results.get('format')!r} and this Lowland reads format "
            f"{FORMAT}; run the analysis again with this version"
        )
    missing = [name for name in SECTIONS if name not in results]
    if missing:
        raise InputError(
            f"these results have no {', '.join(missing)}; expected are {', '.join(SECTIONS)}, as "
            "`lowland analyze` saves them"
        )


def _cards(results: dict[str, Any]) -> list[list[Row]]:
    """Collect the headline numbers in two rows: the gap with its parts, and what it comes from.

    A regression has no errors, and so no cards for them.
    """
    outcome, duality = results["outcome"], results["duality"]
    parts = [_row("gap", numbers.number(outcome["gap"]), note="test loss − training loss")]
    for key in ("sharp", "flat") if duality is not None else ():
        value, whole = duality[key], duality["eq9"]
        share = ""
        if whole is not None and whole > 0 and value is not None and math.isfinite(value):
            share = f"{numbers.percent(value / whole, 0)} of the paired gap"
        parts.append(_row(key, numbers.number(value), note=share, kind=key))
    sources = [_row(key, numbers.number(outcome[key])) for key in ("train_loss", "test_loss")]
    for key in ("train_error", "test_error"):
        if outcome[key] is not None:
            sources.append(_row(key, numbers.percent(outcome[key])))
    return [parts, sources]


def _decomposition(duality: dict[str, Any] | None) -> list[Row]:
    """List every number of the decomposition, in the order of the derivation."""
    if duality is None:
        return []
    eq9, eq11 = duality["eq9"], duality["eq11"]
    mean = None if eq9 is None or eq11 is None else eq9 - eq11
    known = duality | {"mean_term": mean}
    if duality["complete"]:
        known.pop("unseen_sigma_g")
    rows = []
    for key in DECOMPOSITION:
        if key in known:
            low, high = duality["intervals"].get(key, (None, None))
            spread = f" ({numbers.number(low, 3)} to {numbers.number(high, 3)})" if low else ""
            rows.append(_row(key, numbers.number(known[key]) + spread))
    for key in ("basis", "route", "gauge", "pairing"):
        rows.append(_row(key, str(duality[key])))
    odd = [f"{count:,} × {kind}" for kind, count in duality["degenerate"].items() if count]
    rows.append(_row("degenerate", "; ".join(odd) or "none"))
    return rows


def _making(results: dict[str, Any]) -> list[Row]:
    """List how the results came about, so that somebody else can make them again."""
    subject, training = results["subject"], results["training"]
    shape = " × ".join(str(size) for size in subject["layer_shape"] or ())
    rows = [
        _row("data", subject["data"] or "given in Python", title="Data"),
        _row("train_samples", numbers.number(subject["train_samples"])),
        _row("test_samples", numbers.number(subject["test_samples"])),
        _row("loss", subject["loss"], title="Loss"),
        _row("parameters", numbers.number(subject["parameters"])),
        _row("layer", f"'{subject['layer']}', {shape}" if shape else "none"),
        _row("layers", ", ".join(f"'{name}'" for name in subject["layers"]), title="All layers"),
        _row("checkpoint", subject["checkpoint"] or "none", title="Checkpoint"),
        _row("device", f"{subject['device']}, {subject['dtype']}", title="Computed on"),
    ]
    if training is not None:
        end = {True: ", converged", False: ", not converged"}.get(training.get("converged"), "")
        took = f" in {numbers.duration(training['seconds'])}" if "seconds" in training else ""
        rows.append(_row("epochs", f"{numbers.number(training['epochs'])}{end}{took}"))
        settings = training.get("settings") or {}
        if settings:
            shown = ", ".join(f"{name} = {value}" for name, value in settings.items())
            rows.append(_row("settings", shown))
    if results["seed"] is not None:
        rows.append(_row("seed", str(results["seed"])))
    rows.append(_row("seconds", numbers.duration(results["seconds"])))
    return rows


def _row(key: str, value: str, title: str | None = None, **more: str) -> Row:
    known = key in GLOSSARY
    return {
        "key": key,
        "title": title or GLOSSARY[key].title,
        "value": value,
        "definition": f"def-{key}" if known else None,
        "note": "",
        "kind": "",
        **more,
    }


def _definitions(results: dict[str, Any]) -> list[tuple[str, Definition]]:
    """Collect what the info buttons open: ours, then what measures and checks say of themselves.

    The identifiers are ours alone: a name given by the user never becomes one.
    """
    known = [(f"def-{key}", definition) for key, definition in GLOSSARY.items()]
    for index, measure in enumerate(results["measures"]):
        given = (measure.get(name) or "" for name in ("title", "definition", "formula", "citation"))
        known.append((f"measure-{index}", Definition(*given)))
    for index, check in enumerate(results["checks"]):
        known.append((f"check-{index}", Definition(check["name"], check.get("meaning") or "")))
    return known


def _pictures(drawn: list[Figure]) -> list[dict[str, Any]]:
    return [{"key": f.key, "data": f.data, "layout": f.layout} for f in drawn if f.data]


def _hashed(script: str) -> str:
    """Name a script in the content security policy by its content."""
    digest = hashlib.sha256(str(script).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
