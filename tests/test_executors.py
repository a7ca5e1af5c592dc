"""Every executor by the same battery, and what killing, interrupting and losing do to each."""

import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, as_completed, wait
from pathlib import Path

import pytest

from cluster import Cluster, until
from lowland import InputError
from lowland.sweep import executors
from lowland.sweep.executors import Processes, Serial, WorkerDied, opened

# What the tasks of this file do, as a module that every worker imports.
CHORES = """
import os, signal, time
from pathlib import Path

class Odd(Exception):
    def __init__(self, a, b):  # two arguments, so that pickle cannot make it again
        super().__init__(f"{a} and {b}")

class Unreadable:
    def __reduce__(self):
        return int, ("no number",)

def square(x, *, plus=0):
    return x * x + plus

def fail(text):
    raise KeyError(text)

def fail_oddly():
    raise Odd(1, 2)

def leave():
    raise SystemExit(3)

def unsendable():
    return lambda: None

def die(how):
    os._exit(how) if how > 0 else os.kill(os.getpid(), -how)

def threads():
    import torch
    return torch.get_num_threads()

def tell(path, text):
    Path(path).with_suffix(".part").write_text(text)
    Path(path).with_suffix(".part").rename(path)

def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.01)

def begin(path, seconds):  # tells that it runs, and where
    tell(path, str(os.getpid()))
    time.sleep(seconds)

def begin_once(path):  # never ends, unless it was begun before
    if Path(path).exists():
        return os.getpid()
    begin(path, 90)

def speak(text):
    print(text, flush=True)
    os.system(f"echo {text} of a process")
"""

DASK = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="Dask is not installed"
)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")
OURS = ["processes", pytest.param("dask", marks=DASK)]  # those whose workers we start
# Whole scripts with a cluster of their own take seconds each, and say the same of both.
SCRIPTED = ["processes", pytest.param("dask", marks=[DASK, pytest.mark.slow])]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The directory with the module ``chores``; importable here, too."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "chores.py").write_text(CHORES)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def chores(shop):
    return importlib.import_module("chores")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, shop):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), shop)
    cluster.add_worker()
    cluster.add_worker()
    yield cluster
    cluster.close()


@pytest.fixture(
    scope="module",
    params=["serial", *OURS, pytest.param("tcp", marks=DASK)],
)
def executor(request, shop):
    tcp = request.param == "tcp"
    name = request.getfixturevalue("cluster").address if tcp else request.param
    with opened(name, 2 if request.param in ("processes", "dask") else None) as executor:
        yield executor


def pid_in(path: Path) -> int:
    until(path.exists)
    return int(path.read_text())


# ---------------------------------------------------------------- one battery for all


def test_every_future_has_its_own_result(executor, chores):
    futures = [executor.submit(chores.square, x, plus=1) for x in range(20)]
    assert {f.result(60) for f in as_completed(futures, 60)} == {x * x + 1 for x in range(20)}
    assert [f.result() for f in futures] == [x * x + 1 for x in range(20)]
    assert not wait(futures, 60).not_done
    assert list(executor.map(chores.square, range(5))) == [0, 1, 4, 9, 16]


def test_an_error_comes_back_with_its_type_and_its_place(executor, chores):
    error = executor.submit(chores.fail, "that one").exception(60)
    assert type(error) is KeyError
    assert error.args == ("that one",)
    if not isinstance(executor, Serial):
        assert "chores.py" in error.__notes__[0]
        assert "in fail" in error.__notes__[0]
    assert type(executor.submit(chores.leave).exception(60)) is SystemExit
    assert executor.submit(chores.square, 3).result(60) == 9


def test_what_cannot_travel_is_said_and_the_worker_lives(executor, chores):
    if isinstance(executor, Serial):
        pytest.skip("nothing travels")
    cases = [
        (executor.submit(lambda: 1), "cannot be sent to a worker"),
        (executor.submit(chores.square, chores.Unreadable()), "cannot load the task"),
        (executor.submit(chores.unsendable), "result of the task cannot be sent back"),
    ]
    for future, text in cases:
        with pytest.raises(pickle.PicklingError, match=text):
            future.result(60)
    odd = executor.submit(chores.fail_oddly).exception(60)
    assert (type(odd), str(odd)) == (RuntimeError, "Odd: 1 and 2")
    assert executor.submit(chores.square, 3).result(60) == 9


# ---------------------------------------------------------------- names and numbers


@pytest.mark.parametrize(
    ("name", "workers", "text"),
    [
        ("proceses", None, "did you mean 'processes'"),
        ("slurm", None, "there are serial, processes, dask, and the address"),
        ("processes", 0, "at least 1; got 0"),
        ("serial", 2, "one worker, not 2"),
        ("tcp://127.0.0.1:1", 2, "its own workers"),
    ],
)
def test_a_wrong_name_or_number_is_the_users(name, workers, text):
    with pytest.raises(InputError, match=text), opened(name, workers):
        pass


@pytest.mark.parametrize("name", ["dask", "tcp://127.0.0.1:1"])
def test_without_dask_the_advice_is_how_to_get_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'lowland\[cluster\]'"), opened(name):
        pass


def test_an_interrupt_goes_through_a_serial_task():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), opened("serial") as executor:
        executor.submit(interrupted)


# ---------------------------------------------------------------- processes of ours


def test_a_child_has_one_thread(chores, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    with Processes(1) as executor:
        assert executor.submit(chores.threads).result(60) == 1


def test_a_task_that_has_not_begun_can_be_cancelled(chores, tmp_path):
    with Processes(1) as executor:
        first = executor.submit(chores.begin_once, tmp_path / "began")
        second = executor.submit(chores.square, 2)
        child = pid_in(tmp_path / "began")
        assert not first.cancel()
        assert second.cancel()
        os.kill(child, signal.SIGKILL)
    assert first.result() != child


def test_a_killed_childs_task_is_tried_again(chores, tmp_path):
    with opened("processes", 2) as executor:
        victim = executor.submit(chores.begin_once, tmp_path / "began")
        killed = pid_in(tmp_path / "began")
        before = executor.submit(chores.square, 2).result(60)
        others = [executor.submit(chores.square, x) for x in range(10)]
        os.kill(killed, signal.SIGKILL)
        assert victim.result(60) != killed
    assert (before, [f.result() for f in others]) == (4, [x * x for x in range(10)])


@pytest.mark.parametrize("name", OURS)
def test_a_task_that_kills_every_worker_fails_alone(name, chores):
    with opened(name, 2) as executor:
        others = [executor.submit(chores.square, x) for x in range(10)]
        killer = executor.submit(chores.die, -9)
        others += [executor.submit(chores.square, x) for x in range(10)]
        with pytest.raises(WorkerDied, match="in each of 3 attempts at this task"):
            killer.result(60)
        assert [f.result(60) for f in others] == 2 * [x * x for x in range(10)]


def test_how_a_child_died_is_told(chores):
    with Processes(2) as executor:
        ends = [executor.submit(chores.die, how) for how in (-9, 7)]
        with pytest.raises(WorkerDied, match="was killed by signal 9 in each of 3 attempts"):
            ends[0].result(60)
        with pytest.raises(WorkerDied, match="ended with exit code 7 in each of 3 attempts"):
            ends[1].result(60)


def test_an_exception_in_the_block_stops_what_has_begun(chores, tmp_path):
    with pytest.raises(ZeroDivisionError), opened("processes", 1) as executor:  # noqa: PT012
        begun = executor.submit(chores.begin, tmp_path / "began", 90)
        later = executor.submit(chores.square, 2)
        child = pid_in(tmp_path / "began")
        raise ZeroDivisionError
    assert later.cancelled()
    assert isinstance(begun.exception(60), CancelledError)
    until(lambda: not runs(child))


def runs(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")


# ---------------------------------------------------------------- seen from outside


class Script:
    """A user's program as a process; whatever it starts is known by a mark in the environment."""

    def __init__(self, shop: Path, code: str, *, file: bool = True) -> None:
        self.mark = uuid.uuid4().hex
        code = textwrap.dedent(code)
        (shop / "script.py").write_text(code)
        self.process = subprocess.Popen(
            [sys.executable, *(["script.py"] if file else ["-c", code])],
            cwd=shop,
            env=os.environ | {"MARK": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def family(self) -> set[int]:
        """The script and all that it started, as far as they run."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.add(int(path.parent.name))
            except OSError:  # gone meanwhile, or not ours to read
                continue
        return found


@pytest.fixture
def script(shop) -> Iterator[Callable[..., Script]]:
    started: list[Script] = []

    def start(code: str, **how: bool) -> Script:
        started.append(Script(shop, code, **how))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        for pid in one.family():  # there are some only after a failure
            os.kill(pid, signal.SIGKILL)
        one.process.communicate()


@LINUX
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("processes", True),
        ("processes", False),
        pytest.param("dask", True, marks=[DASK, pytest.mark.slow]),
    ],
)
def test_a_script_without_a_guard_has_stdout_for_itself(name, file, script):
    """Its module is found in its directory, and when it ends nothing of it stays."""
    ran = script(
        f"""
        from lowland.sweep.executors import opened
        import chores
        with opened({name!r}, 2) as executor:
            list(executor.map(chores.speak, ["noise"]))
            print(list(executor.map(chores.square, range(4))))
        """,
        file=file,
    )
    out, err = ran.process.communicate(timeout=60)
    assert (ran.process.returncode, out) == (0, "[0, 1, 4, 9]\n")
    assert sorted(err.splitlines()) == ["noise", "noise of a process"]
    until(lambda: not ran.family())


SLEEPING = """
    from lowland.sweep.executors import opened
    import chores
    with opened({name!r}, 2) as executor:
        for i in range(4):
            executor.submit(chores.begin, {folder!r} + f"/{{i}}", 90)
"""


@LINUX
@pytest.mark.parametrize("name", SCRIPTED)
def test_no_worker_outlives_a_killed_parent(name, script, tmp_path):
    ran = script(SLEEPING.format(name=name, folder=str(tmp_path)))
    workers = {pid_in(tmp_path / "0"), pid_in(tmp_path / "1")}
    assert workers <= ran.family()
    ran.process.kill()
    _, err = ran.process.communicate(timeout=60)  # which ends when nobody holds its stderr
    until(lambda: not ran.family())
    assert err == ""


@LINUX
@pytest.mark.parametrize("name", SCRIPTED)
def test_an_interrupt_of_all_ends_all_and_only_the_parent_speaks(name, script, tmp_path):
    ran = script(SLEEPING.format(name=name, folder=str(tmp_path)))
    workers = {pid_in(tmp_path / "0"), pid_in(tmp_path / "1")}
    for pid in [*(ran.family() - {ran.process.pid}), ran.process.pid]:  # it stops the others
        os.kill(pid, signal.SIGINT)
    _, err = ran.process.communicate(timeout=60)
    assert len(workers) == 2
    assert ran.process.returncode == -signal.SIGINT
    assert (err.count("Traceback"), err.splitlines()[-1]) == (1, "KeyboardInterrupt")
    until(lambda: not ran.family())


# ---------------------------------------------------------------- a cluster that is there


@DASK
def test_the_other_worker_of_a_cluster_takes_over(cluster, chores, tmp_path):
    with opened(cluster.address) as executor:
        victim = executor.submit(chores.begin_once, tmp_path / "began")
        others = [executor.submit(chores.square, x) for x in range(10)]
        killed = pid_in(tmp_path / "began")
        assert killed in [p.pid for p in cluster.processes]
        os.kill(killed, signal.SIGKILL)
        cluster.add_worker()
        assert victim.result(60) != killed
        assert [f.result(60) for f in others] == [x * x for x in range(10)]


@DASK
def test_a_lost_scheduler_fails_what_waits_for_it(shop, chores, tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "_PATIENCE", 2)
    own = Cluster(tmp_path, shop)
    try:
        own.add_worker()
        with opened(own.address) as executor:
            begun = executor.submit(chores.begin, tmp_path / "began", 90)
            pid_in(tmp_path / "began")
            own.scheduler.kill()
            with pytest.raises(BrokenExecutor, match=f"cluster at {own.address} failed"):
                begun.result(60)
            with pytest.raises(BrokenExecutor, match="see that its scheduler runs"):
                executor.submit(chores.square, 2).result(60)
    finally:
        own.close()


@DASK
def test_no_scheduler_is_one_line(script):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [
            "tcp://127.0.0.1:1",
            f"tcp://127.0.0.1:{silent.getsockname()[1]}",
            "tcp://",
            "tls://127.0.0.1:1",
            "nosuch://127.0.0.1:1",
        ]
        ran = script(
            f"""
            from lowland.sweep import executors
            executors._PATIENCE = 0.5
            for address in {addresses}:
                try:
                    with executors.opened(address):
                        pass
                except executors.InputError as error:
                    print(error)
            """
        )
        out, err = ran.process.communicate(timeout=60)
    assert err == ""
    for address, line in zip(addresses, out.splitlines(), strict=True):
        assert line.startswith(f"no Dask scheduler answers at {address} (")
        assert line.endswith("or take --executor dask")


@DASK
def test_an_interrupt_ends_the_waiting_for_a_scheduler(script):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ran = script(
            f"""
            from lowland.sweep import executors
            executors._PATIENCE = 90
            with executors.opened("tcp://127.0.0.1:{silent.getsockname()[1]}"):
                pass
            """
        )
        with silent.accept()[0]:
            ran.process.send_signal(signal.SIGINT)
            _, err = ran.process.communicate(timeout=60)
    assert (ran.process.returncode, err.count("Traceback")) == (-signal.SIGINT, 1)
