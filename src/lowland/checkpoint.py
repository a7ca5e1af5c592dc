"""Weights from files and to files. Nothing in a checkpoint is ever executed."""

import argparse
import json
import pathlib
import pickle
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lowland.errors import InputError
from lowland.reading import check_file, text

_WRAPPERS = ("module", "_orig_mod")  # what DDP and torch.compile put into every name
_NESTS = ("state_dict", "model_state_dict", "model")  # where training scripts put a state dict
# What save_pretrained of Transformers writes into a folder: one file, or an index of several.
_FOLDERS = ("model.safetensors", "pytorch_model.bin")
# Plain data that Lightning stores beside the weights (save_hyperparameters): it runs nothing.
_PLAIN_DATA: list[Any] = [argparse.Namespace, pathlib.PosixPath, pathlib.PurePosixPath]


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a ``.safetensors`` or torch checkpoint into ``model``.

    Parameters and buffers must match by name and shape; their precision becomes the model's.
    Names may carry what DDP, ``torch.compile`` or a wrapper such as Lightning's put before them,
    and tied weights may be stored once. Torch files are read with ``weights_only=True``; a state
    dict may also lie under ``state_dict``, ``model_state_dict`` or ``model``. A folder is one that
    Transformers' ``save_pretrained`` wrote, with the weights in one file or in several.
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
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise InputError(
            f"there is no checkpoint file {path}; expected .safetensors, or a torch file"
        )
    check_file(path, "checkpoint")
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            _check_unpacked(path)
            with warnings.catch_warnings(), torch.serialization.safe_globals(_PLAIN_DATA):
                warnings.simplefilter("ignore")  # an unusual pickle protocol is no reason to refuse
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


def _read_folder(folder: Path) -> dict[str, Tensor]:
    """The weights in a folder of Transformers; those of an index must be all that it lists."""
    for name in _FOLDERS:
        if (folder / name).is_file():
            return _read(folder / name)
        if (index := folder / f"{name}.index.json").is_file():
            return _read_shards(index)
    raise InputError(
        f"checkpoint {folder} is a directory without {' or '.join(_FOLDERS)}, which Transformers' "
        "save_pretrained writes; name the file with the weights"
    )


def _read_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of all files that an index names, which lie beside it."""
    try:
        places = json.loads(text(index))["weight_map"]
        names = sorted({str(name) for name in places.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"checkpoint index {index} cannot be read; expected JSON with a 'weight_map' from "
            "names of weights to files"
        ) from error
    weights: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name:
            raise InputError(f"checkpoint index {index} names {name!r}, which is not beside it")
        weights |= _read(index.parent / name)
    if weights.keys() != places.keys():
        differing = sorted(weights.keys() ^ places.keys())
        raise InputError(
            f"checkpoint index {index} and its files do not agree on {_some(differing)}; was the "
            "folder copied whole?"
        )
    return weights


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
    """The stored tensors by the model's own names, if only the prefix of a wrapper is between."""
    if stored.keys() == expected.keys():
        return stored
    ours = {_bare(k): k for k in expected}
    bare = {_bare(k): v for k, v in stored.items()}
    if len(ours) < len(expected) or len(bare) < len(stored):  # two names became one
        return stored
    if not any(k in ours for k in bare):
        bare = _within(bare, ours.keys())
    return {ours.get(k, k): v for k, v in bare.items()}


def _within(bare: dict[str, Tensor], ours: Collection[str]) -> dict[str, Tensor]:
    """The weights under one prefix if they are the model's, each of them; else all as they are.

    A Lightning module holds the model beside other things: the weights of its loss, its metrics.
    """
    prefixes = {k.partition(".")[0] + "." for k in bare}
    inner = [{k[len(p) :]: v for k, v in bare.items() if k.startswith(p)} for p in prefixes]
    whole = [weights for weights in inner if weights.keys() == set(ours)]
    return whole[0] if len(whole) == 1 else bare


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _place(t: Tensor) -> tuple[int, torch.Size]:
    """Address and shape of a tensor, which are equal for tied ones."""
    return t.data_ptr(), t.shape


def _kind(t: Tensor) -> str:
    return "real" if t.is_floating_point() else "complex" if t.is_complex() else "whole"


def _form(t: Tensor) -> str:
    return f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
