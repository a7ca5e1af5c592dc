"""Quadrature of planted spectra, where the density, its moments and its masses are known."""

import math

import matplotlib
import pytest
import torch

from lowland.curvature import Dense, eigsh, spectral_density
from lowland.errors import InputError
from planted import Hidden, planted

matplotlib.use("Agg")

N = 700  # more than 80 steps of 8 probes, so that nothing is exact for being small
UNIFORM = torch.linspace(-1, 3, N).double()
MATRIX = planted(UNIFORM)


def integral(found):
    return float(found.density.sum() * (found.grid[1] - found.grid[0]))


@pytest.fixture(scope="module")
def uniform():
    return spectral_density(Hidden(MATRIX))


def smoothed(values, grid, sigma):
    z = (grid[:, None] - values) / sigma
    return (-(z**2) / 2).exp().mean(1) / (sigma * math.sqrt(2 * math.pi))


def test_a_dense_matrix_gives_the_density_of_its_eigenvalues():
    found = spectral_density(Dense(MATRIX), bandwidth=0.1, points=2000)
    assert found.exact
    assert found.converged
    assert (found.matvecs, float(found.stderr.max())) == (0, 0)
    torch.testing.assert_close(found.nodes, UNIFORM, rtol=0, atol=1e-12)
    expected = smoothed(UNIFORM, found.grid, 0.1)
    torch.testing.assert_close(found.density, expected, rtol=0, atol=1e-4)  # cell means, not points


@pytest.mark.parametrize("bandwidth", [None, 1e-6, 0.3])
def test_it_integrates_to_one_at_any_bandwidth(bandwidth):
    for A in (Dense(MATRIX), Hidden(MATRIX)):
        found = spectral_density(A, bandwidth=bandwidth, steps=20, probes=2)
        assert integral(found) == pytest.approx(1, abs=1e-5)  # five standard deviations each side


def test_quadrature_comes_near_the_true_density(uniform):
    assert not uniform.exact
    assert uniform.converged
    assert uniform.matvecs == 640
    cell = uniform.grid[1] - uniform.grid[0]
    truth = smoothed(UNIFORM, uniform.grid, uniform.bandwidth)
    distance = float((uniform.density - truth).abs().sum() * cell)
    assert distance < 2 * float(uniform.stderr.sum() * cell) < 0.2
    assert uniform.nodes.shape == uniform.weights.shape == uniform.residuals.shape == (640,)
    assert float(uniform.weights.sum()) == pytest.approx(1)


def test_residuals_hold_an_eigenvalue(uniform):
    distance = (uniform.nodes[:, None] - UNIFORM).abs().min(1).values
    assert (distance <= uniform.residuals + 1e-12).all()


def test_masses_and_moments_are_within_their_errors(uniform):
    for x in (-2.0, -0.5, 0.0, 1.234, 2.9, 4.0):
        share = uniform.below(x)
        assert abs(share.value - float(UNIFORM.lt(x).double().mean())) <= 3 * share.stderr + 1e-12
        assert share.stderr < 0.02
    for power in (1, 2, 3):
        moment = uniform.average(lambda x, p=power: x**p)
        assert abs(moment.value - float((UNIFORM**power).mean())) <= 3 * moment.stderr


def test_error_bars_of_averages_cover_the_truth():
    A, truth = Hidden(MATRIX), float(UNIFORM.exp().mean())
    found = [
        spectral_density(A, steps=12, probes=6, points=16, seed=seed).average(torch.exp)
        for seed in range(100)
    ]
    # six probes: Student with 5 degrees of freedom holds 90 % within two; 100 runs, 3.3 deviations
    assert sum(abs(e.value - truth) <= 2 * e.stderr for e in found) >= 80
    few, many = (
        spectral_density(A, steps=12, probes=p, points=16).average(torch.exp).stderr
        for p in (4, 48)
    )
    assert many < 0.6 * few


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_distinct_eigenvalues_are_found_exactly(dtype):
    # a diagonal matrix: its products are exact, and the recurrence ends by itself
    values = torch.tensor([1.0, 2, -3, 5]).double().repeat_interleave(N // 4)
    A = Hidden(torch.diag(values).to(dtype))
    found = spectral_density(A, steps=30, probes=3)
    eps = torch.finfo(dtype).eps
    heavy = found.nodes[found.weights > 1e-3]
    assert len(heavy) == 12
    expected = torch.tensor([-3.0, 1, 2, 5]).double().repeat_interleave(3)
    torch.testing.assert_close(heavy, expected, rtol=0, atol=50 * eps)
    # the weights are what probes have in each eigenspace: their mean of x is v^T A v to rounding
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(len(values), 3, dtype=dtype, generator=generator).double()
    v = torch.linalg.qr(v).Q
    share = (v**2 * values[:, None]).sum(0).mean()
    torch.testing.assert_close(found.weights @ found.nodes, share, rtol=0, atol=50 * eps)
    assert found.nodes.min() > -3.01
    assert found.nodes.max() < 5.01


def test_gauss_quadrature_is_exact_to_degree_two_m_minus_one():
    A, m = MATRIX, 4
    found = spectral_density(Hidden(A), steps=m, probes=2)
    v = torch.randn(N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    v = torch.linalg.qr(v).Q
    w = v
    for degree in range(1, 2 * m + 1):
        w = A @ w
        expected, value = (v * w).sum(0).mean(), found.weights @ found.nodes**degree
        assert torch.allclose(value, expected, rtol=1e-10, atol=1e-12) == (degree < 2 * m)


def test_probes_go_together_and_fewer_of_them_where_memory_is_short():
    A = Hidden(MATRIX)
    spectral_density(A, steps=20, probes=5)
    assert A.widths == [5] * 20
    A.memory = 2 * 20 * N * 8  # two bases at once
    spectral_density(A, steps=20, probes=5)
    assert A.widths[20:] == [2] * 20


def test_a_small_operator_costs_no_more_than_its_matrix():
    A = Hidden(planted(UNIFORM[:100]))
    found = spectral_density(A)
    assert found.exact
    assert found.matvecs == A.matvecs == 100
    torch.testing.assert_close(found.nodes, UNIFORM[:100], rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [0.0, 2.5])
def test_a_multiple_of_the_identity(scale):
    found = spectral_density(Hidden(scale * torch.eye(N).double()))
    assert found.converged
    assert found.matvecs == 8
    assert integral(found) == pytest.approx(1, abs=1e-5)
    assert found.average(lambda x: x).value == pytest.approx(scale)


def test_too_few_steps_or_probes_are_not_called_converged():
    A = Hidden(MATRIX)
    assert not spectral_density(A, steps=4, bandwidth=0.05).converged
    alone = spectral_density(A, probes=1, steps=40)
    assert not alone.converged
    assert "NOT converged" in repr(alone)
    mean = alone.average(lambda x: x)
    assert abs(mean.value - float(UNIFORM.mean())) <= 3 * mean.stderr
    # one vector on the sphere: the variance is 2/n of that of the eigenvalues
    expected = math.sqrt(2 / N) * float(UNIFORM.std())
    assert mean.stderr == pytest.approx(expected, rel=0.2)


def test_the_seed_decides_and_the_global_state_does_not_move():
    A, state = Hidden(MATRIX), torch.get_rng_state()
    one, same, other = (spectral_density(A, steps=5, seed=s).nodes for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_draws_itself(uniform):
    ax = uniform.plot()
    assert ax.get_yscale() == "log"
    assert len(ax.lines) == len(ax.collections) == 1
    assert uniform.plot(ax) is ax
    matplotlib.pyplot.close(ax.figure)
    assert "data:image/png;base64," in uniform._repr_html_()


def test_eigenvalues_are_drawn_with_their_residuals():
    pairs = eigsh(Hidden(MATRIX), k=3, which="largest")
    ax = pairs.plot()
    assert [bar.get_height() for bar in ax.patches] == pairs.values.tolist()
    matplotlib.pyplot.close(ax.figure)
    assert pairs._repr_html_().startswith("<pre>Eigenpairs([")


def test_wrong_requests_are_refused():
    A = Hidden(planted(UNIFORM[:9]))
    with pytest.raises(InputError, match="probes must be at least 1; got 0"):
        spectral_density(A, probes=0)
    with pytest.raises(InputError, match="bandwidth must be above zero; got 0"):
        spectral_density(A, bandwidth=0)
    with pytest.raises(InputError, match="NaN or infinite"):
        spectral_density(Hidden(torch.full((900, 900), math.nan)))
    with pytest.raises(InputError, match="NaN or infinite"):
        spectral_density(torch.full((3, 3), math.inf))
