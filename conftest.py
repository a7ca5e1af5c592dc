"""What every test, and every process that a test starts, can rely on.

One thread: the models are tiny, so more threads only wait for each other; beside another process
that does the same they wait for very long. And interrupts that arrive: a shell starts its
background jobs with SIGINT ignored, which all their children inherit.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from lowland.sweep import Store

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and for subprocesses
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples everywhere, and none fails for being slow on a busy machine.
settings.register_profile(
    "lowland", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("lowland")

# The files that take longest, which workers take whole: first, so that none is left at the end.
LONG = ("uses", "measures", "faults", "executors", "studies", "analysis", "cli", "sweep", "report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


@pytest.fixture(autouse=True)
def users_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget modules that a test wrote and imported: another test has others of their names."""
    before = set(sys.modules)
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and str(file).startswith(written):
            del sys.modules[name]


@pytest.fixture
def store(tmp_path: Path) -> "Store":
    """Return a store of runs, still empty."""
    from lowland.sweep import Store

    return Store(tmp_path / "store", create=True)


@pytest.fixture
def lightning() -> ModuleType:
    return pytest.importorskip("lightning", reason="needs the package lightning")


@pytest.fixture
def transformers() -> ModuleType:
    pytest.importorskip("accelerate", reason="needs the package accelerate")
    return pytest.importorskip("transformers", reason="needs the package transformers")
