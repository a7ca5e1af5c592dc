"""Weights that stay as they are stored: in half precision here, in shards in test_sharded.py."""

import copy

import pytest
import torch
from torch import Tensor, nn

import lowland as ll
from lowland.errors import InputError
from lowland.problem import Problem

X = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4


class Tagger(nn.Module):
    """Attention, normalisation and an embedding that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.attention(self.embedding(tokens)))
        return nn.functional.linear(hidden, self.embedding.weight)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(216, 10),
        nn.ReLU(),
        nn.Linear(10, 4),
    )


TOKENS = torch.randint(9, (6, 5), generator=torch.Generator().manual_seed(1))
CASES = {
    "convolutions": (convolutions, (X, Y)),
    "attention": (Tagger, (TOKENS, TOKENS.roll(1, 1))),
}


@pytest.fixture(params=CASES)
def both(request) -> tuple[Problem, Problem]:
    """The same half-precision model measured as it is stored, and as a copy in float32."""
    make, train = CASES[request.param]
    torch.manual_seed(0)
    model = make().bfloat16()
    copy_bytes = 4 * sum(p.numel() for p in model.parameters())
    here = Problem(model, train=train, memory=8 * copy_bytes - 1)
    copied = Problem(model, train=train)
    assert here.stored is not None
    assert here.model is model
    assert copied.stored is None
    return here, copied


def test_products_are_those_of_a_copy(both):
    here, copied = both
    before = copy.deepcopy(here.model.state_dict())
    assert here.dtype == torch.float32
    torch.testing.assert_close(here.losses(), copied.losses(), rtol=0, atol=0)
    loss, slopes = here.gradient()
    # In the same chunks of samples: as many as have graphs that fit this memory.
    whole = copied.train.take(slice(None))
    train = whole.inputs, whole.targets
    alike = Problem(
        here.model, train=train, batch_size=here.found("samples of graphs", pytest.fail)
    )
    expected, expected_slopes = alike.gradient()
    assert loss == expected
    torch.testing.assert_close(slopes, expected_slopes, rtol=0, atol=0)
    for make in (ll.hessian, ll.ggn, ll.fisher):
        A, B = make(here), make(copied)
        V = torch.randn(B.size, 2, generator=torch.Generator().manual_seed(0))
        expected_products = B @ V
        # graphs that are made again take other chunks of samples, and round otherwise
        error = (A @ V - expected_products).norm() / expected_products.norm()
        assert error < 1e-6
    moved = {n: p + 0.1 for n, p in copied.params.items()}
    assert here.gradient(moved)[0] == copied.gradient(moved)[0]
    for name, t in here.model.state_dict().items():
        assert t.dtype == before[name].dtype
        assert torch.equal(t, before[name])
    assert all(type(m._parameters) is dict for m in here.model.modules())


def test_eigenvalues_and_measures(both):
    here, copied = both
    here.memory = copied.memory  # so small a budget has no room for graphs
    A, B = ll.hessian(here, "*bias"), ll.hessian(copied, "*bias")
    assert A.kept
    values = [ll.eigsh(H, k=1, tol=1e-3).values for H in (A, B)]
    torch.testing.assert_close(*values, rtol=1e-4, atol=0)
    names = ["weight_norm", "train_loss", "train_error"]
    mine, theirs = ll.measure(here, names), ll.measure(copied, names)
    assert [mine[n].value for n in names] == [theirs[n].value for n in names]


def test_no_wide_weight_outlives_the_operation_that_reads_it(both):
    """Neither of a forward pass nor in the graph that is kept for further products."""
    here, _ = both
    assert here.stored is not None
    wide = here.stored._wide
    with here.measuring():
        leaves = {n: p.detach().requires_grad_() for n, p in here.select().items()}
        losses = here.batch_losses(here.first(4), leaves)
        assert not wide
        slopes = torch.autograd.grad(losses.sum(), list(leaves.values()), create_graph=True)
        assert not wide
        torch.autograd.grad([s.sum() for s in slopes], list(leaves.values()), allow_unused=True)
    assert not wide


def test_what_needs_a_copy_is_refused_in_words(both):
    here, _ = both
    with pytest.raises(InputError, match="needs a copy of the model"):
        here.at(here.params)
    recurrent = nn.LSTM(3, 4).bfloat16()
    with pytest.raises(InputError, match="hands its weights to a fused operation"):
        Problem(recurrent, train=(X, Y), memory=1000)


class Wrong(torch.autograd.Function):
    """A square whose second derivative is 3 and not 2."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (3 * x - x.detach())


def test_second_derivatives_are_confirmed_in_place_too():
    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, Wrong.apply(self.weight), self.bias)

    model = Model(3, 4).bfloat16()
    problem = Problem(model, train=(X[:, :, 0, 0], Y), memory=500)
    assert problem.stored is not None
    with pytest.raises(InputError, match="'weight' are not those of differences"):
        _ = ll.hessian(problem).strategy
