"""The other libraries, each called the way its documentation would have a careful user call it.

A contestant takes a workload, may prepare without being timed (choose a number of probes, for
example), and returns the function that is timed. All that has to be done again for another model
or other data belongs into that function.
"""

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from backpack import backpack, extend
from backpack.extensions import DiagGGNExact, DiagHessian
from curvlinops import HessianLinearOperator, hutchinson_trace, hutchpp_trace, xtrace
from hessian_eigenthings import HessianOperator, LambdaOperator, supervised_loss
from hessian_eigenthings import lanczos as eigenthings_lanczos
from hessian_eigenthings.algorithms.lanczos import lanczos_tridiagonal
from hessian_eigenthings.algorithms.trace import hutch_plus_plus, hutchinson
from pyhessian import hessian as PyHessian
from pyhessian.utils import hessian_vector_product
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn
from workloads import Workload

Contestant = Callable[[Workload], Callable[[], Any]]
Pairs = tuple[Tensor, Tensor]  # eigenvalues (k,) and vectors (n, k), by decreasing magnitude

STANDARD_ERROR = 0.01
CHUNK = 50  # probes that curvlinops takes at once: its memory grows with them


# Operators ---------------------------------------------------------------------------------------


def curvlinops(w: Workload) -> HessianLinearOperator:
    return HessianLinearOperator(
        w.model,
        nn.CrossEntropyLoss(),
        list(w.weights.values()),
        w.data,
        check_deterministic=False,
        num_data=len(w.X),
    )


def eigenthings(w: Workload) -> HessianOperator:
    return HessianOperator(
        w.model,
        w.data,
        supervised_loss(nn.CrossEntropyLoss()),
        param_filter=lambda name, _: name in w.weights,
    )


def pyhessian(w: Workload) -> PyHessian:
    """Given one batch, PyHessian keeps the gradient's graph. It knows no choice of parameters."""
    model = copy.deepcopy(w.model)  # it writes into .grad
    return PyHessian(model, nn.CrossEntropyLoss(), data=(w.X, w.y), cuda=False)


# A dense block, and products ---------------------------------------------------------------------


def curvlinops_dense(w: Workload) -> Callable[[], Tensor]:
    return lambda: curvlinops(w) @ torch.eye(w.size)


def autograd_rows(w: Workload) -> Callable[[], Tensor]:
    return lambda: w.products(torch.eye(w.size))


@cache
def vectors(w: Workload, count: int) -> Tensor:
    return torch.randn(w.size, count, generator=torch.Generator().manual_seed(0))


def one_by_one(product: Callable[[Tensor], Tensor], w: Workload, count: int) -> Tensor:
    """Products with one vector after the other, as an eigensolver asks for them."""
    return torch.stack([product(v) for v in vectors(w, count).unbind(1)], 1)


def curvlinops_products(count: int) -> Contestant:
    return lambda w: lambda: one_by_one(curvlinops(w).__matmul__, w, count)


def eigenthings_products(count: int) -> Contestant:
    return lambda w: lambda: one_by_one(eigenthings(w).matvec, w, count)


def pyhessian_products(count: int) -> Contestant:
    def prepare(w: Workload) -> Callable[[], Tensor]:
        def run() -> Tensor:
            H = pyhessian(w)
            sizes = [p.numel() for p in H.params]

            def product(v: Tensor) -> Tensor:
                parts = [part.view_as(p) for part, p in zip(v.split(sizes), H.params, strict=True)]
                rows = hessian_vector_product(H.gradsH, H.params, parts)
                return torch.cat([row.flatten() for row in rows])

            return one_by_one(product, w, count)

        return run

    return prepare


# Eigenpairs --------------------------------------------------------------------------------------


def curvlinops_eigsh(k: int, tol: float) -> Contestant:
    """ARPACK keeps its default basis, 2k + 1: on a ResNet-8, 3k and 4k needed more products."""

    def prepare(w: Workload) -> Callable[[], Pairs]:
        start = torch.randn(w.size, generator=torch.Generator().manual_seed(0)).numpy()

        def run() -> Pairs:
            H = curvlinops(w).to_scipy()
            values, vectors = eigsh(H, k=k, tol=tol, which="LM", v0=start)
            return _by_magnitude(torch.from_numpy(values), torch.from_numpy(vectors))

        return run

    return prepare


def eigenthings_eigenpairs(k: int, tol: float) -> Contestant:
    """Lanczos without restarts. The number of steps is the user's to find: we give it the best."""

    def prepare(w: Workload) -> Callable[[], Pairs]:
        steps = _lanczos_steps(w, k, tol)

        def run() -> Pairs:
            found = eigenthings_lanczos(
                eigenthings(w), k=k, max_iter=steps, tol=tol, reorthogonalize=True, seed=0
            )
            return _by_magnitude(found.eigenvalues, found.eigenvectors.T)

        return run

    return prepare


def pyhessian_eigenpairs(k: int, iterations: int) -> Contestant:
    """Power iteration with deflation, for a fixed number of products: it knows no residual."""

    def prepare(w: Workload) -> Callable[[], Pairs]:
        def run() -> Pairs:
            torch.manual_seed(0)
            values, vectors = pyhessian(w).eigenvalues(maxIter=iterations, tol=0, top_n=k)
            columns = [torch.cat([part.flatten() for part in v]) for v in vectors]
            return _by_magnitude(torch.tensor(values), torch.stack(columns, 1))

        return run

    return prepare


def _lanczos_steps(w: Workload, k: int, tol: float, most: int = 400) -> int:
    """The fewest steps after which all k Ritz residuals are below ``tol``, from one long run."""
    operator = LambdaOperator(w.kept(), w.size, dtype=w.X.dtype)
    start = torch.randn(w.size, generator=torch.Generator().manual_seed(0))
    steps = 4 * k
    while steps <= most:
        run = lanczos_tridiagonal(operator, start, steps, reorthogonalize=True)
        alpha, beta = run.alphas.double(), torch.cat([run.betas, torch.tensor([run.last_beta])])
        for m in range(k, len(alpha) + 1):
            T = torch.diag(alpha[:m]) + torch.diag(beta[: m - 1].double(), 1)
            theta, Y = torch.linalg.eigh(T, UPLO="U")
            top = theta.abs().argsort(descending=True)[:k]
            if (beta[m - 1] * Y[-1, top].abs() < 0.9 * tol * theta[top].abs()).all():
                return m
        steps *= 2
    raise RuntimeError(f"more than {most} Lanczos steps needed for residual {tol}")


def _by_magnitude(values: Tensor, vectors: Tensor) -> Pairs:
    order = values.abs().argsort(descending=True)
    return values[order], vectors[:, order]


# Diagonals ---------------------------------------------------------------------------------------


def backpack_diagonal(extension: type, field: str, chunk: int) -> Contestant:
    """Exact, in chunks of samples: BackPACK's memory grows with a batch."""

    def prepare(w: Workload) -> Callable[[], dict[str, Tensor]]:
        def run() -> dict[str, Tensor]:
            model = extend(copy.deepcopy(w.model))
            loss = extend(nn.CrossEntropyLoss(reduction="sum"))
            total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            for X, y in zip(w.X.split(chunk), w.y.split(chunk), strict=True):
                with backpack(extension()):
                    loss(model(X), y).backward()
                for name, p in model.named_parameters():
                    total[name] += getattr(p, field)
            return {name: value / len(w.X) for name, value in total.items()}

        return run

    return prepare


def diag_ggn(chunk: int) -> Contestant:
    return backpack_diagonal(DiagGGNExact, "diag_ggn_exact", chunk)


def diag_hessian(chunk: int) -> Contestant:
    return backpack_diagonal(DiagHessian, "diag_h", chunk)


# Traces ------------------------------------------------------------------------------------------


@cache
def hutchinson_probes(w: Workload) -> int:
    """Probes for 1 % standard error, from the variance of 100 of PyHessian's quadratic forms."""
    torch.manual_seed(0)
    forms = torch.tensor(pyhessian(w).trace(maxIter=100, tol=0))
    return math.ceil((forms.std() / forms.mean() / STANDARD_ERROR).square().item())


def hutchpp_products(w: Workload) -> int:
    products = _hutchpp_products(w)
    if products is None:
        raise RuntimeError("it needs more products than Hutchinson's estimator")
    return products


@cache
def _hutchpp_products(w: Workload) -> int | None:
    """Products for 1 % standard error, from hessian-eigenthings' own error estimate."""
    H, products = eigenthings(w), 30
    while products < hutchinson_probes(w):
        found = hutch_plus_plus(H, num_matvecs=products, seed=0)
        excess = found.stderr / abs(found.estimate) / STANDARD_ERROR
        if excess <= 1:
            return products
        products = 3 * math.ceil(products * min(excess, 3) / 3)  # the error falls as 1/products
    return None


def pyhessian_trace(w: Workload) -> Callable[[], float]:
    probes = hutchinson_probes(w)

    def run() -> float:
        forms = pyhessian(w).trace(maxIter=probes, tol=0)
        return sum(forms) / len(forms)

    return run


def eigenthings_hutchinson(w: Workload) -> Callable[[], float]:
    probes = hutchinson_probes(w)
    return lambda: hutchinson(eigenthings(w), num_samples=probes, seed=0).estimate


def eigenthings_hutchpp(w: Workload) -> Callable[[], float]:
    products = hutchpp_products(w)
    return lambda: hutch_plus_plus(eigenthings(w), num_matvecs=products, seed=0).estimate


def curvlinops_hutchinson(w: Workload) -> Callable[[], float]:
    chunks = math.ceil(hutchinson_probes(w) / CHUNK)

    def run() -> float:
        H = curvlinops(w)
        return sum(hutchinson_trace(H, CHUNK).item() for _ in range(chunks)) / chunks

    return run


def curvlinops_hutchpp(w: Workload) -> Callable[[], float]:
    products = hutchpp_products(w)
    return lambda: hutchpp_trace(curvlinops(w), products).item()


def curvlinops_xtrace(w: Workload) -> Callable[[], float]:
    # XTrace gets the sketch of Hutch++ (a third of its products) for half of its own, which is the
    # best that can be hoped for it; curvlinops returns no error to choose the number by.
    products = 2 * math.ceil(hutchpp_products(w) / 3)
    return lambda: xtrace(curvlinops(w), products).item()


def backpack_trace(chunk: int) -> Contestant:
    """The sum of an exact diagonal: no standard error at all."""

    def prepare(w: Workload) -> Callable[[], float]:
        diagonal = diag_hessian(chunk)(w)
        return lambda: float(sum(d.double().sum() for d in diagonal().values()))

    return prepare
