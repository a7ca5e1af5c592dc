"""Numbers read off a spectrum, against numpy on the matrix that was planted."""

import math

import numpy as np
import pytest
import torch

from lowland.curvature import (
    Dense,
    condition_number,
    effective_dimension,
    frobenius_norm,
    negative_eigenvalues,
)
from lowland.errors import InputError
from planted import Hidden, planted

N = 700  # more than 80 steps of 8 probes, so that nothing is exact for being small
INDEFINITE = torch.cat([torch.tensor([20.0, 10, 5, -4]), torch.linspace(-0.5, 0.6, N - 4)])
SPECTRA = {
    "power": 1 / torch.arange(1, N + 1).double(),
    "uniform": torch.linspace(-1, 3, N).double(),
    "indefinite": INDEFINITE.double(),
}


@pytest.fixture(params=SPECTRA, scope="module")
def spectrum(request):
    values = SPECTRA[request.param]
    return values, planted(values)


def dimension(values, alpha):
    values = values.clamp_min(0)
    return float((values / (values + alpha)).sum())


def test_a_dense_matrix_is_exact(spectrum):
    values, matrix = spectrum
    A = Dense(matrix)
    expected = [
        (frobenius_norm(A), np.linalg.norm(matrix.numpy())),
        (effective_dimension(A, 0.1), dimension(values, 0.1)),
        (negative_eigenvalues(A), int((np.linalg.eigvalsh(matrix.numpy()) < -1e-9).sum())),
        (condition_number(A), np.linalg.cond(matrix.numpy())),
    ]
    for found, truth in expected:
        assert found.value == pytest.approx(truth, rel=1e-9)
        assert (found.stderr, found.samples, found.converged) == (0, 0, True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_estimates_are_within_their_errors(spectrum, dtype):
    values, matrix = spectrum
    A = Hidden(matrix.to(dtype))
    dim = effective_dimension(A, 0.1)
    assert abs(dim.value - dimension(values, 0.1)) <= 3 * dim.stderr
    assert dim.converged == (dim.stderr <= 0.05 * dim.value)

    norm = frobenius_norm(A)
    assert norm.converged
    assert norm.stderr <= 0.01 * norm.value
    assert abs(norm.value - float(values.norm())) <= 4 * norm.stderr

    count = negative_eigenvalues(A, threshold=0.1)
    assert abs(count.value - int((values < -0.1).sum())) <= 3 * count.stderr + 1e-9
    assert "below -0.1" in count.method


def test_error_bars_of_the_norm_cover_the_truth():
    values = 0.9 ** torch.arange(200).double()
    A, truth = Hidden(planted(values)), float(values.norm())
    found = [frobenius_norm(A, rtol=0.02, seed=seed) for seed in range(200)]
    # as for the trace: 92 % within two standard errors, less than 170 of 200 once in 2,000 times
    assert sum(abs(e.value - truth) <= 2 * e.stderr for e in found) >= 170
    assert all(e.converged for e in found)


def test_the_norm_of_low_rank_and_of_nothing():
    low = torch.zeros(300, 300).double()
    low[0, 0], low[1, 1] = 3, -4
    assert frobenius_norm(Hidden(low)).value == pytest.approx(5, rel=1e-12)
    assert frobenius_norm(Hidden(0 * low)).value == 0


def test_negative_eigenvalues_are_told_from_rounding():
    values = torch.cat([torch.tensor([-3.0, -1]), torch.zeros(200), torch.ones(98)]).double()
    found = negative_eigenvalues(Dense(planted(values)))
    assert (found.value, found.stderr) == (2, 0)
    assert found.method.startswith("below -")


def test_the_count_says_how_little_it_knows():
    values = torch.cat([torch.linspace(-1, 1, N)]).double()
    A = Hidden(planted(values))
    coarse = negative_eigenvalues(A, threshold=0.3, steps=6)
    fine = negative_eigenvalues(A, threshold=0.3, steps=60)
    truth = int((values < -0.3).sum())
    assert not coarse.converged
    assert fine.stderr < coarse.stderr
    for found in (coarse, fine):
        assert abs(found.value - truth) <= 3 * found.stderr


def test_effective_dimension_with_too_few_steps_is_not_called_converged():
    A = Hidden(planted(10.0 ** torch.linspace(-6, 2, N).double()))
    rough = effective_dimension(A, 1e-4, steps=6, probes=40)
    assert not rough.converged
    truth = dimension(10.0 ** torch.linspace(-6, 2, N).double(), 1e-4)
    assert abs(rough.value - truth) <= 3 * rough.stderr


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_condition_number_by_lanczos_holds_the_truth(sign, dtype):
    values = torch.linspace(0.5, 10, N).double()
    A = Hidden((sign * planted(values)).to(dtype))
    found = condition_number(A)
    assert found.converged
    assert found.samples == A.matvecs < N
    # Ritz values lie inside the spectrum: a lower bound, and the residuals give the upper one
    assert found.value <= 20 * (1 + 1e-5) <= found.value + found.stderr + 1e-3
    assert found.stderr <= 0.05 * found.value


def test_a_condition_number_that_cannot_be_known_is_infinite():
    singular = torch.cat([torch.zeros(50), torch.linspace(1, 2, N - 50)]).double()
    found = condition_number(Hidden(planted(singular)))
    assert found.value == math.inf
    assert "singular" in found.method
    found = condition_number(Hidden(planted(SPECTRA["uniform"])))
    assert (found.value, found.converged) == (math.inf, False)
    assert "both signs" in found.method
    hard = condition_number(Hidden(planted(SPECTRA["power"] ** 4)), max_matvecs=60)
    assert (hard.value, hard.converged) == (math.inf, False)
    dense = condition_number(Dense(planted(singular)))
    assert (dense.value, dense.converged) == (math.inf, True)


def test_wrong_requests_are_refused():
    A = Dense(torch.eye(3))
    with pytest.raises(InputError, match="alpha must be above zero; got 0"):
        effective_dimension(A, 0)
    with pytest.raises(InputError, match="threshold must not be negative; got -1"):
        negative_eigenvalues(A, threshold=-1)
    for measure in (frobenius_norm, condition_number, negative_eigenvalues):
        with pytest.raises(InputError, match="NaN or infinite"):
            measure(Dense(torch.full((3, 3), math.nan)))
