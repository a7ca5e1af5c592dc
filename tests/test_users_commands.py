"""What people have, from the command line: their files, their losses, and titles that differ."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lowland as ll
from commandline import run
from owned import OWNED
from ranks import be_rank, run_both

MINE = """
import sys
import torch
from torch import nn

sys.path.insert(0, {tests!r})
import lowland as ll
from owned import labelled, mlp, points, residual


def model():
    torch.manual_seed(0)
    return mlp()


def data():
    return labelled(40, 0), labelled(20, 1)


def solution():
    torch.manual_seed(0)
    return mlp(1, 1)


def places():
    return torch.linspace(0, 1, 20)[:, None], torch.linspace(0.01, 0.99, 10)[:, None]


equation = ll.ModelLoss(lambda model, batch: residual(model, batch.inputs))


def pretrained():
    from transformers import PretrainedConfig, PreTrainedModel

    class Network(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.net = model()
            self.post_init()

        def forward(self, input_ids):
            return {{"logits": self.net(input_ids)}}

    return Network(PretrainedConfig())


def dicts():
    return tuple(dict(input_ids=x, labels=y) for x, y in data())
"""


OTHERS = """
import sys

sys.path.insert(0, {tests!r})
from owned import OWNED

own = OWNED[{name!r}]()


def model():
    return own.model.eval()


def data():
    return own.train, own.test
"""


@pytest.fixture
def desk(tmp_path):
    (tmp_path / "mine.py").write_text(MINE.format(tests=str(Path(__file__).parent)))
    return tmp_path


def analyzed(desk: Path, *options: str) -> dict:
    done = run("analyze", *options, "--json", "--quiet", cwd=desk)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.slow
def test_a_lightning_file_and_a_comparison_that_names_the_runs(desk):
    """Two runs of one model differ in their checkpoints, and so do their titles."""
    for name, scale in (("sgd", 1.0), ("adam", 3.0)):
        torch.manual_seed(1)
        state = {f"net.{k}": scale * v for k, v in OWNED["frozen"]().model.state_dict().items()}
        (desk / name).mkdir()
        torch.save({"state_dict": state, "epoch": 1}, desk / name / "last.ckpt")
        options = ("--model", "mine:model", "--data", "mine:data", "--out", f"out-{name}")
        found = analyzed(desk, *options, "--checkpoint", f"{name}/last.ckpt")
        assert found["subject"]["title"] == f"mine:model, {name}/last.ckpt"
    done = run("compare", "out-sgd", "out-adam", cwd=desk)
    assert "first:  mine:model, sgd/last.ckpt" in done.out
    assert "second: mine:model, adam/last.ckpt" in done.out
    page = (desk / "lowland-comparison.html").read_text()
    assert "mine:model, sgd/last.ckpt" in page
    assert "mine:model, adam/last.ckpt" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vit", "bert", "gpt2", "tagging", "lstm"])
def test_networks_that_people_have_from_a_file_of_weights(tmp_path, name):
    """The trained weights are those of the file, and not those that the function makes."""
    text = OTHERS.format(tests=str(Path(__file__).parent), name=name)
    (tmp_path / "mine.py").write_text(text)
    own = OWNED[name]()
    with torch.no_grad():
        for p in own.model.parameters():
            p.mul_(1.5)
    torch.save(own.model.state_dict(), tmp_path / "weights.pt")
    options = ("--model", "mine:model", "--data", "mine:data", "--checkpoint", "weights.pt")
    found = analyzed(tmp_path, *options, "--measures", "trace,largest_eigenvalue")
    rows = {row["name"]: row for row in found["measures"]}
    expected = own.losses(own.model.double().eval()).mean().item()
    assert rows["train_loss"]["value"] == pytest.approx(expected, rel=1e-5)
    assert rows["trace"]["value"] is not None, rows["trace"]["reason"]
    assert rows["largest_eigenvalue"]["value"] is not None, rows["largest_eigenvalue"]["reason"]
    assert (tmp_path / "lowland-report" / "report.html").exists()


@pytest.mark.slow
def test_an_equation_as_the_loss(desk):
    options = ("--model", "mine:solution", "--data", "mine:places", "--loss", "mine:equation")
    found = analyzed(desk, *options)
    rows = {row["name"]: row for row in found["measures"]}
    assert not [row["reason"] for row in rows.values() if "failed" in (row["reason"] or "")]
    assert rows["largest_eigenvalue"]["value"] is not None
    assert found["notes"] == [
        "The gap was not decomposed: loss 'mine:<lambda>' is computed from the model itself and "
        "not from its outputs, so that nothing is known of single layers."
    ]


@pytest.mark.slow
def test_a_folder_of_transformers(desk):
    script = "import mine; mine.pretrained().save_pretrained('trained')"
    subprocess.run([sys.executable, "-c", script], cwd=desk, check=True, capture_output=True)
    assert {"config.json", "model.safetensors"} <= set(os.listdir(desk / "trained"))
    options = ("--model", "mine:pretrained", "--data", "mine:dicts", "--checkpoint", "trained")
    found = analyzed(desk, *options)
    assert found["subject"]["title"] == "mine:pretrained, trained"
    assert found["subject"]["layer"] == "net.2"


def test_titles_that_are_the_same_are_told_apart(desk):
    """By the files that the weights came from, or else by when they were analysed."""
    problem = OWNED["frozen"]().problem()
    made = [
        ll.analyze(problem, measures=[], origin=ll.findings.Origin(checkpoint=checkpoint))
        for checkpoint in ("a.pt", "b.pt")
    ]
    titles = [side.title for side in ll.compare(*made).results.solutions]
    assert titles == ["Sequential model (a.pt)", "Sequential model (b.pt)"]
    titles = [side.title for side in ll.compare(made[0], made[0]).results.solutions]
    assert titles == ["Sequential model (first)", "Sequential model (second)"]


def work(rank: int, out: Path) -> None:
    """What one of two ranks does: a model in DDP, half of the samples."""
    torch.distributed.init_process_group("gloo")
    case = OWNED["regression"]()
    x, y = case.train
    model = torch.nn.parallel.DistributedDataParallel(case.model)
    chosen = slice(0, 5) if rank == 0 else slice(5, 8)
    problem = ll.Problem(model, "mse", train=(x[chosen], y[chosen]), dtype=torch.float64)
    if rank == 0:
        print(repr(problem))
    numbers = numbers_of(problem)
    if rank == 0:
        print(json.dumps(numbers))


def numbers_of(problem: ll.Problem) -> list[float]:
    measured = ll.measure(problem, ["trace", "largest_eigenvalue", "train_loss"])
    block = ll.layer_hessian(problem, "2")
    diagonal = torch.cat([d.flatten() for d in ll.diagonal(problem).values()])
    values = [float(row.value) for row in measured.values()]
    return [*values, float(block.norm()), float(diagonal.norm())]


@pytest.mark.slow
def test_two_ranks_of_ddp_measure_the_whole_data(tmp_path):
    printed = run_both(__file__, tmp_path)
    assert "mse, 5 training samples on this of 2 ranks" in printed
    expected = numbers_of(OWNED["regression"]().problem(dtype=torch.float64))
    assert json.loads(printed.splitlines()[-1]) == pytest.approx(expected, rel=1e-6)


if __name__ == "__main__":
    be_rank(work)
