"""A Dask cluster as it is elsewhere: a scheduler and workers, each a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self


class Cluster:
    """A scheduler without workers; ``shop`` is a directory from which they can import."""

    def __init__(self, folder: Path, shop: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        paths = filter(None, (shop and str(shop), os.environ.get("PYTHONPATH")))
        self.env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self.log = open(folder / "log", "w")  # noqa: SIM115
        self.processes: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        listen = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        # Idle for long, it is left over from tests that were killed; its workers go with it.
        self.scheduler = self.start("scheduler", *listen, "--idle-timeout", "300")
        until(file.exists)
        until(lambda: file.read_text().strip().endswith("}"))
        self.address = json.loads(file.read_text())["address"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *args, "--no-dashboard"]
        out = {"stdout": self.log, "stderr": self.log}
        self.processes.append(subprocess.Popen(command, cwd=self.folder, env=self.env, **out))
        return self.processes[-1]

    def add_worker(self) -> subprocess.Popen[bytes]:
        return self.start("worker", self.address, "--nthreads", "1", "--no-nanny")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.log.close()


def until(true: Callable[[], Any]) -> None:
    """Wait for what must come; the deadline is for a defect, and shorter than a task's sleep."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
