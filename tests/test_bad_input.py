"""Every mistake a user can hand over: one line, what to do about it, exit code 2, nothing left."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from commandline import MINE, Ran, entries, run, run_inside
from test_checkpoint import RunsCode

# Factories that go wrong, each in its own way.
BROKEN = """
import sys

import torch
from mine import data, model
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

(X, Y), (XT, YT) = data()
not_a_function = 3


def raises():
    raise ValueError("width must be\\n  positive")


def raises_without_a_word():
    raise KeyError


def exits():
    sys.exit(0)


def needs_an_argument(width):
    return nn.Linear(2, width)


def returns_a_dict():
    return model().state_dict()


def returns_no_parameters():
    return nn.ReLU()


def nan_weight():
    net = model()
    net[2].weight.data[0, 0] = float("nan")
    return net


def infinite_bias():
    net = model()
    net[4].bias.data[1] = float("inf")
    return net


class Overflowing(nn.Sequential):
    def forward(self, x):
        return super().forward(x) * 1e38 * 1e38


def infinite_outputs():
    return Overflowing(*model())


class Failing(nn.Sequential):
    def forward(self, x):
        return {}["missing"]


def fails_in_forward():
    return Failing(*model())


def only_one():
    return TensorDataset(X, Y)


def three():
    return (X, Y), (XT, YT), (XT, YT)


def no_targets():
    return X, XT


def label_out_of_range():
    return (X, Y + 1), (XT, YT)


def test_label_out_of_range():
    return (X, Y), (XT, YT - 1)


def nan_input():
    bad = X.clone()
    bad[3, 1] = float("nan")
    return (bad, Y), (XT, YT)


def infinite_test_input():
    bad = XT.clone()
    bad[0] = -float("inf")
    return (X, Y), (bad, YT)


def empty_train():
    return (X[:0], Y[:0]), (XT, YT)


def empty_test():
    return (X, Y), (XT[:0], YT[:0])


def empty_dataset():
    return TensorDataset(X[:0], Y[:0]), TensorDataset(XT, YT)


def no_partner():
    return (X[Y == 0], Y[Y == 0]), (XT, YT)


def lengths_differ():
    return (X, Y[:-1]), (XT, YT)


def wrong_width():
    return (torch.cat([X, X], 1), Y), (XT, YT)


class Unreadable(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise FileNotFoundError(2, "No such file or directory", "image-17.png")


def unreadable():
    return Unreadable(), (XT, YT)


def unreadable_by_a_worker():
    return DataLoader(Unreadable(), num_workers=1), (XT, YT)


def loss_of_the_mean(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def infinite_loss(outputs, targets):
    return outputs.sum(1) * float("inf")


def failing_loss(outputs, targets):
    return outputs.no_such_method()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "mine.py").write_text(MINE)
    (folder / "broken.py").write_text(BROKEN)
    (folder / "syntax.py").write_text("def model(:\n")
    (folder / "imports.py").write_text("import no_such_package\n")
    (folder / "script.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    good = net.state_dict()
    save_file({k: v for k, v in good.items() if k != "2.bias"}, folder / "missing.safetensors")
    save_file({**good, "6.weight": torch.ones(1)}, folder / "unexpected.safetensors")
    torch.save({**good, "2.weight": torch.ones(3, 5)}, folder / "shape.pt")
    torch.save({**good, "2.weight": torch.ones(3, 4, dtype=torch.int8)}, folder / "int8.pt")
    torch.save({**good, "0.bias": torch.full((4,), float("nan"))}, folder / "nan.pt")
    torch.save({"state_dict": good, "hook": RunsCode()}, folder / "code.pt")
    torch.save(net, folder / "module.pt")
    (folder / "empty.pt").touch()
    (folder / "empty.safetensors").touch()
    (folder / "text.pt").write_text("hello world\n" * 20)
    (folder / "cut.safetensors").write_bytes((folder / "missing.safetensors").read_bytes()[:100])
    (folder / "directory.pt").mkdir()
    (folder / "theirs").mkdir()
    (folder / "theirs" / "notes.txt").write_text("mine")
    return folder


def one_line(ran: Ran, *words: str) -> None:
    assert ran.code == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("lowland: ")
    assert ran.err.endswith("\n")
    assert ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


def analyze(project: Path, *more: str, model: str = "mine:model", data: str = "mine:data") -> Ran:
    """Analyse inside this process, and see that nothing but the user's own files is there."""
    before = entries(project)
    line = ("analyze", "--model", model, "--data", data, "--quiet", *more)
    if "--out" not in more:
        line = (*line, "--out", "out")
    ran = run_inside(*line, cwd=project)
    assert entries(project) == before
    return ran


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nowhere:model", ("--model", "no module 'nowhere'", "or installed")),
        ("mine.deep:model", ("no module 'mine.deep'",)),
        ("mine", ("must be pkg.module:name", "got 'mine'")),
        (":model", ("must be pkg.module:name", "got ':model'")),
        ("mine.py:model", ("no module 'mine.py'", "write it as an import: mine:model")),
        ("mine:modle", ("mine has no 'modle'", "did you mean 'model'?")),
        ("syntax:model", ("importing syntax raised SyntaxError", "syntax.py, line 1")),
        ("imports:model", ("importing imports failed: No module named 'no_such_package'",)),
        ("broken:raises", ("raised ValueError: width must be positive", "broken.py, line 14")),
        ("broken:raises_without_a_word", ("raised KeyError (broken.py",)),
        ("broken:exits", ("raised SystemExit(0)", "ended the program")),
        ("broken:needs_an_argument", ("missing 1 required positional argument: 'width'",)),
        ("broken:not_a_function", ("is int", "expected a function without arguments")),
        ("broken:returns_a_dict", ("must return a torch.nn.Module", "returned OrderedDict")),
        ("broken:returns_no_parameters", ("the model has no parameters",)),
        ("broken:nan_weight", ("'2.weight' holds 1 NaN or infinite value",)),
        ("broken:infinite_bias", ("'4.bias' holds 1 NaN or infinite value",)),
        ("broken:infinite_outputs", ("outputs", "NaN or infinite")),
        ("broken:fails_in_forward", ("KeyError: 'missing'", "broken.py", "in forward")),
    ],
)
def test_model(project, model, words):
    one_line(analyze(project, model=model), *words)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # a worker, from Python 3.12 on
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("nowhere:data", ("--data", "no module 'nowhere'")),
        ("broken:raises", ("--data broken:raises raised ValueError: width must be positive",)),
        ("mnist6k", ("mnist6k", "mnist5k")),
        ("broken:only_one", ("must return (train, test)", "returned TensorDataset")),
        ("broken:three", ("must return (train, test)", "returned tuple of 3")),
        ("broken:no_targets", ("(inputs, targets)", "without targets")),
        ("broken:label_out_of_range", ("train labels run from 1 to 2", "must be 0 to 1")),
        ("broken:test_label_out_of_range", ("test labels run from -1 to 0", "must be 0 to 1")),
        ("broken:nan_input", ("train inputs hold 1 NaN or infinite", "clean the data")),
        ("broken:infinite_test_input", ("test inputs hold 2 NaN or infinite",)),
        ("broken:empty_train", ("train data is empty", "at least one sample")),
        ("broken:empty_test", ("test data is empty", "at least one sample")),
        ("broken:empty_dataset", ("train data is empty", "at least one sample")),
        ("broken:lengths_differ", ("29 targets", "one entry per sample")),
        ("broken:wrong_width", ("cannot run on the training inputs", "(4,)")),
        ("broken:unreadable_by_a_worker", ("FileNotFoundError", "image-17.png", "in __getitem__")),
        ("broken:unreadable", ("FileNotFoundError", "image-17.png", "in __getitem__")),
    ],
)
def test_data(project, data, words):
    one_line(analyze(project, data=data), *words)


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ("nowhere.pt", ("no checkpoint file nowhere.pt",)),
        ("directory.pt", ("directory.pt is a directory",)),
        (
            "missing.safetensors",
            ("checkpoint missing.safetensors", "does not fit the model", "the file lacks 2.bias"),
        ),
        (
            "unexpected.safetensors",
            (
                "checkpoint unexpected.safetensors",
                "the model has no place for 6.weight",
            ),
        ),
        (
            "shape.pt",
            (
                "checkpoint shape.pt",
                "2.weight is (3, 5) float32 in the file and (3, 4) float32 in the model",
            ),
        ),
        (
            "int8.pt",
            (
                "checkpoint int8.pt",
                "2.weight is (3, 4) int8 in the file and (3, 4) float32 in the model",
            ),
        ),
        ("nan.pt", ("'0.bias' holds 4 NaN or infinite value",)),
        ("code.pt", ("checkpoint code.pt", "refused", "mkdir", "save only model.state_dict()")),
        (
            "module.pt",
            ("checkpoint module.pt", "refused", "Sequential", "save only model.state_dict()"),
        ),
        ("empty.pt", ("empty.pt is empty",)),
        ("empty.safetensors", ("empty.safetensors is empty",)),
        ("text.pt", ("checkpoint text.pt", "cannot be read", "state dict")),
        ("cut.safetensors", ("checkpoint cut.safetensors", "cannot be read", "whole")),
    ],
)
def test_checkpoint(project, checkpoint, words):
    one_line(analyze(project, "--checkpoint", checkpoint), *words)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--layer", "7"), ("no layer '7'", "'0', '2', '4'")),
        (("--layer", "2.bias"), ("layer '2.bias' is a shift", "'0', '2', '4'")),
        (("--layer", "1"), ("'1' is ReLU and has no weight", "'0', '2', '4'")),
        (("--layer", ""), ("'' is Sequential and has no weight", "'0', '2', '4'")),
        (("--loss", "cross_entrpy"), ("no loss named", "did you mean 'cross_entropy'?")),
        (("--loss", "broken:nothing"), ("--loss", "broken has no 'nothing'")),
        (("--loss", "broken:loss_of_the_mean"), ("one loss per sample", "reduction='none'")),
        (("--loss", "broken:infinite_loss"), ("losses are NaN or infinite",)),
        (("--loss", "broken:failing_loss"), ("no_such_method", "in failing_loss")),
    ],
)
def test_layer_and_loss(project, more, words):
    one_line(analyze(project, *more), *words)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("mine.py", ("mine.py is a file", "choose another")),
        ("mine.py/deep/out", ("mine.py is a file", "choose another")),
        ("/proc/lowland/out", ("cannot write", "choose another")),
        (".", ("is the current directory", "choose one inside it")),
        ("", ("is the current directory", "choose one inside it")),
        ("theirs", ("'notes.txt'", "did not write", "choose another")),
        ("/", ("mount point", "inside it")),
        ("a" * 300, ("cannot write", "File name too long")),
    ],
)
def test_out(project, out, words):
    ran = analyze(project, "--out", out)
    one_line(ran, *words)
    assert (project / "theirs" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("analyze", "--data", "mine:data"), ("--model", "embedded default")),
        (("analyze", "--checkpoint", "shape.pt"), ("--model", "embedded default")),
        (("analyze", "--loss", "mse"), ("--model", "embedded default")),
        (("analyze", "--model", "mine:model"), ("--model needs --data",)),
        (("report", "nowhere"), ("nowhere does not exist", "lowland analyze")),
        (("report", "mine.py"), ("mine.py is a file", "expected a directory")),
        (("report", "theirs"), ("theirs holds no results.json",)),
    ],
)
def test_lines_that_do_not_go_together(project, line, words):
    before = entries(project)
    one_line(run_inside(*line, "--quiet", cwd=project), *words)
    assert entries(project) == before


def test_a_module_that_is_a_script(project):
    """It parses our arguments, and says so itself first; then comes our line."""
    ran = analyze(project, model="script:model")
    assert (ran.code, ran.out) == (2, "")
    last = ran.err.splitlines()[-1]
    assert last.startswith("lowland: --model script:model: importing script raised SystemExit(2)")
    assert "under if __name__ == '__main__'" in last
    assert "Traceback" not in ran.err


def test_a_defect_of_ours_keeps_its_traceback(project, monkeypatch):
    """Only a frame of the user's code after the last one of ours makes it the user's mistake."""
    monkeypatch.delattr("lowland.analysis.run.chosen_measures")
    with pytest.raises(NameError, match="chosen_measures"):
        analyze(project)


def test_a_label_without_a_partner_is_noted_and_the_rest_is_explained(project):
    line = ("analyze", "--model", "mine:model", "--data", "broken:no_partner", "--quiet")
    ran = run_inside(*line, "--out", str(project.parent / "lonely"), cwd=project)
    assert ran.code == 0, ran.err
    assert "have a label that no training sample has" in " ".join(ran.out.split())


def test_as_a_process_nothing_else_is_said_and_no_code_of_a_pickle_is_run(project):
    """The same as above through the real entry: torch's own warnings, or ours, would be seen."""
    line = ("analyze", "--model", "mine:model", "--data", "mine:data", "--quiet", "--json")
    ran = run(*line, "--checkpoint", "code.pt", "--out", "out", cwd=project)
    one_line(ran, "code.pt", "refused")
    assert not (project / "pwned").exists()
    assert not (project / "out").exists()
