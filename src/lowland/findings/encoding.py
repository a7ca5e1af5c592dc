"""Dataclasses as JSON and arrays, and back again.

The types of the fields are the format: whatever is written is checked against them when it is
read, and what does not fit is refused with the place where it stands. Arrays lie beside the JSON,
which holds their names. JSON has no name for numbers that are not finite; they are the texts
"NaN", "Infinity" and "-Infinity".
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from lowland.errors import InputError

Arrays = dict[str, np.ndarray]
T = TypeVar("T")
MOST = 2**53  # up to here every whole number has a float

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def encode(value: Any, arrays: Arrays, name: str = "") -> Any:
    """The value as dictionaries, lists and plain values that JSON can hold.

    Arrays are put into ``arrays``. Each is called by the way to it, ``name`` first, without the
    names of dataclasses inside of dataclasses: ``duality/sigma_g``, whichever part of the
    decomposition holds it.
    """
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        outer = f"{name}/" if name else ""
        return {
            key: encode(inner, arrays, (name or key) if is_dataclass(inner) else outer + key)
            for key, inner in parts.items()
        }
    if isinstance(value, np.ndarray):
        if name in arrays:
            raise ValueError(f"two arrays are called {name!r}")
        arrays[name] = value
        return name
    if isinstance(value, Mapping):
        return {key: encode(inner, arrays, f"{name}/{key}") for key, inner in value.items()}
    if isinstance(value, tuple):
        return [encode(inner, arrays, f"{name}/{i}") for i, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{name} is {type(value).__name__}, which has no form in JSON")


def decode(kind: type[T], document: Any, arrays: Mapping[str, np.ndarray]) -> T:
    """The value of type ``kind`` that :func:`encode` wrote, or an error that names what is wrong.

    >>> decode(tuple[int, ...], [1, 2.5], {})
    Traceback (most recent call last):
    ...
    lowland.errors.InputError: [1] should be a whole number; it is 2.5
    """
    left = dict(arrays)
    value: T = _decode(kind, document, left, "")
    if left:
        raise InputError(f"the array {next(iter(left))!r} belongs to nothing")
    return value


def _decode(kind: Any, came: Any, left: Arrays, place: str) -> Any:
    """One value; the arrays that it takes are taken out of ``left``."""
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, came, left, place)
    if origin in (UnionType, Union):
        return _decode_one_of(args, came, left, place)
    if origin is Literal:
        if came not in args or isinstance(came, bool):
            _refuse(place, " or ".join(map(repr, args)), came)
        return came
    if origin is tuple:
        many = args[-1] is Ellipsis
        if not isinstance(came, list) or not (many or len(came) == len(args)):
            _refuse(place, "a list" if many else f"a list of {len(args)}", came)
        kinds = [args[0]] * len(came) if many else args
        return tuple(
            _decode(inner, value, left, f"{place}[{i}]")
            for i, (inner, value) in enumerate(zip(kinds, came, strict=True))
        )
    if origin is dict:
        if not isinstance(came, dict):
            _refuse(place, "an object", came)
        return {key: _decode(args[1], value, left, f"{place}.{key}") for key, value in came.items()}
    if kind is np.ndarray:
        if not isinstance(came, str) or came not in left:
            _refuse(place, "the name of an array", came)
        if left[came].dtype.kind not in "biuf":
            _refuse(place, "an array of numbers", left[came].dtype)
        return left.pop(came)
    return _decode_plain(kind, came, place)


def _decode_dataclass(kind: type, came: Any, left: Arrays, place: str) -> Any:
    if not isinstance(came, dict):
        _refuse(place, "an object", came)
    types = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    here = place.removeprefix(".") or "the document"
    for key in came:
        if key not in names:
            raise InputError(f"{here} has {key!r}, which is not known")
    for name in names:
        if name not in came:
            raise InputError(f"{here} has no {name!r}")
    return kind(
        **{name: _decode(types[name], came[name], left, f"{place}.{name}") for name in names}
    )


def _decode_one_of(kinds: tuple[Any, ...], came: Any, left: Arrays, place: str) -> Any:
    if came is None and NoneType in kinds:
        return None
    rest = [kind for kind in kinds if kind is not NoneType]
    if len(rest) == 1:
        return _decode(rest[0], came, left, place)
    for kind in rest:  # plain values: the first that it is
        try:
            return _decode_plain(kind, came, place)
        except InputError:
            continue
    return _refuse(place, " or ".join(_EXPECTED[kind] for kind in rest), came)


def _decode_plain(kind: Any, came: Any, place: str) -> Any:
    if kind is float:
        if isinstance(came, str) and came in _NOT_FINITE:
            return _NOT_FINITE[came]
        if type(came) in (int, float):
            with contextlib.suppress(OverflowError):  # of a whole number that no float holds
                return float(came)
    elif kind is int and type(came) is int and not -MOST <= came <= MOST:
        _refuse(place, f"a whole number of at most {MOST:,}", came)
    elif type(came) is kind:
        return came
    return _refuse(place, _EXPECTED[kind], came)


def _refuse(place: str, expected: str, came: Any) -> Any:
    try:
        shown = repr(came)
    except ValueError:  # Python refuses to print numbers of thousands of digits
        shown = "a number too long to show"
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    here = place.removeprefix(".") or "the document"
    raise InputError(f"{here} should be {expected}; it is {shown}")
