"""Small data sets in the formats of MNIST and CIFAR-10, written for a test."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np


def idx_bytes(array) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_idx(root, folder="MNIST", train=40, test=20, gz=True, alike=False):
    """A small data set of its own; returns what was written. Alike: in a class, images are."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    random = np.random.default_rng(0)
    written = {}
    for part, count in (("train", train), ("t10k", test)):
        images = random.integers(256, size=(count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        if alike:  # a tenth of the pixels bright, as in a digit, and a little noise
            patterns = np.random.default_rng(1).random((10, 28, 28)) < 0.1
            images = images // 8 + (220 * patterns[labels]).astype(np.uint8)
        for stem, array in (("images-idx3", images), ("labels-idx1", labels)):
            name = f"{part}-{stem}-ubyte"
            replace(raw / (f"{name}.gz" if gz else name), idx_bytes(array))
            written[name] = array
    return written


def replace(path: Path, body: bytes):
    path.write_bytes(gzip.compress(body, compresslevel=1) if path.suffix == ".gz" else body)


def write_cifar(root, *files, count=20):
    """Batches as NumPy of today pickles them; returns their pixels by file."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for i, file in enumerate(files):
        pixels = np.random.default_rng(i).integers(256, size=(count, 3072), dtype=np.uint8)
        batch = {"data": pixels, "labels": [k % 10 for k in range(count)]}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=4))
        written[file] = pixels
    return written
