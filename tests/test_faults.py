"""What killing, filling, breaking and interrupting do to a sweep, each with the real thing."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowland
from cluster import Cluster, until
from commandline import Ran, command, environment, run
from grids import GRID, RUNS
from lowland.sweep import Store


def start(cwd: Path, *args: str) -> subprocess.Popen[bytes]:
    """The command as a process that leads a group of its own."""
    return subprocess.Popen(
        command("sweep", *args),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[bytes]) -> Ran:
    out, err = process.communicate(timeout=120)
    return Ran(process.returncode, out.decode(), err.decode())


def contents(directory: Path) -> dict[str, dict[str, Any]]:
    """All that a sweep found, and nothing that tells when or how fast."""
    store = Store(directory)
    found = {}
    for folder in sorted((directory / "runs").iterdir()):
        run = store.read(folder.name)
        with np.load(folder / "arrays.npz") as arrays:
            found[folder.name] = {
                "run": {k: v for k, v in run.items() if k != "seconds"},
                "epochs": (folder / "epochs.csv").read_bytes(),
                "weights": (folder / "weights.safetensors").read_bytes(),
                "arrays": {name: arrays[name].tobytes() for name in arrays.files},
            }
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What the grid gives if nothing happens."""
    cwd = tmp_path_factory.mktemp("undisturbed")
    (cwd / "grid.toml").write_text(GRID)
    ran = run("sweep", "grid.toml", "--out", "out", "--executor", "serial", cwd=cwd)
    assert (ran.code, f"{RUNS} runs in out: {RUNS} done now" in ran.out) == (0, True), ran
    found = contents(cwd / "out")
    assert len(found) == RUNS
    return found


@pytest.fixture
def cwd(tmp_path) -> Path:
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path


def assert_finished(directory: Path, undisturbed: dict[str, dict[str, Any]]) -> None:
    """Every run is there once, whole, and the same as if nothing had happened."""
    assert contents(directory) == undisturbed
    assert [row["key"] for row in Store(directory).rows()] == sorted(undisturbed)
    assert not Store(directory).survey().damaged
    assert sorted(p.name for p in (directory / "runs").iterdir()) == sorted(undisturbed)
    assert not [p for p in (directory / "locks").iterdir() if p.suffix == ".json"]


# Faults

# Has everything imported and then starts a sweep for each line: what is killed is the sweep, and
# not, most of the time, the import of torch.
PARENT = """
import os, sys
import lowland.measures, lowland.sweep.perform
from lowland.cli import main

lowland.measures.registered()
sys.argv = ["lowland", "sweep", *sys.argv[1:]]
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        main()
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
"""


def whole(cwd: Path) -> int:
    return len(list((cwd / "out").glob("runs/[!.]*")))


@pytest.mark.slow
def test_kill_9_at_any_moment(cwd, undisturbed):
    """Then resumed: none lost, none twice, and to the last bit what an undisturbed sweep finds."""
    chance = random.Random(0)
    seen = []
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "grid.toml", "--out", "out", "--executor", "serial"],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with parent:
        for _ in range(16):
            print(file=parent.stdin, flush=True)
            victim = int(parent.stdout.readline())
            more = chance.choice([0, 0, 1, 2])  # runs that this one may finish
            aim = min(max(seen, default=0) + more, RUNS)
            until(lambda aim=aim: whole(cwd) >= aim)
            time.sleep(chance.uniform(0, 0.5))
            os.kill(victim, signal.SIGKILL)
            seen.append(whole(cwd))
        parent.stdin.close()
    # With processes there are orphans to mind.
    for _ in range(4):
        process = start(cwd, "grid.toml", "--out", "out", "--executor", "processes")
        time.sleep(chance.uniform(3, 7))
        process.kill()
        process.communicate(timeout=60)
        seen.append(whole(cwd))
    assert len(set(seen)) > 2, f"the kills did not come while runs were being written: {seen}"
    # The last one may have been killed when its runs were whole and it had not yet said goodbye.
    (cwd / "out/locks" / f"{next(iter(undisturbed))}.json").write_text("{}")
    again = run("sweep", "grid.toml", "--out", "out", "--executor", "serial", cwd=cwd)
    assert again.code == 0, again.err
    assert_finished(cwd / "out", undisturbed)
    assert not list((cwd / "out/damaged").iterdir())


@pytest.mark.slow
def test_kill_9_of_a_dask_worker(cwd, undisturbed):
    with Cluster(cwd / "cluster") as cluster:
        victim, _ = cluster.add_worker(), cluster.add_worker()
        process = start(cwd, "grid.toml", "--out", "out", "--executor", cluster.address)
        # Two workers and eight stacks: when one is done, the next is under way.
        until(lambda: whole(cwd))
        victim.kill()
        done = ended(process)
    assert done.code == 0, done.err
    assert_finished(cwd / "out", undisturbed)


@pytest.mark.slow
def test_a_worker_with_other_source_is_refused(cwd):
    shop = cwd / "shop"
    shutil.copytree(Path(lowland.__file__).parent, shop / "lowland")
    with open(shop / "lowland" / "losses" / "loss.py", "a") as source:
        source.write("added = 1\n")
    with Cluster(cwd / "cluster", shop) as cluster:
        cluster.add_worker()
        done = ended(start(cwd, "grid.toml", "--out", "out", "--executor", cluster.address))
    assert done.code == 2
    assert "a worker has other code (source " in done.err.splitlines()[-1]
    assert whole(cwd) == 0


@pytest.mark.slow
def test_two_sweeps_at_once_share_the_work(cwd, undisturbed):
    both = [
        start(cwd, "grid.toml", "--out", "out", "--executor", "serial", "--json") for _ in range(2)
    ]
    ran = [ended(process) for process in both]
    assert [one.code for one in ran] == [0, 0], ran
    assert sum(json.loads(one.out)["fresh"] for one in ran) == RUNS
    assert_finished(cwd / "out", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", pytest.param("processes", marks=pytest.mark.slow)])
def test_an_interrupt_stops_cleanly_and_the_same_command_goes_on(cwd, undisturbed, executor):
    args = ("grid.toml", "--out", "out", "--executor", executor, "--workers", "1")
    args = args[:-2] if executor == "serial" else args
    process = start(cwd, *args)
    until(lambda: whole(cwd))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    done = ended(process)
    assert done.code == 130
    last = done.err.splitlines()[-1]
    assert last.startswith("lowland: stopped; ")
    assert last.endswith(f"of {RUNS} runs are whole in out; the same command goes on")
    with pytest.raises(ProcessLookupError):  # nobody of the group is left
        os.killpg(process.pid, 0)
    assert not list((cwd / "out/locks").iterdir())
    assert run("sweep", *args, cwd=cwd).code == 0
    assert_finished(cwd / "out", undisturbed)


@pytest.mark.slow
def test_a_broken_result_is_found_and_done_again(cwd, undisturbed):
    args = ("sweep", "grid.toml", "--out", "out", "--executor", "serial")
    assert run(*args, cwd=cwd).code == 0
    first, second, third = sorted(undisturbed)[:3]
    weights = cwd / "out/runs" / first / "weights.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    epochs = cwd / "out/runs" / second / "epochs.csv"
    epochs.write_text(epochs.read_text().replace("1", "2", 1))
    (cwd / "out/runs" / third / "arrays.npz").unlink()
    ran = run(*args, "--json", cwd=cwd)
    told = json.loads(ran.out)
    assert told["fresh"] == 3
    assert sorted(told["damaged"]) == [first, second, third]
    assert "weights.safetensors" in told["damaged"][first]
    assert_finished(cwd / "out", undisturbed)
    # What was there is not thrown away.
    assert len(list((cwd / "out/damaged").iterdir())) == 3


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(where)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield where
    subprocess.run(["umount", str(where)], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_sweep_and_room_lets_it_go_on(cwd, undisturbed, small_disk):
    args = ("sweep", "grid.toml", "--out", str(small_disk / "out"), "--executor", "serial")
    full = run(*args, cwd=cwd)
    assert full.code == 2
    assert "No space left" in full.err.splitlines()[-1]
    kept = contents(small_disk / "out")
    assert 0 < len(kept) < RUNS
    assert all(undisturbed[k] == found for k, found in kept.items())
    room = ["mount", "-o", "remount,size=100m", str(small_disk)]
    subprocess.run(room, check=True)
    assert run(*args, cwd=cwd).code == 0
    assert_finished(small_disk / "out", undisturbed)


def test_a_read_only_directory_is_said_before_anything_is_trained(cwd, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ran = run(
        "sweep", "grid.toml", "--out", str(small_disk / "out"), "--executor", "serial", cwd=cwd
    )
    assert ran.code == 2
    assert "Read-only file system" in ran.err.splitlines()[-1]


# A user's network: it fails when built, when trained, or not at all, as its seed says.
MINE = """
import os
import shutil
import signal

import torch
from torch import nn


class Mine(nn.Sequential):
    def __init__(self):
        seed = 0 if os.path.exists("mended") else torch.initial_seed()
        if seed == 1:
            raise RuntimeError("seed 1 is not for me")
        super().__init__(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        self.seed = seed

    def forward(self, x):
        if self.training and self.seed == 2:
            raise ArithmeticError("seed 2 does not train")
        if self.training and self.seed == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""


@pytest.mark.slow
def test_a_run_that_raises_diverges_or_kills_its_worker_fails_alone(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "grid.toml").write_text(
        """
        data = "xor"
        max_epochs = 2
        stop_loss = 0.01
        n_sharp = 2
        [[grid]]
        network = "mine:Mine"
        seed = "0..4"
        [[grid]]
        network = "2-4-3-2"
        learning_rate = [0.1, 1e38]
        """
    )
    args = ("sweep", "grid.toml", "--out", "out", "--executor", "processes", "--workers", "1")
    ran = run(*args, "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert (len(told["runs"]), told["fresh"]) == (7, 7)
    rows = {
        (r["network"], r["seed"], r["learning_rate"]): r for r in Store(tmp_path / "out").rows()
    }
    reasons = {k: r["reason"] for k, r in rows.items() if r["status"] == "failed"}
    assert set(reasons) == {
        ("mine:Mine", 1, 0.1),
        ("mine:Mine", 2, 0.1),
        ("mine:Mine", 3, 0.1),
        ("2-4-3-2", 0, 1e38),
    }
    assert "seed 1 is not for me" in reasons["mine:Mine", 1, 0.1]
    assert "seed 2 does not train" in reasons["mine:Mine", 2, 0.1]
    assert "killed by signal 9" in reasons["mine:Mine", 3, 0.1]
    assert "diverged in epoch" in reasons["2-4-3-2", 0, 1e38]
    assert len(told["failed"]) == 4
    # Those that did not reach their goal say so.
    assert told["unconverged"] >= 3
    assert "after 2 epochs, the limit" in rows["mine:Mine", 0, 0.1]["reason"]
    # They are not tried again, unless that is asked for.
    assert json.loads(run(*args, "--json", cwd=tmp_path).out)["fresh"] == 0
    (tmp_path / "mended").touch()
    again = json.loads(run(*args, "--json", "--retry", cwd=tmp_path).out)
    assert (again["fresh"], len(again["failed"])) == (4, 1)
