"""The names of runs in a store: they change with every setting and with the code behind it."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lowland.errors import InputError
from lowland.sweep.record import with_floats
from lowland.sweep.source import digest
from lowland.sweep.trial import Run, Trial
from lowland.usercode import imported

# Where a run begins, beside the user's own modules.
_BEGINS = ("lowland.sweep.perform",)
_TRAINING_BEGINS = ("lowland.experiment.subject", "lowland.training")
_USERS = ("data", "network", "loss", "optimizer", "details")  # they may name functions


def key(run: Run) -> str:
    """Return the name of a run: another one after a change of any setting, or of code it runs."""
    settings = run.to_dict()
    return key_of({**settings, "source": _source(settings, _BEGINS)})


def key_here(run: Run) -> str | None:
    """Return the key that a run has by the code that is here, or None if some of it is not.

    Nothing is imported for it.
    """
    settings = run.to_dict()
    source = source_of(settings)
    return None if source is None else key_of({**settings, "source": source})


def training_key(run: Run) -> str:
    """Return a key that is equal for runs that train the same network in the same way, by one code.

    A trial trains what it likes, and shares it with no other.
    """
    if isinstance(run, Trial):
        return key(run)
    settings = run.training()
    return key_of({**settings, "source": _source(settings, _TRAINING_BEGINS)})


def sweep_key(runs: Collection[Run]) -> str:
    """Return the name of a sweep: equal for the same runs in another order."""
    return key_of({"runs": sorted(key(run) for run in runs)})


def source_of(settings: Mapping[str, Any]) -> str | None:
    """Return the digest of all code that a run with these settings imports.

    It is None if that cannot be told, because a module of the user's is not here.
    """
    return digest(_roots(settings, _BEGINS))


def is_current(run: Mapping[str, Any]) -> bool | None:
    """Tell whether a stored run was done by the code that is here now; None if unknown."""
    settings, code = run.get("configuration"), run.get("code")
    if not isinstance(settings, Mapping) or not isinstance(code, Mapping):
        return None
    now = source_of(settings)
    return None if now is None else code.get("source") == now


def _source(settings: Mapping[str, Any], begins: tuple[str, ...]) -> str:
    """Return the digest of what a run imports; an error names a function that is not here."""
    for name, path in _functions(settings):
        imported(path, name)
    return str(digest(_roots(settings, begins)))


def _roots(settings: Mapping[str, Any], begins: tuple[str, ...]) -> frozenset[str]:
    """Return the modules that a run begins with; a trial begins with its function alone."""
    users = [path.partition(":")[0] for _, path in _functions(settings)]
    return frozenset(users if "function" in settings else [*begins, *users])


def _functions(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the user's functions that settings name as ``pkg.module:name``, with the setting."""
    for name in ("function",) if "function" in settings else _USERS:
        value = settings.get(name)
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, str) and ":" in path:
                yield name, path


def key_of(document: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of SHA-256 of a document.

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
