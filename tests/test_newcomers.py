"""What newcomers bring is measured right, against plain torch, or refused in a line to copy."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import lowland as ll
from newcomers import AUTOCAST, GRAPHS, NEWCOMERS, SLOW, VAE, Siamese, Small, X, Y
from test_users_models import Plain

KINDS = [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in NEWCOMERS]


@pytest.mark.filterwarnings("ignore:.*autocast")  # torch's, of old names and of no CUDA
@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KINDS)
def test_numbers_are_those_of_plain_torch(name, dtype):
    case = NEWCOMERS[name]()
    plain = Plain(case)
    H = torch.stack(
        [plain.product(row) for row in torch.eye(sum(p.numel() for p in plain.weights)).double()]
    )
    before = {n: t.clone() for n, t in case.model.state_dict().items()}
    case.model.train()

    problem = case.problem(dtype=dtype if dtype == torch.float64 else None)
    # T5 normalises in float32, also in the oracle.
    wide = dtype == torch.float64 and name != "t5"
    close = {"rtol": 1e-9, "atol": 1e-11} if wide else {"rtol": 2e-5, "atol": 1e-5}
    torch.testing.assert_close(problem.losses().double(), plain.losses.detach(), **close)
    assert problem.losses().dtype == dtype
    trace = ll.trace(problem)
    scale = float(H.norm())
    assert abs(trace.value - float(H.trace())) <= close["rtol"] * 10 * scale + 6 * trace.stderr
    top = ll.eigsh(problem, k=1, tol=1e-5)
    assert top.converged
    largest = torch.linalg.eigvalsh(H)
    largest = largest[largest.abs().argmax()]
    assert float(top.values[0]) == pytest.approx(float(largest), rel=1e-3)

    assert case.model.training
    torch.testing.assert_close(dict(case.model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*autocast")
@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_is_off_while_measuring_and_works_afterwards(name):
    case = NEWCOMERS[name]()
    rounded = case.model(X)
    problem = case.problem()
    assert any("autocast" in note for note in problem.notes) == ("cuda" not in name)
    with pytest.raises(ZeroDivisionError), problem.measuring():
        raise ZeroDivisionError
    assert torch.equal(case.model(X), rounded)
    assert rounded.dtype == (torch.float32 if "cuda" in name else rounded.dtype)
    # The block of a layer, the duality and the analysis, which failed on rounded outputs.
    torch.testing.assert_close(
        ll.layer_hessian(problem, "b").double(), Plain(case).block("b.weight"), rtol=1e-4, atol=1e-6
    )


# Refused in a line --------------------------------------------------------------------------------


def your_losses(outputs, targets=None):
    """One number for each sample, of whatever the copied line hands over."""
    if isinstance(outputs, tuple) and outputs[0].ndim == 3:  # of an LSTM
        outputs = outputs[0].mean(1)
    if isinstance(outputs, dict):  # of the Siamese network
        return (outputs["left"] - outputs["right"]).square().sum(1)
    if isinstance(outputs, nn.Module):
        return torch.stack([outputs(g).square().mean() for g in targets])
    if isinstance(targets, dict | list):
        targets = targets["kind" if isinstance(targets, dict) else 0]
    return F.cross_entropy(outputs, targets, reduction="none")


def copied(message):
    """The loss and the data of a refusal's line, evaluated as it stands."""
    scope = {"ll": ll, "torch": torch, "your_losses": your_losses, "data": GRAPHS}
    line = message[message.index("loss=ll.ModelLoss(") :].removeprefix("loss=")
    while True:  # as much of it as is one expression
        try:
            loss = eval(line, scope)
            break
        except SyntaxError:
            line = line[: line.rindex(")", 0, len(line) - 1) + 1]
    data = re.search(r"train=(torch\.arange\(len\(data\)\))", message)
    return loss, eval(data[1], scope) if data else None


W = torch.ones(9)
FEATURES = {"features": X, "ages": X}
LINES = {
    "weights": (Small(Small.plain), (X, Y, W), "cross_entropy"),
    "weights of a regression": (Small(Small.plain), (X, X, W), "mse"),
    "an entry of a dict": (nn.Linear(3, 3), {"image": X, "label": Y}, "cross_entropy"),
    "outputs in a dict": (Siamese(), ((X, X.flip(0)), Y), "cross_entropy"),
    "outputs in a tuple": (nn.LSTM(3, 3, batch_first=True), (X[:, None], Y), "cross_entropy"),
    "targets in a dict": (nn.Linear(3, 3), (X, {"kind": Y, "place": X}), "cross_entropy"),
    "targets in lists": (nn.Linear(3, 3), (X, [Y, X]), nn.CrossEntropyLoss()),
    "no labels": (Small(lambda m, b: m.plain(b["features"])), FEATURES, "mse"),
    "graphs": (Small(lambda m, g: m.plain(g.x)), GRAPHS, "cross_entropy"),
    "a batch of graphs": (Small(lambda m, g: m.plain(g.x)), iter(GRAPHS), "cross_entropy"),
    "a loader of graphs": (
        Small(lambda m, g: m.plain(g.x)),
        DataLoader(GRAPHS, 3, collate_fn=lambda graphs: graphs[0]),
        "cross_entropy",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_the_line_of_a_refusal_can_be_copied(name):
    model, train, loss = LINES[name]
    model = copy.deepcopy(model)
    with pytest.raises(ll.InputError) as refused:
        ll.Problem(model, loss, train=train)
    message = str(refused.value)
    assert "\n" not in message
    own, places = copied(message)
    if name == "no labels":  # the dict alone
        own = ll.ModelLoss(lambda model, batch: model(batch.inputs).square().mean(1))
    problem = ll.Problem(model, own, train=train if places is None else places)
    assert len(problem.losses()) == 9
    assert ll.trace(problem).value == pytest.approx(ll.trace(problem).value)


REFUSED = {
    "a list of samples of numbers": (
        lambda: ll.Problem(nn.Linear(3, 3), "mse", train=[(x, x) for x in X]),
        r"may be a sample, or a batch .*DataLoader\(data, batch_size=64\)",
    ),
    "a list of sequences": (
        lambda: ll.Problem(Small(lambda m, x: m.plain(x - x.mean(0))), train=[(X, Y)] * 3),
        r"read as batches: if they are samples",
    ),
    "a data set that raises": (
        lambda: ll.Problem(nn.Linear(3, 3), train=GRAPHS[0]),
        r"reading the train data, one sample after the other, raised TypeError.*newcomers.py",
    ),
    "labels without a name": (
        lambda: ll.Problem(NEWCOMERS["t5"]().model, train=(Y.view(3, 3), Y.view(3, 3))),
        r"must be a dict with 'labels', such as \{'input_ids'",
    ),
    "a loss that does not fit the model": (
        lambda: ll.Problem(VAE(), ll.ModelLoss(lambda m, b: m(b.inputs)[5]), train=(X, Y)),
        r"cannot be computed from the model and a batch \(one sample is \(3,\).*IndexError",
    ),
    "what forward raises": (
        lambda: ll.Problem(Small(lambda m, x: {}[3]), train=(X, Y)),
        r"cannot run on the training inputs \(.*KeyError: 3",
    ),
    "analyses": (lambda: ll.compare(VAE(), VAE()), r"ll.compare\(ll.analyze\(first\), ll.analyze"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_told_in_a_line(name):
    make, words = REFUSED[name]
    with pytest.raises(ll.InputError, match=words) as told:
        make()
    assert "\n" not in str(told.value)


OF_A_PROBLEM = (
    "analyze", "diagonal", "duality", "fisher", "ggn", "hessian", "layer_hessian", "layer_operator",
    "line", "measure", "pair", "path", "plane", "rescale", "rho_range", "stress", "surface",
)  # fmt: skip


@pytest.mark.parametrize("name", [*OF_A_PROBLEM, "eigsh", "spectral_density", "trace"])
def test_a_model_in_the_place_of_a_problem_is_told_what_to_write(name):
    with pytest.raises(ll.InputError, match=rf"^{name} takes .*ll.Problem\(model, 'cross_entropy'"):
        getattr(ll, name)(nn.Linear(3, 3))


def test_a_problem_stands_for_its_hessian():
    problem = NEWCOMERS["autocast"]().problem(dtype=torch.float64)
    H = ll.hessian(problem)
    assert ll.trace(problem).value == pytest.approx(ll.trace(H).value)
    assert ll.eigsh(problem, k=2).values.tolist() == pytest.approx(ll.eigsh(H, k=2).values.tolist())
    assert ll.spectral_density(problem).plot is not None
    assert ll.trace(torch.eye(3)).value == pytest.approx(3)


# Left out with a reason ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dynamic_padding", "dynamic_padding_of_labels"])
def test_of_ragged_batches_only_single_samples_are_left_out(name):
    case = NEWCOMERS[name]()
    problem = ll.Problem(case.model, train=case.train, test=case.train)
    names = ["trace", "largest_eigenvalue", "fisher_trace", "flat_part"]
    results = ll.analyze(problem, measures=names, landscape=False).results
    rows = {row.name: row for row in results.measures}
    assert all(rows[n].value is not None for n in (*names[:3], "gap"))
    assert re.search("pad .*to one shape to compare single samples", rows["flat_part"].reason)
    assert any("The gap was not decomposed: " in note for note in results.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["experts", "vae", "dict_of_targets", "dynamic_padding", "nanogpt"]
)
def test_the_analysis_of_a_newcomer_runs_to_its_end(name):
    case = NEWCOMERS[name]()
    problem = ll.Problem(case.model, case.loss, train=case.train, test=case.train)
    results = ll.analyze(problem, budget="none").results
    assert not [r.reason for r in results.measures if "failed" in (r.reason or "")]
    assert results.landscape is not None
    values = {row.name: row.value for row in results.measures}
    assert values["trace"] is not None
    assert values["train_loss"] is not None
