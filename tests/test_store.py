"""A run of a sweep is whole or damaged, is found by its key, and stands in the table of all."""

import csv
import hashlib
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowland import InputError
from lowland.sweep import Store
from lowland.sweep.keys import key_of, source_of
from stores import FILES, NAMES, content, keys, names, put, run_of

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


def test_what_is_no_json_is_refused_before_anything_is_written(store):
    before = content(store.directory)
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.write(key_of({}), {"results": {"loss": object()}}, FILES)
    assert content(store.directory) == before
    assert names(store.directory / "runs") == set()


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/b", "..", ".", "", "a\\b", "a\nb", ".hidden", "SHA256SUMS"]
)
def test_no_file_of_a_run_leaves_its_directory(store, name):
    before = content(store.directory)
    with pytest.raises(InputError, match="expected the name of a file"):
        store.write(key_of({}), run_of(0), {**FILES, name: b"x"})
    assert content(store.directory) == before
    assert names(store.directory / "runs") == set()


def test_no_list_of_a_run_leads_out_of_its_directory(store, tmp_path):
    key = put(store, 0)
    (tmp_path / "other").write_text("not of the run")
    sums = store.path(key) / "SHA256SUMS"
    digest = hashlib.sha256(b"not of the run").hexdigest()
    sums.write_text(f"{digest}  ../../../other\n{sums.read_text()}")
    assert store.survey().damaged == {key: "SHA256SUMS is not a list that Lowland wrote"}


def test_keys_that_are_none(store):
    for key in ("", "..", "../../etc", "0" * 15, "G" * 16, "0" * 16 + "\n"):
        for use in (store.path, store.whole, store.read, store.lock, store.set_aside):
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
        "arrays.npz cannot be read: it is a directory",
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


# --- the table -----------------------------------------------------------------------------------


def test_the_table_follows_the_directories(store):
    for i in range(4):
        put(store, i)
    shutil.rmtree(store.path(keys(4)[2]))
    assert {row["i"] for row in store.rows()} == {0, 1, 3}
    (store.path(keys(4)[1]) / "run.json").write_text("{")
    assert {row["i"] for row in store.rows()} == {0, 3}
    assert {row["i"] for row in Store(store.directory, create=True).rows()} == {0, 3}


def test_a_number_edited_in_a_run_is_not_shown(store):
    for i in range(2):
        put(store, i)
    file = store.path(keys(2)[1]) / "run.json"
    before = file.read_text()
    file.write_text(before.replace('"loss": 0.1', '"loss": 0.7'))
    assert file.read_text() != before
    assert [row["key"] for row in store.rows()] == keys(1)


def test_rows_are_flat_and_have_the_same_columns(store):
    put(store, 0, configuration={"i": 0, "net": {"sizes": [3, 2], "bias": True}, "key": "mine"})
    put(store, 1, results={"epochs": 7, "i": 5}, status="failed", reason="diverged", seconds=None)
    by_key = {row["key"]: row for row in store.rows()}
    assert [row["key"] for row in store.rows()] == sorted(by_key)
    first, second = (by_key[key] for key in keys(2))
    assert set(first) == {
        *("key", "status", "i", "net.sizes", "net.bias", "configuration.key"),
        *("loss", "fits", "epochs", "results.i", "seconds", "reason", "code", "current"),
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
        "code": source_of({}),
        "current": True,
    }
    assert second == {
        **dict.fromkeys(first),
        "key": keys(2)[1],
        "status": "failed",
        "i": 1,
        "epochs": 7,
        "results.i": 5,
        "reason": "diverged",
        "code": source_of({}),
        "current": True,
    }


def test_the_table_and_its_files(store, tmp_path):
    import pandas

    assert list(store.table().columns) == ["key", "status"]
    for i in range(3):
        put(store, i, configuration={"i": i, "lr": 0.1 if i else "auto"})
    table = store.table()
    assert list(table.columns) == [
        *("key", "status", "i", "lr", "loss", "fits", "seconds", "reason", "code", "current")
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


def test_rows_of_other_code_are_told_apart_and_left_out_of_the_table(store, tmp_path, monkeypatch):
    """Of the code that is here, of other code, of none, and of a user's file that is gone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "nets.py").write_text("raise AssertionError('imported')")
    here = {"network": "mypackage.nets:build"}
    gone = {**here, "loss": "gone.losses:loss"}
    own = source_of(here)
    cases: list[tuple[dict[str, str], dict[str, Any], bool | None]] = [
        ({}, {"source": source_of({})}, True),
        ({}, {"source": own}, False),
        (here, {"source": own}, True),
        (here, {"source": "0" * 16}, False),
        (here, {"lowland": "0"}, False),
        (gone, {"source": own}, None),
    ]
    for i, (settings, code, _) in enumerate(cases):
        put(store, i, configuration={"i": i, **settings}, code=code, results={f"r{i}": i})
    rows = sorted(store.rows(), key=lambda row: row["i"])
    told = [(code.get("source"), current) for _, code, current in cases]
    assert [(row["code"], row["current"]) for row in rows] == told
    current = {i for i, case in enumerate(cases) if case[2] is not False}
    assert set(store.table()["i"]) == current
    assert {f"r{i}" for i in range(6)} & set(store.table().columns) == {f"r{i}" for i in current}
    assert set(store.table(old=True)["i"]) == set(range(6))
    for old, expected in ((False, current), (True, set(range(6)))):
        with open(store.export(old=old)[0], newline="") as file:
            assert {int(row["i"]) for row in csv.DictReader(file)} == expected


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
