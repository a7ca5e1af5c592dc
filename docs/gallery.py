"""The gallery of measures, written from the registry each time the docs are built."""

from pathlib import Path

from lowland.measures import registered

SHARPER = {
    "higher": "a higher value is a sharper, or larger, solution",
    "lower": "a lower value is a sharper, or larger, solution",
    None: "describes the outcome, and says nothing about sharpness",
}


def page(known):
    """The gallery of these measures as Markdown."""
    return "\n".join(_entry(measure) for measure in known.values())


def _entry(measure):
    needs = "training and test data" if measure.needs_test else "training data"
    unchanged = ", ".join(sorted(measure.invariant)) or "nothing beyond what all measures share"
    rows = {
        "Formula": f"`{measure.formula}`",
        "Direction": SHARPER[measure.sharper],
        "Needs": needs,
        "Unchanged by": unchanged,
        "Source": measure.citation,
    }
    lines = [f"- **{name}:** {text}" for name, text in rows.items() if text]
    head = f"## {measure.title}\n\n`{measure.name}`: {measure.definition}\n"
    return "\n".join([head, *lines, ""])


def write(docs: Path) -> None:
    """Write ``generated/measures.md``; an unchanged page is left alone, so nothing is rebuilt."""
    path = docs / "generated" / "measures.md"
    text = page(registered())
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
