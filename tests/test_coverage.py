"""Every sampled number is within two of its standard errors of the truth as often as it says.

The truth is that of all eigenvalues, in float64, over networks and seeds. Sums are normally
distributed around it but for the skewness of the few eigenvalues that make them up, and their error
bars hold it in 90 to 99 % of the cases. The errors of counts are bounds, and may hold it always.
"""

import contextlib
import functools
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn

import lowland as ll
from cases import descend
from generated import KINDS, N, dense_matrices
from lowland.curvature import (
    Spectrum,
    effective_dimension,
    frobenius_norm,
    negative_eigenvalues,
    parameters,
    passes,
    spectral_density,
)
from lowland.curvature.probes import remainder_trace
from lowland.curvature.stochastic_diagonal import estimate_diagonal
from lowland.measures import pac_bayes_optimised
from lowland.measures.shared import spectrum
from lowland.measures.shared.standard_error import share_error
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
            found = ll.trace(A, rtol=0.05, max_matvecs=120, seed=seed)
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


# Measures that draw noise. They have no seed, so that the generators are made to begin elsewhere.


@contextlib.contextmanager
def beginning(at):
    """Random generators that begin elsewhere, whatever their seed."""
    plain, numpy = torch.Generator, np.random.default_rng

    class Elsewhere(plain):
        def manual_seed(self, seed):
            return super().manual_seed(seed + 100_000 * at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "Generator", Elsewhere)
        patch.setattr(np.random, "default_rng", lambda seed: numpy([at, *np.atleast_1d(seed)]))
        yield


def with_test_data(kind, seed):
    problem = kind.problem(seed)
    whole, (X, y) = problem.train.take(slice(None)), kind._data(seed + 5000)
    return ll.Problem(
        problem.model, kind.loss, train=(whole.inputs, whole.targets), test=(X[:30], y[:30])
    )


def noisy_losses(problem, noise, count=2000):
    """Mean training losses at so many pairs of opposite shifts of the weights, by vmap."""
    whole, g = problem.train.take(slice(None)), torch.Generator().manual_seed(987)
    z = {n: torch.randn(count, *w.shape, generator=g).double() for n, w in problem.params.items()}

    def loss(params):
        outputs = torch.func.functional_call(problem.model, params, (whole.inputs,))
        return problem.loss(outputs, whole.targets).mean()

    sides = [
        torch.func.vmap(loss, chunk_size=250)(
            {n: w + sign * noise(w) * z[n] for n, w in problem.params.items()}
        )
        for sign in (1, -1)
    ]
    return (sides[0] + sides[1]) / 2 - problem.losses().mean()


def noisy_inputs(problem, count=2000):
    train, test = (problem.data(split).take(slice(None)) for split in ("train", "test"))
    g, sigma = torch.Generator().manual_seed(55), 0.1 * float(train.inputs.std(correction=0))
    noise = torch.randn(count, *test.inputs.shape, generator=g, dtype=torch.float64)
    losses = [problem.loss(problem.model(test.inputs + sigma * n), test.targets) for n in noise]
    return torch.stack([each.mean() for each in losses]) - problem.losses("test").mean()


DRAWN = {
    "expected_sharpness": lambda p: noisy_losses(p, lambda w: 0.01),
    "adaptive_average_case": lambda p: noisy_losses(p, lambda w: 0.05 * w.abs()),
    "noise_robustness": noisy_inputs,
}


def drawn_scores(name, networks, seeds):
    found = []
    for i in range(networks):
        problem = with_test_data(KINDS[i % len(KINDS)], 200 + i)
        with torch.no_grad():
            truth = DRAWN[name](problem)
        error = float(truth.std()) / len(truth) ** 0.5
        for at in range(1, seeds + 1):
            with beginning(at):
                row = ll.measure(problem, name)[name]
            found.append((row.value - float(truth.mean())) / math.hypot(row.stderr, error))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_measures_that_draw_noise_cover_the_truth(name):
    row = drawn_scores(name, networks=44, seeds=3)
    assert 0.9 <= sum(abs(z) <= 2 for z in row) / len(row) <= 0.99


def test_measures_that_draw_noise_are_near_the_truth():
    assert all(abs(z) <= 4 for name in DRAWN for z in drawn_scores(name, networks=1, seeds=1))


@pytest.mark.parametrize("n", [5, 10, 29, 30, 100, 1000])
def test_the_error_of_a_share_covers_it(n):
    """Exactly, from the binomial distribution, for shares from three samples to one half."""
    counts = np.arange(n + 1)
    bars = [2 * share_error((torch.arange(n) < x).double()) for x in counts]
    for share in np.linspace(3 / n, 0.5, 50):
        held = binom.pmf(counts, n, share)[np.abs(counts / n - share) <= bars].sum()
        assert 0.9 <= held <= (0.99 if n >= 30 else 1)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 300])
@pytest.mark.parametrize("n", [5, 10, 30, 100])
def test_losses_and_errors_on_few_test_samples(n, steps):
    """Against 20,000 samples: most losses are next to nothing, and few make up the mean."""
    held = {"test_loss": [], "test_error": []}
    for seed in range(24):
        g = torch.Generator().manual_seed(seed)
        means, spread = torch.randn(3, 8, generator=g), (0.8, 1.0, 1.2)[seed % 3]

        def data(count, means=means, g=g, spread=spread):
            y = torch.randint(0, 3, (count,), generator=g)
            return means[y] + spread * torch.randn(count, 8, generator=g), y

        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3))
        X, y = data(60)
        descend(model, (X, y), steps, 0.3)
        many = ll.measure(ll.Problem(model, train=(X, y), test=data(20_000)), list(held))
        for _ in range(8):
            few = ll.measure(ll.Problem(model, train=(X, y), test=data(n)), list(held))
            for name, row in few.items():
                held[name].append(abs(row.value - many[name].value) <= 2 * row.stderr)
    for name, row in held.items():
        assert sum(row) / len(row) >= 0.9, name


@pytest.mark.slow
def test_intervals_of_the_parts_of_the_gap():
    """Against 2,000 pairs; and the larger part is not told wrong more often than stated."""
    held, decided, wrong = [], 0, 0
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        means, spread = torch.randn(3, 8, generator=g), (0.8, 1.2, 2.0)[seed % 3]

        def data(count, means=means, g=g, spread=spread):
            y = torch.randint(0, 3, (count,), generator=g)
            return means[y] + spread * torch.randn(count, 8, generator=g), y

        torch.manual_seed(seed)
        unit = (nn.ReLU, nn.Tanh)[seed % 2]
        model = nn.Sequential(*(nn.Linear(8, 9), unit(), nn.Linear(9, 9), unit(), nn.Linear(9, 3)))
        train, (X, y) = data((40, 120)[seed // 2 % 2]), data(2000)
        descend(model, train, 400, 0.3)

        def totals(chosen, model=model, train=train, X=X, y=y, n_sharp=(3, 10, 25)[seed % 3]):
            problem = ll.Problem(model, train=train, test=(X[chosen], y[chosen]))
            return ll.duality(problem, "2", n_sharp=n_sharp).totals

        whole = totals(slice(None))
        truths = vars(whole) | {"difference": whole.sharp - whole.flat}
        for start in range(0, 2000, 500):
            found = totals(slice(start, start + 200)).intervals
            held += [low <= truths[name] <= high for name, (low, high) in vars(found).items()]
            low, high = found.difference
            decided += low > 0 or high < 0
            wrong += low > 0 > truths["difference"] or high < 0 < truths["difference"]
    assert 0.9 <= sum(held) / len(held) <= 0.99
    assert decided >= 16  # of 32
    assert wrong <= 0.025 * decided


# Measures that run only when they are named: they train, or walk through the neighbourhood.


def annealed(problem, temperatures=200, chains=48, leaps=4):
    """Local entropy and its error by annealed importance sampling (Neal 2001), with HMC moves."""
    whole, gamma = problem.train.take(slice(None)), 100.0
    N, shapes = len(whole), {name: p.shape for name, p in problem.params.items()}
    w = torch.cat([p.flatten() for p in problem.params.values()])
    h = N * dense_matrices(problem)[1].diagonal().clamp_min(0)
    C = 1 / (gamma + h)

    def energy(v):
        """N L less the quadratic part that the Gaussian of variances C has already."""
        parts = (w + v).split([shape.numel() for shape in shapes.values()])
        params = {n: p.view(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}
        outputs = torch.func.functional_call(problem.model, params, (whole.inputs,))
        return problem.loss(outputs, whole.targets).sum() - 0.5 * (h * v.square()).sum()

    both = torch.func.vmap(torch.func.grad_and_value(energy))
    g = torch.Generator().manual_seed(0)
    v = C.sqrt() * torch.randn(chains, len(w), generator=g).double()
    slope, phi = both(v)
    logs, step, t = torch.zeros(chains).double(), 0.3, 0.0
    for k in range(1, temperatures + 1):
        t, before = (k / temperatures) ** 3, t
        logs -= (t - before) * phi
        p = torch.randn(v.shape, generator=g).double() / C.sqrt()
        start = (v.square() / C + C * p.square()).sum(1) / 2 + t * phi
        x, s = v, slope
        for _ in range(leaps):
            p = p - step / 2 * (x / C + t * s)
            x = x + step * C * p
            s, f = both(x)
            p = p - step / 2 * (x / C + t * s)
        end = (x.square() / C + C * p.square()).sum(1) / 2 + t * f
        accepted = (start - end).clamp_max(0).exp().nan_to_num(0)
        moved = torch.rand(chains, generator=g).double() < accepted
        v, slope = (torch.where(moved[:, None], a, b) for a, b in ((x, v), (s, slope)))
        phi = torch.where(moved, f, phi)
        step = min(step * math.exp((float(accepted.mean()) - 0.7) / 10), 1.0)
    weights = (logs - logs.max()).exp()
    value = float(logs.max() + weights.mean().log()) - 0.5 * float((h / gamma).log1p().sum())
    return value / N, float(weights.std() / weights.mean()) / chains**0.5 / N


def may_cover(held):
    """Whether so few cases speak against 90 %: fewer would be held once in twenty tests, at most.

    Over 22 networks x 4 to 12 seeds each, local entropy was held in 94 %, direct normalized
    sharpness in 94 % and the optimised bound, over 8 networks, in 98 %: too slow for a test.
    """
    return binom.cdf(sum(held), len(held), 0.9) > 0.05


@pytest.mark.slow
def test_local_entropy_covers_the_truth():
    row = []
    for i in (0, 3, 6, 19):
        problem = KINDS[i].problem(200 + i)
        truth, error = annealed(problem)
        for at in (1, 2):
            with beginning(at):
                found = ll.measure(problem, "local_entropy")["local_entropy"]
            row.append((found.value - truth) / math.hypot(found.stderr, error))
    assert may_cover([abs(z) <= 2 for z in row])
    assert max(map(abs, row)) < 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pac_bayes_optimised", "normalized_sharpness_direct"])
def test_measures_that_train_cover_what_other_seeds_give(name, monkeypatch):
    """Two runs with other seeds differ by two of their errors together, at most."""
    monkeypatch.setattr(pac_bayes_optimised, "_STEPS", 400)
    monkeypatch.setattr(pac_bayes_optimised, "_MANY", 200)
    held = []
    for i in (0, 5, 10, 15):
        problem = KINDS[i].problem(200 + i)
        whole, g = problem.train.take(slice(None)), torch.Generator().manual_seed(i)
        initial = {
            n: p + 0.3 * torch.randn(p.shape, generator=g) for n, p in problem.params.items()
        }
        problem = ll.Problem(problem.model, train=(whole.inputs, whole.targets), initial=initial)
        rows = []
        for at in (1, 2, 3):
            with beginning(at):
                rows.append(ll.measure(problem, name)[name])
        for a, b in itertools.combinations(rows, 2):
            held.append(abs(a.value - b.value) <= 2 * math.hypot(a.stderr, b.stderr))
    assert may_cover(held)


# Remainders, and their shares of each parameter


def smooth_network(seed):
    """A network of tanh, GELU, sigmoid or SiLU units on 4 to 60 samples, trained a little."""
    g = torch.Generator().manual_seed(seed)

    def choice(*options):
        return options[int(torch.randint(len(options), (), generator=g))]

    torch.manual_seed(seed)
    unit = choice(nn.Tanh, nn.GELU, nn.Sigmoid, nn.SiLU)
    count, width = choice(4, 9, 30, 60), choice(3, 6, 9)
    X, y = choice(1, 3) * torch.randn(count, 6, generator=g).double(), torch.arange(count) % 3
    model = nn.Sequential(
        *(nn.Linear(6, width), unit(), nn.Linear(width, width), unit(), nn.Linear(width, 3))
    ).double()
    descend(model, (X, y), choice(0, 60), 0.1)
    return ll.Problem(model, train=(X, y))


def remainder_scores(networks):
    """How many standard errors parts and totals are from the truth after the fewest draws."""
    parts, totals = [], []
    for seed in range(networks):
        problem = smooth_network(seed)
        H, G = dense_matrices(problem)
        sizes = [p.numel() for p in problem.params.values()]
        truths = dict(zip(problem.params, (H - G).diagonal().split(sizes), strict=True))
        chosen = [at for at in parameters(problem).values() if passes(at)]
        found = remainder_trace(problem, chosen, target=1e9, seed=seed)
        whole = sum(float(truths[at.parameter].sum()) for at in chosen)
        totals.append((found.value - whole) / found.stderr)
        for name, part in found.parts.items():
            assert part.converged
            parts.append((part.value - float(truths[name].sum())) / part.stderr)
    return parts, totals


def test_parts_of_remainders_are_near_the_truth():
    assert all(abs(z) <= 5 for row in remainder_scores(3) for z in row)


@pytest.mark.slow
def test_parts_of_remainders_cover_the_truth():
    parts, totals = remainder_scores(60)
    for row in (parts, totals):
        assert 0.9 <= sum(abs(z) <= 2 for z in row) / len(row) <= 0.99
        assert max(map(abs, row)) < 5
