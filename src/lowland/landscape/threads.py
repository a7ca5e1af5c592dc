"""One point for each core, in place of all cores for each operation of one point.

Operations of small layers are too short to share: threads wait for each other after every one of
them, and for long where other programs run. Python's threads do, since torch lets go of the
interpreter within an operation. The results do not depend on it.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")


@contextlib.contextmanager
def threads_kept() -> Iterator[None]:
    """Put back the number of torch's threads, also after an exception inside of a generator."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def side_by_side(function: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
    """``function`` of every item, in order, as many at a time as torch has threads.

    No more results than that wait to be taken.
    """
    workers = torch.get_num_threads()
    if workers == 1:
        yield from map(function, items)
        return

    def alone(item: A) -> B:
        with torch.no_grad():
            return function(item)

    waiting: deque[Future[B]] = deque()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for item in items:
            waiting.append(pool.submit(alone, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(workers)
