"""Weights from files and to files. Nothing in a checkpoint is ever executed."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from lowland.errors import InputError

_WRAPPERS = ("module.", "_orig_mod.")  # what DDP and torch.compile put before every name


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a ``.safetensors`` or torch checkpoint into ``model``.

    Parameters and buffers must match by name and shape. Torch files are read with
    ``weights_only=True``; a state dict may also lie under ``state_dict`` or ``model``.
    """
    found = _read(path)
    expected = model.state_dict()
    missing = [k for k in expected if k not in found]
    unexpected = [k for k in found if k not in expected]
    shapes = [
        f"{k} is {tuple(found[k].shape)} in the file and {tuple(v.shape)} in the model"
        for k, v in expected.items()
        if k in found and found[k].shape != v.shape
    ]
    problems = [
        f"{what} {_some(names)}"
        for what, names in (
            ("lacks", missing),
            ("has no place for", unexpected),
            ("differs in shape:", shapes),
        )
        if names
    ]
    if problems:
        raise InputError(
            f"checkpoint {path} does not fit the model: it {'; it '.join(problems)}. Check that "
            "--model builds the network that was saved"
        )
    model.load_state_dict(found)


def weights_bytes(model: nn.Module) -> bytes:
    """Parameters and buffers as the content of a safetensors file; tied ones under each name."""
    return save({k: v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()})


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"there is no checkpoint file {path}")
    try:
        if path.suffix == ".safetensors":
            found: object = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (
        SafetensorError,
        pickle.UnpicklingError,
        EOFError,
        zipfile.BadZipFile,
        RuntimeError,
    ) as e:
        raise InputError(_why_unreadable(path, e)) from e
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(
            f"checkpoint {path} holds {type(found).__name__}, not a state dict of tensors; save "
            "model.state_dict()"
        )
    return {_bare(str(k)): v for k, v in found.items()}


def _why_unreadable(path: Path, error: Exception) -> str:
    text = str(error)
    if isinstance(error, pickle.UnpicklingError) and "weights_only" in text.lower():
        return (
            f"checkpoint {path} holds Python objects that could run code, so it is refused; save "
            "only model.state_dict(), or use safetensors"
        )
    return f"checkpoint {path} cannot be read, it may be cut short: {text.splitlines()[0]}"


def _bare(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def _some(names: list[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
