"""The measured rows as Markdown."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch
from contest import OURS, Entry, Outcome

PACKAGES = (
    "lowland",
    "torch",
    "numpy",
    "scipy",
    "curvlinops-for-pytorch",
    "hessian-eigenthings",
    "pyhessian",
    "backpack-for-pytorch",
)

_CHART = """
## Cost against width and samples

![Seconds for the top 10 eigenpairs of one layer, against its width and samples](scaling.svg)
"""


def page(outcomes: list[Outcome]) -> str:
    """All of ``results.md``."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    machine = (
        f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"{platform.system()}, Python {platform.python_version()}"
    )
    chart = _CHART if (Path(__file__).parent / "scaling.svg").exists() else ""
    details = "\n".join(line for outcome in outcomes for line in _details(outcome))
    return f"""# Benchmarks

Written by `make bench` (`python benchmarks/run.py`). In each row our runs and the peers' take turns
in one process, after every result has been checked; what was measured of each row, and when, lies
in `measured/`. Times are medians, with the quartiles in brackets; everything computes in float32,
unless a row says otherwise, on the same data with the same number of threads. A peer that took over
two minutes, or half as long again as the best one, was run once.

- machine: {machine}
- versions: {versions}

{table(outcomes)}
{chart}
## Every contestant

Times are also given in gradients of the same loss on the same data: the unit that carries over to
other machines.

{details}"""


def table(outcomes: list[Outcome]) -> str:
    """One line per row: ours, the best peer, the ratio, the floor, and whether it is reached."""
    lines = [
        "| work | on | ours | against | theirs | ratio | floor | reached |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for o in outcomes:
        best = o.best
        gradients = o.row.unit == "gradients"
        against, theirs = ("one gradient", o.gradient) if gradients else ("none", "")
        if not gradients and best:
            against, theirs = best.name, best.timing
        cells = [
            o.row.work,
            o.workload,
            str(o.ours.timing or "failed"),
            against,
            str(theirs),
            _ratio(o),
            _floor(o),
            _reached(o),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(o: Outcome) -> str:
    if o.value is None:
        return "none"
    memory = f", {o.gibibytes:.1f} GiB" if o.gibibytes else ""
    if o.row.unit == "gradients":
        return f"{o.value:.2f} gradients{memory}"
    return f"{o.value:.1f} x{memory}"


def _floor(o: Outcome) -> str:
    memory = f", under {o.row.gibibytes:g} GiB" if o.row.gibibytes else ""
    if o.row.unit == "gradients":
        return f"at most {o.row.floor:g} gradients{memory}"
    return f"{o.row.floor:g} x{memory}"


def _reached(o: Outcome) -> str:
    if o.reached:
        return "yes"
    return f"**no**: {_one_line(o.ours.failure) or o.row.missed or 'not explained yet'}"


def _details(o: Outcome) -> list[str]:
    return [
        f"### {o.row.work} (`{o.row.name}`)",
        "",
        f"{o.workload}, measured on {o.date}{', in CPU time of one thread' * o.cpu}. "
        f"One gradient takes {o.gradient}, one forward pass "
        f"{o.forward}. "
        f"Error: {o.row.error_is}, at most {o.row.tolerance:g}."
        + (f" {o.row.note}." if o.row.note else ""),
        "",
        "| | time | in gradients | against ours | error |",
        "| --- | --- | --- | --- | --- |",
        *(_detail(o, entry) for entry in [o.ours, *o.peers]),
        "",
    ]


def _detail(o: Outcome, entry: Entry) -> str:
    if entry.timing is None:
        return f"| {entry.name} | cannot: {_one_line(entry.failure)} | | | |"
    error = entry.failure or f"{entry.error:.1e}"
    against = "" if entry.name == OURS or not o.ours.timing else f"{o.over(entry):.2g} x"
    gradients = entry.timing.median / o.gradient.median
    return f"| {entry.name} | {entry.timing} | {gradients:.3g} | {against} | {error} |"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:200]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor()
