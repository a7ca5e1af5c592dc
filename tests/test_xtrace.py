"""Planted spectra, the papers' definitions word by word, and error bars that must be true."""

import itertools
import math

import pytest
import torch

from lowland.curvature import Dense, Estimate
from lowland.curvature.sketch import Sketch
from lowland.curvature.stochastic_diagonal import _leave_one_out, estimate_diagonal
from lowland.curvature.xtrace import LeaveOneOut
from lowland.curvature.xtrace import estimate_trace as trace
from lowland.errors import InputError
from planted import Hidden, planted

N = 200
SPECTRA = {
    "fast": 0.7 ** torch.arange(N).double(),
    "slow": 0.9 ** torch.arange(N).double(),
    "power": 1 / torch.arange(1, N + 1).double(),
    "flat": torch.linspace(1, 3, N).double(),
    "indefinite": torch.cat([torch.tensor([20.0, 10, 5, -4]), torch.linspace(-0.5, 0.6, N - 4)]),
    "step": torch.cat([torch.ones(20), torch.full((N - 20,), 1e-3)]),
}
SPECTRA = {name: values.double() for name, values in SPECTRA.items()}
SLICES = {"a": slice(0, 30), "b": slice(30, 120), "c": slice(120, N)}


def sketch_of(A, m, seed=0, signs=False):
    sketch = Sketch(A, seed, signs)
    sketch.grow(m // 2)
    sketch.grow(m - m // 2)
    return sketch


def definition(A, Omega, i, *also):
    """The diagonal that test vector i estimates, with a QR of its own (two-sided, as XTrace)."""
    rest = [j for j in range(Omega.shape[1]) if j not in (i, *also)]
    Q = torch.linalg.qr(A @ Omega[:, rest]).Q
    P = Q @ Q.T
    v = Omega[:, i] - P @ Omega[:, i]
    v = v * math.sqrt(len(A) - len(rest)) / v.norm()
    return (P @ A + A @ P - P @ A @ P).diagonal() + v * (A @ v - P @ (A @ v))


def covariance_by_definition(sample, m):
    alone = [sample(i) for i in range(m)]
    pairs = [
        (alone[i] - sample(i, j)) * (alone[j] - sample(j, i)) for i in range(m) for j in range(i)
    ]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("name", ["fast", "flat", "indefinite"])
def test_the_fast_formulas_are_the_definition(name):
    A, m = planted(SPECTRA[name]), 6
    sketch = sketch_of(Hidden(A), m)
    X, covariance, _ = LeaveOneOut(sketch).whole()

    def sample(i, *also):
        return float(definition(A, sketch.Omega, i, *also).sum())

    expected = torch.tensor([sample(i) for i in range(m)], dtype=torch.float64)
    torch.testing.assert_close(X, expected, rtol=1e-9, atol=1e-9)
    assert covariance == pytest.approx(max(0, covariance_by_definition(sample, m)), rel=1e-7)


@pytest.mark.parametrize("name", ["slow", "indefinite"])
def test_the_parts_are_the_definition_and_add_up(name):
    A, m = planted(SPECTRA[name]), 6
    sketch = sketch_of(Hidden(A), m)
    loo = LeaveOneOut(sketch)
    total = 0
    for at in SLICES.values():

        def sample(i, *also, at=at):
            return float(definition(A, sketch.Omega, i, *also)[at].sum())

        X, covariance, _ = loo.part(at)
        expected = torch.tensor([sample(i) for i in range(m)], dtype=torch.float64)
        torch.testing.assert_close(X, expected, rtol=1e-9, atol=1e-9)
        assert covariance == pytest.approx(max(0, covariance_by_definition(sample, m)), rel=1e-7)
        total = total + X
    torch.testing.assert_close(total, loo.whole()[0])
    assert loo.part(slice(0, N))[1] == pytest.approx(loo.whole()[1])


def test_xdiag_is_the_definition():
    A, m = planted(SPECTRA["power"]), 6
    sketch = sketch_of(Hidden(A), m, signs=True)

    def sample(i, *also):
        rest = [j for j in range(m) if j not in (i, *also)]
        Q = torch.linalg.qr(A @ sketch.Omega[:, rest]).Q
        w, PA = sketch.Omega[:, i], Q @ (Q.T @ A)
        return PA.diagonal() + w * ((A - PA) @ w)

    inside, mean, variance = _leave_one_out(sketch)
    torch.testing.assert_close(inside, (sketch.Q * sketch.Z).sum(1))
    X = torch.stack([sample(i) for i in range(m)])
    covariance = covariance_by_definition(sample, m).clamp_min(0)
    torch.testing.assert_close(mean, X.mean(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(variance, X.var(0) / m + covariance, rtol=1e-7, atol=1e-14)


# Two standard errors hold a normal error in 95 % of the runs, and in 92 % if they come from ten
# samples (Student, 9 degrees of freedom). 200 runs at 92 % give less than 170 once in 2,000 times.
RUNS, COVERED = 200, 170


@pytest.mark.parametrize("name", ["fast", "slow", "power", "indefinite"])
def test_error_bars_cover_the_truth(name):
    A, truth = Hidden(planted(SPECTRA[name]), SLICES), float(SPECTRA[name].sum())
    blocks = {k: float(A.matrix.diagonal()[at].sum()) for k, at in SLICES.items()}
    found = [trace(A, rtol=0.02, max_matvecs=150, seed=seed) for seed in range(RUNS)]
    assert sum(abs(e.value - truth) <= 2 * e.stderr for e in found) >= COVERED
    for part, expected in blocks.items():
        held = (abs(e.parts[part].value - expected) <= 2 * e.parts[part].stderr for e in found)
        assert sum(held) >= COVERED
    for e in found:
        assert e.converged == (e.stderr <= 0.02 * abs(e.value))
        assert e.converged or e.samples >= 148


def test_the_variance_is_unbiased_and_the_papers_is_not():
    A, truth = Hidden(planted(SPECTRA["slow"])), float(SPECTRA["slow"].sum())
    square = variance = paper = 0.0
    for seed in range(RUNS):
        X, covariance, _ = LeaveOneOut(sketch_of(A, 20, seed)).whole()
        square += (float(X.mean()) - truth) ** 2
        paper += float(X.var()) / 20
        variance += float(X.var()) / 20 + covariance
    # a sum of 200 squares of normal errors is within 30 % of its mean (three standard deviations)
    assert 0.7 < variance / square < 1.4
    assert paper / square < 0.6


@pytest.mark.parametrize("name", ["fast", "power", "flat"])
def test_error_bars_of_the_diagonal_cover_it(name):
    A = Hidden(planted(SPECTRA[name]))
    found = [estimate_diagonal(A, rtol=0.1, max_matvecs=100, seed=seed) for seed in range(30)]
    held = [((e.value - A.matrix.diagonal()).abs() <= 2 * e.stderr).double().mean() for e in found]
    # 30 runs of 200 entries; entries of one run are not independent, so the bound is loose
    assert 0.89 < float(torch.stack(held).mean()) < 0.99
    for e in found:
        assert e.converged == bool(e.stderr.norm() <= 0.1 * e.value.norm())


def rms(errors):
    return math.sqrt(sum(e**2 for e in errors) / len(errors))


def hutchinson(A, products, seed):
    """The mean of ``v^T A v`` over random vectors of length sqrt(n): Girard 1989."""
    generator = torch.Generator().manual_seed(seed)
    V = torch.randn(len(A.matrix), products, generator=generator, dtype=A.matrix.dtype)
    V = V * (math.sqrt(len(V)) / V.norm(dim=0))
    samples = (V * (A.matrix @ V)).sum(0)
    return float(samples.mean()), float(samples.std()) / math.sqrt(products)


def test_errors_shrink_and_xtrace_beats_hutchinson():
    A, truth = Hidden(planted(SPECTRA["fast"])), float(SPECTRA["fast"].sum())

    def error(products):
        found = [trace(A, seed=s, rtol=1e-12, max_matvecs=products) for s in range(30)]
        assert {e.samples for e in found} == {products}
        assert not any(e.converged for e in found)
        return rms([e.value - truth for e in found])

    # 60 instead of 20 products: 0.7^20 of what is left out
    assert error(60) < 1e-2 * error(20)
    assert error(60) < 1e-3 * rms([hutchinson(A, 60, seed)[0] - truth for seed in range(30)])


def test_a_flat_spectrum_costs_less_than_twice_what_hutchinson_takes():
    A = Hidden(planted(torch.linspace(-1, 2, 600).double()))
    found = [trace(A, rtol=0.01, seed=seed) for seed in range(10)]
    taken = 0  # by plain samples, until their own standard error is below 1 %
    for seed in range(10):
        products = 10
        while (estimate := hutchinson(A, products, seed))[1] > 0.01 * abs(estimate[0]):
            products += 10
        taken += products
    assert sum(e.samples for e in found) < 2 * taken  # a test vector for the range costs two
    assert "XTrace + Hutchinson" in {e.method for e in found}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_matrix_of_low_rank_is_exact_once_its_range_is_found(dtype):
    values = torch.cat([torch.tensor([5.0, 3, -2, 1, 7, -4]), torch.zeros(194)]).double()
    A = Hidden(planted(values).to(dtype), SLICES)
    found = trace(A, rtol=1e-4)
    eps = torch.finfo(dtype).eps
    assert found.converged
    assert found.samples == A.matvecs <= 20
    assert abs(found.value - 10) <= 3 * found.stderr <= 500 * eps
    blocks = {k: float(A.matrix.double().diagonal()[at].sum()) for k, at in SLICES.items()}
    assert {k: e.value for k, e in found.parts.items()} == pytest.approx(blocks, abs=300 * eps)
    diagonal = estimate_diagonal(A, rtol=1e-4)
    expected = A.matrix.diagonal().double()
    torch.testing.assert_close(diagonal.value, expected, rtol=0, atol=100 * eps)


def test_float32_products_give_the_float64_answer():
    A = planted(SPECTRA["power"])
    single, double = (trace(Hidden(M), seed=3) for M in (A.float(), A))
    truth = float(SPECTRA["power"].sum())
    assert single.converged
    assert abs(single.value - truth) < 4 * single.stderr
    assert single.samples == pytest.approx(double.samples, rel=0.5)


@pytest.mark.parametrize("n", [1, 2, 5, 40, 60])
def test_a_small_matrix_is_exact_by_a_whole_basis(n):
    values = torch.linspace(-1, 2, n).double()
    A = Hidden(planted(values), {"first": slice(0, 1)})
    found = trace(A, rtol=1e-6)
    assert (found.method, found.stderr, found.converged) == ("exact", 0, True)
    assert found.value == pytest.approx(float(values.sum()), abs=1e-12)
    assert found.parts["first"].value == pytest.approx(float(A.matrix[0, 0]), abs=1e-12)
    assert found.samples == A.matvecs <= 2 * n
    torch.testing.assert_close(estimate_diagonal(A, rtol=1e-6).value, A.matrix.diagonal())


@pytest.mark.parametrize("matrix", [torch.zeros(90, 90), torch.eye(90), torch.ones(90, 90)])
def test_simple_matrices(matrix):
    found = trace(Hidden(matrix.double()))
    assert found.converged
    assert found.value == pytest.approx(float(matrix.trace()), abs=1e-10)
    assert estimate_diagonal(Hidden(matrix.double()), rtol=0.1).converged


def test_a_trace_of_zero_is_not_called_converged():
    A = Hidden(planted(torch.linspace(-1, 1, 300).double()))
    found = trace(A, max_matvecs=80)
    assert not found.converged
    assert found.samples == A.matvecs == 80
    assert abs(found.value) < 4 * found.stderr
    assert "NOT converged" in repr(found)


def test_products_go_in_blocks_and_none_is_repeated():
    A = Hidden(planted(SPECTRA["power"]))
    found = trace(A, rtol=1e-3, max_matvecs=120)
    assert found.samples == A.matvecs
    assert len(A.widths) <= 12

    value = float(SPECTRA["power"].sum())
    A.memory = 38 * 8 * N  # ten test vectors with all that belongs to them, then no wider range
    frozen = trace(A, rtol=1e-3, max_matvecs=120)
    assert frozen.method == "XTrace + Hutchinson"
    assert abs(frozen.value - value) < 4 * frozen.stderr

    A.memory = 12 * 8 * N  # no range at all
    sampled = trace(A, rtol=1e-3, max_matvecs=120)
    assert sampled.method == "Hutchinson"
    assert max(A.widths[-10:]) <= 2
    assert abs(sampled.value - value) < 4 * sampled.stderr
    d = estimate_diagonal(A, rtol=1e-3, max_matvecs=120)
    assert d.method == "BKS"
    assert float(((d.value - A.matrix.diagonal()).abs() < 4 * d.stderr).double().mean()) > 0.98
    A.memory = 9 * 8 * N
    with pytest.raises(InputError, match=r"takes 10 vectors of 200 entries"):
        trace(A)


def test_the_seed_decides_and_the_global_state_does_not_move():
    A, state = Hidden(planted(SPECTRA["power"])), torch.get_rng_state()
    assert trace(A, seed=1) == trace(A, seed=1) != trace(A, seed=2)
    assert torch.equal(estimate_diagonal(A).value, estimate_diagonal(A).value)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_dense_matrix_is_exact():
    A = planted(SPECTRA["indefinite"])
    assert trace(Dense(A)).value == pytest.approx(float(A.trace()))
    assert torch.equal(estimate_diagonal(Dense(A)).value, A.diagonal())


def test_wrong_requests_are_refused():
    A = Hidden(planted(SPECTRA["flat"]))
    with pytest.raises(InputError, match="at least 6 here; got 5"):
        trace(A, max_matvecs=5)
    nan = torch.full((70, 70), math.nan)
    for refused in (trace, estimate_diagonal):
        with pytest.raises(InputError, match="NaN or infinite"):
            refused(Hidden(nan))
    with pytest.raises(InputError, match="NaN or infinite"):
        Dense(nan)


@pytest.mark.parametrize(
    ("value", "stderr", "shown"),
    [
        (2.6923, 0.0213, "2.69 ± 0.02"),
        (1234.5, 31.0, "1230 ± 30"),
        (-0.32, 1.0, "-0.3 ± 1.0"),
        (-0.001, 1.0, "0.0 ± 1.0"),
        (47.0, 210.0, "50 ± 200"),
        (3.2e-7, 4.1e-9, "3.2e-07 ± 4e-09"),
        (12.5, 0.0, "12.5"),
        (10.0, 1e-14, "10 ± 1e-14"),
        (math.inf, math.inf, "inf"),
        (1.5, math.inf, "1.5 ± inf"),
    ],
)
def test_an_estimate_shows_the_digits_it_has(value, stderr, shown):
    estimate = Estimate(value, stderr, 40, False, "XTrace")
    assert repr(estimate) == f"{shown} (XTrace, 40 products, NOT converged)"


def test_an_estimate_as_a_dictionary():
    part = Estimate(1.0, 0.1, 40, True, "XTrace")
    whole = Estimate(2.0, 0.1, 40, True, "XTrace", {"0.weight": part})
    assert whole.to_dict()["parts"]["0.weight"]["value"] == 1
    assert set(whole.to_dict()) == {"value", "stderr", "samples", "converged", "method", "parts"}


def test_an_estimate_that_takes_long_says_so_before(monkeypatch):
    A = Hidden(torch.diag(1 + torch.rand(400, dtype=torch.float64)))
    steps = itertools.count(0.0, 20.0)
    monkeypatch.setattr("lowland.budget.time.monotonic", lambda: next(steps))
    with pytest.warns(UserWarning, match=r"takes about \d.* from here: [\d,]+ products"):
        trace(A, rtol=1e-4)
