"""The range of radii against closed forms, and against what SAM does at its ends."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import lowland as ll
from lowland.errors import InputError
from lowland.training import TrainingSettings, mlp, train, train_many

WITHIN = 0.08  # ends are halved in logarithm to a factor of 10 ** (1 / 16), and told in its middle


def bowl(**training) -> ll.Problem:
    """``L(w) = w^2`` at w = 2, in every sample."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 2.0)
    ones = torch.ones(40, 1, dtype=torch.float64)
    return ll.Problem(model, "mse", train=(ones, 0 * ones), training=training)


def test_the_ends_are_where_the_loss_of_the_step_says():
    found = ll.rho_range(bowl(batch_size=5), ceiling=25.0)
    assert found.loss == pytest.approx(4.0)
    assert found.high == pytest.approx(3.0, rel=WITHIN)  # (2 + 3)^2
    assert found.low == pytest.approx(4.21**0.5 - 2, rel=WITHIN)  # 4 + 1 % of 21
    assert (found.ceiling, found.batch_size, found.edge) == (25.0, 5, None)
    assert found.ladder[-1] == pytest.approx(found.high / 2, rel=0.05)
    for a, b in pairwise(found.ladder):
        assert b / a == pytest.approx(10**0.5, rel=0.1)
    assert 0.95 * found.low < found.ladder[0] < 1.05 * 10**0.5 * found.low


def test_radii_of_asam_are_relative_to_the_weights():
    found = ll.rho_range(bowl(), adaptive=True, ceiling=25.0)
    assert found.high == pytest.approx(3.0 / 2.01, rel=WITHIN)  # a step of rho (|w| + eta)
    assert repr(found).startswith("RhoRange(ASAM: ")


@pytest.mark.parametrize(("rate", "edge"), [(0.5, 2.0), (0.25, 6.0), (1.5, 0.0)])
def test_the_edge_is_that_of_long_and_bartlett(rate, edge):
    """|g| = 4 and lambda = 2: rate 2 (1 + rho 2 / 4) = 2."""
    found = ll.rho_range(bowl(learning_rate=rate), ceiling=25.0)
    assert found.edge == pytest.approx(edge, abs=1e-9)
    if edge:  # their formula, solved for the eigenvalue
        inner = 1 + 8 * found.edge / (rate * 4)
        assert 4 / (2 * found.edge) * (inner**0.5 - 1) == pytest.approx(2.0)
    assert f"From {edge:.2g} on" in found.describe()


def test_the_cost_counts_gradients_and_forward_passes():
    class Counted(nn.Linear):
        passes = 0

        def forward(self, x):
            Counted.passes += 1
            return super().forward(x)

    torch.manual_seed(0)
    model = Counted(3, 2)
    X = torch.randn(64, 3)
    problem = ll.Problem(model, train=(X, (X[:, 0] > 0).long()), training={"batch_size": 4})
    with torch.no_grad():
        model.weight[1, 0] += 2.0
    Counted.passes = 0
    found = ll.rho_range(problem)
    # One is that of the constant prediction, and two on few samples tell what graphs take;
    # of the others eight are part of a gradient.
    assert found.gradients == pytest.approx(8 + (Counted.passes - 3 - 8) / 3)
    assert f"cost {found.gradients:.0f} gradients of 4 samples" in repr(found)


def test_nothing_of_the_model_is_changed_and_numbers_come_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    X = torch.randn(50, 3)
    data = X, (X[:, 0] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), data[1]).backward()
        optimizer.step()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = ll.rho_range(ll.Problem(model, train=data))
    assert found == ll.rho_range(ll.Problem(model, train=data))
    assert found.high > found.low > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is not None for p in model.parameters())  # as the last step left them


def test_what_cannot_be_told_is_said():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    data = torch.randn(20, 3), torch.arange(20) % 2
    with pytest.raises(InputError, match="has learned nothing yet: its loss is .* train it for"):
        ll.rho_range(ll.Problem(model, train=data))
    own = ll.ModelLoss(lambda model, batch: model(batch.inputs).square().sum(1) + 1)
    with pytest.raises(InputError, match=r"pass ceiling=\.\.\."):
        ll.rho_range(ll.Problem(model, own, train=data))

    with pytest.raises(InputError, match="takes a lowland.Problem; got Linear"):
        ll.rho_range(model)
    with pytest.raises(InputError, match=r"training\['batch_size'\] must be at least 1; got 0"):
        ll.rho_range(ll.Problem(model, train=data, training={"batch_size": 0}), ceiling=1.0)

    class Bounded(nn.Linear):
        def forward(self, x):
            return super().forward(x).tanh()

    torch.manual_seed(0)
    with pytest.raises(InputError, match="the loss stays below 100 up to a distance of"):
        ll.rho_range(ll.Problem(Bounded(3, 2), train=data), ceiling=100.0)


@pytest.mark.slow
def test_sam_learns_within_the_range_and_not_beyond():
    data = ll.data.load("digits", per_class=50)
    plain = mlp((64, 30, 30, 10))
    train(plain, data.train, TrainingSettings(max_epochs=30, stop_loss=1e-9))
    found = ll.rho_range(ll.Problem(plain, train=data.train, training={"batch_size": 25}))
    radii = [found.low / 10, found.low, found.high / 2, 10 * found.high]
    settings = [TrainingSettings("sam", radius=r, max_epochs=30, stop_loss=1e-9) for r in radii]
    models = [mlp((64, 30, 30, 10)) for _ in radii]
    losses = [done.losses[-1] for done in train_many(models, data.train, settings)]
    start = torch.cat([p.detach().flatten() for p in plain.parameters()])
    away = [
        float((torch.cat([p.detach().flatten() for p in m.parameters()]) - start).norm())
        for m in models
    ]
    assert away[0] < away[1] < away[2]
    assert max(losses[:3]) < 0.3 * found.ceiling
    assert losses[3] > 0.9 * found.ceiling
