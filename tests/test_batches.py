import random

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

from lowland import batches
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
        self.shuffled = shuffled

    def __iter__(self):
        order = torch.randperm(10) if self.shuffled else torch.arange(10)
        return iter([(X[i], Y[i]) for i in order])


@pytest.mark.parametrize(
    "source",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        TensorDataset(X, Y),
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
    assert len(data) == 10


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


def test_a_stream_that_shuffles_is_refused():
    torch.manual_seed(0)
    with pytest.raises(InputError, match="other data on each pass"):
        Batches(DataLoader(Stream(shuffled=True), batch_size=5), "train", 4)


def test_data_too_large_to_hold_is_read_again_each_time(monkeypatch):
    monkeypatch.setattr(batches, "HELD_BYTES", 30)
    data = Batches(DataLoader(TensorDataset(X, Y), batch_size=3, shuffle=True), "train", 4)
    assert data._whole is None
    assert torch.equal(everything(data), X)
    assert torch.equal(data.take(torch.tensor([8, 2])).inputs, X[[8, 2]])


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
    assert torch.equal(first.targets, Y[:4])


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
    ],
)
def test_unusable_data_is_refused_in_words(source, words):
    with pytest.raises(InputError, match=words):
        Batches(source, "train", 4)
