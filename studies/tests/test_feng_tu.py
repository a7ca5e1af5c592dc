"""The studies of Feng & Tu: their grids, and their claims in worlds where the truth is known."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from lowland.sweep import Configuration, Grid, key
from lowland_studies.evidence import Runs
from lowland_studies.feng_tu import STUDIES
from lowland_studies.feng_tu.grids import DETAILS, has_mnist
from lowland_studies.reproduction import reproduce
from stores import seal

NAMES = [study.name.partition(":")[2] for study in STUDIES]
by_name = pytest.mark.parametrize("study", STUDIES, ids=NAMES)


# --- what there is -------------------------------------------------------------------------------


def test_every_figure_has_a_study():
    assert [
        *("fig2", "fig3", "fig4", "figS1", "figS2", "figS3", "figS4", "figS5", "figS6", "figS7"),
        *("figS8", "figS9", "figS10", "figS11", "equations", "rates"),
    ] == NAMES
    panels = [len(study.panels) for study in STUDIES]
    assert panels == [3, 6, 6, 2, 7, 2, 2, 2, 3, 8, 9, 9, 6, 3, 6, 1]


@by_name
def test_grids(study):
    for reading in study.readings:
        assert {run.seed for run in reading.grid} == set(range(30))
        assert len({run.seed for run in reading.quick}) >= 3
        assert len(reading.quick) <= 64
        for grid in (reading.grid, reading.quick):
            # What is not decayed has no penalty: it would be trained twice otherwise.
            assert all(run.penalty == "squared" for run in grid if not run.decay)
    names = [reading.name for reading in study.readings]
    both = ["as printed", "as in the demo"]
    assert names == (both if study.name != "feng-tu:figS10" else both[:1])
    texts = [claim.text for claim in study.claims]
    assert len(set(texts)) == len(texts)
    if study.name.startswith("feng-tu:fig"):
        figures = [claim.paper for claim in study.claims if claim.kind != "ours"]
        assert all(paper.startswith("Fig. ") for paper in figures)


def test_the_paper_s_settings():
    grids = {name: study.grid for name, study in zip(NAMES, STUDIES, strict=True)}
    plain = Configuration(max_epochs=3000, details=DETAILS)
    assert (plain.learning_rate, plain.batch_size, plain.stop_loss) == (0.1, 25, 5e-4)
    assert all(plain in set(grids[name]) for name in ("fig2", "fig3", "fig4", "figS1", "figS2"))
    assert {run.dropout for run in grids["figS6"]} == {0, 0.05, 0.1, 0.2, 0.3}
    assert {run.stop_loss for run in grids["figS6"]} == {5e-3}
    sizes = {400, 800, 1600, 3200} if has_mnist() else {100, 200, 400}
    assert {run.per_class for run in grids["figS7"]} == {None, *sizes}
    assert {run.label_noise for run in grids["figS7"]} == {0, 0.1, 0.15, 0.2, 0.25}
    assert {run.network for run in grids["figS8"]} == {"784-30-30-30-30-10"}
    assert {(run.data, run.stop_loss) for run in grids["figS10"]} == {("cifar10", 1e-3)}


def test_the_demo_s_settings():
    """As its public source has them: model_config.py, data.py, models.py, utils.py."""
    grids = {
        study.name.partition(":")[2]: study.others[0].grid for study in STUDIES if study.others
    }
    every = [run for grid in grids.values() for run in grid]
    assert {run.data for run in every} <= {"mnist_demo", "mnist5k_demo"}
    same = [("torch", "first", "added", 1e-3, 0.99, 1000)]
    assert same == list(
        {
            (r.init, r.dropout_layers, r.noise_kind, r.stop_loss, r.stop_accuracy, r.max_epochs)
            for r in every
        }
    )
    assert {run.penalty for run in every if run.decay} == {"global_norm"}
    assert {run.init_scale for run in grids["fig4"]} == {1, 2, 4, 5, 6, 7}
    assert {run.label_noise for run in grids["figS7"]} == {0, 0.091, 0.13, 0.167, 0.2}
    assert {run.decay for run in grids["fig4"]} == {0, 0.005, 0.01, 0.02}
    assert all(reading.at_limit for study in STUDIES for reading in study.others)


def test_embedded_images_stand_in_where_there_is_no_mnist(tmp_path):
    code = (
        "from lowland_studies import find; (s,) = find('feng-tu:figS7'); r = s.others[0]; "
        "print({run.data for run in r.grid}, {run.per_class for run in r.grid}, r.differences[-1])"
    )
    out = {}
    for folder in (tmp_path / "none", tmp_path / "some"):
        if folder.name == "some":
            (folder / "MNIST" / "raw").mkdir(parents=True)
            (folder / "MNIST" / "raw" / "train-images-idx3-ubyte.gz").touch()
        env = {**os.environ, "LOWLAND_DATA": str(folder)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        out[folder.name] = done.stdout
    assert "{'mnist5k_demo'}" in out["none"]
    assert "held no MNIST" in out["none"]
    assert "320" in out["none"]
    assert "{'mnist_demo'}" in out["some"]
    assert "The images are MNIST" in out["some"]


def test_studies_share_their_runs():
    every = Grid.of_runs(run for study in STUDIES for run in study.grid)
    assert len(every) < 0.5 * sum(len(study.grid) for study in STUDIES)
    trained = {tuple(map(repr, run.training().values())) for run in every}
    # Analysed again: Fig. 3's settings for S11 and S4, and the plain one for the equations.
    assert len(trained) == len(every) - 30 * (8 + 5 + 1)


def test_no_row_that_no_paper_states_and_one_count_for_what_is_said_twice():
    texts = {claim.text: claim.kind for study in STUDIES for claim in study.claims}
    for text in texts:
        assert not any(w in text for w in ("every setting", "50 sharpest", "training error is 0"))
    assert texts["Eq. 11 and the gap are one line."] == "restated"
    assert texts["The trace goes with T_g where s alone varies."] == "restated"
    assert texts["sigma_g falls with N in all directions."] == "claim"


def test_the_issue_s_claims_are_there():
    texts = {
        name: " ".join(claim.text for claim in study.claims)
        for name, study in zip(NAMES, STUDIES, strict=True)
    }
    for name, parts in {
        "fig2": ("proportional to sigma_g^2", "trace", "T_w grows with the norm"),
        "fig3": (
            *("The gap falls with alpha", "The gap rises with B"),
            *("sharp part of the gap falls", "flat part of the gap does not change with B"),
            *("sigma_w, does not change with alpha", "sigma_w, does not change with B"),
            "more than half of the gap comes from the 10 sharpest of 900 directions",
        ),
        "fig4": (
            *("The gap falls with beta", "The gap rises with s", "flat part of the gap falls"),
            "sigma_g does not change with beta",
            "sigma_g does not change with s",
        ),
        "figS1": ("|mu_w|", "|mu_g|"),
        "figS2": (
            "0 <= c_n in every direction",
            "c_n of the flat ones",
            "c_n does not change with alpha",
        ),
        "figS3": ("Eq. 11 is the gap", "test error"),
        "figS4": ("inversely",),
        "figS5": ("more strongly in the flat directions",),
        "figS6": ("sharp part of the gap falls", "flat part of the gap rises", "not monotone"),
        "figS7": (
            *("sigma_g falls with N in all", "sigma_w, rises slightly with N", "c_n falls with N"),
            *("continuous", "most of the gap is in the flat part", "sigma_w, rises with rho"),
            "c_n rises with rho",
        ),
        "figS8": ("flatter in hidden layer 2", "larger in hidden layer 3"),
        "figS9": ("flatter in hidden layer 3", "larger in hidden layer 2"),
        "figS10": ("The gap rises with s", "The gap rises with rho"),
        "figS11": ("The gap is the same for alpha",),
    }.items():
        assert [part for part in parts if part not in texts[name]] == []


def test_no_torch_to_list_the_studies():
    code = "import sys, lowland_studies.feng_tu; print({'torch', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- worlds --------------------------------------------------------------------------------------

M = 120  # directions
n = np.arange(1, M + 1)
SHARP = n <= 10


class World:
    """What the paper says, as formulas for the runs; two other worlds contradict it.

    In the ``reversed`` one every setting does the opposite to what it acts on, so that whatever the
    paper says about the direction of an effect is false, and the rest is true. In the ``spoiled``
    one a setting changes all that there is, sharp and flat, sharpness, size and correlation, and no
    relation between two numbers is as the paper says: whatever it says beside directions is false.
    """

    def __init__(self, kind: str) -> None:
        self.sign = -1 if kind == "reversed" else 1
        self.spoiled = kind == "spoiled"

    def numbers(self, run: Configuration, depth: int) -> dict[str, np.ndarray]:
        """Arrays of one layer."""
        noise = np.random.default_rng([run.seed, depth, *str(run).encode()])
        g = np.where(SHARP, 0.5 * n**-0.2, 0.1 * (n / 11) ** -0.5)
        w = np.where(SHARP, 0.15, 0.06 * (n / 11) ** -0.3)
        c = np.full(M, 0.45)
        if self.spoiled:
            g[:3] *= 4
            c[:10] = 0.04
            c[3] = -0.2
        effects = {"g sharp": 1.0, "g flat": 1.0, "w sharp": 1.0, "w flat": 1.0, "c": 1.0}
        for of, factor in self.effects(run, depth):
            for target in effects if self.spoiled else of:
                effects[target] *= factor**self.sign
        g = g * np.where(SHARP, effects["g sharp"], effects["g flat"])
        w = w * np.where(SHARP, effects["w sharp"], effects["w flat"])
        c = c * effects["c"]
        g, w = g * noise.lognormal(0, 0.01, M), w * noise.lognormal(0, 0.01, M)
        wild = noise.lognormal(0, 2, M)
        mean = 1.0 if self.spoiled else 0.02
        return {
            "sigma_g": g,
            "sigma_w": w,
            "c": c,
            "contribution": c * g * w,
            "mu_g": mean * g,
            "mu_w": -mean * w,
            "gradient_square": 1 / g**3 if self.spoiled else g**2,
            "finite": c * g * w,
            "alone": c * g * w,
            "linear": c * g * w,
            "eigenvalue": 1 / g**2 if self.spoiled else 1.6 * g**2,
            "flatness": np.where(n % 3, wild * g if self.spoiled else 1 / g, np.nan),
        }

    def effects(self, run: Configuration, depth: int):
        """Factors of each setting, with what they act on in the paper's world."""
        both, sizes = ("g sharp", "g flat"), ("w sharp", "w flat")
        noise = run.learning_rate / run.batch_size / (0.1 / 25)
        yield ("g sharp",), noise**-0.1
        if self.spoiled:
            yield (), (run.batch_size / 25) ** 0.2
            yield (), 1 + 3 * run.dropout
        else:
            yield ("g sharp",), 1 - 4 * min(run.dropout, 0.1)
            yield ("w flat",), 1 + 5 * run.dropout
        yield ("w flat",), 1 - 20 * run.decay
        yield ("w flat",), run.init_scale ** (2.0 if self.spoiled else 0.5)
        if run.test_per_class == 100 and run.data != "cifar10":  # where N varies
            yield both, (run.per_class / 400) ** -0.3
            yield sizes, (run.per_class / 400) ** 0.05
            yield ("c",), (run.per_class / 400) ** -0.1
        yield ("g sharp",), 1 - run.label_noise
        yield ("g flat",), 1 + 12 * run.label_noise
        yield ("c", *sizes), 1 + run.label_noise
        yield both, 0.8**depth
        yield sizes, 1.2**depth

    def results(self, run: Configuration, of: dict[str, np.ndarray]) -> dict[str, float]:
        """Single numbers of one layer."""
        chance = np.random.default_rng([run.seed, *str(run).encode()])
        eq11, total_w = of["contribution"].sum(), (of["sigma_w"] ** 2).sum()
        sharp = of["contribution"][SHARP].sum()
        variance = (of["sigma_g"] ** 2)[SHARP].sum()
        noise = run.learning_rate / run.batch_size / (0.1 / 25)
        off, twice = (0.5, 2.0) if self.spoiled else (1e-6, 1.0)  # where all should be 0 or 1
        after = {"eq9": eq11, "eq11": eq11, "sharp": sharp, "total_g": 1.0, "total_w_data": 1.0}
        after |= {"norm": 1.0, "trace": 1.0}
        p = 10.0
        layers = {**after, "norm": p, "trace": twice / p**2, "total_g": twice / p**2}
        layers |= {"total_w_data": twice * p**2, "eq11": twice * eq11}
        units = {**after, "eq9": twice * eq11, "sharp": twice * sharp}
        return {
            **{f"after.as_trained.{name}": value for name, value in after.items()},
            **{f"after.layers.{name}": value for name, value in layers.items()},
            **{f"after.units.{name}": value for name, value in units.items()},
            "reverse.eq11": 300 / eq11 if self.spoiled else eq11,
            "reverse.sharp": 10 * sharp if self.spoiled else sharp,
            **dict.fromkeys(("loss_defect", "duality_residual", "eq6_residual"), off),
            **dict.fromkeys(("eq9", "eq13", "eq16", "eq17"), eq11),
            "total_w": twice * total_w,
            "active": 0.5 * noise ** (-0.1 * self.sign),
            "relative_shift": 0.2 * noise ** (0.1 * self.sign),
            "loss_after_decay": 0.01 if self.spoiled else 0.3,
            "norm_growth": 1 + 10 * run.decay * self.sign,
            "eq11": eq11,
            "sharp": sharp,
            "flat": eq11 - sharp,
            "paired_gap": 2 * eq11 if self.spoiled else 1.001 * eq11,
            "gap": 100 / eq11 if self.spoiled else 1.002 * eq11,
            "test_error": chance.uniform() if self.spoiled else 0.1 * eq11,
            "train_error": 0.01 if self.spoiled else 0.0,
            "total_g": (20.0 if self.spoiled else 2.0) * variance,
            "total_w_data": total_w,
            "layer_norm": 10 / total_w if self.spoiled else 10 * total_w,
            "learning_rate_over_batch": run.learning_rate / run.batch_size,
        }

    def runs(self, grid, folder) -> Runs:
        """Four realisations of a grid, as a sweep would keep them."""
        rows = []
        for run in grid:
            if run.seed > 3:
                continue
            settings = run.to_dict().items()  # lists are text in a table
            row = {k: json.dumps(v) if isinstance(v, list) else v for k, v in settings}
            row["key"], arrays = key(run), {}
            reached = run.learning_rate <= 0.1 or self.spoiled
            row |= {"status": "done", "converged": reached}
            for depth, layer in enumerate(run.layers or ("3",)):
                found = self.numbers(run, depth)
                prefix, colon = (f"layers/{layer}/", f"{layer}:") if depth else ("duality/", "")
                arrays |= {f"{prefix}{name}": array for name, array in found.items()}
                row |= {f"{colon}{k}": float(v) for k, v in self.results(run, found).items()}
            (folder / key(run)).mkdir(parents=True)
            np.savez(folder / key(run) / "arrays.npz", **arrays)
            seal(folder / key(run))
            rows.append(row)
        return Runs(tuple(rows), (), folder)


# Sentences about the direction of an effect: of a setting, of random labels, of depth.
DIRECTION = re.compile(
    r"(falls|rises) (with|slightly|more strongly)|More of (the change|the fall|that rise)"
    r"|^With .* most of the gap|(flatter|larger) in hidden layer|^As .* grows|^The larger beta"
)


readings = pytest.mark.parametrize(
    ("study", "grid"),
    [(study, reading.grid) for study in STUDIES for reading in study.readings],
    ids=[f"{study.file}{reading.suffix}" for study in STUDIES for reading in study.readings],
)


@readings
def test_claims_hold_where_they_are_true_and_only_there(study, grid, tmp_path):
    """Each is refuted, and not merely left open, in the world that contradicts it."""
    kinds = ("paper", "reversed", "spoiled")
    runs = {kind: World(kind).runs(grid, tmp_path / kind) for kind in kinds}
    for claim in study.claims:
        verdicts = {kind: claim.test(runs[kind]).verdict for kind in runs}
        if DIRECTION.search(claim.text):
            expected = {"paper": "holds", "reversed": "does not hold"}
        else:
            expected = {"paper": "holds", "reversed": "holds", "spoiled": "does not hold"}
        assert {kind: verdicts[kind] for kind in expected} == expected, claim.text


@readings
def test_every_panel_shows_numbers(study, grid, tmp_path):
    runs = World("paper").runs(grid, tmp_path)
    for panel in study.panels:
        curves = panel.curves(runs)
        assert curves
        assert all(np.isfinite(curve.y).any() for curve in curves), (panel, curves)


@pytest.mark.slow
def test_a_study_on_real_runs(tmp_path):
    """Every layer of real networks, from the training to the verdicts; small and badly trained."""
    study = next(study for study in STUDIES if study.name == "feng-tu:figS8")
    small = [
        dataclasses.replace(run, per_class=10, test_per_class=5, stop_loss=0.5)
        for run in study.quick
        if run.seed < 2 and run.batch_size < 400
    ]
    study = dataclasses.replace(
        study, quick=Grid.of_runs(small), panels=study.panels[3:6], others=()
    )
    outcome = reproduce(study, tmp_path, version="quick", executor="serial")
    assert len(outcome.claims) == len(study.claims)
    assert all(np.isfinite(judged.findings[0].effect) for judged in outcome.claims)
    runs = Runs.of(tmp_path, study.quick)
    assert np.isfinite(runs.column("layer_norm")).all()  # for Fig. 2B


@pytest.mark.slow
def test_the_equations_on_real_runs(tmp_path):
    """All that the claims ask for is recorded, in both readings; identities hold to rounding."""
    (study,) = (study for study in STUDIES if study.name == "feng-tu:equations")

    def small(grid):
        own = {"per_class": 5, "test_per_class": 3, "stop_loss": 0.5, "network": "784-8-8-10"}
        return Grid.of_runs(dataclasses.replace(run, **own) for run in grid if run.seed < 2)

    others = tuple(dataclasses.replace(r, quick=small(r.quick)) for r in study.others)
    study = dataclasses.replace(
        study, quick=small(study.quick), others=others, panels=study.panels[:1]
    )
    outcome = reproduce(study, tmp_path, version="quick", executor="serial")
    for judged in outcome.claims:
        assert all(np.isfinite(finding.effect) for finding in judged.findings), judged.text
        if judged.kind == "check":
            assert {finding.verdict for finding in judged.findings} == {"holds"}, judged.text
