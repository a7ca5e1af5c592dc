"""Who runs the tasks of a sweep: this thread, processes of this machine, or a Dask cluster.

Each is a `concurrent.futures.Executor`. Tasks travel as pickled bytes, so a function must be at the
top level of a module that the worker can import; errors come back with their type.
"""

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, BinaryIO, NoReturn, TypeVar

from lowland.errors import InputError
from lowland.wording import suggestion

NAMES = ("serial", "processes", "dask")
# What others call these executors.
_SYNONYMS = {"local": "serial", "none": "serial", "multiprocessing": "processes", "cluster": "dask"}
ATTEMPTS = 3  # that a task gets whose worker dies: once can be chance, thrice is the task

_T = TypeVar("_T")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_AT_ONCE = 256  # tasks handed to a cluster that is not ours, whose size may change
_PATIENCE = 10  # seconds for a scheduler to answer


class WorkerDied(RuntimeError):
    """The process that ran a task ended without an answer, at every attempt."""


@contextlib.contextmanager
def opened(name: str, workers: int | None = None) -> Iterator[Executor]:
    """The executor of this name: ``serial``, ``processes``, ``dask``, or a scheduler's address.

    ``workers`` is how many processes to start, by default one for each core. An address such as
    ``tcp://host:8786`` joins a cluster that has its own. Leaving the block waits for all tasks;
    leaving it by an exception, as Ctrl-C does, drops them and stops the workers at once.
    """
    _check(name, workers)
    workers = workers or _cores()
    with contextlib.ExitStack() as stack:
        if name == "serial":
            yield Serial()
        elif name == "processes":
            yield stack.enter_context(Processes(workers))
        elif name == "dask":
            _check_installed(name)
            address = stack.enter_context(_local_cluster(workers))
            yield stack.enter_context(Dask(address, workers))
        else:
            _check_installed(name)
            yield stack.enter_context(Dask(name))


class Serial(Executor):
    """Runs each task inside ``submit``; an interrupt goes through it to the caller."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """The task's future, already done."""
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            future.set_exception(error)
        return future


class _Fed(Executor):
    """Hands tasks to other processes: each thread of a pool sends one and waits for its answer.

    Threads, futures and their cancelling are those of the standard library.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once  # tasks under way
        self._feeders = ThreadPoolExecutor(at_once, thread_name_prefix="lowland")
        self._lock = threading.Lock()  # nothing begins while it is being stopped
        self._stopped = False

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """A future for what ``fn(*args, **kwargs)`` returns or raises elsewhere."""
        return self._feeders.submit(self._feed, fn, args, kwargs)

    def _feed(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return _unpacked(self._answer(_packed(fn, args, kwargs)))

    @abstractmethod
    def _answer(self, task: bytes) -> bytes:
        """The answer of :func:`_run_task` to a packed task, from another process."""

    @abstractmethod
    def _abandon(self) -> None:
        """Make every thread that waits for an answer stop waiting."""

    def _go_on(self) -> None:
        if self._stopped:
            raise CancelledError("the executor was stopped")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks and, by default, wait for those under way."""
        self._feeders.shutdown(wait=wait, cancel_futures=cancel_futures)
        if wait:
            self.stop()

    def stop(self) -> None:
        """Drop every task, begun or not, and stop the workers now."""
        self._feeders.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._stopped = True
            self._abandon()
        self._feeders.shutdown()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.shutdown()
        finally:  # also when the waiting was interrupted
            self.stop()


class Processes(_Fed):
    """Processes of one thread each; one that dies is replaced, and its task tried again.

    They start when first needed, know nothing of the caller's ``__main__``, write to stderr alone,
    and end when this process does, however it ends.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._children: set[_Child] = set()
        self._idle: list[_Child] = []

    def _answer(self, task: bytes) -> bytes:
        for _ in range(ATTEMPTS):
            child = self._free_child()
            try:
                answer = child.answer(task)
            except WorkerDied as death:
                last = death
                with self._lock:
                    self._children.remove(child)
                self._go_on()
            else:
                self._idle.append(child)
                return answer
        raise WorkerDied(
            f"{last} in each of {ATTEMPTS} attempts at this task; if memory ran out, take fewer "
            "workers or a smaller task"
        )

    def _free_child(self) -> "_Child":
        with self._lock:
            self._go_on()
            if self._idle:
                return self._idle.pop()
            child = _Child()
            self._children.add(child)
            return child

    def _abandon(self) -> None:
        for child in self._children:
            child.process.kill()

    def stop(self) -> None:
        """Drop every task, begun or not, and kill the processes."""
        super().stop()
        while self._children:
            self._children.pop().end()


class Dask(_Fed):
    """A Dask cluster by the address of its scheduler, which gives a dead worker's task to another.

    Dask cannot interrupt a task that has begun: stopping makes nobody wait for it any more.
    """

    def __init__(self, address: str, at_once: int = _AT_ONCE) -> None:
        from distributed import Client
        from distributed.utils import silence_logging_cmgr

        super().__init__(at_once)
        self._address = address
        self._begun: set[Any] = set()  # futures of Dask's own kind
        # A client that fails while it is made, and that nobody holds, waits for itself to close.
        self._client = client = Client.__new__(Client)
        with contextlib.ExitStack() as stack:
            stack.enter_context(silence_logging_cmgr(logging.CRITICAL + 1))
            stack.callback(self._close)
            try:
                # In a thread, for it waits without end for a server that does not speak Dask.
                how = {"timeout": _PATIENCE, "set_as_default": False}
                made = self._feeders.submit(Client.__init__, client, address, **how)
                made.result(_PATIENCE + 1)
            except Exception as error:  # of many types: names, sockets, protocols, certificates
                raise InputError(
                    f"no Dask scheduler answers at {address} ({_said(error)}); start one with "
                    "`dask scheduler`, which tells its address, or take --executor dask"
                ) from error
            self._after = stack.pop_all()

    def _close(self) -> None:
        with contextlib.suppress(Exception):  # a client half made, or a scheduler that is gone
            self._client.close()

    def _answer(self, task: bytes) -> bytes:
        from distributed import KilledWorker

        try:
            with self._lock:
                self._go_on()
                begun = self._client.submit(_run_task, task, pure=False)
                self._begun.add(begun)
            try:
                return begun.result()
            finally:
                self._begun.discard(begun)
        except KilledWorker as error:
            raise WorkerDied(
                f"the Dask worker died in each of {error.allowed_failures + 1} attempts at this "
                "task; if memory ran out, take fewer workers or a smaller task"
            ) from error
        except Exception as error:  # the task's own are in the answer
            self._go_on()
            raise BrokenExecutor(
                f"the Dask cluster at {self._address} failed ({_said(error)}); see that its "
                "scheduler runs and its workers can import lowland"
            ) from error

    def _abandon(self) -> None:
        with contextlib.suppress(Exception):  # a connection that is lost
            self._client.cancel(list(self._begun), force=True)

    def stop(self) -> None:
        """Drop every task, begun or not, and leave the cluster."""
        try:
            super().stop()
        finally:  # also at a second Ctrl-C: no thread may wait for the cluster any more
            self._after.close()


class _Child:
    """A Python process that performs one task after the other until our end of its pipe closes."""

    def __init__(self) -> None:
        path = [str(p) for p in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from {__name__} import _serve; _serve()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | _ONE_THREAD,
            process_group=0,  # away from the terminal's Ctrl-C, from the first moment
        )

    def answer(self, task: bytes) -> bytes:
        """The outcome of a task, packed; WorkerDied if the process ends before it is there."""
        assert self.process.stdin
        assert self.process.stdout
        try:
            pickle.dump(task, self.process.stdin)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):  # the last one: half an answer
            code = self.end()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise WorkerDied(f"the worker process {how}") from None

    def end(self) -> int:
        """Kill the process if it still runs; its exit code."""
        self.process.kill()
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # what it did not read any more
                pipe and pipe.close()
        return code


def _serve() -> NoReturn:
    """The main function of a child: it reads tasks from stdin and writes outcomes to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    nothing = os.open(os.devnull, os.O_RDWR)  # first, to become descriptor 2 if that is closed
    tasks, outcomes = open(os.dup(0), "rb"), open(os.dup(1), "wb")  # noqa: SIM115
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    waiting: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(tasks, waiting), daemon=True).start()
    while True:
        pickle.dump(_run_task(waiting.get()), outcomes)
        outcomes.flush()


def _receive(tasks: BinaryIO, waiting: "SimpleQueue[bytes]") -> None:
    """Read tasks, and end the process at the end of the pipe, when nobody waits for an outcome."""
    try:
        while True:
            waiting.put(pickle.load(tasks))
    finally:
        os._exit(0)


def _packed(fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> bytes:
    with _travelling("the task cannot be sent to a worker"):
        return pickle.dumps((fn, args, kwargs or {}))


def _run_task(task: bytes) -> bytes:
    """Run a packed task, and return its result, or its error with the traceback, packed."""
    try:
        with _travelling("the worker cannot load the task"):
            fn, args, kwargs = pickle.loads(task)
        result = fn(*args, **kwargs)
        with _travelling("the result of the task cannot be sent back"):
            return pickle.dumps((result, None, ""))
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))  # many an error can be written but not read
        except Exception:
            error = RuntimeError(_said(error))
        return pickle.dumps((None, error, trace))


def _unpacked(outcome: bytes) -> Any:
    result, error, trace = pickle.loads(outcome)
    if error is not None:
        error.add_note(f"In the worker:\n{trace}")
        raise error
    return result


@contextlib.contextmanager
def _travelling(failure: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise pickle.PicklingError(
            f"{failure} ({_said(error)}); it may hold only what can be pickled, and functions and "
            "classes at the top level of a module that can be imported, not of a script"
        ) from error


@contextlib.contextmanager
def _local_cluster(workers: int) -> Iterator[str]:
    """The address of a cluster that lives in a child of ours, and ends with it."""
    host = _Child()
    try:
        yield _unpacked(host.answer(_packed(_start_cluster, (workers,))))
        host.answer(_packed(_close_cluster))
    finally:
        host.end()  # with it its workers: each watches a pipe


_clusters: list[Any] = []  # of a host, which keeps its one alive


def _start_cluster(workers: int) -> str:
    # Before the import, and for the processes to come: the terminal is not Dask's. Killed workers
    # leave semaphores, which multiprocessing takes away, but not without a warning.
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
    os.environ["PYTHONWARNINGS"] = "ignore::UserWarning:multiprocessing.resource_tracker"
    from distributed import LocalCluster

    cluster = LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        memory_limit=0,
        dashboard_address="127.0.0.1:0",  # none makes it take, or miss, the usual port
        silence_logs=logging.CRITICAL,
        scheduler_kwargs={"allowed_failures": ATTEMPTS - 1, "dashboard": False},
    )
    _clusters.append(cluster)
    return cluster.scheduler_address


def _close_cluster() -> None:
    _clusters.pop().close()


def _check(name: str, workers: int | None) -> None:
    if name not in NAMES and "://" not in name:
        hint = suggestion(name, NAMES, _SYNONYMS)
        raise InputError(
            f"no executor named {name!r}; there are {', '.join(NAMES)}, and the address of a Dask "
            f"scheduler such as tcp://host:8786{hint and f'; {hint}'}"
        )
    if workers is None:
        return
    if workers < 1:
        raise InputError(f"workers must be at least 1; got {workers}")
    if name == "serial" and workers > 1:
        raise InputError(f"the executor serial has one worker, not {workers}; take processes")
    if "://" in name:
        raise InputError(f"the cluster at {name} has its own workers; leave out the {workers}")


def _check_installed(name: str) -> None:
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"the executor {name} needs Dask ({error}); pip install 'lowland[cluster]'"
        ) from error


def _cores() -> int:
    """How many cores this process may use: a container or a batch system can limit them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
