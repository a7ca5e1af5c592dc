"""Weights that stay as they are stored: in half precision here, in shards in test_sharded.py."""

import copy
import subprocess
import sys

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
    here = Problem(model, train=train, memory=20_000)
    copied = Problem(model, train=train)
    assert here.stored is not None
    assert here.model is model
    assert copied.stored is None
    return here, copied


def test_products_are_those_of_a_copy(both):
    here, copied = both
    assert here.dtype == torch.float32
    torch.testing.assert_close(here.losses(), copied.losses(), rtol=0, atol=0)
    (loss, slopes), (expected, expected_slopes) = here.gradient(), copied.gradient()
    assert loss == expected
    torch.testing.assert_close(slopes, expected_slopes, rtol=0, atol=0)
    enough = Problem(here.model, train=here.train.take(slice(None)).inputs, memory=1) if 0 else here
    for make in (ll.hessian, ll.ggn, ll.fisher):
        A, B = make(enough), make(copied)
        V = torch.randn(B.size, 2, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(A @ V, B @ V, rtol=1e-4, atol=1e-5)
