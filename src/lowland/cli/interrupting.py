"""Interrupts that come while the main thread is in one long call of a library.

Python runs a handler between two of its own instructions only, and an eigendecomposition of a few
thousand rows is one instruction of half a minute.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

from lowland.cli.terminal import complain

_PATIENCE = 1.0  # seconds in which a handler runs, unless the main thread is in such a call
_LEEWAY = 0.2  # seconds by which a handler may run before its signal is heard here

_last_noticed = -1.0


def noticed() -> None:
    """To be called by the handlers of signals: the main thread has noticed one."""
    global _last_noticed
    _last_noticed = time.monotonic()


@contextlib.contextmanager
def listening(signals: set[int]) -> Iterator[None]:
    """Hear these signals in a thread: the second that goes unnoticed ends the process at once.

    Elsewhere than on POSIX systems pipes cannot be told of signals, and they wait.
    """
    if os.name != "posix":
        yield
        return
    hearing, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_listen, args=(hearing, signals), daemon=True).start()
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A forked worker's signals are its own.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        os.close(writing)


def _listen(hearing: int, signals: set[int]) -> None:
    heard = 0
    while received := os.read(hearing, 1):  # empty when the other end is closed
        if received[0] not in signals:
            continue
        began = time.monotonic()
        heard += 1
        time.sleep(_PATIENCE)
        if _last_noticed > began - _LEEWAY:
            continue
        if heard > 1:
            complain("stopped at once; what was under way is lost")
            os._exit(128 + received[0])
        complain("stopping when this step ends; a second interrupt ends it at once")
    os.close(hearing)
