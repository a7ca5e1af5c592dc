"""Block Lanczos quadrature: bounds that hold, on measures that are known in full."""

import pytest
import torch

from lowland.curvature.quadrature import block_lanczos
from planted import Hidden, planted

N, PROBES = 300, 3
SPECTRA = {
    "outliers": torch.cat([torch.tensor([9.0, 5, -4]), torch.linspace(-0.1, 0.2, N - 3)]),
    "uniform": torch.linspace(-1, 3, N),
    "positive": torch.cat([torch.zeros(150), 10.0 ** torch.linspace(-3, 2, N - 150)]),
}


def start(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, PROBES, dtype=torch.float64, generator=generator)


def measure_of(values, seed=0):
    """What the probes have along each eigenvector of the planted matrix, in all 1."""
    generator = torch.Generator().manual_seed(seed)
    E = torch.linalg.qr(torch.randn(N, N, dtype=torch.float64, generator=generator)).Q
    V = torch.linalg.qr(start()).Q
    return (E.T @ V).square().sum(1) / PROBES


@pytest.mark.parametrize("name", SPECTRA)
def test_shares_are_between_the_bounds_and_these_close(name):
    values = SPECTRA[name].double()
    A, mass = Hidden(planted(values)), measure_of(values)
    widths = []
    for steps in (3, 8, 20):
        found = block_lanczos(A, start(), steps)
        gaps = []
        for x in (-0.5, -0.05, 0.013, 0.3, 1.2, 4.5):
            low, high = found.below(x)
            assert low - 1e-9 <= float(mass[values < x].sum()) <= high + 1e-9
            gaps.append(high - low)
        widths.append(sum(gaps))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.5 * widths[0]


def test_gauss_and_radau_hold_a_smooth_mean():
    values, alpha = SPECTRA["positive"].double(), 1.0
    A, mass = Hidden(planted(values)), measure_of(values)
    truth = float(mass @ (values / (values + alpha)))
    widths = []
    for steps in (3, 6, 12, 24):
        found = block_lanczos(A, start(), steps)
        above = float(found.weights @ (found.nodes / (found.nodes + alpha)))
        nodes, weights = found.radau(-0.02)
        below = float(weights @ (nodes / (nodes + alpha)))
        assert below <= truth <= above
        widths.append(above - below)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1e-3 * widths[0]


def test_residuals_are_those_of_the_ritz_vectors():
    A = Hidden(planted(SPECTRA["outliers"].double()))
    found = block_lanczos(A, start(), 8)
    X = found.V @ found.Y
    residuals = (A.matrix @ X - X * found.nodes).norm(dim=0)
    torch.testing.assert_close(found.residuals, residuals, rtol=1e-8, atol=1e-12)
    gram = found.V.T @ found.V
    torch.testing.assert_close(gram, torch.eye(24, dtype=torch.float64), rtol=0, atol=1e-12)
    assert A.widths == [3] * 8
    assert found.matvecs == 24


def test_it_goes_on_until_settled_and_stops_at_the_end_of_the_space():
    A = Hidden(planted(SPECTRA["outliers"].double()))

    def settled(nodes, residuals):
        return bool(residuals[-1] <= 1e-6 * nodes[-1])

    found = block_lanczos(A, start(), 2, settled, 60)
    assert settled(found.nodes, found.residuals)
    assert 2 < len(A.widths) < 60
    low = torch.zeros(N).double()
    low[:7] = torch.tensor([5.0, 4, 3, 2, 1, -1, -2])
    found = block_lanczos(Hidden(planted(low)), start(), 50)
    assert len(found.B) == 0  # seven eigenvectors and the probes' parts in the null space
    assert found.matvecs <= 12
    assert (found.nodes.abs() > 0.5).sum() == 7
    assert found.below(0.5) == pytest.approx([float(measure_of(low)[low < 0.5].sum())] * 2)
    A.memory = 5 * PROBES * N * 8
    assert block_lanczos(A, start(), 8).matvecs == 5 * PROBES


@pytest.mark.parametrize("steps", [3, 4])
def test_a_hopeless_run_ends_after_a_third_or_half_of_its_steps(steps):
    A = Hidden(planted(SPECTRA["outliers"].double()))
    parts = []
    found = block_lanczos(
        A, start(), 9, hopeless=lambda part: parts.append(part) or part.matvecs >= steps * PROBES
    )
    assert found.matvecs == steps * PROBES
    assert torch.equal(found.nodes, parts[-1].nodes)
    expected = block_lanczos(A, start(), steps)
    assert torch.equal(found.nodes, expected.nodes)
    assert block_lanczos(A, start(), 9, hopeless=lambda part: False).matvecs == 9 * PROBES


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_reach_of_rounding_is_measured(dtype):
    """A product with noise of a known size: its eigenvalues move by up to ``2 e sqrt(n)``."""
    generator = torch.Generator().manual_seed(3)
    noise = 1e-5 * torch.randn(N, N, dtype=torch.float64, generator=generator)
    matrix = planted(SPECTRA["uniform"].double())
    clean = block_lanczos(Hidden(matrix.to(dtype)), start(), 12).rounding
    noisy = block_lanczos(Hidden((matrix + noise).to(dtype)), start(), 12).rounding
    assert torch.finfo(dtype).eps <= clean < 1e3 * torch.finfo(dtype).eps
    assert noisy == pytest.approx(2e-5 * N**0.5, rel=0.5)
