"""The command line as a user calls it: as a process, or, for the many short cases, inside ours."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowland.cli import main, terminal

# A user's module: small enough that torch's import is most of an analysis.
MINE = """
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def data():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long()
    return (x[:30], y[:30]), (x[30:], y[30:])
"""
ANALYZE = ("analyze", "--model", "mine:model", "--data", "mine:data", "--out", "out")


@dataclass(frozen=True)
class Ran:
    """What a user sees of a command."""

    code: int
    out: str
    err: str


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "lowland", *args]


def environment(**more: str) -> dict[str, str]:
    """Ours without what would change how the command writes."""
    changing = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING", "PYTHONWARNINGS", "TERM")
    return {k: v for k, v in os.environ.items() if k not in changing} | more


def run(*args: str, cwd: Path, **env: str) -> Ran:
    """Run the command as a process of its own."""
    done = subprocess.run(
        command(*args), cwd=cwd, env=environment(**env), capture_output=True, timeout=120
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_inside(*args: str, cwd: Path, patch: Callable[[], Any] = lambda: None) -> Ran:
    """Run the command in this process and put back everything that it takes from it."""
    kept: dict[str, Any] = {name: getattr(sys, name) for name in ("argv", "stdout", "stderr")}
    path, modules, here = list(sys.path), set(sys.modules), os.getcwd()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    (logs := cwd.parent / f"{cwd.name}-logs").mkdir(exist_ok=True)
    try:
        os.chdir(cwd)
        with open(logs / "out", "w") as out, open(logs / "err", "w") as err:
            sys.argv, sys.stdout, sys.stderr = ["lowland", *args], out, err
            patch()
            code = 0
            try:
                main()
            except SystemExit as exit:
                code = exit.code if isinstance(exit.code, int) else 1
            err.flush()
            # After the main() the descriptor of `out` leads to stderr, so nothing may be left in it
            return Ran(code, (logs / "out").read_text(), (logs / "err").read_text())
    finally:
        terminal.interrupts.clear()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name, value in kept.items():
            setattr(sys, name, value)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(cwd):
                del sys.modules[name]
        os.chdir(here)


def entries(directory: Path) -> set[str]:
    """Everything in a directory, hidden names too, but for Python's own cache."""
    return {p.name for p in directory.iterdir()} - {"__pycache__"}
