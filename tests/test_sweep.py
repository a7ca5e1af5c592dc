"""Sweeps as a user runs them, and what killing, filling, breaking and interrupting do to them."""

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
import torch

import lowland as ll
from cluster import Cluster, until
from commandline import Ran, command, environment, run
from lowland.checkpoint import load_weights
from lowland.errors import InputError
from lowland.results import FILES
from lowland.sweep import Configuration, Grid, Store, runs
from lowland.sweep import run as sweep
from lowland.sweep.plan import key, stacks_of, training_key
from lowland.training import mlp

# Eight stacks of two networks, each some tenths of a second.
GRID = """
data = "xor"
network = "2-8-8-2"
per_class = 50
test_per_class = 30
stop_loss = 0.05
max_epochs = 20
n_sharp = 5

[[grid]]
batch_size = [10, 12, 15, 20, 25, 30, 40, 50]
seed = "0..1"
"""
RUNS = 16

SMALL = {"data": "xor", "network": "2-4-3-2", "max_epochs": 3, "stop_loss": 0.01, "n_sharp": 2}


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
    assert len((directory / "index.jsonl").read_text().splitlines()) == len(undisturbed)
    assert [row["key"] for row in Store(directory).rows()] == sorted(undisturbed)
    assert not Store(directory).survey().damaged
    assert sorted(p.name for p in (directory / "runs").iterdir()) == sorted(undisturbed)
    assert not [p for p in (directory / "claims").iterdir() if p.suffix == ".json"]


# Faults

# Has everything imported and then starts a sweep for each line: what is killed is the sweep, and
# not, most of the time, the import of torch.
PARENT = """
import os, sys
import lowland.measures, lowland.sweep.runs
from lowland.cli import main

lowland.measures.registered()
sys.argv = ["lowland", "sweep", *sys.argv[1:]]
for line in sys.stdin:
    child = os.fork()
    if not child:
        main()
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
"""


def whole(cwd: Path) -> int:
    return len(list((cwd / "out").glob("runs/[!.]*")))


def test_kill_9_at_twenty_moments(cwd, undisturbed):
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
    again = run("sweep", "grid.toml", "--out", "out", "--executor", "serial", cwd=cwd)
    assert again.code == 0, again.err
    assert_finished(cwd / "out", undisturbed)
    assert not list((cwd / "out/damaged").iterdir())


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


def test_two_sweeps_at_once_share_the_work(cwd, undisturbed):
    both = [
        start(cwd, "grid.toml", "--out", "out", "--executor", "serial", "--json") for _ in range(2)
    ]
    ran = [ended(process) for process in both]
    assert [one.code for one in ran] == [0, 0], ran
    assert sum(json.loads(one.out)["fresh"] for one in ran) == RUNS
    assert_finished(cwd / "out", undisturbed)


@pytest.mark.parametrize("executor", ["serial", "processes"])
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
    assert not list((cwd / "out/claims").iterdir())
    assert run("sweep", *args, cwd=cwd).code == 0
    assert_finished(cwd / "out", undisturbed)


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


# What a sweep finds


def test_a_run_is_what_training_and_analysis_find(tmp_path):
    one = Configuration.of(
        {"data": "digits", "network": "64-9-8-10", "max_epochs": 4, "seed": 3, "n_sharp": 4,
         "measures": ["trace"], "layers": ["3", "5"]}
    )  # fmt: skip
    summary = sweep([one], tmp_path / "out", executor="serial")
    (row,) = Store(tmp_path / "out").rows()
    data = ll.data.load("digits")
    network = mlp((64, 9, 8, 10), seed=3)
    its = ll.training.TrainingSettings(max_epochs=4, seed=3)
    trained = ll.training.train(network, data.train, its)
    problem = ll.Problem(network, train=data.train, test=data.test)
    found = ll.duality(problem, ["3", "5"], n_sharp=4)
    expected = {
        "epochs": 4,
        "converged": False,
        "weight_norm": trained.epochs[-1].weight_norm,
        "gap": float(problem.losses("test").mean() - problem.losses("train").mean()),
        "sharp": found["3"].sharp,
        "flat": found["3"].flat,
        "total_g": found["3"].total_g,
        "5:sharp": found["5"].sharp,
        "5:flat": found["5"].flat,
        "trace": ll.measure(problem, "trace")["trace"].value,
    }
    for name, value in expected.items():  # float32 that was summed in another order
        assert row[name] == pytest.approx(value, rel=2e-3), name
    assert summary.fresh == 1
    assert row["key"] == key(one)
    kept = ll.load(tmp_path / "out/runs" / key(one))
    assert kept.arrays["training/loss"] == pytest.approx(trained.losses, rel=1e-4)
    assert kept.arrays["layers/5/sigma_g"] == pytest.approx(found["5"].sigma_g, rel=0.02, abs=1e-4)
    assert (
        "epoch,loss,error,weight_norm\n1,"
        in (tmp_path / "out/runs" / key(one) / "epochs.csv").read_text()
    )


def test_another_analysis_trains_nothing_again(tmp_path, monkeypatch):
    grid = Grid(**SMALL, seed=range(3))
    sweep(grid, tmp_path, executor="serial")
    monkeypatch.setattr(runs, "train_many", None)  # whoever trains now, fails
    more = Grid(**{**SMALL, "n_sharp": 3, "measures": ["trace"]}, seed=range(3))
    done = sweep(more, tmp_path, executor="serial")
    assert (done.fresh, done.failed) == (3, {})
    before, after = (
        {row["seed"]: row for row in Store(tmp_path).rows() if row["n_sharp"] == n} for n in (2, 3)
    )
    for seed in range(3):
        assert after[seed]["gap"] == before[seed]["gap"]
        assert after[seed]["epochs"] == before[seed]["epochs"]
        assert after[seed]["trace"] is not None
        assert after[seed]["sharp"] != before[seed]["sharp"]


def test_stacks_are_decided_once(tmp_path):
    """Also when some of their runs are there the next time."""
    store = Store(tmp_path, create=True)
    grid = list(Grid(**SMALL, seed=range(40), batch_size=[10, 20]))
    first = stacks_of(store, grid)
    assert [len(stack) for stack in first] == [16, 16, 8] * 2
    assert {run.batch_size for run in first[0]} == {10}
    sweep(grid[:2], tmp_path, executor="serial")
    assert stacks_of(store, grid) == first
    # Another grid is planned around what is there.
    other = stacks_of(store, grid[:4])
    assert [[run.seed for run in stack] for stack in other] == [[0], [0], [1], [1]]


@pytest.mark.parametrize("text", ["{", '{"runs": 3}', '{"stacks": [[{"seed": 0}]]}'])
def test_a_plan_that_is_cut_or_edited_is_made_anew(tmp_path, text):
    grid = Grid(**SMALL, seed=range(3))
    sweep(grid, tmp_path, executor="serial")
    (plan,) = (tmp_path / "plans").iterdir()
    plan.write_text(text)
    ll.sweep.status(tmp_path)
    shutil.rmtree(Store(tmp_path).path(key(next(iter(grid)))))
    assert sweep(grid, tmp_path, executor="serial").fresh == 1
    assert ll.sweep.status(tmp_path)[0]["done"] == 3


def test_damaged_weights_are_not_used_for_another_analysis(tmp_path):
    grid = Grid(**SMALL, seed=range(2))
    sweep(grid, tmp_path, executor="serial")
    (before,) = {row["gap"] for row in Store(tmp_path).rows() if row["seed"] == 1}
    for file in tmp_path.glob("runs/*/weights.safetensors"):
        content = bytearray(file.read_bytes())
        content[-80:] = bytes(80)
        file.write_bytes(content)
    sweep(Grid(**{**SMALL, "n_sharp": 3}, seed=range(2)), tmp_path, executor="serial")
    (after,) = {r["gap"] for r in Store(tmp_path).rows() if r["seed"] == 1 and r["n_sharp"] == 3}
    assert after == before


USERS = """
import random
import numpy as np
import torch
from torch import nn


def data():
    X = torch.randn(40, 2) + float(np.random.rand()) + random.random()
    return (X, X[:, :1]), (X[:20], X[:20, :1])


def net():
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
"""


def test_functions_of_the_user_are_seeded_and_part_of_the_key(tmp_path):
    (tmp_path / "mine.py").write_text(USERS)
    (tmp_path / "grid.toml").write_text(
        """
        data = "mine:data"
        network = "mine:net"
        loss = "torch.nn:MSELoss"
        max_epochs = 3
        n_sharp = 2
        seed = [0, 1]
        data_seed = [0, 1]
        """
    )
    args = ("sweep", "grid.toml", "--executor", "serial", "--json")
    first = json.loads(run(*args, "--out", "a", cwd=tmp_path).out)
    second = json.loads(run(*args, "--out", "b", cwd=tmp_path).out)
    assert (first["failed"], first["runs"]) == ({}, second["runs"])
    rows = [Store(tmp_path / name).rows() for name in "ab"]
    losses = [[row["test_loss"] for row in each] for each in rows]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 4  # both seeds matter
    (tmp_path / "mine.py").write_text(USERS.replace("(2, 3)", "(2, 4)").replace("(3, 1)", "(4, 1)"))
    again = json.loads(run(*args, "--out", "a", cwd=tmp_path).out)
    assert again["fresh"] == 4
    assert not set(again["runs"]) & set(first["runs"])


def test_status_does_not_show_what_a_killed_sweep_told(tmp_path):
    grid = Grid(**SMALL, seed=range(2))
    sweep(grid, tmp_path, executor="serial")
    name = key(next(iter(grid)))
    pulse = tmp_path / "claims" / f"{name}.json"
    pulse.write_text('{"part": 0.5, "epoch": 3, "loss": null}')
    assert ll.sweep.status(tmp_path)[0]["training"] == []
    with Store(tmp_path).claim(name):
        (told,) = ll.sweep.status(tmp_path)[0]["training"]
    assert told == {"part": 0.5, "epoch": 3, "loss": None}


def test_a_key_changes_with_every_setting_and_the_version(monkeypatch):
    one = Configuration()
    keys = {key(one)} | {
        key(Configuration.of(change))
        for change in ({"seed": 1}, {"n_sharp": 9}, {"loss": "mse"}, {"layers": ["3"]})
    }
    assert len(keys) == 5
    assert training_key(one) == training_key(Configuration(n_sharp=9, measures=("trace",)))
    assert training_key(one) != training_key(Configuration(seed=1))
    monkeypatch.setattr("lowland.sweep.plan.__version__", "another")
    assert key(one) not in keys


def test_progress_and_status(tmp_path):
    told = []
    grid = Grid(**SMALL, seed=range(4), batch_size=[10, 20])
    sweep(grid, tmp_path, executor="serial", progress=told.append)
    assert told[-1].done == told[-1].total == 8
    assert [now.done for now in told] == sorted(now.done for now in told)
    assert any(now.running == 4 and now.loss is not None for now in told)
    (one,) = ll.sweep.status(tmp_path)
    assert (one["runs"], one["done"], one["missing"]) == (8, 8, 0)
    shutil.rmtree(Store(tmp_path).path(key(next(iter(grid)))))
    (one,) = ll.sweep.status(tmp_path)
    assert (one["done"], one["missing"]) == (7, 1)


def test_the_table(tmp_path):
    sweep(Grid(**SMALL, seed=range(3)), tmp_path, executor="serial")
    table = Store(tmp_path).table()
    assert list(table["seed"].sort_values()) == [0, 1, 2]
    assert (tmp_path / "results.csv").read_text().startswith("key,status,data,")
    assert np.allclose(table["eq11"], table["sharp"] + table["flat"])


def test_the_words_of_the_command(cwd):
    ran = run("sweep", "grid.toml", "--out", "out", "--executor", "serial", cwd=cwd)
    assert f"{RUNS} runs in out: {RUNS} done now" in ran.out
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["batch_size", "runs", "test_error", "gap", "sharp", "flat"] in lines
    assert any(line[:2] == ["20", "2"] for line in lines)
    assert "table: out/results.csv" in ran.out
    assert "0 of 16 runs done" in ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    status = run("sweep", "--status", "out", cwd=cwd)
    assert "16 runs: 16 done" in status.out
    keys = sorted(p.name for p in (cwd / "out/runs").iterdir())
    three = [f"out/runs/{name}" for name in keys[:3]]
    compared = run("compare", *three, "--json", cwd=cwd)
    assert len(json.loads(compared.out)["comparisons"]) == 2
    assert (cwd / "lowland-comparison-3.html").exists()
    text = run("compare", *three, cwd=cwd).out
    assert "1: 2-8-8-2 on xor" in text
    assert "comparison: lowland-comparison-3.html" in text
    assert run("report", three[0], cwd=cwd).code == 0
    # The page lies beside the run and harms nothing.
    assert run("sweep", "grid.toml", "--out", "out", cwd=cwd).out.startswith("16 runs in out: 0")


BAD = {
    "learning_rat = 0.1": "did you mean 'learning_rate'?",
    "learning_rate = -1": "learning_rate must be a number above 0; got -1",
    'data = "digits"\nbatch_size = 5000\nnetwork = "64-8-10"': "batch_size is 5000, but there are",
    'data = "digits"': "takes 784 inputs, but digits has 64",
    'data = "digits"\nnetwork = "64-8-2"': "has 2 outputs, but digits needs 10",
    'data = "xor"\nnetwork = "lenet"': "lenet takes images",
    'data = "xor"\nnetwork = "2-4-2"\nmeasures = ["tracee"]': "there is no measure 'tracee'",
    'data = "xor"\nnetwork = "2-4-2"\nlayers = ["9"]': "the matrices of '2-4-2' are in '1', '3'",
    'network = "nowhere:net"': "there is no module 'nowhere'",
    'data = "digits"\nnetwork = "64-8-10"\nper_class = 5000': "per_class=5000 is more than there",
}


@pytest.mark.parametrize("text", BAD)
def test_a_mistake_is_told_in_a_line_before_anything_is_trained(text, tmp_path):
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(InputError) as error:
        sweep(Grid.read(tmp_path / "grid.toml"), tmp_path / "out", executor="serial")
    assert BAD[text] in str(error.value)
    assert not list((tmp_path / "out").glob("runs/*"))


def test_wrong_arguments(tmp_path):
    for args, words in (
        ((), "expected a grid and where to keep the runs"),
        (("grid.toml", "--out", "out"), "there is no file grid.toml"),
        (("--status", "nowhere"), "nowhere does not exist"),
        (("grid.toml", "--status", "out"), "--status takes a directory and nothing else"),
    ):
        ran = run("sweep", *args, cwd=tmp_path)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
        assert len(ran.err.splitlines()) == 1
    (tmp_path / "grid.toml").write_text(GRID)
    ran = run("sweep", "grid.toml", "--out", "out", "--executor", "proceses", cwd=tmp_path)
    assert ran.code == 2
    assert "processes" in ran.err.splitlines()[-1]


# One network


def test_train_makes_weights_curves_and_a_report(tmp_path):
    ran = run(
        *("train", "--data", "digits", "--network", "64-10-8-10", "--optimizer", "sam"),
        *("--learning-rate", "0.2", "--stop-loss", "0.1", "--measures", "trace", "--json"),
        cwd=tmp_path,
    )
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["training"]["converged"]
    assert told["training"]["settings"]["optimizer"] == "sam"
    out = tmp_path / "lowland-report"
    assert {p.name for p in out.iterdir()} == set(FILES)
    assert (out / "epochs.csv").read_text().count("\n") == told["training"]["epochs"] + 1
    weights = mlp((64, 10, 8, 10))
    load_weights(weights, out / "weights.safetensors")
    X, y = ll.data.load("digits").train
    assert torch.nn.functional.cross_entropy(weights(X), y).item() < 0.1
    assert "sam" in (out / "report.html").read_text()


def test_train_tells_mistakes_in_a_line(tmp_path):
    for args, words in (
        (("--learning-rat", "0.1"), "--learning-rat"),
        (("--learning-rate", "0"), "learning_rate must be a number above 0"),
        (("--data", "xor", "--network", "2-4-2", "--learning-rate", "1e38"), "diverged in epoch"),
        (("--data", "xor", "--network", "2-4-2", "--batch-size", "500"), "batch_size is 500"),
    ):
        ran = run("train", *args, "--quiet", cwd=tmp_path)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
        assert len(ran.err.splitlines()) == 1
        assert not (tmp_path / "lowland-report").exists()
