"""Sweeps as a user runs them, and what they find."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import lowland as ll
from commandline import run, run_inside
from grids import GRID, RUNS
from lowland.checkpoint import load_weights
from lowland.errors import InputError
from lowland.experiment.recording import recorded
from lowland.experiment.subject import Subject
from lowland.results import FILES
from lowland.sweep import Configuration, Grid, Store, key, perform
from lowland.sweep import run as sweep
from lowland.sweep.keys import training_key
from lowland.sweep.plan import stacks_of
from lowland.sweep.source import digest
from lowland.training import mlp, train

SMALL = {"data": "xor", "network": "2-4-3-2", "max_epochs": 3, "stop_loss": 0.01, "n_sharp": 2}


@pytest.fixture
def cwd(tmp_path) -> Path:
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path


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
        "total_g": found["3"].totals.total_g,
        "5:sharp": found["5"].sharp,
        "5:flat": found["5"].flat,
        "trace": ll.measure(problem, "trace")["trace"].value,
    }
    for name, value in expected.items():  # float32 that was summed in another order
        assert row[name] == pytest.approx(value, rel=2e-3), name
    assert summary.fresh == 1
    assert row["key"] == key(one)
    kept = ll.load(tmp_path / "out/runs" / key(one))
    assert kept.results.origin.training.curves["loss"] == pytest.approx(trained.losses, rel=1e-4)
    assert kept.results.layers["5"].sigma_g == pytest.approx(found["5"].sigma_g, rel=0.02, abs=1e-4)
    assert (
        "epoch,loss,error,weight_norm\n1,"
        in (tmp_path / "out/runs" / key(one) / "epochs.csv").read_text()
    )


def test_another_analysis_trains_nothing_again(tmp_path, monkeypatch):
    grid = Grid(**SMALL, seed=range(3))
    sweep(grid, tmp_path, executor="serial")
    monkeypatch.setattr(perform, "train_many", None)  # whoever trains now, fails
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


def test_an_analysis_that_fails_fails_for_its_own_run_only(tmp_path):
    """Both runs share one trained network."""
    grid = Grid(**SMALL, measures=["trace"], rescalings=[["norms"], ["units"]])
    summary = sweep(grid, tmp_path, executor="serial")
    (reason,) = summary.failed.values()
    assert "BatchNorm" in reason
    rows = {row["rescalings"]: row for row in Store(tmp_path).rows()}
    failed, done = rows['["norms"]'], rows['["units"]']
    assert (failed["status"], done["status"]) == ("failed", "done")
    assert failed["training"] == done["training"]
    assert done["rescaled.units.trace"] is not None


def test_rescaled_networks_are_measured_in_the_run(tmp_path):
    """Against the public functions on the stored weights."""
    names, ways = ["trace", "normalized_sharpness"], {"units": 10.0, "split": 2.0}
    settings = {"data": "digits", "network": "64-9-8-10", "max_epochs": 2, "n_sharp": 3, "seed": 3}
    grid = Grid(**settings, measures=names, rescalings=tuple(ways))
    sweep(grid, tmp_path, executor="serial")
    (row,) = Store(tmp_path).rows()
    network = mlp((64, 9, 8, 10), seed=3)
    load_weights(network, tmp_path / "runs" / row["key"] / "weights.safetensors")
    data = ll.data.load("digits")
    problem = ll.Problem(network.double(), train=data.train, test=data.test)
    problems = {by: ll.rescale(problem, by, factor) for by, factor in ways.items()}
    for by, other in {"as_trained": problem, **problems}.items():
        for name in names:
            expected = ll.measure(other, name)[name].value
            assert row[f"rescaled.{by}.{name}"] == pytest.approx(expected, rel=1e-9)
    assert row["rescaled.units.trace"] > 2 * row["trace"]
    assert row["rescaled.as_trained.trace"] == pytest.approx(row["trace"], rel=1e-3)


def test_stacks_are_decided_once(tmp_path):
    """Also when some of their runs are there the next time."""
    store = Store(tmp_path, create=True)
    grid = list(Grid(**SMALL, seed=range(40), batch_size=[10, 20]))
    first = stacks_of(store, grid)
    assert [len(stack) for stack in first] == [16, 16, 16, 16, 8, 8]
    assert [{run.batch_size for run in stack} for stack in first] == [
        {20},
        {20},
        {10},
        {10},
        *({20}, {10}),
    ]
    sweep(grid[:2], tmp_path, executor="serial")
    assert stacks_of(store, grid) == first
    # Another grid is planned around what is there.
    other = stacks_of(store, grid[:4])
    assert [[run.seed for run in stack] for stack in other] == [[0], [1], [0], [1]]


def test_what_takes_long_trains_together_and_first(tmp_path):
    grid = Grid(**SMALL, seed=range(10), learning_rate=[0.4, 0.1, 0.2])
    stacks = stacks_of(Store(tmp_path, create=True), list(grid))
    rates = [run.learning_rate for stack in stacks for run in stack]
    assert rates == sorted(rates)
    assert [len(stack) for stack in stacks] == [16, 14]


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


@pytest.mark.slow
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

    def table() -> list[dict[str, str]]:
        with open(tmp_path / "a" / "results.csv", newline="") as file:
            return list(csv.DictReader(file))

    assert {row["key"] for row in table()} == set(again["runs"])  # those of the file as it is now
    assert {row["current"] for row in table()} == {"True"}
    everything = json.loads(run(*args, "--out", "a", "--old", cwd=tmp_path).out)
    assert everything["fresh"] == 0
    code = {row["key"]: (row["code"], row["current"]) for row in table()}
    assert code.keys() == {*first["runs"], *again["runs"]}
    (before,), (now,) = ({code[name] for name in told["runs"]} for told in (first, again))
    assert before[0] != now[0]
    assert (before[1], now[1]) == ("False", "True")


def test_status_does_not_show_what_a_killed_sweep_told(tmp_path):
    grid = Grid(**SMALL, seed=range(2))
    sweep(grid, tmp_path, executor="serial")
    name = key(next(iter(grid)))
    pulse = tmp_path / "locks" / f"{name}.json"
    pulse.write_text('{"part": 0.5, "epoch": 3, "loss": null}')
    assert ll.sweep.status(tmp_path)[0]["training"] == []
    with Store(tmp_path).lock(name):
        (told,) = ll.sweep.status(tmp_path)[0]["training"]
    assert told == {"part": 0.5, "epoch": 3, "loss": None}


def test_a_key_changes_with_every_setting():
    one = Configuration()
    keys = {key(one)} | {
        key(Configuration.of(change))
        for change in ({"seed": 1}, {"n_sharp": 9}, {"loss": "mse"}, {"layers": ["3"]})
    }
    assert len(keys) == 5
    assert training_key(one) == training_key(Configuration(n_sharp=9, measures=("trace",)))
    assert training_key(one) != training_key(Configuration(seed=1))


def test_an_interrupt_within_a_stack_loses_only_what_still_trains(tmp_path, monkeypatch):
    """Resumed, it measures the others alone, and ends with the numbers of one undisturbed."""
    grid = Grid(**SMALL, seed=range(5))
    sweep(grid, tmp_path / "undisturbed", executor="serial")
    calls = []

    def counted(*given):
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return recorded(*given)

    monkeypatch.setattr("lowland.sweep.perform.recorded", counted)
    with pytest.raises(KeyboardInterrupt):
        sweep(grid, tmp_path / "cut", executor="serial")
    assert len(Store(tmp_path / "cut").survey().whole) == 3
    assert sweep(grid, tmp_path / "cut", executor="serial").fresh == 2
    assert len(calls) == 4 + 2
    one, other = (Store(tmp_path / name) for name in ("undisturbed", "cut"))
    for name in one.survey().whole:
        assert other.read(name)["results"] == one.read(name)["results"]
        for file in ("weights.safetensors", "arrays.npz", "epochs.csv"):
            assert (other.path(name) / file).read_bytes() == (one.path(name) / file).read_bytes()


def test_a_run_is_of_one_subject_and_one_problem(monkeypatch):
    """Each is checked in full when it is made; another would find nothing else."""
    made = []

    def counted(kind, make):
        def counting(*args, **kwargs):
            made.append(kind)
            return make(*args, **kwargs)

        return counting

    monkeypatch.setattr(ll.Problem, "__init__", counted("problem", ll.Problem.__init__))
    monkeypatch.setattr(Subject, "of", counted("subject", Subject.of))
    settings = Configuration(**SMALL, layers=("1", "3"), measures=("trace",)).to_dict()
    (done,) = perform.perform([settings], [0], {}, lambda now: None)
    assert done.document["status"] == "done"
    assert "3:sharp" in done.document["results"]
    assert sorted(made) == ["problem", "subject"]


def test_a_worker_stores_only_where_its_sweep_has_the_lock(tmp_path):
    runs = list(Grid(**SMALL, seed=range(2)))
    stack = [run.to_dict() for run in runs]
    store = Store(tmp_path, create=True)
    with store.lock(key(runs[0])):
        left = perform.perform(stack, [0, 1], {}, lambda now: None, store=tmp_path)
        assert [run.document["key"] for run in left] == [key(runs[1])]
        assert store.survey().whole == {key(runs[0])}
        again = perform.perform(stack, [0, 1], {}, lambda now: None, store=tmp_path)
    assert [run.document["key"] for run in again] == [key(runs[1])]
    assert again[0].files["weights.safetensors"] == left[0].files["weights.safetensors"]


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


@pytest.mark.slow
def test_the_words_of_the_command(cwd):
    ran = run("sweep", "grid.toml", "--out", "out", "--executor", "serial", cwd=cwd)
    assert f"{RUNS} runs in out: {RUNS} done now" in ran.out
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["batch_size", "runs", "test_error", "gap", "paired_gap", "sharp", "flat"] in lines
    with (cwd / "out/results.csv").open() as file:
        gaps = [(float(r["gap"]), float(r["paired_gap"])) for r in csv.DictReader(file)]
    apart = sum(abs(paired - gap) > 0.1 * abs(gap) for gap, paired in gaps)
    assert (f"in {apart} of 16 runs the paired samples have another gap" in ran.out) == (apart > 0)
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
    assert (cwd / "lowland-comparison.html").exists()
    text = run("compare", *three, cwd=cwd).out
    assert "1: 2-8-8-2 on xor" in text
    assert "comparison: lowland-comparison.html" in text
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
    'data = "xor"\nnetwork = "2-4-2"\nmeasures = ["tracee"]': "no measure named 'tracee'; did you",
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
        ran = run_inside("sweep", *args, cwd=tmp_path)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
        assert len(ran.err.splitlines()) == 1
    (tmp_path / "grid.toml").write_text(GRID)
    ran = run_inside("sweep", "grid.toml", "--out", "out", "--executor", "proceses", cwd=tmp_path)
    assert ran.code == 2
    assert "processes" in ran.err.splitlines()[-1]


# One network


def test_the_device_is_that_of_the_environment(tmp_path, monkeypatch):
    grid = Grid(data="xor", network="2-4-2", max_epochs=1, n_sharp=2)
    monkeypatch.setenv("LOWLAND_DEVICE", "toaster")
    with pytest.raises(InputError, match="LOWLAND_DEVICE is 'toaster', but torch cannot compute"):
        sweep(grid, tmp_path, executor="serial")
    monkeypatch.setenv("LOWLAND_DEVICE", "cpu")
    assert sweep(grid, tmp_path, executor="serial").fresh == 1


def test_train_makes_weights_curves_and_a_report(tmp_path):
    ran = run_inside(
        *("train", "--data", "digits", "--network", "64-10-8-10", "--optimizer", "sam"),
        *("--learning-rate", "0.2", "--stop-loss", "0.3", "--measures", "trace", "--json"),
        cwd=tmp_path,
    )
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["origin"]["training"]["converged"]
    assert told["origin"]["training"]["settings"]["optimizer"] == "sam"
    out = tmp_path / "lowland-report"
    assert {p.name for p in out.iterdir()} == set(FILES)
    assert (out / "epochs.csv").read_text().count("\n") == told["origin"]["training"]["epochs"] + 1
    weights = mlp((64, 10, 8, 10))
    load_weights(weights, out / "weights.safetensors")
    X, y = ll.data.load("digits").train
    assert torch.nn.functional.cross_entropy(weights(X), y).item() < 0.3
    assert "sam" in (out / "report.html").read_text()


def test_train_takes_schedules_averages_and_an_optimiser_of_the_user(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch.optim import SGD\n"
        "def make(model, settings):\n"
        "    return SGD(model.parameters(), settings.learning_rate)\n"
    )
    shared = "--data xor --network 2-4-2 --max-epochs 3 --n-sharp 2 --measures trace --json"
    settings = []
    for options in (
        "--optimizer look_sam --schedule warm_restarts --cycle 2 --average ema",
        "--optimizer mine:make --schedule cosine --rate-floor 0.1 --average swa",
    ):
        ran = run_inside("train", *shared.split(), *options.split(), cwd=tmp_path)
        assert ran.code == 0, ran.err
        settings.append(json.loads(ran.out)["origin"]["training"]["settings"])
    assert [s["optimizer"] for s in settings] == ["look_sam", "mine:make"]
    assert [s["schedule"] for s in settings] == ["warm_restarts", "cosine"]
    assert [s["average"] for s in settings] == ["ema", "swa"]


def test_the_file_of_a_users_optimiser_is_part_of_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = set()
    for text in ("...", "...  # a comment", "return None"):
        (tmp_path / "my_steps.py").write_text(f"def make(model, settings): {text}\n")
        digest.cache_clear()
        seen.add(key(Configuration(optimizer="my_steps:make")))
    assert len(seen) == 2


def test_details_are_functions_that_add_to_the_record_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_details.py").write_text(
        "def norm(record):\n"
        "    weight = record.subject.model[1].weight\n"
        "    return record.adding({'first_norm': float(weight.detach().norm())})\n\n\n"
        "def nothing(record):\n    return 1\n"
    )
    grid = Grid(**SMALL, details=[["my_details:norm"], ["my_details:nothing"]])
    summary = sweep(grid, tmp_path / "store", executor="serial")
    good, bad = (Store(tmp_path / "store").read(key(single)) for single in grid)
    assert good["results"]["first_norm"] > 0
    assert good["results"]["training"] == bad["results"]["training"]
    assert list(summary.failed) == [bad["key"]]
    assert "details my_details:nothing returned int; expected the record" in bad["reason"]
    with pytest.raises(InputError, match="details must be a list of different names as pkg.module"):
        Configuration(details=["stress"])
    with pytest.raises(InputError, match="details my_details:norms: my_details has no"):
        sweep(Grid(**SMALL, details=["my_details:norms"]), tmp_path / "store")


def test_a_sweep_may_vary_schedule_and_average_within_a_stack(tmp_path):
    grid = Grid(
        data="xor",
        network="2-4-2",
        max_epochs=4,
        cycle=2,
        n_sharp=2,
        schedule=["constant", "cosine", "cyclical", "warm_restarts"],
        average=["none", "swa", "ema"],
        average_from=2,
    )
    summary = sweep(grid, tmp_path, executor="serial")
    assert (summary.fresh, summary.failed) == (12, {})
    norms = set()
    for configuration in grid:
        stored = Subject.of(configuration).model
        load_weights(stored, Store(tmp_path).path(key(configuration)) / "weights.safetensors")
        subject = Subject.of(configuration)
        train(subject.model, subject.train, subject.settings)
        for p, q in zip(stored.parameters(), subject.model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        norms.add(float(stored[1].weight.detach().norm()))
    assert len(norms) == 12  # all of them differ


def test_train_tells_mistakes_in_a_line(tmp_path):
    for args, words in (
        (("--optimizer", "looksam"), "did you mean 'look_sam'?"),
        (
            ("--data", "xor", "--network", "2-4-2", "--optimizer", "nowhere:make"),
            "optimizer nowhere:make: there is no module 'nowhere'",
        ),
        (("--schedule", "cosinus"), "schedule must be one of constant, cosine, cyclical, warm_re"),
        (("--average", "mean"), "average must be one of swa, ema"),
        (("--learning-rat", "0.1"), "--learning-rat"),
        (("--learning-rate", "0"), "learning_rate must be a number above 0"),
        (("--data", "xor", "--network", "2-4-2", "--learning-rate", "1e38"), "diverged in epoch"),
        (("--data", "xor", "--network", "2-4-2", "--batch-size", "500"), "batch_size is 500"),
    ):
        ran = run_inside("train", *args, "--quiet", cwd=tmp_path)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
        assert len(ran.err.splitlines()) == 1
        assert not (tmp_path / "lowland-report").exists()
