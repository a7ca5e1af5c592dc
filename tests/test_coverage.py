"""Every sampled number is within two of its standard errors of the truth as often as it says.

The truth is that of all eigenvalues, in float64, over networks and seeds. Sums are normally
distributed around it but for the skewness of the few eigenvalues that make them up, and their error
bars hold it in 90 to 99 % of the cases. The errors of counts are bounds, and may hold it always.
"""

import functools
import math

import pytest
import torch

import lowland as ll
from generated import KINDS, N, dense_matrices
from lowland.curvature import (
    Spectrum,
    effective_dimension,
    frobenius_norm,
    negative_eigenvalues,
    spectral_density,
)
from lowland.curvature.stochastic_diagonal import estimate_diagonal
from lowland.curvature.xtrace import estimate_trace
from lowland.measures.shared import spectrum
from planted import Hidden

STEPS, PROBES = 10, 4  # 40 products of matrices with 146 to 243 rows


@functools.cache
def matrices():
    """Hessian and GGN of one network of each kind, with all their eigenvalues."""
    found = []
    for seed, kind in enumerate(KINDS):
        pair = dense_matrices(kind.problem(seed))
        found.append([(Hidden(A), torch.linalg.eigvalsh(A)) for A in pair])
    return found


def dimension(values, alpha=1 / N):
    return float((values.clamp_min(0) / (values.clamp_min(0) + alpha)).sum())


def covered(pairs):
    """The share of estimates within two standard errors of the truth."""
    held = [abs(e.value - truth) <= 2 * e.stderr + 1e-12 * abs(truth) for e, truth in pairs]
    return sum(held) / len(held)


def spectra(which, seeds, dtype=torch.float64):
    for pair in matrices():
        A, values = pair[which]
        for seed in range(seeds):
            yield Spectrum.of(Hidden(A.matrix.to(dtype)), STEPS, PROBES, seed), values


def width(pairs):
    """Root mean square of the distance from the truth in standard errors: 1, if these are right."""
    return math.sqrt(sum(((e.value - t) / (e.stderr or t)) ** 2 for e, t in pairs) / len(pairs))


@pytest.mark.parametrize(
    ("dtype", "seeds"),
    [
        (torch.float64, 4),
        (torch.float32, 4),
        pytest.param(torch.float64, 16, marks=pytest.mark.slow),
    ],
)
def test_the_norm_and_the_effective_dimension(dtype, seeds):
    norms = [(frobenius_norm(s), float(v.norm())) for s, v in spectra(0, seeds, dtype)]
    dims = [(effective_dimension(s, 1 / N), dimension(v)) for s, v in spectra(1, seeds, dtype)]
    for pairs, usual in ((norms, 0.03), (dims, 0.1)):
        assert covered(pairs) >= 0.9
        assert seeds < 10 or covered(pairs) <= 0.99
        assert 0.6 < width(pairs) < 1.3
        assert sorted(e.stderr / truth for e, truth in pairs)[len(pairs) // 2] < usual


def test_counts_and_the_dimension_of_an_indefinite_matrix():
    shares, negative, dims = [], [], []
    for s, v in spectra(0, 1):
        limit = 0.01 * float(v.abs().max())
        shares.append((s.between(-limit, limit), int((v.abs() <= limit).sum())))
        floor = len(v) * torch.finfo(torch.float64).eps * float(v.abs().max())
        negative.append((negative_eigenvalues(s), int((v < -floor).sum())))
        dims.append((effective_dimension(s, 1 / N), dimension(v)))
    for pairs in (shares, negative, dims):
        assert covered(pairs) >= 0.9
    # and none claims to be exact: the share that cannot be told from zero is in the error
    assert all(e.stderr >= 1 for e, _ in negative)


def test_integrals_over_the_density_and_the_density_itself():
    squares, exponentials, points = [], [], []
    for seed, ((A, values), _) in enumerate(matrices()):
        found = spectral_density(A, steps=12, probes=6, points=64, seed=seed)
        scale = float(values.abs().max())
        for f, pairs in ((torch.square, squares), (lambda x, s=scale: (x / s).exp(), exponentials)):
            pairs.append((found.average(f), float(f(values).mean())))
        half = (found.grid[1] - found.grid[0]) / 2
        edges = torch.cat([found.grid - half, found.grid[-1:] + half])
        truth = torch.special.ndtr((edges[:, None] - values) / found.bandwidth).mean(1).diff()
        truth = truth / (2 * half)
        seen = truth > 1e-3 * truth.max()
        points.append(((found.density - truth).abs() <= 2 * found.stderr)[seen].double().mean())
    assert covered(squares) >= 0.9
    assert covered(exponentials) >= 0.9
    assert 0.9 <= float(torch.stack(points).mean()) <= 0.99


def test_traces_and_diagonals():
    traces, entries = [], []
    for seed, pair in enumerate(matrices()):
        for A, values in pair:
            found = estimate_trace(A, rtol=0.05, max_matvecs=120, seed=seed)
            if found.stderr:  # a basis of the whole space is exact
                traces.append((found, float(values.sum())))
        A = pair[1][0]
        diagonal = estimate_diagonal(A, rtol=0.1, max_matvecs=60, seed=seed)
        held = (diagonal.value - A.matrix.diagonal()).abs() <= 2 * diagonal.stderr + 1e-12
        entries.append(held.double().mean())
    assert 0.9 <= covered(traces) <= 0.99
    assert 0.9 <= float(torch.stack(entries).mean()) <= 0.99


NAMES = ["largest_eigenvalue", "frobenius_norm", "near_zero_share", "negative_share"]
NAMES += ["effective_dimension", "trace"]


def scores(kinds, seed):
    """How many standard errors each measure is from the truth, where it gives a value."""
    found = {name: [] for name in NAMES}
    for kind in kinds:
        problem = kind.problem(seed)
        H, G = (torch.linalg.eigvalsh(A) for A in dense_matrices(problem))
        floor = len(H) * torch.finfo(torch.float64).eps * float(H.abs().max())
        truths = {
            "largest_eigenvalue": float(H[-1]),
            "frobenius_norm": float(H.norm()),
            "near_zero_share": float((H.abs() <= 0.01 * H.abs().max()).double().mean()),
            "negative_share": float((-floor > H).double().mean()),
            "effective_dimension": dimension(G),
            "trace": float(H.sum()),
        }
        for name, row in ll.measure(problem, NAMES).items():
            if row.value is None:
                assert "leaves it open" in row.reason or "do not tell the sign" in row.reason
            else:
                error = row.stderr or 1e-6 * abs(row.value)
                found[name].append((row.value - truths[name]) / error)
    return found


def test_measures_of_small_networks_are_exact():
    for name, row in scores(KINDS[1::7], 100).items():
        assert len(row) == len(KINDS[1::7])
        assert max(map(abs, row)) <= (4 if name == "trace" else 1)


def test_measures_of_networks_too_large_for_all_eigenvalues(monkeypatch):
    monkeypatch.setattr(spectrum, "AFFORDABLE", 0)
    for row in scores(KINDS[::6], 101).values():
        assert all(abs(z) <= 4 for z in row)


@pytest.mark.slow
def test_measures_cover_the_truth_over_networks(monkeypatch):
    monkeypatch.setattr(spectrum, "AFFORDABLE", 0)
    rows = [scores(KINDS, 102 + seed) for seed in range(2)]
    for name in NAMES:
        row = [z for each in rows for z in each[name]]
        assert sum(abs(z) <= 2 for z in row) >= 0.9 * len(row), name
        if name in ("largest_eigenvalue", "frobenius_norm", "effective_dimension", "trace"):
            assert len(row) >= 0.9 * 2 * len(KINDS), name
