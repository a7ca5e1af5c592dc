"""Wrong arguments are refused in words that say what was expected, and never answered."""

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll


@pytest.fixture(scope="module")
def problem() -> ll.Problem:
    torch.manual_seed(0)
    X, y = torch.randn(9, 4), torch.arange(9) % 3
    return ll.Problem(nn.Linear(4, 3), train=(X, y), test=(X + 1, y))


WRONG = {
    "another split": (lambda p: p.losses("val"), "a split is 'train' or 'test'; got 'val'"),
    "no split": (lambda p: p.wrong(None), "a split is 'train' or 'test'; got None"),
    "subset of a split": (lambda p: p.subset(torch.arange(2), "val"), "a split is"),
    "empty subset": (lambda p: p.subset(torch.arange(0)), "places between 0 and 8"),
    "far subset": (lambda p: p.subset(torch.tensor([100])), "places between 0 and 8"),
    "fractions": (lambda p: p.subset(torch.tensor([0.5])), "places between 0 and 8"),
    "short mask": (lambda p: p.subset(torch.tensor([True])), "places between 0 and 8"),
    "at a model": (lambda p: p.at(nn.Linear(4, 3)), r"weights by name.*got Linear"),
    "at another name": (lambda p: p.at({"x": torch.ones(1)}), "got 'x'.*is not measured"),
    "at another shape": (
        lambda p: p.at({"bias": torch.ones(4)}),
        r"'bias' \(4,\), which is \(3,\)",
    ),
    "long matrix": (lambda p: ll.trace(torch.randn(3, 4)), r"is square.*\(3, 4\)"),
    "whole numbers": (lambda p: ll.eigsh(torch.eye(3).long()), "floating-point numbers; got int64"),
    "complex": (lambda p: ll.eigsh(torch.eye(3).cfloat()), "real floating-point"),
    "NaN": (lambda p: ll.trace(torch.full((3, 3), torch.nan)), "NaN or infinite"),
    "not symmetric": (lambda p: ll.eigsh(torch.arange(9.0).view(3, 3)), "is not symmetric"),
    "half a k": (lambda p: ll.eigsh(p, k=2.5), "whole numbers; got 2.5"),
    "no block": (lambda p: ll.eigsh(p, k=1, block=0), "block is at least 1"),
    "no tolerance": (lambda p: ll.eigsh(p, k=1, tol=float("nan")), "tol above 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_refused_in_words(problem, case):
    ask, words = WRONG[case]
    with pytest.raises(ll.InputError, match=words):
        ask(problem)


def test_a_mask_takes_the_samples_that_it_marks(problem):
    mask = torch.tensor([True] * 3 + [False] * 6)
    torch.testing.assert_close(problem.subset(mask).losses(), problem.losses()[:3])


def test_an_array_is_a_matrix():
    assert ll.trace(np.diag([1.0, 2.0])).value == 3


def test_a_trace_of_parameters_that_are_frozen_since_is_refused():
    model = nn.Linear(4, 3)
    p = ll.Problem(model, train=(torch.randn(9, 4), torch.arange(9) % 3))
    H = ll.hessian(p)
    model.bias.requires_grad_(False)
    with pytest.raises(ll.InputError, match="make a new operator"):
        ll.trace(H)
