"""The names of runs in a store: they change with every setting and with the code behind it."""

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowland.errors import InputError
from lowland.sweep.record import with_floats
from lowland.sweep.trial import Run, Trial
from lowland.usercode import imported, source_digest

# The rooms of this package (its folders and files) whose code decides the trained weights.
TRAINING_ROOMS = frozenset(
    {"losses", "batches", "distributed", "data", "optim", "training", "experiment"}
)
# Rooms that say, show, hand out or keep what others compute, or that no run calls. All the rest
# decides what is recorded of a run: a new room counts until it is named here.
SILENT_ROOMS = frozenset(
    {"__init__", "__main__", "errors", "atomic", "manifest", "report", "figures", "reference"}
    | {"comparison", "radius", "probe", "sweep", "studies", "integrations", "cli"}
)

_PACKAGE = Path(__file__).parents[1]


def key(run: Run) -> str:
    """The name of a run: another one after a change of any setting, or of code that it runs."""
    return key_of({**run.to_dict(), **_code(run, code_digest())})


def training_key(run: Run) -> str:
    """A key that is equal for runs that train the same network in the same way and by one code.

    A trial trains what it likes, and shares it with no other.
    """
    if isinstance(run, Trial):
        return key(run)
    digest = code_digest(TRAINING_ROOMS)
    return key_of({**run.training(), **_code(run, digest)})


@functools.cache
def code_digest(rooms: frozenset[str] | None = None, package: Path = _PACKAGE) -> str:
    """16 hexadecimal digits of SHA-256 of our own source, by default of all that makes numbers.

    It is taken over names and contents of the files in these rooms, with Unix line ends: the same
    source gives the same digest on every machine.
    """
    digest = hashlib.sha256()
    files = [file for file in package.rglob("*.*") if file.suffix in (".py", ".c")]
    for file in sorted(files, key=lambda file: file.relative_to(package).parts):
        name = file.relative_to(package)
        room = name.with_suffix("").parts[0]
        if room in rooms if rooms is not None else room not in SILENT_ROOMS:
            content = file.read_bytes().replace(b"\r\n", b"\n")
            digest.update(f"{name.as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def _code(run: Run, own: str) -> dict[str, str]:
    """The digest of our own code, and of each file that functions of the user come from."""
    users = users_code(run)
    return {"lowland": own, **{f"{name} source": digest for name, digest in users.items()}}


def users_code(run: Run) -> dict[str, str]:
    """The digest of the file that each function of the user comes from, by its setting."""
    places = ("function",) if isinstance(run, Trial) else ("data", "network", "loss", "optimizer")
    names = {name: getattr(run, name) for name in places}
    return {name: _users_code(path, name) for name, path in names.items() if ":" in path}


def is_current(run: Mapping[str, Any]) -> bool | None:
    """Whether a stored run was done by the code that is here now: Lowland's and the user's.

    None if that cannot be told, because a file of the user's is not here.
    """
    code = run.get("code") or {}
    if code.get("source") != code_digest():
        return False
    now = {name: source_digest(run["configuration"][name]) for name in code.get("users", {})}
    if any(digest and digest != code["users"][name] for name, digest in now.items()):
        return False
    return True if all(now.values()) else None


@functools.cache
def _users_code(path: str, option: str) -> str:
    imported(path, option)
    return source_digest(path)


def key_of(document: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of SHA-256 of a document.

    The order of names does not matter, nor whether a number is written 1 or 1.0.
    """
    try:
        plain = with_floats(document, lambda x: int(x) if x.is_integer() else x)
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            "a configuration is made of finite numbers, texts, true, false, none, lists and "
            f"mappings from texts; {error}"
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]
