"""The page of one analysis: collects what the template shows, and shows it."""

import math
from dataclasses import dataclass, replace

from lowland.findings import Convergence, Decomposition, LayerRow, Results, Solving, Subject
from lowland.reference import zoo
from lowland.report import numbers
from lowland.report.figures import figures
from lowland.report.glossary import GLOSSARY, Definition
from lowland.report.measure_table import measure_rows
from lowland.report.page import show
from lowland.report.words import RULES, answer, sure
from lowland.wording import counted

EXACT = 1e-3  # a dual that misses activities and losses by less is called so

STATES = {
    "minimum": "a minimum, as far as can be told",
    "unfinished": "not a minimum yet",
    "untrained": "not trained",
    "unknown": "not known",
}


@dataclass(frozen=True)
class Row:
    """One number, or text, with its title; ``definition`` is what its info button opens."""

    key: str
    title: str
    value: str
    definition: str | None
    note: str = ""
    kind: str = ""  # sharp or flat: its colour
    number: float | str = ""  # to sort by


@dataclass(frozen=True)
class LayerPanel:
    """The numbers of one layer."""

    name: str
    chosen: bool
    trusted: bool
    dual: str
    rows: list[Row]


def render(results: Results) -> str:
    """Make one HTML page of the results, with its figures, style and scripts inside.

    The page fetches nothing: its content security policy allows no source at all and only those
    scripts whose hashes it names, so that text of the user could not run even if it were not
    escaped.
    """
    parts = figures(results)
    return show(
        "report.html.j2",
        parts.every,
        _definitions(results),
        results.lowland,
        results=results,
        parts=parts,
        answer=answer(results),
        sure=sure(results),
        failed=sum(not check.passed for check in results.checks),
        cards=_cards(results),
        layers=_layers(results),
        decomposition=_decomposition(results.duality),
        convergence=_convergence(results.convergence),
        curvature=_curvature(results),
        measures=measure_rows(results),
        families=list(dict.fromkeys(row.family for row in results.measures)),
        ranked=zoo().comparable(results),
        making=_making(results),
    )


def _layers(results: Results) -> list[LayerPanel]:
    """The numbers of each layer, of which one is shown at a time."""
    chosen = results.duality.layer if results.duality is not None else None
    names = [row.layer for row in results.layer_rows]
    first = names.index(chosen) if chosen in names else 0
    return [
        LayerPanel(row.layer, i == first, row.trusted, _dual(row), _layer(row))
        for i, row in enumerate(results.layer_rows)
    ]


def _layer(row: LayerRow) -> list[Row]:
    shown = (
        ("sharp", row.sharp, "Sharp part", numbers.number(row.sharp, 3), "sharp"),
        ("flat", row.flat, "Flat part", numbers.number(row.flat, 3), "flat"),
        ("explained", row.explained, "Explained", numbers.percent(row.explained, 0), ""),
        ("total_g", row.sigma_g, "‖σ_{g}‖", numbers.number(row.sigma_g, 3), ""),
        ("total_w", row.sigma_w, "‖σ_{w}‖", numbers.number(row.sigma_w, 3), ""),
        ("weight_norm", row.weight_norm, "‖w‖", numbers.number(row.weight_norm, 3), ""),
    )
    return [
        replace(_row(key, text, title, kind=kind), number=value if math.isfinite(value) else "")
        for key, value, title, text, kind in shown
    ]


def _dual(row: LayerRow) -> str:
    if row.trusted:
        close = row.loss_defect < EXACT and row.mean_residual < EXACT
        return f"{row.dual}-level, " + ("exact" if close else "approximate")
    return f"{row.dual}-level, no useful one: {row.doubt}"


def _curvature(results: Results) -> list[Row]:
    """The headline numbers of the spectrum, those of measures as they have them."""
    spectrum = results.spectrum
    if spectrum is None:
        return []
    values = {row.name: row for row in results.measures}
    rows = []
    for name in ("largest_eigenvalue", "trace", "effective_dimension"):
        row = values.get(name)
        if row is not None and row.value is not None and math.isfinite(row.value):
            error = f" ± {numbers.number(row.stderr, 2)}" if row.stderr is not None else ""
            place = results.measures.index(row)
            value = numbers.number(row.value) + error
            rows.append(Row(name, row.title, value, f"measure-{place}"))
    how = "all eigenvalues" if spectrum.exact else spectrum.method
    rows.append(_row("products", numbers.number(spectrum.products), note=how))
    return rows


def _cards(results: Results) -> list[list[Row]]:
    """Collect the headline numbers in two rows: the gap with its parts, and what it comes from.

    A regression has no errors, and so no cards for them; without test data there is no gap.
    """
    outcome, duality = results.outcome, results.duality
    if results.subject.test_samples == 0:
        errors = [] if outcome.train_error is None else [outcome.train_error]
        rows = [_row("train_error", numbers.percent(error)) for error in errors]
        return [[_row("train_loss", numbers.number(outcome.train_loss)), *rows]]
    parts = [_row("gap", numbers.number(outcome.gap), note="test loss − training loss")]
    if duality is not None:
        for key, value in (("sharp", duality.sharp), ("flat", duality.flat)):
            share = ""
            if duality.eq9 > 0 and math.isfinite(value) and not duality.targets_dominate:
                share = f"{numbers.percent(value / duality.eq9, 0)} of the paired gap"
            parts.append(_row(key, numbers.number(value), note=share, kind=key))
    sources = [
        _row("train_loss", numbers.number(outcome.train_loss)),
        _row("test_loss", numbers.number(outcome.test_loss)),
    ]
    for key, error in (("train_error", outcome.train_error), ("test_error", outcome.test_error)):
        if error is not None:
            sources.append(_row(key, numbers.percent(error)))
    return [parts, sources]


def _convergence(reached: Convergence) -> list[Row]:
    """List what says whether this is a minimum."""
    shown = {
        "constant_loss": numbers.number,
        "constant_error": numbers.percent,
        "gradient": numbers.number,
        "gradient_noise": numbers.number,
        "curvature": numbers.number,
        "fall": numbers.percent,
    }
    return [
        _row("state", STATES[reached.state]),
        *(
            _row(key, form(value))
            for key, form in shown.items()
            if (value := getattr(reached, key)) is not None
        ),
    ]


def _decomposition(duality: Decomposition | None) -> list[Row]:
    """List every number of the decomposition, in the order of the derivation."""
    if duality is None:
        return []
    setting, totals, fit = duality.setting, duality.totals, duality.fit
    rows = [
        _row("gap", numbers.number(totals.gap)),
        _row("paired_gap", _spread(totals.paired_gap, totals.intervals.paired_gap)),
        _row("target_gap", numbers.number(totals.target_gap)),
        _row("dual_gap", numbers.number(totals.dual_gap)),
        _row("eq9", numbers.number(totals.eq9)),
        _row("eq11", numbers.number(totals.eq11)),
        _row("mean_term", numbers.number(totals.eq9 - totals.eq11)),
        _row("sharp", _spread(totals.sharp, totals.intervals.sharp)),
        _row("flat", _spread(totals.flat, totals.intervals.flat)),
        _row("n_sharp", numbers.number(setting.n_sharp) + RULES[setting.n_sharp_rule]),
        _row("directions", numbers.number(setting.directions)),
    ]
    if not duality.complete:
        rows.append(_row("unseen_sigma_g", numbers.number(totals.unseen_sigma_g)))
    for key in ("weight_norm", "total_w", "total_w_data", "total_g"):
        rows.append(_row(key, numbers.number(getattr(totals, key))))
    for key in (
        *("pairs", "excluded", "excluded_gap", "excluded_share", "positions", "rank"),
        *("duality_residual", "mean_residual", "loss_defect"),
    ):
        rows.append(_row(key, numbers.number(getattr(fit, key))))
    rows += _solving(fit.solving)
    rows.append(_row("dual", f"{setting.dual}-level{', joint' if setting.joint else ''}"))
    for key in ("basis", "route", "gauge", "pairing"):
        rows.append(_row(key, getattr(setting, key)))
    odd = [f"{count:,} × {kind}" for kind, count in fit.degenerate.items() if count]
    rows.append(_row("degenerate", "; ".join(odd) or "none"))
    return rows


def _solving(solving: Solving | None) -> list[Row]:
    """List how an output-level dual was found, and how much depends on where it was sought."""
    if solving is None:
        return []
    matched = numbers.number(solving.matched)
    if solving.matched < solving.outputs:
        matched += f" random combinations of {numbers.number(solving.outputs)}"
    rows = [
        _row("solved", numbers.percent(solving.solved)),
        _row("matched", matched),
        _row("relative_norm", numbers.percent(solving.relative_norm)),
        _row("half_split", numbers.percent(solving.half_split)),
    ]
    if solving.starts:
        pairs, starts = counted(solving.started, "pair"), counted(solving.starts, "start")
        again = f" ({pairs}, {starts} each)"
        rows.append(_row("norm_spread", numbers.percent(solving.norm_spread) + again))
        rows.append(_row("share_spread", numbers.percent(solving.share_spread) + again))
    return rows


def _spread(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{numbers.number(value)} ({numbers.number(low, 3)} to {numbers.number(high, 3)})"


def _making(results: Results) -> list[Row]:
    """List how the results came about, so that somebody else can make them again."""
    subject, origin = results.subject, results.origin
    shape = " × ".join(str(size) for size in subject.layer_shape or ())
    rows = [
        _row("data", origin.data or "given in Python", title="Data"),
        _row("train_samples", numbers.number(subject.train_samples)),
        _row("test_samples", numbers.number(subject.test_samples)),
        _row("loss", subject.loss, title="Loss"),
        _row("parameters", _parameters(subject)),
        _row("layer", f"'{subject.layer}', {shape}" if shape else "none"),
        _row("layers", ", ".join(f"'{name}'" for name in subject.layers), title="All layers"),
        _row("checkpoint", origin.checkpoint or "none", title="Checkpoint"),
        _row("device", f"{subject.device}, {subject.dtype}", title="Computed on"),
    ]
    training = origin.training
    if training is not None:
        end = "converged" if training.converged else "not converged"
        took = numbers.duration(training.seconds)
        rows.append(_row("epochs", f"{numbers.number(training.epochs)}, {end} in {took}"))
        if training.settings:
            shown = (
                f"{name} = {'none' if value is None else value}"
                for name, value in training.settings.items()
            )
            rows.append(_row("settings", ", ".join(shown)))
    if origin.seed is not None:
        rows.append(_row("seed", str(origin.seed)))
    course = results.course
    if course.planned is not None:
        rows.append(_row("planned", course.planned))
    if course.samples is not None:
        few = sum(row.samples is not None for row in results.measures)
        samples = counted(course.samples, "sample")
        rows.append(_row("subset", f"{samples}, for {counted(few, 'measure')}"))
    if course.stopped is not None:
        rows.append(_row("stopped", course.stopped))
    rows.append(_row("seconds", _times(results)))
    versions = {"Lowland": results.lowland, **results.versions}
    rows.append(_row("versions", ", ".join(f"{name} {its}" for name, its in versions.items())))
    rows.append(_row("command", origin.command or "called from Python", title="Command"))
    return rows


def _times(results: Results) -> str:
    whole, course = numbers.duration(results.seconds), results.course
    if course.predicted is None:
        return whole
    spent, predicted = numbers.duration(course.spent), numbers.duration(course.predicted)
    return f"{whole}, of which {spent} for what was planned; predicted were {predicted}"


def _parameters(subject: Subject) -> str:
    shown = numbers.number(subject.parameters)
    return f"{shown}, and {numbers.number(subject.frozen)} frozen" if subject.frozen else shown


def _row(key: str, value: str, title: str | None = None, note: str = "", kind: str = "") -> Row:
    definition = f"def-{key}" if key in GLOSSARY else None
    return Row(key, title or GLOSSARY[key].title, value, definition, note, kind)


def _definitions(results: Results) -> list[tuple[str, Definition]]:
    """Collect what the info buttons open: ours, then what measures and checks say of themselves.

    The identifiers are ours alone: a name given by the user never becomes one.
    """
    definitions = [(f"def-{key}", definition) for key, definition in GLOSSARY.items()]
    for index, row in enumerate(results.measures):
        about = Definition(row.title, row.definition, row.formula, row.citation, typed=True)
        definitions.append((f"measure-{index}", about))
    for index, check in enumerate(results.checks):
        definitions.append((f"check-{index}", Definition(check.name, check.meaning)))
    return definitions
