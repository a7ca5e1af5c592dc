"""Files as somebody might make them who wishes a reader ill."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# In place of any value: others, of other types, beyond every size, and what a terminal obeys.
EVIL: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 10**19, -(10**19), 10**400, 0.5, -1e308, 1e-320),
    *("NaN", "Infinity", "-Infinity", "", "x", "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe\r\n"),
    *("=cmd|' /C calc'!A0", "<script>alert(1)</script>", "duality/sigma_g", "9" * 5000),
    *("a" * 100_000, [], {}, [1, 2], {"a": {"b": 1}}, [[[]]], "../../../etc/passwd", "\ud800"),
)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a document, the document itself first."""
    yield way
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*way, name))


def mutated(document: Any, way: tuple[Any, ...], evil: Any) -> Any:
    """Return the document with another value at a place."""
    if not way:
        return evil
    other = copy.deepcopy(document)
    here = other
    for name in way[:-1]:
        here = here[name]
    here[way[-1]] = evil
    return other


def mutations(document: Any, seed: int) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield place, value and document without end; now and then a value is taken away or added."""
    chance = random.Random(seed)
    ways = list(places(document))
    while True:
        way, evil = chance.choice(ways), chance.choice(EVIL)
        other = mutated(document, way, evil)
        if chance.random() < 0.1 and way and isinstance(way[-1], str):
            *outer, last = way
            here = document
            for name in outer:
                here = here[name]
            renamed = {name: value for name, value in here.items() if name != last}
            other = mutated(document, tuple(outer), {**renamed, "unknown": evil})
        yield way, evil, other


def written(document: Any) -> bytes:
    """Return a document as JSON with whatever it holds, lone surrogates included."""
    return json.dumps(document).encode()


def traps(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield what may lie in a file's place and never end, by name, with a function that lays it."""
    import os

    def huge(path: Path) -> None:
        with open(path, "wb") as file:
            file.truncate(2**42)

    yield "a device", lambda path: path.symlink_to("/dev/zero")
    yield "a random device", lambda path: path.symlink_to("/dev/urandom")
    yield "a pipe", lambda path: os.mkfifo(path)
    yield "a directory", lambda path: path.mkdir()
    yield "a link to itself", lambda path: path.symlink_to(path.name)
    yield "a huge file", huge
    yield "a file without an end", lambda path: path.symlink_to("/proc/self/pagemap")
