import itertools
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lowland.batches import Batches
from lowland.errors import InputError
from lowland.problem import Problem

X = torch.arange(20.0).reshape(10, 2)
Y = torch.arange(10) % 3


def everything(data: Batches) -> torch.Tensor:
    return torch.cat([b.inputs for b in data])


class Noisy(Dataset):
    """Augmentation with a generator that is not torch's."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return X[i] + self.draw(), Y[i]


class Stream(IterableDataset):
    def __init__(self, shuffled: bool = False):
        self.shuffled, self.reads = shuffled, 0

    def __iter__(self):
        self.reads += 1
        order = torch.randperm(10) if self.shuffled else torch.arange(10)
        return iter([(X[i], Y[i]) for i in order])


class Indexed:
    """What looks like a data set and is none of torch's, as those of Hugging Face."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return X[i], int(Y[i])

    def __iter__(self):
        return map(self.__getitem__, range(10))


@pytest.mark.parametrize(
    "source",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        (X.flip(0).numpy()[::-1], Y.numpy().astype(">i4")),
        (X, Y.to(torch.uint16)),
        TensorDataset(X, Y),
        Indexed(),
        [(x, int(y)) for x, y in zip(X, Y, strict=True)],
        list(zip(X, Y, strict=True)),
        list(zip(X.split(3), Y.split(3), strict=True)),
        list(DataLoader(TensorDataset(X, Y), batch_size=3)),
        zip(X.numpy().reshape(5, 2, 2), Y.numpy().reshape(5, 2), strict=True),
        DataLoader(TensorDataset(X, Y), batch_size=3),
        DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True, drop_last=True),
        DataLoader(TensorDataset(X, Y), batch_size=3, num_workers=1, shuffle=True),
        DataLoader(Stream(), batch_size=4),
        Stream(),
    ],
)
def test_every_source_gives_the_same_samples_in_the_same_order(source):
    data = Batches(source, "train", batch_size=4)
    assert torch.equal(everything(data), X)
    assert torch.equal(everything(data), X)
    assert torch.equal(data.targets, Y)
    assert data.targets.max() == 2
    assert len(data) == 10


@pytest.mark.parametrize(
    "source",
    [
        X,
        X.numpy(),
        (X,),
        TensorDataset(X),
        DataLoader(TensorDataset(X), batch_size=3, shuffle=True),
        DataLoader(list(X), batch_size=3),
        iter(X.split(3)),
    ],
)
def test_inputs_alone_will_do_for_a_loss_that_runs_the_model(source):
    data = Batches(source, "train", batch_size=4, targets="none")
    assert torch.equal(everything(data), X)
    assert data.targets.shape == (10, 0)


def test_a_subset_sampler_keeps_its_subset():
    loader = DataLoader(TensorDataset(X, Y), batch_size=2, sampler=SubsetRandomSampler([7, 1, 4]))
    assert torch.equal(everything(Batches(loader, "train", 4)), X[[1, 4, 7]])


def test_batches_of_the_users_own_making_are_kept_together():
    groups = [[4, 1], [0, 3, 2]]
    loader = DataLoader(TensorDataset(X, Y), batch_sampler=groups)
    assert torch.equal(everything(Batches(loader, "train", 4)), X[[0, 2, 3, 1, 4]])


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.randn(()), random.random, lambda: np.random.rand()],  # noqa: NPY002
)
def test_augmentation_is_refused(draw):
    with pytest.raises(InputError, match="other data on each pass"):
        Batches(DataLoader(Noisy(draw), batch_size=5), "train", 4)


class Flipping(Dataset):
    """Augmentation that leaves half of the samples as they are."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        row = torch.arange(4.0) + i
        return (row.flip(0) if torch.rand(()) < 0.5 else row), i % 3


@pytest.mark.parametrize("batch_size", [1, 7])
def test_augmentation_of_some_samples_does_not_slip_through(batch_size):
    for seed in range(40):
        torch.manual_seed(seed)
        with pytest.raises(InputError, match="other data on each pass"):
            Batches(DataLoader(Flipping(), batch_size=batch_size), "train", 4)


def test_sampling_with_replacement_is_refused():
    sampler = WeightedRandomSampler([1.0] * 10, 10)
    with pytest.raises(InputError, match="WeightedRandomSampler"):
        Batches(DataLoader(TensorDataset(X, Y), sampler=sampler), "train", 4)


def test_a_stream_is_read_once_and_what_was_taken_stays():
    torch.manual_seed(0)
    stream = Stream(shuffled=True)
    data = Batches(DataLoader(stream, batch_size=5), "train", 4)
    assert stream.reads == 1
    assert torch.equal(everything(data), everything(data))
    assert sorted(everything(data)[:, 0].tolist()) == X[:, 0].tolist()
    assert data.note is not None
    assert "10 samples were taken, and that is all it gave" in data.note


def test_of_an_endless_stream_so_many_samples_are_taken():
    def batches():
        for i in itertools.count():
            yield X + i, Y

    data = Batches(batches(), "train", 4, samples=25)
    assert torch.equal(everything(data), torch.cat([X, X + 1, (X + 2)[:5]]))
    assert data.note is not None
    assert "25 samples were taken, and there may be more" in data.note
    limited = Batches(batches(), "train", 4, held=50 * 16)  # a sample has 16 bytes
    assert len(limited) == 50
    assert limited.held_bytes == 50 * 16
    with pytest.raises(InputError, match="1,000 samples of the train stream exceed"):
        Batches(batches(), "train", 4, held=50 * 16, samples=1000)
    with pytest.raises(InputError, match="train data is empty"):
        Batches(iter([]), "train", 4)


def test_a_problem_tells_how_much_of_a_stream_was_taken():
    problem = Problem(nn.Linear(2, 3), train=Stream(), test=(X, Y), samples=7)
    assert problem.count() == 7
    assert len(problem.notes) == 1
    assert "7 samples" in problem.notes[0]
    with pytest.raises(InputError, match="for streams"):
        Problem(nn.Linear(2, 3), train=(X, Y), samples=7)


def test_data_too_large_to_hold_is_read_again_each_time():
    loader = DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True)
    data = Batches(loader, "train", 4, held=100)
    assert data._whole is None
    assert data.held_bytes == 0
    with pytest.raises(InputError, match="10 train samples at once"):
        data.take(slice(None))
    with pytest.raises(InputError, match="targets together exceed"):
        _ = data.targets
    assert torch.equal(torch.cat(list(data.target_chunks())), Y)
    assert torch.equal(everything(data), X)
    assert torch.equal(data.take(torch.tensor([8, 2])).inputs, X[[8, 2]])


LARGE = """
import torch, lowland as ll
from torch.utils.data import Dataset

class Images(Dataset):  # 160 MB, and as much again if the targets are the images
    def __init__(self, targets): self.targets = targets
    def __len__(self): return 2_000
    def __getitem__(self, i):
        x = torch.full((20_000,), float(i % 7)).index_fill_(0, torch.tensor(i % 3), 9.0)
        return x, x if self.targets == "images" else i % 3

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))

for targets, loss in (("labels", "cross_entropy"), ("images", "mse")):
    layers = [torch.nn.Linear(20_000, 3)]
    if targets == "images":
        layers.append(torch.nn.Linear(3, 20_000))
    model = torch.nn.Sequential(*layers)
    ll.Problem(model, loss, train=[t[:8] for t in (torch.ones(9, 20_000), torch.zeros(9).long())]
               if targets == "labels" else (torch.ones(8, 20_000),) * 2).gradient()
    before = peak()
    p = ll.Problem(model, loss, train=Images(targets), memory=20_000_000, batch_size=50)
    value, _ = p.gradient()
    assert len(p.losses()) == 2_000
    assert abs(value - float(p.losses().mean())) < 1e-4 * value
    print(targets, (peak() - before) // 1024)
"""


@pytest.mark.slow
def test_data_larger_than_the_budget_is_never_in_memory_as_a_whole():
    done = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    grown = {name: int(size) for name, size in map(str.split, done.stdout.splitlines())}
    assert grown["labels"] < 80  # MiB, of 153
    assert grown["images"] < 120  # of 305


def test_mapped_arrays_stay_mapped(tmp_path):
    on_disk = np.memmap(tmp_path / "x", np.float32, "w+", shape=(10, 2))
    on_disk[:] = X.numpy()
    by_torch = torch.from_file(str(tmp_path / "x"), shared=True, size=20).view(10, 2)
    for mapped in (on_disk, by_torch):
        data = Batches((mapped, Y), "train", 4)
        first = next(iter(data)).inputs
        on_disk[0, 0] = 77  # what is in the file is what the batch shows
        assert float(first[0, 0]) == 77
        on_disk[0, 0] = 0
        assert torch.equal(everything(data), X)


def test_take_gives_samples_in_the_order_asked():
    data = Batches((X, Y), "train", batch_size=4)
    taken = data.take(torch.tensor([9, 0, 9]))
    assert torch.equal(taken.inputs, X[[9, 0, 9]])
    assert torch.equal(taken.targets, Y[[9, 0, 9]])


def test_tuples_and_dicts_of_inputs():
    pair = Batches((X, 2 * X, Y), "train", 4)
    assert isinstance(next(iter(pair)).inputs, tuple)
    named = Batches({"a": X, "labels": Y}, "train", 4)
    first = next(iter(named))
    assert list(first.inputs) == ["a"]
    assert torch.equal(first.targets, Y[: len(first)])


def test_batches_of_different_lengths_are_read_but_not_compared_one_by_one():
    texts = [torch.ones(n, 2) for n in (3, 3, 5)]

    class Texts(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return texts[i], i % 2

    loader = DataLoader(
        Texts(),
        batch_size=2,
        collate_fn=lambda rows: (
            nn.utils.rnn.pad_sequence([r[0] for r in rows], batch_first=True),
            torch.tensor([r[1] for r in rows]),
        ),
    )
    data = Batches(loader, "train", 2)
    assert [tuple(b.inputs.shape) for b in data] == [(2, 3, 2), (1, 5, 2)]
    with pytest.raises(InputError, match="pad them to one shape"):
        data.take(torch.tensor([0]))


class Sentences(Dataset):
    """Sequences of tokens, each with a label for every token."""

    lengths = (2, 2, 4, 3)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.arange(self.lengths[i]), torch.arange(self.lengths[i]) % 2


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([(torch.zeros(n), 0) for n in (3, 4)], r"\[3\] at entry 0 and \[4\] at entry 1"),
        ([({1, 2}, 0), ({3}, 1)], "found <class 'set'>"),
    ],
)
def test_samples_that_make_no_batch_are_told_in_a_line(samples, words, workers):
    loader = DataLoader(samples, batch_size=2, num_workers=workers)
    with pytest.raises(InputError, match=f"the train loader cannot make a batch.*{words}") as told:
        Batches(loader, "train", 2)
    assert "\n" not in str(told.value)


def test_labels_of_sequences_of_different_lengths_are_padded_with_the_ignored_one():
    loader = DataLoader(Sentences(), batch_sampler=[[0, 1], [2], [3]])
    data = Batches(loader, "train", 2)
    assert data.targets.tolist() == [
        [0, 1, -100, -100],
        [0, 1, -100, -100],
        [0, 1, 0, 1],
        [0, 1, 0, -100],
    ]
    assert [tuple(b.targets.shape) for b in data] == [(2, 2), (1, 4), (1, 3)]
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 6))
    losses = Problem(model, train=loader).losses()
    expected = [nn.functional.cross_entropy(model(x), y) for x, y in Sentences()]
    torch.testing.assert_close(losses, torch.stack(expected).detach())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ((X[:0], Y[:0]), "train data is empty"),
        (TensorDataset(X[:0], Y[:0]), "train data is empty"),
        ((X, Y[:5]), "5 targets"),
        (X, "without targets"),
        ((X,), "tuple of 1"),
        ({"x": X}, "under 'labels'"),
        ((X / 0, Y), "NaN or infinite"),
        ((X, Y / 0.0), "targets hold"),
        (TensorDataset(X * float("nan"), Y), "inputs hold 8 NaN or infinite"),
        ((["a"] * 10, Y), "must be tensors"),
        (7, "got int"),
        ("abc", "got str"),
        ((X, Y.tolist()), "targets must be a tensor or array .* got a list of 10"),
        ({"x": X, "labels": Y.tolist()}, "targets must be a tensor or array .* got a list of 10"),
        (({"x": x, "labels": int(y)} for x, y in zip(X, Y, strict=True)), "single samples"),
        ((X, np.array(["a", "b"] * 5)), "holds no numbers"),
    ],
)
def test_unusable_data_is_refused_in_words(source, words):
    with pytest.raises(InputError, match=words):
        Batches(source, "train", 4)
