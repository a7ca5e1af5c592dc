"""A run of a sweep is whole or absent, is done once, and none is lost, whatever ends a process."""

import contextlib
import csv
import errno
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowland import InputError
from lowland.sweep.store import Store, key_of

FILES = {
    "results.json": b'{"format": 1}',
    "arrays.npz": bytes(range(256)) * 40,
    "weights.safetensors": b"w" * 5000,
    "epochs.csv": b"epoch,loss\n1,0.5\n",
}
NAMES = {*FILES, "run.json", "SHA256SUMS"}


def keys(count: int) -> list[str]:
    return [key_of({"i": i}) for i in range(count)]


def run_of(i: int, **more: Any) -> dict[str, Any]:
    return {
        "key": key_of({"i": i}),
        "configuration": {"i": i},
        "status": "done",
        "reason": None,
        "results": {"loss": 0.1 * i, "fits": True},
        "seconds": 1.5,
        "code": {"lowland": "0"},
        **more,
    }


def put(store: Store, i: int, **more: Any) -> str:
    key = key_of({"i": i})
    assert store.write(key, run_of(i, **more), FILES)
    return key


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def indexed(store: Store) -> list[str]:
    """The keys in the index as it lies on the disk."""
    lines = (store.directory / "index.jsonl").read_text().splitlines()
    return [json.loads(line)["run"]["key"] for line in lines]


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate()
    return out


def kill(process: subprocess.Popen[str]) -> str:
    process.kill()
    return finish(process)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", create=True)


# --- keys ----------------------------------------------------------------------------------------


def test_a_key_is_the_hash_of_sorted_json():
    expected = hashlib.sha256(b'{"a":[1,null,true],"b":{"c":"\\u00e9","d":0.1}}').hexdigest()[:16]
    assert key_of({"b": {"d": 0.1, "c": "é"}, "a": (1.0, None, True)}) == expected
    assert key_of(MappingProxyType({"a": [1, None, True], "b": {"c": "é", "d": 0.1}})) == expected


VALUES = st.recursive(
    st.sampled_from([None, False, True, 0, 1, 0.0, -0.0, 1.0, 0.5, "", "0", "1", "true", 2**70])
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)
CONFIGURATIONS = st.dictionaries(st.text(max_size=2), VALUES, max_size=4)


def reversed_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reversed_names(value[name]) for name in reversed(value)}
    return [reversed_names(inner) for inner in value] if isinstance(value, list) else value


def told_apart(value: Any) -> Any:
    """Python's own equality, except that True is not 1."""
    if isinstance(value, dict):
        return {name: told_apart(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [told_apart(inner) for inner in value]
    return (isinstance(value, bool), value)


@given(CONFIGURATIONS)
def test_a_key_does_not_depend_on_the_order_of_names(configuration):
    assert key_of(reversed_names(configuration)) == key_of(configuration)


@given(CONFIGURATIONS, st.text(max_size=2), VALUES, VALUES)
def test_a_key_changes_with_any_value_and_with_nothing_else(configuration, name, one, other):
    a, b = {**configuration, name: one}, {**configuration, name: other}
    assert (key_of(a) == key_of(b)) == (told_apart(one) == told_apart(other))
    assert key_of({"deep": [a]}) != key_of(a)
    without = {n: v for n, v in configuration.items() if n != name}
    assert key_of(without) != key_of(a)


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {1, 2}, Path("x"), b"x"])
def test_a_configuration_without_a_key(value):
    with pytest.raises(InputError, match="a configuration is made of finite numbers, texts"):
        key_of({"a": [value]})


# --- one run -------------------------------------------------------------------------------------


def test_a_run_is_written_once(store):
    key = put(store, 3)
    assert store.path(key) == store.directory / "runs" / key
    assert names(store.path(key)) == NAMES
    assert store.read(key) == run_of(3)
    for name, expected in FILES.items():
        assert (store.path(key) / name).read_bytes() == expected
    before = content(store.directory)
    assert not store.write(key, run_of(3, status="failed"), {"arrays.npz": b"other"})
    assert content(store.directory) == before
    assert names(store.directory / "runs") == {key}
    assert store.whole(key)
    assert not store.whole(key_of({}))
    assert repr(store).endswith("1 runs")


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs the tool sha256sum")
def test_sha256sum_agrees(store):
    folder = store.path(put(store, 0))
    done = subprocess.run(
        ["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert {line.split(":")[0] for line in done.stdout.splitlines()} == NAMES - {"SHA256SUMS"}


def test_numbers_that_are_not_finite_become_null(store):
    key = put(store, 0, results={"loss": math.nan, "list": [math.inf, 1.0]}, seconds=-math.inf)
    assert store.read(key)["results"] == {"loss": None, "list": [None, 1.0]}
    assert store.rows()[0]["seconds"] is None
    assert indexed(store) == [key]


def test_what_is_no_json_is_refused_before_anything_is_written(store):
    before = content(store.directory)
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.write(key_of({}), {"results": {"loss": object()}}, FILES)
    assert content(store.directory) == before
    assert names(store.directory / "runs") == set()


def test_keys_that_are_none(store):
    for key in ("", "..", "../../etc", "0" * 15, "G" * 16, "0" * 16 + "\n"):
        for use in (store.path, store.whole, store.read, store.claim, store.set_aside):
            with pytest.raises(InputError, match="expected the key of a run, 16 hexadecimal"):
                use(key)
    for use in (store.read, store.set_aside):
        with pytest.raises(InputError, match="there is no run 0000000000000000 in"):
            use("0" * 16)


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (edit("arrays.npz", lambda b: b[:-1]), "arrays.npz does not match"),
    "emptied": (edit("epochs.csv", lambda b: b""), "epochs.csv does not match"),
    "one bit": (
        edit("arrays.npz", lambda b: b[:99] + bytes([b[99] ^ 4]) + b[100:]),
        "arrays.npz does not match SHA256SUMS",
    ),
    "deleted": (lambda f: (f / "weights.safetensors").unlink(), "weights.safetensors is missing"),
    "added": (lambda f: (f / "notes.txt").write_text("mine"), "notes.txt is not in SHA256SUMS"),
    "added folder": (lambda f: (f / "more").mkdir(), "more is not in SHA256SUMS"),
    "edited run": (
        edit("run.json", lambda b: b.replace(b'"done"', b'"dune"')),
        "run.json does not match",
    ),
    "no run": (lambda f: (f / "run.json").unlink(), "run.json is missing"),
    "other sum": (
        edit("SHA256SUMS", lambda b: (b"0" if b[:1] != b"0" else b"1") + b[1:]),
        "arrays.npz does not match SHA256SUMS",
    ),
    "line out of sums": (
        edit("SHA256SUMS", lambda b: b[b.index(b"\n") + 1 :]),
        "arrays.npz is not in SHA256SUMS",
    ),
    "cut sums": (edit("SHA256SUMS", lambda b: b[:40]), "SHA256SUMS is not a list"),
    "no text in sums": (edit("SHA256SUMS", lambda b: b"\xff" + b), "SHA256SUMS is no text"),
    "no sums": (lambda f: (f / "SHA256SUMS").unlink(), "SHA256SUMS is missing"),
    "folder for a file": (
        lambda f: ((f / "arrays.npz").unlink(), (f / "arrays.npz").mkdir()),
        "arrays.npz cannot be read: Is a directory",
    ),
    "empty": (empty, "run.json is missing"),
    "a file in its place": (
        lambda f: (shutil.rmtree(f), f.write_text("mine")),
        "run.json cannot be read: Not a directory",
    ),
    "another's": (
        lambda f: (shutil.rmtree(f), shutil.copytree(f.with_name(key_of({"i": 1})), f)),
        "run.json belongs to another run",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_and_named_and_the_run_is_done_again(store, kind):
    damage, says = DAMAGES[kind]
    key, other = put(store, 0), put(store, 1)
    damage(store.path(key))
    found = store.survey()
    assert found.whole == {other}
    assert found.damaged.keys() == {key}
    assert says in found.damaged[key]
    assert not store.whole(key)
    if "run.json" in says or says.startswith("SHA256SUMS is"):
        with pytest.raises(InputError, match=f"{key} is damaged: .*start its sweep again"):
            store.read(key)

    path = store.path(key)
    before = path.read_bytes() if path.is_file() else content(path)
    aside = store.set_aside(key)
    assert aside == store.directory / "damaged" / f"{key}-1"
    assert (aside.read_bytes() if aside.is_file() else content(aside)) == before
    assert not path.exists()
    assert [row["key"] for row in store.rows()] == [other]
    put(store, 0)
    assert store.survey().whole == {key, other}
    damage(store.path(key))
    assert store.write(key, run_of(0), FILES)  # sets aside what is damaged by itself
    assert names(store.directory / "damaged") == {f"{key}-1", f"{key}-2"}
    assert store.survey().whole == {key, other}
    assert {row["key"] for row in store.rows()} == {key, other}
    assert sorted(indexed(store)) == sorted([key, other])


def test_what_may_lie_beside_the_files_of_a_run(store):
    key = put(store, 0)
    for name in ("report.html", ".DS_Store", ".lowland-0123abcd"):
        (store.path(key) / name).write_text("page")
    assert store.whole(key)


def test_a_run_set_aside_never_shows_its_old_row(store):
    key = put(store, 0, status="failed", reason="diverged")
    assert store.rows()[0]["status"] == "failed"
    store.set_aside(key)
    put(store, 0)
    assert [row["status"] for row in store.rows()] == ["done"]


# --- opening -------------------------------------------------------------------------------------


def test_a_store_is_made_with_its_parents_and_opened_again(tmp_path):
    place = tmp_path / "deep" / "er"
    for says in ("does not exist", "holds no lowland-store.json"):
        with pytest.raises(InputError, match=f"er {says}; expected a directory that"):
            Store(place)
        place.mkdir(parents=True, exist_ok=True)
    key = put(Store(place, create=True), 0)
    for again in (Store(place), Store(place, create=True), Store(str(place))):
        assert again.survey().whole == {key}


@pytest.mark.parametrize("name", ["notes.txt", ".git", "runs"])
def test_a_directory_of_the_user_is_refused_and_left_as_it_is(tmp_path, name):
    (tmp_path / "mine" / name).mkdir(parents=True)
    (tmp_path / "mine" / name / "text").write_text("mine")
    with pytest.raises(
        InputError, match=f"mine holds {name!r} and is no store .*; choose an empty"
    ):
        Store(tmp_path / "mine", create=True)
    with pytest.raises(InputError, match="mine holds no lowland-store.json"):
        Store(tmp_path / "mine")
    assert names(tmp_path / "mine") == {name}
    assert content(tmp_path) == {f"mine/{name}/text": b"mine"}


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for create in (True, False):
        with pytest.raises(InputError, match="file is a file; "):
            Store(tmp_path / "file", create=create)
    with pytest.raises(InputError, match="cannot write the store .*: Not a directory; make room"):
        Store(tmp_path / "file" / "store", create=True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ('{"format": "lowland-store", "version": 2}', "by a newer Lowland, in format 2, .*update"),
        ("", "lowland-store.json cannot be read"),
        ("[]", "lowland-store.json cannot be read"),
        ("{}", "lowland-store.json cannot be read"),
    ],
)
def test_a_newer_or_broken_mark_is_refused(store, mark, says):
    put(store, 0)
    (store.directory / "lowland-store.json").write_text(mark)
    before = content(store.directory)
    for create in (True, False):
        with pytest.raises(InputError, match=says):
            Store(store.directory, create=create)
    assert content(store.directory) == before


# --- the index and the table ---------------------------------------------------------------------


INDICES: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda b: None,
    "empty": lambda b: b"",
    "cut in a line": lambda b: b[:-30],
    "cut by the end of a line": lambda b: b[:-1],
    "cut by a line": lambda b: b[: b[:-1].rindex(b"\n") + 1],
    "no text": lambda b: os.urandom(200) + b,
    "a torn line after all": lambda b: b + b'{"sha',
    "no JSON": lambda b: b + b"{\n",
    "other JSON": lambda b: b + b"[1]\n",
    "deep": lambda b: b + b"[" * 100_000 + b"\n",
    "a line twice": lambda b: b + b[: b.index(b"\n") + 1],
    "a number edited": lambda b: b.replace(b'"loss": 0.1', b'"loss": 0.7'),
    "a key edited": lambda b: b.replace(key_of({"i": 1}).encode(), b"0" * 16),
}


@pytest.mark.parametrize("kind", INDICES)
def test_the_index_is_rebuilt_when_it_is_wrong(store, kind):
    for i in range(4):
        put(store, i)
    rows, index = store.rows(), store.directory / "index.jsonl"
    before = index.read_bytes()
    after = INDICES[kind](before)
    assert after != before
    index.unlink() if after is None else index.write_bytes(after)
    assert store.rows() == rows
    assert sorted(index.read_bytes().splitlines()) == sorted(before.splitlines())

    index.unlink() if after is None else index.write_bytes(after)
    assert put(store, 4) in {row["key"] for row in store.rows()}  # appended to what was wrong
    assert sorted(indexed(store)) == sorted(keys(5))


def test_the_index_follows_the_directories(store):
    for i in range(4):
        put(store, i)
    shutil.rmtree(store.path(keys(4)[2]))
    assert {row["i"] for row in store.rows()} == {0, 1, 3}
    assert store.reindex() == 3
    (store.path(keys(4)[1]) / "run.json").write_text("{")
    assert store.reindex() == 2
    assert {row["i"] for row in Store(store.directory, create=True).rows()} == {0, 3}


def test_a_good_index_is_not_written_again(store):
    for i in range(3):
        put(store, i)
    before = (store.directory / "index.jsonl").stat()
    Store(store.directory, create=True).rows()
    after = (store.directory / "index.jsonl").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_rows_are_flat_and_have_the_same_columns(store):
    put(store, 0, configuration={"i": 0, "net": {"sizes": [3, 2], "bias": True}, "key": "mine"})
    put(store, 1, results={"epochs": 7, "i": 5}, status="failed", reason="diverged", seconds=None)
    by_key = {row["key"]: row for row in store.rows()}
    assert [row["key"] for row in store.rows()] == sorted(by_key)
    first, second = (by_key[key] for key in keys(2))
    assert set(first) == {
        *("key", "status", "i", "net.sizes", "net.bias", "configuration.key"),
        *("loss", "fits", "epochs", "results.i", "seconds", "reason"),
    }
    assert list(first) == list(second)
    assert first == {
        **dict.fromkeys(first),
        "key": keys(2)[0],
        "status": "done",
        "i": 0,
        "net.sizes": "[3, 2]",
        "net.bias": True,
        "configuration.key": "mine",
        "loss": 0.0,
        "fits": True,
        "seconds": 1.5,
    }
    assert second == {
        **dict.fromkeys(first),
        "key": keys(2)[1],
        "status": "failed",
        "i": 1,
        "epochs": 7,
        "results.i": 5,
        "reason": "diverged",
    }


def test_the_table_and_its_files(store, tmp_path):
    import pandas

    assert list(store.table().columns) == ["key", "status"]
    for i in range(3):
        put(store, i, configuration={"i": i, "lr": 0.1 if i else "auto"})
    table = store.table()
    assert list(table.columns) == [
        *("key", "status", "i", "lr", "loss", "fits", "seconds", "reason")
    ]
    written = store.export()
    assert written[0] == store.directory / "results.csv"
    assert store.export(tmp_path / "new" / "place")[0] == tmp_path / "new" / "place" / "results.csv"
    with open(written[0], newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["key"] for row in read] == table["key"].tolist()
    assert [float(row["loss"]) for row in read] == table["loss"].tolist()  # to the last bit
    assert not [
        name
        for name in names(store.directory)
        if name.startswith(".lowland-") and name != ".lowland-lock"
    ]
    if len(written) == 2:  # pyarrow or fastparquet is installed
        columns = pandas.read_parquet(written[1])
        assert columns["loss"].tolist() == table["loss"].tolist()
        assert set(columns["lr"]) == {"auto", "0.1"}


def test_plans_are_remembered(store):
    assert store.plans() == []
    store.remember("b", {"grid": {"lr": [0.1, 0.2]}})
    store.remember("a.2", {"grid": {}})
    store.remember("b", {"grid": {"lr": [0.1]}})
    again = Store(store.directory)
    assert again.plans() == ["a.2", "b"]
    assert [again.plan(name) for name in again.plans()] == [{"grid": {}}, {"grid": {"lr": [0.1]}}]
    for name in ("", ".", "../x", "a/b", ".hidden"):
        with pytest.raises(InputError, match="expected a name of letters"):
            store.remember(name, {})
    (store.directory / "plans" / "b.json").write_text("{")
    with pytest.raises(InputError, match=r"b\.json cannot be read: .*start its sweep again"):
        store.plan("b")
    assert store.plan("a.2") == {"grid": {}}


# --- killed processes ----------------------------------------------------------------------------

WRITER = """
import sys
from lowland.sweep.store import Store, key_of
store = Store(sys.argv[1], create=True)
print("going", flush=True)
for i in range(int(sys.argv[2])):
    key = key_of({"i": i})
    if not store.whole(key):
        files = {name: bytes([i % 256]) * 25_000 for name in "abcd"}
        run = {"configuration": {"i": i}, "status": "done", "results": {"i2": i * i}}
        print(key, store.write(key, run, files), flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_whole_runs_only(tmp_path):
    place, moments = tmp_path / "store", random.Random(0)
    leftovers = 0
    for _ in range(24):
        process = start(WRITER, place, 100_000)
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        time.sleep(moments.uniform(0, 0.08))  # what must hold does not depend on it
        kill(process)
        visible = {n for n in names(place / "runs") if not n.startswith(".")}
        leftovers += len(names(place / "runs")) - len(visible)
        found = Store(place).survey()
        assert (found.whole, found.damaged) == (visible, {})
        store = Store(place, create=True)
        assert names(place / "runs") == visible
        assert sorted(indexed(store)) == sorted(visible)
        assert {row["key"] for row in store.rows()} == visible
    assert leftovers > 0  # or no kill came while a run was written, and nothing was shown

    count = len(visible) + 5
    missing = set(keys(count)) - visible
    lines = finish(start(WRITER, place, count)).splitlines()
    assert sorted(lines[1:]) == sorted(f"{key} True" for key in missing)
    assert store.survey().whole == set(keys(count))
    assert sorted(indexed(store)) == sorted(keys(count))


# Works on a copy of a store and gets a signal at the n-th step, for n = 0, 1, ... until the work
# has fewer steps. A step is a name that is opened, made, renamed, locked or removed.
STEPS = """
import itertools, os, shutil, signal, sys, traceback
from lowland.sweep.store import Store, key_of
template, place, what, number = *sys.argv[1:4], signal.Signals[sys.argv[4]]
key, watched, left = key_of({"i": 1}), False, 0
def step(event, arguments):
    global left, watched
    if watched and (event in ("open", "fcntl.flock") or event.startswith("os.")):
        left -= 1
        if left < 0:
            watched = False
            os.kill(os.getpid(), number)
def work(store):
    if what == "write":
        store.write(key, {"configuration": {"i": 1}, "status": "new"}, {"a": b"a", "b": b"b"})
    elif what == "set_aside":
        store.set_aside(key)
    else:
        store.reindex()
sys.addaudithook(step)
for n in itertools.count():
    copy = shutil.copytree(template, f"{place}/{n}")
    if (child := os.fork()) == 0:
        try:
            left, watched = n, True
            work(Store(copy))
            os._exit(0 if watched else 3)
        except Exception:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        print("stopped", flush=True)
        sys.stdin.readline()
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
    if status == 0:
        break
"""


def check_two_runs_can_be_had(store: Store, visible: set[str]) -> None:
    """After the store is opened again, and the second run is done again if it is missing."""
    store = Store(store.directory, create=True)
    assert names(store.directory / "runs") == visible
    if not store.whole(keys(2)[1]):
        put(store, 1)
    assert store.survey().whole == set(keys(2))
    assert {row["key"] for row in store.rows()} == set(keys(2))
    assert sorted(indexed(store)) == sorted(keys(2))


@pytest.mark.parametrize("what", ["write", "write over damage", "set_aside", "reindex"])
def test_a_process_killed_at_each_step(tmp_path, store, what):
    """Not at random: at every single step of the work, one after the other."""
    first, key = keys(2)
    put(store, 0)
    if what != "write":
        put(store, 1)
    if what == "write over damage":
        (store.path(key) / "arrays.npz").write_bytes(b"")
    process = start(STEPS, store.directory, tmp_path / "copies", what.split()[0], "SIGKILL")
    ends = finish(process).split()
    assert len(ends) > 5
    assert ends == [str(-signal.SIGKILL)] * (len(ends) - 1) + ["0"]

    for copy in (tmp_path / "copies").iterdir():
        left = Store(copy)
        found, rows = left.survey(), {row["key"]: row["status"] for row in left.rows()}
        assert rows[first] == "done"
        if key in found.whole:
            assert rows[key] == ("new" if "write" in what else "done")
        if what == "write over damage":
            assert found.damaged.keys() | {n[:16] for n in names(copy / "damaged")} == {key}
        else:
            assert found.damaged == {}
        assert found.whole >= (set(keys(2)) if what == "reindex" else {first})
        check_two_runs_can_be_had(left, found.whole | found.damaged.keys())


def test_a_process_stopped_at_each_step_while_another_opens_the_store(tmp_path, store):
    """The other waits, or works beside it; neither spoils anything."""
    put(store, 0)
    process = subprocess.Popen(
        [sys.executable, "-c", STEPS, store.directory, tmp_path / "copies", "write", "SIGSTOP"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for step in range(100):
        state = process.stdout.readline()
        copy = tmp_path / "copies" / str(step)
        if state == "stopped\n":
            opener = threading.Thread(target=Store, args=(copy,), kwargs={"create": True})
            opener.start()
            opener.join(0.1)  # it may have to wait for the other
            process.stdin.write("\n")
            process.stdin.flush()
            opener.join()
            state = process.stdout.readline()
        assert Store(copy).survey().whole == set(keys(2))
        check_two_runs_can_be_had(Store(copy), set(keys(2)))
        if state == "0\n":
            break
        assert state == "3\n"
    assert step > 10
    assert finish(process) == ""


FORKED = """
import os, sys
from lowland.sweep.store import Store, key_of
store = Store(sys.argv[1])
with store._locked():
    child = os.fork()
    if child == 0:
        sys.stdin.readline()  # lives until its parent has ended, as a worker may
        os._exit(0)
print(store.write(key_of({}), {}, {}), flush=True)
"""


def test_a_child_forked_while_the_store_was_locked_does_not_keep_it_locked(store):
    process = subprocess.Popen(
        [sys.executable, "-c", FORKED, str(store.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.wait(30) == 0
    finally:
        process.kill()
        out, _ = process.communicate("\n")
    assert out == "True\n"


SLOW = """
import os, sys
from lowland.sweep import store as module
from lowland.sweep.store import Store, key_of
real = os.fsync
def waits(descriptor):  # the first file of the run is written, the others are not
    os.fsync = real
    print("writing", flush=True)
    sys.stdin.readline()
    real(descriptor)
os.fsync = waits
print(Store(sys.argv[1]).write(key_of({"i": 0}), {}, {"a": b"a", "b": b"b"}), flush=True)
"""


def test_what_a_living_process_writes_is_not_cleaned_away(store):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(store.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    dead = store.directory / "runs" / f".{key_of({})}-0123abcd"
    for sums in (False, True):  # killed before and after its list of checksums was there
        dead.mkdir()
        if sums:
            (dead / "SHA256SUMS").touch()
        (mine := store.directory / "runs" / ".mine").mkdir(exist_ok=True)
        Store(store.directory, create=True)
        assert not dead.exists()
        assert mine.exists()
        assert len(names(store.directory / "runs")) == 2
    out, _ = process.communicate("\n")
    assert out == "True\n"
    assert store.whole(key_of({"i": 0}))


def test_an_interrupt_leaves_nothing(store, monkeypatch):
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(store, 0)
    assert names(store.directory / "runs") == set()


# --- many processes ------------------------------------------------------------------------------

WORKER = """
import os, random, sys
from lowland.sweep.store import Store, key_of
place, log, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()  # all at once
store = Store(place, create=True)
left = [key_of({"i": i}) for i in range(60)]
random.Random(seed).shuffle(left)
while left:
    for key in list(left):
        if (claim := store.claim(key)) is None:
            continue
        with claim:
            if not store.whole(key):
                with open(log, "a") as file:
                    file.write(f"{key} {seed}\\n")
                run = {"configuration": {"seed": seed}, "status": "done"}
                assert store.write(key, run, {"a": b"a" * 10_000})
            left.remove(key)
print("done")
"""


def test_processes_at_once_do_each_run_once_and_lose_none(tmp_path):
    place, log = tmp_path / "store", tmp_path / "log"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(place), str(log), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [finish(process) for process in processes] == ["done\n"] * 3
    done = [line.split() for line in log.read_text().splitlines()]
    assert Counter(key for key, _ in done) == Counter(keys(60))
    store = Store(place)
    assert store.survey().whole == set(keys(60))
    assert sorted(indexed(store)) == sorted(keys(60))
    assert {row["key"]: str(row["seed"]) for row in store.rows()} == dict(done)
    assert names(place / "claims") == set()
    assert names(place / "runs") == set(keys(60))


def test_writers_of_one_run_without_claims(store):
    """The rename decides: one wins, the others are told so."""
    wrote: list[bool] = []

    def write(i: int) -> None:
        wrote.append(store.write(keys(1)[0], run_of(0, results={"i": i}), FILES))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wrote) == [False] * 7 + [True]
    assert store.survey().whole == set(keys(1))
    assert indexed(store) == keys(1)
    assert names(store.directory / "runs") == set(keys(1))


HOLDER = """
import sys
from lowland.sweep.store import Store
claim = Store(sys.argv[1]).claim(sys.argv[2])
print("held" if claim else "taken", flush=True)
sys.stdin.readline()
"""


def test_a_claim_is_exclusive_and_ends_with_its_process(store):
    key = key_of({})
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.directory), key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert store.claim(key) is None
    assert store.claim(key_of({"i": 0})) is not None
    kill(process)
    assert names(store.directory / "claims") >= {key}  # left by the killed process, and harmless
    claim = store.claim(key)
    assert claim is not None
    assert store.claim(key) is None
    assert Store(store.directory).claim(key) is None
    assert finish(start(HOLDER, store.directory, key)) == "taken\n"
    claim.release()
    claim.release()
    assert key not in names(store.directory / "claims")
    with store.claim(key):
        assert store.claim(key) is None
    assert store.claim(key) is not None


def test_a_claim_is_free_again_although_a_forked_child_lives(store):
    claim = store.claim(key_of({}))
    assert claim is not None
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        pass_fds=[claim._descriptor],  # as a fork would
    )
    try:
        claim.release()
        assert store.claim(key_of({})) is not None
    finally:
        child.communicate(b"\n")


def test_many_threads_claim_one_key_by_turns(store):
    """The holder removes the file that the others have just opened."""
    inside, worst, turns = [0], [0], [0]

    def work() -> None:
        mine = Store(store.directory)
        done = 0
        while done < 50:
            if (claim := mine.claim(keys(1)[0])) is not None:
                with claim:
                    inside[0] += 1
                    worst[0] = max(worst[0], inside[0])
                    turns[0] += 1
                    time.sleep(0)
                    inside[0] -= 1
                done += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (worst[0], turns[0]) == (1, 200)


# --- disks ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory."""
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs the tool mount")
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextlib.contextmanager
def filled(disk: Path, room: int) -> Iterator[None]:
    """All but so many bytes of the disk are taken."""
    filler = disk / "filler"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    filler.write_bytes(b"\0" * max(free - room, 0))
    try:
        yield
    finally:
        filler.unlink()


def failure(attempt: Callable[[], object]) -> str:
    """What an attempt says that fails; nothing if it works."""
    try:
        attempt()
    except InputError as error:
        return str(error)
    return ""


FULL = r"cannot write [^\n]*: No space left on device; make room and permission there and [^\n]*"


def test_a_full_disk_at_every_step_of_a_write(tmp_path):
    with mounted(tmp_path / "disk", "size=1m") as disk:
        store = Store(disk / "store", create=True)
        for i in range(3):
            put(store, i)
        outcomes = []
        for room in range(0, 60_000, 4096):
            with filled(disk, room):
                said = failure(lambda: put(store, 3))
                assert said == "" or re.fullmatch(FULL, said)
                outcomes.append(said != "")
                assert store.survey().damaged == {}
                kept = set(keys(3 if outcomes[-1] else 4))
                assert store.survey().whole == kept
                assert names(store.directory / "runs") == kept  # nothing unfinished is left
                assert {row["key"] for row in store.rows()} == kept  # although it cannot be saved
            if not outcomes[-1]:
                shutil.rmtree(store.path(keys(4)[3]))
        assert set(outcomes) == {True, False}
        assert outcomes == sorted(outcomes, reverse=True)
        put(store, 4)
        assert {row["i"] for row in store.rows()} == {0, 1, 2, 4}


def test_no_names_left_on_the_disk(tmp_path):
    """Every file and directory needs one: it fails at the first, the second, ... of them."""
    outcomes = []
    for inodes in range(3, 24):
        with mounted(tmp_path / "disk", f"size=1m,nr_inodes={inodes}") as disk:
            if said := failure(lambda: Store(disk, create=True)):
                outcomes.append("no store")
            else:
                store = Store(disk)
                said = failure(lambda: put(store, 0))  # noqa: B023
                outcomes.append("no run" if said else "written")
                assert store.survey().damaged == {}
                assert names(disk / "runs") == store.survey().whole
            assert said == "" or re.fullmatch(FULL, said)
    assert list(dict.fromkeys(outcomes)) == ["no store", "no run", "written"]
    assert outcomes.count("no run") > len(NAMES)


def test_a_read_only_disk_can_be_read_and_is_refused_for_writing(tmp_path):
    with mounted(tmp_path / "disk", "size=1m") as disk:
        store = Store(disk / "store", create=True)
        key, damaged = put(store, 0), put(store, 1)
        rows = store.rows()
        (store.path(damaged) / "epochs.csv").write_text("")
        (store.directory / "index.jsonl").unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        again = Store(disk / "store")
        assert again.rows() == rows
        assert again.survey().whole == {key}
        attempts: list[Callable[[], object]] = [
            lambda: Store(disk / "store", create=True),
            lambda: Store(disk / "new", create=True),
            lambda: put(again, 2),
            lambda: again.claim(key_of({"i": 2})),
            lambda: again.set_aside(damaged),
            again.reindex,
            again.export,
            lambda: again.remember("plan", {}),
        ]
        for attempt in attempts:
            with pytest.raises(InputError, match="cannot write .*: Read-only file system; ") as e:
                attempt()
            assert "\n" not in str(e.value)
        assert again.export(tmp_path)[0] == tmp_path / "results.csv"


def test_any_other_error_of_the_disk_is_said_on_one_line(store, monkeypatch):
    """Those that need a quota or a broken disk."""
    for number in (errno.EDQUOT, errno.EIO):
        with monkeypatch.context() as patched:

            def broken(descriptor: int, number: int = number) -> None:
                raise OSError(number, os.strerror(number))

            patched.setattr(os, "fsync", broken)
            with pytest.raises(InputError, match=f"cannot write the run .*{os.strerror(number)}; "):
                put(store, 0)
        assert names(store.directory / "runs") == set()


def test_an_index_that_cannot_be_written_costs_no_run(store):
    (store.directory / "index.jsonl").unlink()
    (store.directory / "index.jsonl").mkdir()
    key = put(store, 0)
    assert [row["key"] for row in store.rows()] == [key]
    with pytest.raises(InputError, match="Is a directory"):
        store.reindex()


def test_it_needs_no_torch_and_no_numpy_until_a_table_is_asked_for(store):
    code = """if True:
        import sys
        from lowland.sweep.store import Store
        Store(sys.argv[1]).rows()
        assert not {"torch", "numpy", "pandas"} & sys.modules.keys()
    """
    process = start(code, store.directory)
    finish(process)
    assert process.returncode == 0
