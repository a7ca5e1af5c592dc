"""Optional: the same numbers from other libraries. `make peers` installs them and runs this."""

import copy

import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES

curvlinops = pytest.importorskip(
    "curvlinops", reason="other libraries are not installed: make peers"
)
backpack = pytest.importorskip("backpack", reason="other libraries are not installed: make peers")
eigenthings = pytest.importorskip(
    "hessian_eigenthings", reason="other libraries are not installed: make peers"
)


def parts(name: str):
    problem = CASES[name].problem()
    whole = problem.train.take(slice(None))
    return problem, whole.inputs, whole.targets


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mlp-relu", "mlp-gelu", "lenet", "resnet"])
def test_curvlinops_has_the_same_hessian_and_ggn(name):
    problem, X, y = parts(name)
    model = copy.deepcopy(problem.model).eval()
    arguments = (model, nn.CrossEntropyLoss(), list(model.parameters()), [(X, y)])
    for theirs, ours in (
        (curvlinops.HessianLinearOperator, ll.hessian),
        (curvlinops.GGNLinearOperator, ll.ggn),
    ):
        A = theirs(*arguments)
        expected = A @ torch.eye(A.shape[0], dtype=torch.float64)
        torch.testing.assert_close(ours(problem).dense(), expected.detach())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mlp-relu", "mlp-tanh"])
def test_backpack_has_the_same_diagonals(name):
    problem, X, y = parts(name)
    model = backpack.extend(copy.deepcopy(problem.model))
    loss = backpack.extend(nn.CrossEntropyLoss())
    extensions = backpack.extensions.DiagHessian(), backpack.extensions.DiagGGNExact()
    with backpack.backpack(*extensions):
        loss(model(X), y).backward()
    for kind, field in (("hessian", "diag_h"), ("ggn", "diag_ggn_exact")):
        found = ll.diagonal(problem, kind)
        for parameter, p in model.named_parameters():
            torch.testing.assert_close(found[parameter], getattr(p, field))


@pytest.mark.filterwarnings("ignore")
def test_hessian_eigenthings_has_the_same_eigenvalues():
    problem, X, y = parts("lenet")
    operator = eigenthings.HessianOperator(
        copy.deepcopy(problem.model), [(X, y)], eigenthings.supervised_loss(nn.CrossEntropyLoss())
    )
    theirs = eigenthings.lanczos(
        operator, k=3, max_iter=100, tol=1e-10, reorthogonalize=True, seed=0
    )
    ours = ll.eigsh(ll.hessian(problem), 3, tol=1e-9)
    expected = theirs.eigenvalues[theirs.eigenvalues.abs().argsort(descending=True)]
    torch.testing.assert_close(ours.values, expected.double())
