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
from lowland.reading import opened

# md5 of the published files, unpacked, by the folder that torchvision gives each set.
PUBLISHED = {
    "MNIST": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "FashionMNIST": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
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
    """The gzipped file if there is one, or the unpacked."""
    gzipped = stem.with_name(f"{stem.name}.gz")
    return gzipped if gzipped.is_file() else stem


def _array(path: Path, item: tuple[int, ...], count: int, md5: str) -> NDArray[np.uint8]:
    """The bytes of one idx file as (N, *item), N at most ``count``; ``md5`` is that of all.

    No more is unpacked than the header announces, whatever the file unpacks to.
    """
    header = struct.Struct(f">{2 + len(item)}I")
    try:
        with opened(path) as whole, gzip.open(whole) if path.suffix == ".gz" else whole as file:
            head = file.read(header.size)
            size = _announced_size(path, head, header, item, count)
            body = head + file.read(size - header.size)
            more = bool(file.read(1))  # gzip checks its own sum at the end
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged or cut short ({error}); download it anew") from error
    if len(body) != size or more:
        raise InputError(
            f"{path} announces {size:,} bytes and has "
            f"{f'{size + 1:,} or more' if more else f'{len(body):,}'}; download it anew"
        )
    array = np.frombuffer(body, np.uint8, offset=header.size).reshape(-1, *item)
    if len(array) == count:
        check_published(path, body, md5)
    return array


def _announced_size(
    path: Path, head: bytes, header: struct.Struct, item: tuple[int, ...], count: int
) -> int:
    """How many bytes an idx file has by its header, which is checked."""
    if len(head) < header.size:
        raise InputError(
            f"{path} is cut short: {len(head)} bytes, and its header alone takes {header.size}; "
            "download it anew"
        )
    magic, items, *shape = header.unpack(head)
    expected_magic = 0x800 + 1 + len(item)  # 0x08: unsigned bytes; then the number of axes
    if magic != expected_magic:
        raise InputError(
            f"{path} is not such an idx file: expected magic number {expected_magic:#x}, "
            f"found {magic:#x}; download it anew"
        )
    if tuple(shape) != item or not 0 < items <= count:
        raise InputError(
            f"{path} announces the shape {(items, *shape)}; expected {('N', *item)} with N > 0 "
            f"and at most {count:,}, the published number"
        )
    return header.size + items * math.prod(item)
