"""The report's figures as files for a paper, and an analysis as a few lines of a notebook."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from markupsafe import Markup

from lowland import figures
from lowland.findings import Results
from lowland.report import numbers
from lowland.report.words import answer, sure


def figure_files(results: Results, kind: str) -> dict[str, bytes]:
    """Every figure that the results allow, by the name of its file; kind: pdf, svg or png."""
    return {
        f"{name}.{kind}": figures.saved(draw, what, kind, **projection)
        for name, draw, what, projection in _drawable(results)
    }


def _drawable(results: Results) -> Iterator[tuple[str, figures.Draw, Any, dict[str, str]]]:
    if any(row.trusted for row in results.layer_rows):
        yield "layers", figures.draw_layers, results.layer_rows, {}
    if results.duality is not None:
        yield "gap", figures.draw_split, results.duality, {}
        yield "directions", figures.draw_directions, results.duality, {}
    if results.spectrum is not None:
        yield "spectrum", figures.draw_density, results.spectrum, {}
        leading = results.spectrum.leading()
        if len(leading.values):
            yield "eigenvalues", figures.draw_eigenvalues, leading, {}
    landscape = results.landscape
    if landscape is not None:
        if landscape.surface is not None:
            yield "landscape", figures.draw_surface, landscape.surface, {}
            yield "landscape-3d", figures.draw_solid, landscape.surface, {"projection": "3d"}
        for place, line in enumerate(landscape.lines, 1):
            yield f"cut-{place}", figures.draw_line, line, {}
        if landscape.path is not None:
            yield "path", figures.draw_path, landscape.path, {}
    training = results.origin.training
    if training is not None and "loss" in training.curves:
        yield "training", figures.draw_training, np.asarray(training.curves["loss"]), {}


def notebook(results: Results) -> str:
    """The answer, what it rests on and the headline numbers, as HTML without a script."""
    outcome = results.outcome
    rows = [
        ("Training loss", numbers.number(outcome.train_loss)),
        ("Test loss", numbers.number(outcome.test_loss)),
        ("Gap", numbers.number(outcome.gap)),
    ]
    if outcome.test_error is not None:
        rows.append(("Test error", numbers.percent(outcome.test_error)))
    if results.duality is not None:
        rows.append(("Sharp part", numbers.number(results.duality.sharp)))
        rows.append(("Flat part", numbers.number(results.duality.flat)))
    signs = {True: "✓", False: "✗", None: "?"}
    facts = Markup("").join(
        Markup("<li>{} {}</li>").format(signs[fact.good], fact.words) for fact in sure(results)
    )
    table = Markup("").join(
        Markup("<tr><th>{}</th><td>{}</td></tr>").format(title, value) for title, value in rows
    )
    page = "<h4>{}</h4><p>{}</p><ul>{}</ul><table>{}</table>"
    return Markup(page).format(results.subject.title, answer(results), facts, table)
