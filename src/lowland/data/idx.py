"""MNIST's file format, idx: big-endian magic number, one length per axis, then the bytes."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lowland.data.folder import check_published, locate, missing
from lowland.data.sampling import Samples
from lowland.errors import InputError

# md5 of the .gz files as torchvision publishes them, by the folder that torchvision gives each set.
PUBLISHED = {
    "MNIST": {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "FashionMNIST": {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
}
PUBLISHED_COUNT = {"train": 60_000, "t10k": 10_000}


def read(folder: str, name: str, data_dir: str | Path | None) -> tuple[Samples, Samples, Path]:
    """Training and test samples of ``<data folder>/<folder>/raw``, and that path."""
    stems = [f"{folder}/raw/{stem}" for stem in PUBLISHED[folder]]
    root = locate(name, data_dir, [f"{stem}[.gz]" for stem in stems])
    absent = [f"{stem}[.gz]" for stem in stems if not _file(root / stem).is_file()]
    if absent:
        raise missing(name, root, absent)
    raw = root / folder / "raw"
    return _samples(raw, "train"), _samples(raw, "t10k"), raw


def _samples(raw: Path, part: str) -> Samples:
    """The images and labels of ``part``, "train" or "t10k"."""
    md5 = PUBLISHED[raw.parent.name]
    images_stem, labels_stem = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    count = PUBLISHED_COUNT[part]
    images = _array(_file(raw / images_stem), (28, 28), count, md5[images_stem])
    labels = _array(_file(raw / labels_stem), (), count, md5[labels_stem])
    if len(images) != len(labels):
        raise InputError(
            f"{raw} has {len(images):,} {part} images but {len(labels):,} {part} labels; the two "
            "files do not belong together: download both anew"
        )
    if labels.max() > 9:
        raise InputError(
            f"{raw / labels_stem} has a label {labels.max()}; expected labels from 0 to 9"
        )
    return images[:, None], labels.astype(np.int64)  # (N, 1, 28, 28), (N,)


def _file(stem: Path) -> Path:
    """The gzipped file if there is one, since only its checksum is published; or the unpacked."""
    gzipped = stem.with_name(f"{stem.name}.gz")
    return gzipped if gzipped.is_file() else stem


def _array(path: Path, item: tuple[int, ...], count: int, md5: str) -> NDArray[np.uint8]:
    """The bytes of one idx file as (N, *item); ``md5`` is that of the .gz with ``count`` items."""
    content = path.read_bytes()
    try:
        body = gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{path} is damaged or cut short ({error}); download it anew") from error

    header = struct.Struct(f">{2 + len(item)}I")
    if len(body) < header.size:
        raise InputError(
            f"{path} is cut short: {len(body)} bytes, and its header alone takes {header.size}; "
            "download it anew"
        )
    magic, items, *shape = header.unpack_from(body)
    expected_magic = 0x800 + 1 + len(item)  # 0x08: unsigned bytes; then the number of axes
    if magic != expected_magic:
        raise InputError(
            f"{path} is not such an idx file: expected magic number {expected_magic:#x}, "
            f"found {magic:#x}; download it anew"
        )
    if tuple(shape) != item or items == 0:
        raise InputError(
            f"{path} announces the shape {(items, *shape)}; expected {('N', *item)} with N > 0"
        )
    expected_size = header.size + items * math.prod(item)
    if len(body) != expected_size:
        raise InputError(
            f"{path} announces {items:,} items, which take {expected_size:,} bytes, "
            f"and has {len(body):,}; download it anew"
        )
    if path.suffix == ".gz" and items == count:
        check_published(path, content, md5)
    return np.frombuffer(body, np.uint8, offset=header.size).reshape(items, *item)
