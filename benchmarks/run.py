"""Measure Lowland against its peers: ``python benchmarks/run.py [row ...]``.

Without names all rows and the chart are measured, and ``results.md`` and ``scaling.svg`` are
written beside this file. With names, those rows are measured and printed.
"""

import argparse
import sys
import warnings
from pathlib import Path

import scaling
from contest import Outcome, hold
from results import page, table
from rows import ROWS

FOLDER = Path(__file__).parent
CHART = "scaling"


def main() -> None:
    names = [row.name for row in ROWS] + [CHART]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("row", nargs="*", help=f"any of: {', '.join(names)}")
    parser.add_argument("--check", action="store_true", help="check results, do not time them")
    options = parser.parse_args()
    unknown = set(options.row) - set(names)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = options.row or names
    whole = not options.row and not options.check
    # The peers' own: backward(create_graph=True), and full backward hooks on a first layer.
    warnings.filterwarnings("ignore", "Using backward|Full backward hook", UserWarning)

    outcomes: list[Outcome] = []
    for row in ROWS:
        if row.name in chosen:
            say(f"{row.name}: {row.work}")
            outcomes.append(hold(row, say, check_only=options.check))
            if whole:  # after every row, so that an interrupted run leaves what it measured
                (FOLDER / "results.md").write_text(page(outcomes))
    if CHART in chosen and not options.check:
        scaling.draw(scaling.measure(say), FOLDER / "scaling.svg")
    if not options.check:
        print(table(outcomes))
    sys.exit(any(outcome.ours.failure for outcome in outcomes))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
