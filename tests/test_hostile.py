"""Files and folders of others: each ends well, or in one line, and nothing in it runs or hangs."""

import contextlib
import csv
import ctypes
import io
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from commandline import Ran, environment, run_inside
from example import make_results
from hostile import EVIL, mutated, mutations, places, traps, written
from lowland.checkpoint import load_weights
from lowland.errors import InputError
from lowland.findings import decode, encode
from lowland.probe.records import CsvFile
from lowland.results import Analysis, epochs_csv, load
from lowland.sweep import Store
from lowland.sweep.keys import key_here
from lowland.sweep.trial import run_of as as_run
from lowland.training.compiled import library
from stores import FILES, put, run_of, seal

FEW, MANY = 25, 1500


def assert_ends_well(ran: Ran) -> None:
    """The command worked, or said in one line why not; and nothing that a terminal obeys."""
    assert ran.code in (0, 2), ran
    assert all(c.isprintable() or c == "\n" for c in ran.out + ran.err), ran
    assert "Traceback" not in ran.err
    assert ran.code == 0 or (ran.err.count("\n") == 1 and not ran.out), ran


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return Analysis(make_results(), b"w" * 50).save(tmp_path_factory.mktemp("saved") / "r")


@pytest.fixture
def analysed(saved, tmp_path) -> Path:
    shutil.copytree(saved, tmp_path / "r")
    return tmp_path / "r"


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_results_with_anything_in_place_of_anything(analysed, count):
    file = analysed / "results.json"
    document = json.loads(file.read_text())
    for _, _, other in itertools.islice(mutations(document, count), count):
        file.write_bytes(written(other))
        seal(analysed)
        assert_ends_well(run_inside("report", "--quiet", str(analysed), cwd=analysed.parent))


def test_a_count_that_no_machine_has_is_refused_in_words(analysed):
    file = analysed / "results.json"
    document = json.loads(file.read_text())
    for value in (10**19, -(10**19), 10**400):
        way = ("subject", "train_samples")
        file.write_bytes(written(mutated(document, way, value)))
        seal(analysed)
        with pytest.raises(InputError, match="subject.train_samples should be a whole number of"):
            load(analysed)


def test_no_text_of_results_is_a_command_to_the_terminal(analysed):
    """Every text at once, at a terminal of many colours."""
    file = analysed / "results.json"
    document = json.loads(file.read_text())
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    texts = {("subject", "title"), ("notes", 0), ("checks", 0, "name"), ("measures", 0, "title")}
    texts |= {("duality", "setting", "layer"), ("course", "planned"), ("course", "stopped")}
    for way in texts:
        document = mutated(document, way, f"{evil}x")
    file.write_bytes(written(document))
    seal(analysed)
    ran = run_inside("report", "--quiet", str(analysed), cwd=analysed.parent)
    assert ran.code == 0, ran
    assert_ends_well(ran)
    assert ran.out.count("?]0;owned?[2J?x") >= 5


NAMES = ("results.json", "arrays.npz", "weights.safetensors", "SHA256SUMS")


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_in_a_files_place_never_hangs(analysed, name):
    for what, lay in traps(analysed):
        path = analysed / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        lay(path)
        with pytest.raises(InputError, match=r"cannot be read|is not a list|holds no|not match"):
            load(analysed)
        assert what


def test_checkpoints_that_never_end_or_run(tmp_path):
    model, path = nn.Linear(3, 2), tmp_path / "w.pt"
    torch.save(model.state_dict(), path)
    good = path.read_bytes()
    for _, lay in traps(tmp_path):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        lay(path)
        with pytest.raises(InputError, match="checkpoint"):
            load_weights(model, path)
    path.unlink()
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(good[: rng.integers(1, len(good))] if rng.random() < 0.3 else good)
        for place in rng.integers(0, len(damaged), 4):
            damaged[place] = rng.integers(256)
        for ending in (".pt", ".safetensors"):
            (tmp_path / f"d{ending}").write_bytes(damaged)
            with contextlib.suppress(InputError):
                load_weights(model, tmp_path / f"d{ending}")


# Stores

MARKER = 'open("marker", "w").close()\ndef model(*args, **more): return None\n'
LOOKS = (
    ("sweep", "--status", "store"),
    ("sweep", "--status", "store", "--json"),
)


def foreign_store(folder: Path) -> Store:
    """A store whose runs and plans name code that lies beside it."""
    (folder / "evil.py").write_text(MARKER)
    store = Store(folder / "store", create=True)
    configuration = {"network": "evil:model", "data": "evil:data", "seed": 0}
    for i in range(3):
        put(store, i, configuration=configuration)
    runs = [[configuration], [{"function": "evil:model", "seed": 0}]]
    with contextlib.chdir(folder):  # as the command is started there
        keys = [[key_here(as_run(run)) for run in stack] for stack in runs]
    store.write(keys[0][0], run_of(0, key=keys[0][0], configuration=configuration), FILES)
    for name, more in (("a", {}), ("b", {"keys": keys})):
        store.remember(name, {"runs": 2, "stacks": runs, **more})
    return store


@pytest.mark.parametrize("args", LOOKS)
def test_a_look_at_a_store_imports_nothing_that_it_names(tmp_path, args):
    foreign_store(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lowland", *args],
        cwd=tmp_path, env=environment(), capture_output=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert not (tmp_path / "marker").exists()
    assert b"2 runs: 1 done, 1 missing" in done.stdout or b'"missing": 1' in done.stdout


def test_a_store_with_anything_in_place_of_anything(tmp_path):
    store = foreign_store(tmp_path)
    key = json.loads((tmp_path / "store/plans/b.json").read_text())["keys"][0][0]
    run, plan = store.path(key) / "run.json", tmp_path / "store/plans/b.json"
    pulse = tmp_path / "store/locks" / f"{key}.json"
    mark = tmp_path / "store/lowland-store.json"
    pulse.write_text('{"part": 0.5, "epoch": 3, "loss": 0.25}')
    with store.lock(key):
        for file in (run, plan, pulse, mark):
            good = file.read_bytes()
            document = json.loads(good)
            for _, _, other in itertools.islice(mutations(document, 0), 2 * FEW):
                file.write_bytes(written(other))
                if file == run:
                    seal(store.path(key))
                ran = run_inside("sweep", "--status", "store", cwd=tmp_path)
                assert_ends_well(ran)
            for what, lay in traps(tmp_path):
                file.unlink() if not file.is_dir() or file.is_symlink() else file.rmdir()
                lay(file)
                assert_ends_well(run_inside("sweep", "--status", "store", cwd=tmp_path))
                assert what
            file.unlink() if not file.is_dir() or file.is_symlink() else file.rmdir()
            file.write_bytes(good)
            seal(store.path(key))
    assert not (tmp_path / "marker").exists()


# Tables


def test_no_cell_of_a_table_is_a_formula(tmp_path):
    store = Store(tmp_path / "store", create=True)
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "-a\r=b", "plain"]
    for i, text in enumerate(texts):
        put(store, i, reason=text, results={"=loss": -0.5 * i, "word": text})
    (path, *_) = store.export(tmp_path, old=True)
    rows = list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))
    assert len(rows) == len(texts)
    shown = {f"'{text}".replace("\r", " ") for text in texts[:-1]}
    assert {row["reason"] for row in rows} == {*shown, "plain"}
    assert {row["reason"] for row in rows} == {row["word"] for row in rows}
    assert {float(row["'=loss"]) for row in rows} == {-0.5 * i for i in range(len(texts))}
    assert epochs_csv({"=x": [-1.0]}) == b"epoch,'=x\n1,-1.0\n"
    for _ in range(2):  # a file that goes on has the same head
        CsvFile(tmp_path / "probe.csv", ["@name"])({"@name": -2.0}, 1)
    assert (tmp_path / "probe.csv").read_text() == "step,'@name\n1,-2.0\n1,-2.0\n"


# The compiled loop


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_a_library_that_is_cut_or_that_others_can_write_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source, cache = tmp_path / "one.c", tmp_path / "lowland"
    source.write_text("int one(void) { return 1; }\n")
    loaded: list[str] = []
    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda path: loaded.append(path) or real(path))

    def stamp() -> int:
        return next(cache.glob("*.so")).stat().st_ino

    assert library.__wrapped__(source, ()).one() == 1
    first = stamp()
    assert library.__wrapped__(source, ()).one() == 1
    assert stamp() == first
    (file,) = cache.glob("*.so")
    whole = file.read_bytes()
    file.unlink()  # not into the file that is loaded here
    file.write_bytes(whole[: len(whole) // 2])
    assert library.__wrapped__(source, ()).one() == 1
    assert file.read_bytes() == whole
    second = stamp()
    file.chmod(0o722)
    assert library.__wrapped__(source, ()).one() == 1
    assert stamp() != second
    cache.chmod(0o777)
    count = len(loaded)
    assert library.__wrapped__(source, ()).one() == 1
    assert not loaded[count].startswith(str(cache))


def test_the_generator_reaches_every_value():
    document = encode(make_results(), {})
    ways = list(places(document))
    assert len(ways) == len(set(ways)) > 500
    assert mutated({"a": [1, 2]}, ("a", 1), 3) == {"a": [1, 3]}
    with pytest.raises(InputError):
        decode(int, EVIL[5], {})
