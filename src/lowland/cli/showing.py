"""What every verb that analyses ends with: the result, and whether it is all of it."""

from pathlib import Path
from typing import TYPE_CHECKING

from lowland.cli.terminal import Results

if TYPE_CHECKING:
    from lowland.results import Analysis


def show_analysis(results: Results, analysis: "Analysis", out: Path, as_json: bool) -> None:
    """Write an analysis that was saved; the interrupt that cut it short goes on from here."""
    from lowland.findings import to_json
    from lowland.results import REPORT

    if as_json:
        document = to_json(analysis.results)[0]
        results.json({**document, "answer": analysis.answer, "out": str(out)})
    else:
        from lowland.cli.summary import draw_results

        results.text(lambda console: draw_results(console, analysis, out / REPORT))
    if analysis.results.course.interrupted:
        raise KeyboardInterrupt(f"what was done by then is in {out}")
