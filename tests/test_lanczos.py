"""Planted spectra: the algorithm sees a matrix whose eigenpairs are known."""

import pytest
import torch

import lowland as ll
from cases import CASES, dense_hessian
from lowland.curvature import Dense
from lowland.errors import InputError
from planted import Hidden
from planted import planted as matrix_with


def planted(values: torch.Tensor) -> Dense:
    return Dense(matrix_with(values))


SPECTRUM = torch.cat([torch.tensor([9.0, -7, 5, 4, 3, -2.5]), torch.linspace(-1, 1, 294)]).double()


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("which", ["magnitude", "largest", "smallest"])
def test_planted_eigenvalues_are_found_at_each_end(which, block):
    A = planted(SPECTRUM)
    found = ll.eigsh(A, 3, which=which, tol=1e-8, block=block)
    key = {"magnitude": -SPECTRUM.abs(), "largest": -SPECTRUM, "smallest": SPECTRUM}[which]
    expected = SPECTRUM[key.argsort()][:3]
    assert found.converged
    if which == "smallest":  # -7, -2.5, then the edge of the bulk
        expected = SPECTRUM.sort().values[:3]
    torch.testing.assert_close(found.values, expected, rtol=1e-10, atol=1e-10)
    residuals = (A.matrix @ found.vectors - found.vectors * found.values).norm(dim=0)
    torch.testing.assert_close(residuals, found.residuals, rtol=1e-3, atol=1e-13)
    gram = found.vectors.T @ found.vectors
    torch.testing.assert_close(gram, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("which", ["magnitude", "largest", "smallest"])
@pytest.mark.parametrize("seed", range(8))
def test_equal_eigenvalues_are_found_as_often_as_they_occur(which, seed):
    generator = torch.Generator().manual_seed(seed)
    bulk = torch.rand(90, generator=generator).double() - 0.5
    ends = torch.tensor([0.877, 0.719, 0.656, -0.7, -0.9]).double()
    copies = torch.randint(1, 4, (5,), generator=generator)
    values = torch.cat([bulk, ends.repeat_interleave(copies)])
    found = ll.eigsh(planted(values), 6, which=which, seed=seed)
    key = {"magnitude": -values.abs(), "largest": -values, "smallest": values}[which]
    assert found.converged
    torch.testing.assert_close(found.values, values[key.argsort()][:6], rtol=1e-3, atol=0)


def test_an_end_that_the_start_does_not_see_is_found():
    A = Dense(torch.diag(SPECTRUM))
    start = torch.ones(len(SPECTRUM)).double()
    start[0] = start[1] = 0  # the eigenvectors of 9 and -7
    assert ll.eigsh(A, 1, which="largest", start=start).values[0] == pytest.approx(9)
    assert ll.eigsh(A, 1, which="smallest", start=start).values[0] == pytest.approx(-7)


def test_no_search_takes_more_products_than_the_matrix_has_columns():
    A = planted(torch.linspace(0.99, 1, 200).double())
    found = ll.eigsh(A, 5, tol=1e-10)
    assert found.converged
    assert found.matvecs <= 200


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_sizes_whose_squares_are_no_numbers(size):
    matrix = matrix_with(SPECTRUM).float()
    found = ll.eigsh(Dense(matrix * size), 3)
    torch.testing.assert_close(found.values / size, SPECTRUM[:3], rtol=1e-5, atol=0)
    off = ((matrix.double() * size) @ found.vectors.double() - found.vectors * found.values).norm()
    assert found.residuals.norm() == pytest.approx(float(off), rel=0.5)


def test_an_unconverged_result_says_so_and_its_residual_is_true():
    A = planted(torch.linspace(0.9, 1, 500).double())
    found = ll.eigsh(A, 5, tol=1e-10, max_matvecs=30)
    assert not found.converged
    assert "NOT converged" in repr(found)
    assert found.matvecs == 30
    # Weyl: an eigenvalue of A lies within the residual of each value
    distance = (torch.linspace(0.9, 1, 500).double()[:, None] - found.values).abs().min(0).values
    assert (distance <= found.residuals).all()


def test_a_warm_start_from_the_answer_needs_but_a_look_at_what_it_leaves_out():
    A = planted(SPECTRUM)
    cold = ll.eigsh(A, 3, tol=1e-6)
    warm = ll.eigsh(A, 3, tol=1e-6, start=cold.vectors)
    assert warm.matvecs < cold.matvecs
    torch.testing.assert_close(warm.values, cold.values)


@pytest.mark.parametrize("matrix", [torch.zeros(12, 12), torch.eye(12), torch.ones(12, 12)])
def test_matrices_with_invariant_subspaces(matrix):
    found = ll.eigsh(Dense(matrix.double()), 4)
    assert found.converged
    expected = torch.linalg.eigvalsh(matrix.double()).abs().sort(descending=True).values[:4]
    torch.testing.assert_close(found.values.abs(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_all_eigenpairs_of_a_small_matrix(n, block):
    A = planted(torch.arange(1.0, n + 1).double())
    found = ll.eigsh(A, n, which="smallest", block=block)
    torch.testing.assert_close(found.values, torch.arange(1.0, n + 1).double())
    assert found.matvecs == n


def test_the_whole_hessian_of_a_network():
    problem = CASES["mlp-tanh"].problem()
    H = ll.hessian(problem)
    expected = dense_hessian(problem)
    torch.testing.assert_close(H.dense(), expected)
    found = ll.eigsh(H, 3, tol=1e-8)
    values = torch.linalg.eigvalsh(expected)
    order = values.abs().argsort(descending=True)[:3]
    torch.testing.assert_close(found.values, values[order])


def test_wrong_requests_are_refused():
    A = planted(SPECTRUM[:9])
    with pytest.raises(InputError, match="between 1 and the size 9.*got 10"):
        ll.eigsh(A, 10)
    with pytest.raises(InputError, match="'magnitude', 'largest', 'smallest'; got 'top'"):
        ll.eigsh(A, 1, which="top")
    with pytest.raises(InputError, match="start has 4 rows"):
        ll.eigsh(A, 1, start=torch.ones(4))
    with pytest.raises(InputError, match="NaN or infinite"):
        ll.eigsh(Dense(torch.full((3, 3), float("nan"))), 1)


def test_where_memory_is_short_the_basis_is_smaller_and_the_residuals_are_products():
    n, k = 300, 4
    A = Hidden(matrix_with(0.9 ** torch.arange(n).double()))
    plenty = ll.eigsh(A, k, tol=1e-6)
    assert plenty.matvecs == A.matvecs
    A.memory = 16 * 8 * n  # vectors
    short = ll.eigsh(A, k, tol=1e-6)
    assert short.converged
    torch.testing.assert_close(short.values, plenty.values, rtol=1e-9, atol=0)
    exact = (A.matrix @ short.vectors - short.vectors * short.values).norm(dim=0)
    torch.testing.assert_close(short.residuals, exact, rtol=0.1, atol=1e-12)
    assert plenty.matvecs + short.matvecs == A.matvecs
    A.memory = 8 * 8 * n
    with pytest.raises(InputError, match="a search for 4 eigenvectors of 300 entries"):
        ll.eigsh(A, k)
