import math

import pytest
import torch
from torch import nn

from lowland.errors import InputError
from lowland.training import TrainingSettings, mlp, train


def test_weights_are_xavier_uniform_times_the_scale():
    network = mlp((100, 80, 10), scale=2.0)
    weight = network[1].weight
    bound = 2 * math.sqrt(6 / 180)
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    assert weight.var().item() == pytest.approx(bound**2 / 3, rel=0.05)
    assert network[1].bias is None
    assert torch.equal(weight, mlp((100, 80, 10), scale=2.0)[1].weight)
    assert not torch.equal(weight, mlp((100, 80, 10), scale=2.0, seed=1)[1].weight)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    return torch.randn(60, 3, generator=g) + 4.0 * y[:, None], y


def test_one_epoch_is_the_update_rule_by_hand():
    X, y = data()
    model, by_hand = mlp((3, 4, 2)), mlp((3, 4, 2))
    settings = TrainingSettings(learning_rate=0.3, batch_size=20, max_epochs=1, seed=5)
    train(model, (X, y), settings)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(5))
    for batch in order.split(20):
        loss = nn.functional.cross_entropy(by_hand(X[batch]), y[batch])
        grads = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for p, g in zip(by_hand.parameters(), grads, strict=True):
                p -= 0.3 * g
    for a, b in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_it_stops_when_the_whole_training_loss_is_below_the_goal():
    X, y = data()
    model = mlp((3, 4, 2))
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    done = train(model, (X, y), TrainingSettings(batch_size=10, stop_loss=0.05))
    assert done.converged
    assert done.losses[-1] < 0.05 <= min(done.losses[:-1])
    assert done.losses[-1] == pytest.approx(nn.functional.cross_entropy(model(X), y).item())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_the_epoch_limit_is_recorded_and_divergence_is_said():
    assert not train(
        mlp((3, 4, 2)), data(), TrainingSettings(batch_size=60, max_epochs=2)
    ).converged
    X, y = data()
    with pytest.raises(InputError, match="training diverged in epoch"):
        train(mlp((3, 4, 2)), (1e20 * X, y), TrainingSettings(learning_rate=1e10))
    with pytest.raises(InputError, match="batch_size is 61, but there are 60"):
        train(mlp((3, 4, 2)), data(), TrainingSettings(batch_size=61))
    with pytest.raises(InputError, match="learning_rate must be positive; got 0"):
        TrainingSettings(learning_rate=0)
    with pytest.raises(InputError, match="got \\(3,\\)"):
        mlp((3,))
