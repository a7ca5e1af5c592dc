"""Results as an analysis of the paper's network might have them, made up without torch."""

from dataclasses import replace
from typing import Any

import numpy as np

from landscapes import make_landscape
from lowland.findings import (
    Approximations,
    Check,
    Convergence,
    Course,
    Decomposition,
    Directions,
    Fit,
    Intervals,
    LayerRow,
    MeasureRow,
    Origin,
    Outcome,
    PairValues,
    Results,
    Setting,
    Subject,
    Totals,
    TrainingRecord,
    Unseen,
    WholeSpectrum,
    Widths,
)

MODEL = """Sequential(
  (0): Linear(in_features=784, out_features=30, bias=False)
  (1): ReLU()
  (2): Linear(in_features=30, out_features=30, bias=False)
  (3): ReLU()
  (4): Linear(in_features=30, out_features=10, bias=False)
)"""


def make_results(n: int = 900, n_sharp: int = 10, seed: int = 0) -> Results:
    """Results whose numbers follow from a spectrum like the paper's."""
    split = make_split(n, n_sharp, seed)
    gap, train_loss = split.gap, 4.9e-4
    rng = np.random.default_rng(seed)
    loss = 2.3 * np.exp(-np.arange(87) / 10) * rng.lognormal(0, 0.08, 87) + 4e-4
    settings = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 25, "radius": None}
    return Results(
        lowland="0.1.0",
        created="2026-11-15T19:20:00+00:00",
        seconds=21.3,
        course=Course(
            budget=300.0,
            gradient=0.012,
            planned="one gradient takes 12 ms here (4,000 samples, 24,720 weights); 3 measures and "
            "the split of layer '2': about 9.0 s of 5 min",
            predicted=9.0,
            spent=8.2,
            samples=None,
            stopped=None,
            interrupted=False,
        ),
        origin=Origin(
            command="lowland analyze",
            data="mnist5k: 5,000 images of handwritten digits, 400 + 100 per class",
            seed=0,
            training=TrainingRecord(87, True, 9.3, settings, {"loss": loss}),
        ),
        subject=Subject(
            title="784-30-30-10 ReLU network on mnist5k",
            model=MODEL,
            parameters=24720,
            frozen=0,
            layer="2",
            layer_shape=(30, 30),
            layers=("0", "2", "4"),
            loss="cross_entropy",
            unit="nats",
            train_samples=4000,
            test_samples=1000,
            device="cpu",
            dtype="float32",
            fingerprint="a686aa53",
        ),
        outcome=Outcome(train_loss, train_loss + gap, 0.0, 0.046, gap),
        unseen=Unseen(rng.exponential(train_loss + gap, 1000), (np.arange(1000) < 46) * 1.0),
        convergence=Convergence("minimum", 2.303, 0.9, 0.002, 0.01, -1e-12, 0.07),
        duality=split,
        balanced=None,
        layers={},
        layer_rows=tuple(make_layer_row(name, split) for name in ("0", "2", "4")),
        measures=make_measures(),
        checks=(
            Check(
                "Eq. 9 equals the paired gap",
                *(2.2e-16, 1e-10, True),
                "The sum over directions must give back the gap that it splits.",
            ),
            Check(
                "Eigenvectors are orthonormal",
                *(8.1e-15, 1e-10, True),
                "A basis that is not orthonormal counts some directions twice.",
            ),
        ),
        notes=("3 of 1,000 test samples have no dual, because layer '2' sees a zero input.",),
        versions={"Python": "3.12.1", "torch": "2.13.0"},
        spectrum=make_spectrum(),
        landscape=make_landscape(),
    )


def make_spectrum() -> WholeSpectrum:
    """A quadrature of many eigenvalues at zero and three that are known one by one."""
    nodes = np.array([-0.01, 0.0, 0.05, 1.2, 2.0, 3.1])
    weights = np.array([0.2, 0.6, 0.2 - 3 / 24720, *[1 / 24720] * 3])
    grid = np.linspace(-0.2, 3.4, 200)
    each = np.exp(-0.5 * ((grid[:, None] - nodes) / 0.04) ** 2) / (0.04 * np.sqrt(2 * np.pi))
    return WholeSpectrum(
        size=24720,
        samples=4000,
        exact=False,
        method="block Lanczos quadrature",
        products=24,
        floor=1e-6,
        nodes=nodes,
        weights=weights,
        residuals=np.array([0.01, 0.01, 0.02, 1e-3, 1e-4, 1e-5]),
        single=np.array([False, False, False, True, True, True]),
        grid=grid,
        density=each @ weights,
        stderr=0.1 * (each @ weights),
        bandwidth=0.04,
    )


def make_split(n: int = 900, n_sharp: int = 10, seed: int = 0) -> Decomposition:
    """A plateau, a steep drop after n_sharp, a long tail."""
    rng = np.random.default_rng(seed)
    rank = np.arange(1, n + 1)
    sharp, flat = 2 * rank**-0.35, 0.25 * (rank / n_sharp) ** -1.7
    sigma_g = np.sort(np.where(rank <= n_sharp, sharp, flat) * rng.lognormal(0, 0.1, n))[::-1]
    sigma_w = rng.uniform(0.02, 0.05, n)
    c = np.where(rank <= n_sharp, rng.uniform(0.1, 0.4, n), rng.uniform(0.4, 0.9, n))
    mu_g, mu_w = 0.02 * sigma_g * rng.standard_normal(n), 0.05 * sigma_w * rng.standard_normal(n)
    each = c * sigma_g * sigma_w
    eigenvalue = 0.004 * sigma_g**2 * rng.lognormal(0, 0.5, n)
    parts = float(each[:n_sharp].sum()), float(each[n_sharp:].sum())
    eq9 = sum(parts) + float((mu_g * mu_w).sum())
    pairing = "for each test sample the nearest train sample of the same label"
    return Decomposition(
        setting=Setting(
            layer="2",
            dual="activity",
            joint=False,
            basis="hessian",
            gauge="given",
            pairing=pairing,
            n_sharp=n_sharp,
            n_sharp_rule="number",
            directions=n,
            route="all, from the exact dense block",
            cut=3.6e-6,
            seconds=1.2,
        ),
        totals=Totals(
            gap=1.02 * eq9,
            paired_gap=eq9,
            dual_gap=eq9,
            target_gap=0.0,
            eq9=eq9,
            eq11=sum(parts),
            sharp=parts[0],
            flat=parts[1],
            intervals=Intervals((0.3, 0.5), (0.1, 0.2), (0.2, 0.3), (-0.2, -0.05)),
            weight_norm=9.84,
            total_w=float((sigma_w**2).sum()),
            total_w_data=float((sigma_w**2).sum()),
            total_g=float((sigma_g**2).sum()),
            unseen_sigma_g=0.0,
        ),
        fit=Fit(
            pairs=997,
            excluded=3,
            excluded_gap=0.0021,
            excluded_share=0.005,
            degenerate={"inputs of the layer are all zero": 3},
            positions=1,
            rank=1.0,
            full_rank=1,
            duality_residual=1.3e-16,
            mean_residual=1.1e-16,
            loss_defect=4.4e-16,
        ),
        per_direction=Directions(sigma_g, sigma_w, c, mu_g, mu_w, each, eigenvalue),
        per_pair=PairValues(
            train=np.arange(4),
            test=np.arange(4),
            dl=np.arange(4.0),
            size=np.ones(4),
            components=np.ones((4, 2), np.float32),
        ),
        approximations=Approximations(1.1 * each, 0.5 * each, 0.2 * each, 0.5 * sigma_g**2),
        widths=Widths(0.1 / sigma_g, 0.12 / sigma_g),
    )


def make_layer_row(name: str, split: Decomposition) -> LayerRow:
    doubt = "activities are missed by 80%, losses by 60%" if name == "0" else None
    return replace(
        split.row, layer=name, sigma_g=1.5, sigma_w=0.9, trusted=doubt is None, doubt=doubt
    )


def make_measures() -> tuple[MeasureRow, ...]:
    trace = MeasureRow(
        name="trace",
        title="Hessian trace",
        family="curvature",
        formula="sum_i d2L/dw_i2",
        definition="The sum of the second derivatives of the training loss.",
        citation="Hutchinson 1989",
        sharper="higher",
        needs_test=False,
        needs_initial=False,
        invariant=(),
        loss=None,
        trains=False,
        value=1.2345,
        stderr=None,
        method="exact, by layer structure",
        reason=None,
        seconds=0.062,
        gradients=3.1,
        predicted=0.08,
        samples=None,
        parts={"0.weight": 1.0, "2.weight": 0.2345},
    )
    return (
        trace,
        replace(
            trace,
            name="lambda_max",
            title="Largest Hessian eigenvalue",
            value=0.2371,
            stderr=0.0021,
            formula="max_v v^T H v / v^T v",
            method="Lanczos, 40 products, converged",
        ),
        replace(
            trace,
            name="keskar",
            title="ε-sharpness in a box",
            value=3.1e-5,
            method="L-BFGS-B, 10 iterations",
        ),
        replace(trace, name="diverged", title="Diverged measure", value=float("nan")),
        replace(
            trace,
            name="normalized",
            title="Normalized sharpness",
            value=None,
            reason="does not apply: layer '3' has no weight",
        ),
        replace(trace, name="gap", title="Generalisation gap", value=0.37, stderr=0.005, parts={}),
    )


def changed(value: Any, place: str, **changes: Any) -> Any:
    """The same with other fields at a place, such as ``duality.totals``."""
    if not place:
        return replace(value, **changes)
    first, _, rest = place.partition(".")
    return replace(value, **{first: changed(getattr(value, first), rest, **changes)})
