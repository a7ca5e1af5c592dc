"""What newcomers bring is measured right, against plain torch, or refused in a line to copy."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import lowland as ll
from newcomers import AUTOCAST, GRAPHS, NEWCOMERS, SLOW, VAE, Siamese, Small, X, Y
from test_users_models import Plain

KINDS = [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in NEWCOMERS]


@pytest.mark.filterwarnings("ignore:.*autocast")  # torch's, of old names and of no CUDA
@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KINDS)
def test_numbers_are_those_of_plain_torch(name, dtype):
    case = NEWCOMERS[name]()
    plain = Plain(case)
    H = torch.stack(
        [plain.product(row) for row in torch.eye(sum(p.numel() for p in plain.weights)).double()]
    )
    before = {n: t.clone() for n, t in case.model.state_dict().items()}
    case.model.train()

    problem = case.problem(dtype=dtype if dtype == torch.float64 else None)
    # T5 normalises in float32, also in the oracle.
    wide = dtype == torch.float64 and name != "t5"
    close = {"rtol": 1e-9, "atol": 1e-11} if wide else {"rtol": 2e-5, "atol": 1e-5}
    torch.testing.assert_close(problem.losses().double(), plain.losses.detach(), **close)
    assert problem.losses().dtype == dtype
    trace = ll.trace(problem)
    scale = float(H.norm())
    assert abs(trace.value - float(H.trace())) <= close["rtol"] * 10 * scale + 6 * trace.stderr
    top = ll.eigsh(problem, k=1, tol=1e-5)
    assert top.converged
    largest = torch.linalg.eigvalsh(H)
    largest = largest[largest.abs().argmax()]
    assert float(top.values[0]) == pytest.approx(float(largest), rel=1e-3)

    assert case.model.training
    torch.testing.assert_close(dict(case.model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*autocast")
@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_is_off_while_measuring_and_works_afterwards(name):
    case = NEWCOMERS[name]()
    rounded = case.model(X)
    problem = case.problem()
    assert any("autocast" in note for note in problem.notes) == ("cuda" not in name)
    with pytest.raises(ZeroDivisionError), problem.measuring():
        1 / 0
    assert torch.equal(case.model(X), rounded)
    assert rounded.dtype == (torch.float32 if "cuda" in name else rounded.dtype)
    # The block of a layer, the duality and the analysis, which failed on rounded outputs.
    torch.testing.assert_close(
        ll.layer_hessian(problem, "b").double(), Plain(case).block("b.weight"), rtol=1e-4, atol=1e-6
    )
