"""A run is whole or absent, is done once, and none is lost, whatever ends a process."""

import contextlib
import errno
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

import pytest

from lowland import InputError
from lowland.sweep import Store
from lowland.sweep.keys import key_of
from stores import FILES, NAMES, finish, keys, kill, names, put, run_of, start

# --- killed processes ----------------------------------------------------------------------------

WRITER = """
import sys
from lowland.sweep.keys import key_of
from lowland.sweep.store import Store
store = Store(sys.argv[1], create=True)
print("going", flush=True)
for i in range(int(sys.argv[2])):
    key = key_of({"i": i})
    if not store.whole(key):
        files = {name: bytes([i % 256]) * 25_000 for name in "abcd"}
        run = {"configuration": {"i": i}, "status": "done", "results": {"i2": i * i}}
        print(key, store.write(key, run, files), flush=True)
"""


@pytest.mark.slow
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
        assert {row["key"] for row in store.rows()} == visible
    assert leftovers > 0  # or no kill came while a run was written, and nothing was shown

    count = len(visible) + 5
    missing = set(keys(count)) - visible
    lines = finish(start(WRITER, place, count)).splitlines()
    assert sorted(lines[1:]) == sorted(f"{key} True" for key in missing)
    assert store.survey().whole == set(keys(count))
    assert {row["key"] for row in store.rows()} == set(keys(count))


# Works on a copy of a store and gets a signal at the n-th step, for n = 0, 1, ... until the work
# has fewer steps. A step is a name that is opened, made, renamed, locked or removed.
STEPS = """
import itertools, os, shutil, signal, sys, traceback
from lowland.sweep.keys import key_of
from lowland.sweep.store import Store
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
    else:
        store.set_aside(key)
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


@pytest.mark.parametrize("what", ["write", "write over damage", "set_aside"])
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
        assert first in found.whole
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
from lowland.sweep.keys import key_of
from lowland.sweep.store import Store
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
from lowland.sweep.keys import key_of
from lowland.sweep.store import Store
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
from lowland.sweep.keys import key_of
from lowland.sweep.store import Store
place, log, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()  # all at once
store = Store(place, create=True)
left = [key_of({"i": i}) for i in range(60)]
random.Random(seed).shuffle(left)
while left:
    for key in list(left):
        if (lock := store.lock(key)) is None:
            continue
        with lock:
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
    assert {row["key"]: str(row["seed"]) for row in store.rows()} == dict(done)
    assert names(place / "locks") == set()
    assert names(place / "runs") == set(keys(60))


def test_writers_of_one_run_without_locks(store):
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
    assert [row["key"] for row in store.rows()] == keys(1)
    assert names(store.directory / "runs") == set(keys(1))


HOLDER = """
import sys
from lowland.sweep.store import Store
lock = Store(sys.argv[1]).lock(sys.argv[2])
print("held" if lock else "taken", flush=True)
sys.stdin.readline()
"""


def test_a_lock_is_exclusive_and_ends_with_its_process(store):
    key = key_of({})
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.directory), key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert store.lock(key) is None
    assert store.lock(key_of({"i": 0})) is not None
    kill(process)
    assert names(store.directory / "locks") >= {key}  # left by the killed process, and harmless
    lock = store.lock(key)
    assert lock is not None
    assert store.lock(key) is None
    assert Store(store.directory).lock(key) is None
    assert finish(start(HOLDER, store.directory, key)) == "taken\n"
    lock.release()
    lock.release()
    assert key not in names(store.directory / "locks")
    with store.lock(key):
        assert store.lock(key) is None
    assert store.lock(key) is not None


def test_a_lock_is_free_again_although_a_forked_child_lives(store):
    lock = store.lock(key_of({}))
    assert lock is not None
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        pass_fds=[lock._descriptor],  # as a fork would
    )
    try:
        lock.release()
        assert store.lock(key_of({})) is not None
    finally:
        child.communicate(b"\n")


def test_many_threads_lock_one_key_by_turns(store):
    """The holder removes the file that the others have just opened."""
    inside, worst, turns = [0], [0], [0]

    def work() -> None:
        mine = Store(store.directory)
        done = 0
        while done < 50:
            if (lock := mine.lock(keys(1)[0])) is not None:
                with lock:
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
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        again = Store(disk / "store")
        assert again.rows() == rows
        assert again.survey().whole == {key}
        attempts: list[Callable[[], object]] = [
            lambda: Store(disk / "store", create=True),
            lambda: Store(disk / "new", create=True),
            lambda: put(again, 2),
            lambda: again.lock(key_of({"i": 2})),
            lambda: again.set_aside(damaged),
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
