"""The folder with downloaded data: where it is, what must be in it, whether it is the real thing.

The layout is torchvision's, so that a folder filled by torchvision works as it is. Lowland itself
downloads nothing.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from lowland.errors import InputError


def locate(name: str, data_dir: str | Path | None, expected: Sequence[str]) -> Path:
    """The data folder: ``data_dir``, or else the environment variable ``LOWLAND_DATA``.

    ``expected`` are the files that data set ``name`` wants in it, for the error.
    """
    given = data_dir or os.environ.get("LOWLAND_DATA")
    if not given:
        raise InputError(
            f"data set {name!r} is read from a folder and none was named: put "
            f"{', '.join(expected)} into a folder and name that folder with LOWLAND_DATA or "
            "--data-dir (data_dir= in Python); 'mnist5k' needs no download"
        )
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(
            f"the data folder {root} is not a folder; name the one that holds "
            f"{', '.join(expected)} with LOWLAND_DATA or --data-dir (data_dir= in Python)"
        )
    return root


def missing(name: str, root: Path, files: Sequence[str]) -> InputError:
    """The error for ``files`` that data set ``name`` did not find under ``root``."""
    return InputError(
        f"data set {name!r} did not find {', '.join(files)} in {root}: put them there, or name "
        "another folder with LOWLAND_DATA or --data-dir; 'mnist5k' needs no download"
    )


def check_published(path: Path, content: bytes, md5: str) -> None:
    """Refuse ``content`` of ``path`` unless it is, byte for byte, what was published.

    It is the unpacked content that counts: a file may be packed anew.

    For a file that announces the published number of images: it claims to be the benchmark, and
    its lookalikes are easily mistaken for it (KMNIST has MNIST's file names and sizes). A smaller
    file is somebody's own and is held to its structure only.
    """
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != md5:
        raise InputError(
            f"{path} is not the published file: expected content with md5 {md5}, found {digest}; "
            "download it anew"
        )
