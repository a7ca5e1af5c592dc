"""Weights from files and to files. Nothing in a checkpoint is ever executed."""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lowland.errors import InputError

_WRAPPERS = ("module", "_orig_mod")  # what DDP and torch.compile put into every name
_NESTS = ("state_dict", "model_state_dict", "model")  # where training scripts put a state dict


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a ``.safetensors`` or torch checkpoint into ``model``.

    Parameters and buffers must match by name and shape; their precision becomes the model's.
    Names may carry what DDP, ``torch.compile`` or a wrapper such as Lightning's put before them,
    and tied weights may be stored once. Torch files are read with ``weights_only=True``; a state
    dict may also lie under ``state_dict``, ``model_state_dict`` or ``model``.
    """
    expected = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    if any(is_lazy(v) for v in expected.values()):
        raise InputError(
            "the model has lazy layers without a shape; run it once on an input where it is built"
        )
    stored_as = _named_as(expected, _read(path))
    stored = {_place(v) for k, v in expected.items() if k in stored_as and v.data_ptr()}
    missing = [k for k, v in expected.items() if k not in stored_as and _place(v) not in stored]
    unexpected = [k for k in stored_as if k not in expected]
    differing = [
        f"{k} is {_form(stored_as[k])} in the file and {_form(v)} in the model"
        for k, v in expected.items()
        if k in stored_as and (stored_as[k].shape != v.shape or _kind(stored_as[k]) != _kind(v))
    ]
    problems = [
        f"{what} {_some(names)}"
        for what, names in (
            ("the file lacks", missing),
            ("the model has no place for", unexpected),
            ("the shapes or types differ:", differing),
        )
        if names
    ]
    if problems:
        raise InputError(
            f"checkpoint {path} does not fit the model: {'; '.join(problems)}. Check that the "
            "model is built as the one that was saved"
        )
    try:
        model.load_state_dict(stored_as, strict=False)  # by now only tied names can be missing
    except RuntimeError as error:
        raise InputError(f"checkpoint {path} does not fit the model: {error}") from error


def weights_bytes(model: nn.Module) -> bytes:
    """Parameters and buffers as the content of a safetensors file; tied ones under each name."""
    return save({k: v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()})


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(
            f"checkpoint {path} is a directory; name the file in it"
            if path.is_dir()
            else f"there is no checkpoint file {path}; expected .safetensors, or a torch file"
        )
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            _check_unpacked(path)
            with (
                warnings.catch_warnings()
            ):  # an unusual pickle protocol: not a reason to refuse the file
                warnings.simplefilter("ignore")
                content = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # garbage makes torch's reader raise anything, IndexError included
        raise InputError(_why_unreadable(path, error)) from error
    for key in _NESTS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        came = type(content).__name__
    elif not all(isinstance(v, Tensor) for v in content.values()):
        came = f"a dict of {_some([f'{k} ({type(v).__name__})' for k, v in content.items()])}"
    else:
        return {str(k): v for k, v in content.items()}
    raise InputError(
        f"checkpoint {path} holds {came}; expected a state dict of tensors, alone or under "
        f"{', '.join(map(repr, _NESTS))}: save model.state_dict()"
    )


def _check_unpacked(path: Path) -> None:
    """Refuse a torch file that unpacks to more than itself.

    ``torch.save`` writes a zip archive without compression. One with it may be small and fill the
    memory, before any tensor in it can be compared with the model's.
    """
    if not zipfile.is_zipfile(path):
        return  # torch's older format, which has no compression either, or nothing that torch reads
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > path.stat().st_size:
        raise InputError(
            f"checkpoint {path} is refused: it has {path.stat().st_size:,} bytes and unpacks to "
            f"{size:,}, and torch.save compresses nothing; save it anew with torch.save, or use "
            "safetensors"
        )


def _why_unreadable(path: Path, error: Exception) -> str:
    text = str(error)
    if isinstance(error, pickle.UnpicklingError):
        wanted = re.search(r"GLOBAL ([\w.]+)", text)
        came = f"it wants to run {wanted[1]}" if wanted else "it is not a plain file of tensors"
        return (
            f"checkpoint {path} is refused: {came}, and a pickle can run any code; save only "
            "model.state_dict(), or use safetensors"
        )
    if not path.stat().st_size:
        return f"checkpoint {path} is empty; was it saved to the end?"
    said = text.split("\n")[0].split(". ")[0] or type(error).__name__
    return (
        f"checkpoint {path} cannot be read ({said}); expected .safetensors, or a state dict from "
        "torch.save: is the file whole, and its name's ending right?"
    )


def _named_as(expected: Mapping[str, Tensor], stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """What was found under the model's own names, where only a wrapper's prefix lies between."""
    if stored.keys() == expected.keys():
        return stored
    ours = {_bare(k): k for k in expected}
    bare = {_bare(k): v for k, v in stored.items()}
    first, *more = {k.partition(".")[0] for k in bare} or {""}
    if not more and not any(k in ours for k in bare):
        inner = {k.removeprefix(f"{first}."): v for k, v in bare.items()}
        if inner.keys() == ours.keys():
            bare = inner
    if len(ours) < len(expected) or len(bare) < len(stored):  # two names became one
        return stored
    return {ours.get(k, k): v for k, v in bare.items()}


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _place(t: Tensor) -> tuple[int, torch.Size]:
    """Equal for tied tensors."""
    return t.data_ptr(), t.shape


def _kind(t: Tensor) -> str:
    return "real" if t.is_floating_point() else "complex" if t.is_complex() else "whole"


def _form(t: Tensor) -> str:
    return f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}"


def _some(names: list[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
