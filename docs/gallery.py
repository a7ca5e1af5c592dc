"""The gallery of measures and the table of settings, written each time the docs are built."""

from pathlib import Path

from lowland.experiment.configuration import SETTINGS
from lowland.measures import registered
from lowland.report.mathml import mathml

SHARPER = {
    "higher": "a higher value is a sharper, or larger, solution",
    "lower": "a lower value is a sharper, or larger, solution",
    None: "says nothing about sharpness",
}

FAMILIES = {
    "outcome": "Outcome",
    "curvature": "Curvature",
    "normalized": "Normalized flat minima",
    "perturbation": "Sharpness by perturbation",
    "volume": "Volume and entropy",
    "norms": "Norms and margins",
    "bounds": "Bounds",
    "gradients": "Gradients",
    "duality": "Activity-weight duality",
}


def page(known):
    """The gallery of these measures as Markdown, family by family."""
    lines, family = [], None
    for measure in known.values():
        if measure.family != family:
            family = measure.family
            lines.append(f"### {FAMILIES[family]}\n")
        lines.append(_entry(measure))
    return "\n".join(lines)


def _entry(measure):
    needs = ["training data"]
    needs += ["test data"] * measure.needs_test + ["the initial weights"] * measure.needs_initial
    unchanged = ", ".join(sorted(measure.invariant)) or "nothing beyond what all measures share"
    rows = {
        "Formula": f"{mathml(measure.formula)} &ensp; (`{measure.formula}`)",
        "Direction": SHARPER[measure.sharper],
        "Needs": ", ".join(needs),
        "Loss": measure.loss and f"`{measure.loss}`, whatever the problem's own",
        "Runs": "only when it is named" if measure.trains else "",
        "Unchanged by": unchanged,
        "Source": measure.citation,
    }
    lines = [f"- **{name}:** {text}" for name, text in rows.items() if text]
    head = f"#### {measure.title}\n\n`{measure.name}`: {measure.definition}\n"
    return "\n".join([head, *lines, ""])


def settings():
    """The settings of a run as a Markdown table."""
    rows = ["| setting | default | what it is | values |", "| --- | --- | --- | --- |"]
    for setting in SETTINGS.values():
        default = setting.default
        shown = "none" if default is None else f"`{list(default)}`" if default == () else default
        rows.append(f"| `{setting.name}` | {shown} | {setting.meaning} | {setting.expected} |")
    return "\n".join(rows) + "\n"


def write(docs: Path) -> None:
    """Write the generated pages; an unchanged one is left alone, so nothing is rebuilt."""
    for name, text in (("measures", page(registered())), ("settings", settings())):
        path = docs / "generated" / f"{name}.md"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
