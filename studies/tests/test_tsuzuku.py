"""The studies of Tsuzuku et al.: their grids, their networks, and rescaled networks as claimed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lowland as ll
from lowland.sweep import Grid, run
from lowland_studies.claims import weaker
from lowland_studies.evidence import Runs
from lowland_studies.instances import convex, lambda_factor, on_instances
from lowland_studies.intervals import Region
from lowland_studies.residual import wide_resnet, wrn_10_1, wrn_10_2, wrn_16_4
from lowland_studies.tsuzuku import (
    FIGURE1,
    FIGURE3,
    FIGURE4,
    LARGE,
    MLP,
    RESNET,
    STUDIES,
    TASKS,
    accuracy_gap,
)
from lowland_studies.tsuzuku_algebra import STUDIES as ALGEBRA
from lowland_studies.tsuzuku_algebra import lost_rank, rescaled

EVERY = (*STUDIES, *ALGEBRA, *LARGE)
MEASURES = ("trace", "normalized_sharpness", "matrix_normalized_sharpness", "fisher_rao")


@pytest.mark.parametrize("study", EVERY, ids=lambda study: study.name)
def test_studies_are_whole_and_their_quick_versions_small(study):
    assert study.paper == "tsuzuku"
    assert study.panels
    assert study.claims
    assert len({claim.text for claim in study.claims}) == len(study.claims)
    assert len(study.quick) <= 40
    assert all(run.per_class <= 30 for run in study.quick)
    assert {run.optimizer for run in (*study.grid, *study.quick)} == {"adam"}
    assert {run.decay for run in study.grid} == {run.dropout for run in study.grid} == {0.0}


def test_names_are_unique():
    assert len({study.name for study in EVERY}) == len(EVERY)


def test_figures_share_their_runs_and_every_ratio_occurs_in_every_panel():
    assert list(FIGURE3.grid) == list(FIGURE4.grid)
    assert set(FIGURE1.grid) < set(FIGURE3.grid)
    for task in TASKS:
        for grid, count in ((task.full, 6), (task.fixed, 6), (task.paper, 11)):
            ratios = sorted({run.label_noise for run in grid})
            assert ratios == pytest.approx(np.linspace(0, 1, count))
        for grid in (FIGURE3.grid, FIGURE3.quick, LARGE[0].grid):
            chosen = [
                run for run in grid if all(getattr(run, k) in v for k, v in task.where.items())
            ]
            assert set(chosen) in (set(task.full), set(task.quick), set(task.paper))


def test_figures_are_read_to_one_loss_and_for_the_paper_s_epochs():
    for figure in (FIGURE1, FIGURE3, FIGURE4):
        to_a_loss, for_epochs = figure.readings
        assert [to_a_loss.name, for_epochs.name] == ["to one loss", "for fixed epochs"]
        assert for_epochs.at_limit
        assert {run.max_epochs for run in for_epochs.grid} <= {50, 100}
    # Nine realisations, trained as the paper trains: three did not decide.
    for task in TASKS:
        assert {run.seed for run in task.fixed} == set(range(9))


def test_realisations_have_images_and_labels_of_their_own():
    assert all(run.data_seed == run.seed for study in EVERY for run in study.grid)


def test_studies_are_read_without_torch():
    code = "import sys; from lowland_studies import tsuzuku; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- networks ------------------------------------------------------------------------------------


def parameters(depth, width):
    """Weights of a wide residual network, from Table 1 of Zagoruyko & Komodakis."""
    blocks = (depth - 4) // 6
    total, before = 3 * 16 * 9, 16
    for after in (16 * width, 32 * width, 64 * width):
        for _ in range(blocks):
            norms = 2 * before + 2 * after
            shortcut = before * after if before != after else 0
            total += norms + 9 * before * after + 9 * after * after + shortcut
            before = after
    return total + 2 * before + 10 * before + 10


@pytest.mark.parametrize(
    ("make", "depth", "width"), [(wrn_16_4, 16, 4), (wrn_10_1, 10, 1), (wrn_10_2, 10, 2)]
)
def test_wide_resnets_have_the_parameters_of_their_table(make, depth, width):
    model = make()
    assert sum(p.numel() for p in model.parameters()) == parameters(depth, width)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    shortcuts = [m for m in layers if getattr(m, "kernel_size", None) == (1, 1)]
    assert len(layers) - len(shortcuts) == depth - 2  # 6 n + 4 counts three shortcuts, not the last
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_papers_network_has_the_published_size():
    assert round(parameters(16, 4) / 1e6, 2) == 2.75


@pytest.mark.parametrize(("depth", "width"), [(12, 1), (4, 1), (10, 0)])
def test_impossible_depths_are_told(depth, width):
    with pytest.raises(ValueError, match="10, 16, 22"):
        wide_resnet(depth, width)


@pytest.mark.slow
def test_the_trace_of_a_wide_resnet_is_that_of_its_hessian():
    """Against a plain one: with double precision, columns of the Hessian from autograd."""
    torch.manual_seed(0)
    model = wide_resnet(10, 1).double()
    x, y = torch.randn(4, 3, 32, 32).double(), torch.arange(4)
    model(x)  # statistics that are not 0 and 1
    model.eval()
    problem = ll.Problem(model, "cross_entropy", train=(x, y))
    found = ll.trace(ll.hessian(problem))
    assert found.method == "exact, by layer structure"
    weight = dict(model.named_parameters())["8.weight"]
    loss = torch.nn.functional.cross_entropy(model(x), y)
    (g,) = torch.autograd.grad(loss, weight, create_graph=True)
    own = sum(
        torch.autograd.grad(g.flatten()[i], weight, retain_graph=True)[0].flatten()[i]
        for i in range(weight.numel())
    )
    assert found.parts["8.weight"].value == pytest.approx(float(own), rel=1e-9)
    first = dict(model.named_parameters())["1.conv1.weight"]
    (g,) = torch.autograd.grad(loss, first, create_graph=True)
    rows = [int(i) for i in torch.linspace(0, first.numel() - 1, 5)]
    diagonal = ll.diagonal(problem)["1.conv1.weight"].flatten()
    for i in rows:
        (h,) = torch.autograd.grad(g.flatten()[i], first, retain_graph=True)
        assert float(diagonal[i]) == pytest.approx(float(h.flatten()[i]), rel=1e-7, abs=1e-12)


# --- claims --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Tiny networks of the kind that is rescaled, with true and with random labels."""
    out = tmp_path_factory.mktemp("store")
    tiny = {
        "data": "digits",
        "per_class": 3,
        "test_per_class": 10,
        "network": "64-16-16-16-10",
        "optimizer": "adam",
        "learning_rate": 0.01,
        "stop_loss": 0.1,
        "measures": (*MEASURES, "frobenius_norms", "spectral_norms"),
        "rescalings": ("units", "layers", "split", "outputs"),
    }
    grid = Grid(**tiny, label_noise=[0.0, 1.0], seed=range(2))
    run(grid, out, executor="serial")
    runs = Runs.of(out, grid)
    assert len(runs) == 4
    return runs


def numbers(runs, *column):
    return runs.column(rescaled(*column))


def test_what_is_measured_in_double_precision_is_what_was_measured_in_single(trained):
    for name in MEASURES:
        assert numbers(trained, name) == pytest.approx(trained.column(name), rel=1e-3)


def test_drawing_and_judging_compute_nothing(trained):
    """All that the study of rescalings shows was recorded with its runs: no torch is needed."""
    code = """if True:
        import sys
        from lowland_studies.evidence import Runs
        from lowland_studies.tsuzuku_algebra import RESCALING
        from lowland.sweep import Store

        store = Store(sys.argv[1])
        rows = [dict(row, network="784-128-128-128-10") for row in store.rows()]
        runs = Runs(tuple(rows), (), store.directory / "runs")
        for panel in RESCALING.panels:
            assert len(panel.curves(runs)) == 3
        print(sum(claim.test(runs).verdict == "holds" for claim in RESCALING.claims))
        assert "torch" not in sys.modules
    """
    command = [sys.executable, "-c", code, str(trained.folder.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >= 5


def test_eq_15_and_16_change_the_trace_alone(trained):
    before = numbers(trained, "normalized_sharpness")
    assert numbers(trained, "normalized_sharpness", "units") == pytest.approx(before, rel=1e-6)
    assert (numbers(trained, "trace", "units") > 2 * numbers(trained, "trace")).all()


def test_halves_have_half_the_fisher_rao_norm_and_the_same_sharpness(trained):
    assert numbers(trained, "fisher_rao", "split") == pytest.approx(
        numbers(trained, "fisher_rao") / 2, rel=1e-9
    )
    for name in ("normalized_sharpness", "matrix_normalized_sharpness"):
        before = numbers(trained, name)
        assert numbers(trained, name, "split") == pytest.approx(before, rel=1e-6)


def test_scaled_outputs_and_layers_leave_normalized_sharpness_as_it_is(trained):
    before = numbers(trained, "normalized_sharpness")
    for by in ("outputs", "layers"):
        assert numbers(trained, "normalized_sharpness", by) == pytest.approx(before, rel=1e-6)
    traces = numbers(trained, "trace"), numbers(trained, "trace", "outputs")
    assert (np.abs(np.log(traces[1] / traces[0])) > 0.1).all()


def test_rescaled_units_have_larger_norms_and_a_smaller_stable_rank(trained):
    for name in ("frobenius_norms", "spectral_norms"):
        assert (numbers(trained, name, "units") > numbers(trained, name)).all()
    ranks = [
        (numbers(trained, "frobenius_norms", by) / numbers(trained, "spectral_norms", by)) ** 2
        for by in ("as_trained", "units")
    ]
    assert lost_rank(trained) == pytest.approx(np.log10(ranks[0] / ranks[1]))


def test_random_instances_are_judged_as_they_should_be():
    """A convex problem is; one with negative weights is not; lambda enters as a root."""
    empty = Runs((), (), Path("nowhere"))
    test = on_instances(convex, "", Region(-1e-12))
    assert test(empty).verdict == "holds"
    assert test(empty).note.endswith("20 random instances")

    def concave(random):
        a, b = random.normal(size=6), random.normal(size=6)
        return float((-(a**2) - b**2).sum() / 2 + (((a + b) / 2) ** 2).sum())

    assert on_instances(concave, "", Region(0.0))(empty).verdict == "does not hold"
    assert lambda_factor(np.random.default_rng(3)) == pytest.approx(1, abs=1e-6)


def test_the_gap_is_that_of_accuracies(trained):
    test, train = (trained.column(f"{split}_error") for split in ("test", "train"))
    assert accuracy_gap(trained) == pytest.approx(test - train)


def planted(tmp_path, spread, n=40):
    """Runs of every task whose trace follows the gap up to noise; ``spread`` by task."""
    random = np.random.default_rng(3)
    rows = []
    for task, noise in zip(TASKS, spread, strict=True):
        gap = random.uniform(0, 1, n)
        trace = gap + noise * random.normal(size=n)
        for i in range(n):
            own = {name: values[0] for name, values in task.where.items()}
            rows.append({**own, "seed": i, "trace": trace[i], "test_error": gap[i]})
    rows = [{**row, "train_error": 0.0} for row in rows]
    return Runs(tuple(rows), (), tmp_path)


@pytest.mark.parametrize(
    ("spread", "verdict"),
    [
        ((0.05, 0.05, 0.05, 1.0), "holds"),
        ((1.0, 1.0, 1.0, 0.05), "does not hold"),
        ((0.2, 0.2, 0.2, 0.2), "undecided"),
    ],
)
def test_weaker_correlations_are_told(tmp_path, spread, verdict):
    test = weaker("trace", accuracy_gap, RESNET.where, [task.where for task in TASKS[:3]])
    found = test(planted(tmp_path, spread))
    assert found.verdict == verdict
    assert found.low <= found.effect <= found.high


def test_networks_that_did_not_converge_count_against_the_training_accuracy(tmp_path):
    """A network is left out for its loss; its errors must not vanish with it."""
    (claim,) = [c for c in FIGURE3.claims if c.text.startswith("MLP") and "accuracy is" in c.text]
    fitted = planted(tmp_path, (0.1,) * 4)
    rows = tuple({**row, "train_error": 0.0} for row in fitted.rows)
    bad = tuple({**row, "train_error": 0.5} for row in fitted.rows)
    assert claim.test(Runs(rows, (), tmp_path)).verdict == "holds"
    assert claim.test(Runs(rows, bad, tmp_path)).verdict == "does not hold"


def test_too_few_runs_decide_nothing(tmp_path):
    test = weaker("trace", accuracy_gap, RESNET.where, [MLP.where])
    found = test(planted(tmp_path, (0.1,) * 4, n=3))
    assert found.verdict == "undecided"
    assert "needs three" in found.note


def test_judging_a_study_of_nothing_decides_nothing(tmp_path):
    for study in EVERY:
        for claim in study.claims:
            finding = claim.test(Runs((), (), tmp_path))
            assert finding.verdict == "undecided" or "random instances" in finding.note
