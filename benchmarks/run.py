"""Measure Lowland against its peers: ``python benchmarks/run.py [row ...]``.

Without names all rows and the chart are measured, with names those. Each row's measurements are
kept in ``measured/``, and ``results.md`` is made anew of all that is there. With ``--cpu`` times
are CPU time of one thread: for a machine that others use.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import scaling
import torch
from contest import Outcome, hold
from results import page, table
from rows import ROWS

FOLDER = Path(__file__).parent
MEASURED = FOLDER / "measured"
CHART = "scaling"


def main() -> None:
    names = [row.name for row in ROWS] + [CHART]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("row", nargs="*", help=f"any of: {', '.join(names)}")
    parser.add_argument("--check", action="store_true", help="check results, do not time them")
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread")
    options = parser.parse_args()
    unknown = set(options.row) - set(names)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = options.row or names
    if options.cpu:
        torch.set_num_threads(1)
        time.perf_counter = time.process_time
    # The peers' own: backward(create_graph=True), and full backward hooks on a first layer.
    warnings.filterwarnings("ignore", "Using backward|Full backward hook", UserWarning)

    failed = False
    for row in ROWS:
        if row.name in chosen:
            say(f"{row.name}: {row.work}")
            outcome = hold(row, say, check_only=options.check, cpu=options.cpu)
            failed |= bool(outcome.ours.failure)
            if not options.check:  # after every row, so that an interrupted run leaves some
                outcome.save(MEASURED)
                (FOLDER / "results.md").write_text(page(_known()), encoding="utf-8")
                print(table([outcome]))
    if CHART in chosen and not options.check:
        scaling.draw(scaling.measure(say), FOLDER / "scaling.svg")
        (FOLDER / "results.md").write_text(page(_known()), encoding="utf-8")
    sys.exit(failed)


def _known() -> list[Outcome]:
    found = (Outcome.load(row, MEASURED) for row in ROWS)
    return [outcome for outcome in found if outcome is not None]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
