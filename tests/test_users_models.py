"""What people have, measured as it is: every number against plain torch, every reason true."""

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import lowland as ll
from owned import OWNED, SLOW, Owned

KINDS = [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in OWNED]
# Words of ours, and reasons that are none.
UNTRUE = re.compile(
    r"shares its weight|weight norm|can be seen through|failed:|RuntimeError|pass loss="
)


class Plain:
    """Derivatives of the mean training loss by plain autograd in float64, with no help of ours."""

    def __init__(self, case: Owned) -> None:
        model = copy.deepcopy(getattr(case.model, "_orig_mod", case.model)).eval()
        self.model = model.double()
        self.names = [n for n, p in self.model.named_parameters() if p.requires_grad]
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            torch.backends.mha.set_fastpath_enabled(False)
            self.losses = case.losses(self.model)
            torch.backends.mha.set_fastpath_enabled(True)
        self.gradient = torch.autograd.grad(
            self.losses.mean(), self.weights, create_graph=True, materialize_grads=True
        )

    def product(self, v: Tensor) -> Tensor:
        """The Hessian times v."""
        flat = torch.cat([g.flatten() for g in self.gradient])
        parts = torch.autograd.grad(
            flat @ v, self.weights, retain_graph=True, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in parts])

    def block(self, name: str) -> Tensor:
        """The dense Hessian of one parameter."""
        at = self.names.index(name)
        slope = self.gradient[at].flatten()
        rows = [
            torch.autograd.grad(entry, self.weights[at], retain_graph=True)[0].flatten()
            for entry in slope
        ]
        return torch.stack(rows)


@pytest.mark.parametrize("name", KINDS)
def test_numbers_are_those_of_plain_torch(name):
    case = OWNED[name]()
    problem, plain = case.problem(dtype=torch.float64), Plain(case)
    torch.testing.assert_close(problem.losses().sort()[0], plain.losses.detach().sort()[0])
    assert list(problem.params) == plain.names

    top = ll.eigsh(ll.hessian(problem), k=1, tol=1e-4)
    assert top.converged
    value, v = float(top.values[0]), top.vectors[:, 0]
    torch.testing.assert_close(plain.product(v), value * v, rtol=0, atol=1e-3 * abs(value))

    weight = f"{case.layer}.weight" if case.layer else plain.names[2]
    block = plain.block(weight)
    trace = ll.trace(ll.hessian(problem, params=weight))
    assert abs(trace.value - float(block.trace())) <= 1e-8 * abs(trace.value) + 6 * trace.stderr
    diagonal = ll.diagonal(problem, rtol=0.5)
    error = diagonal.stderr.get(weight, torch.zeros(1)).flatten()
    miss = (diagonal[weight].flatten() - block.diagonal()).abs()
    assert (miss <= 1e-8 + 6 * error).all()


@pytest.mark.parametrize("name", [p for p in KINDS if p.values[0] != "pinn"])
def test_layers_and_the_duality_are_those_of_plain_torch(name):
    case = OWNED[name]()
    problem, plain = case.problem(dtype=torch.float64), Plain(case)
    assert case.layer is not None
    block = ll.layer_hessian(problem, case.layer)
    torch.testing.assert_close(block, plain.block(f"{case.layer}.weight"), rtol=1e-6, atol=1e-9)

    pairs = ll.pair(problem, space=case.layer)
    split = ll.duality(problem, case.layer, pairs=pairs)
    if problem.train.targets.ndim == 1 and not problem.train.targets.is_floating_point():
        kept = split.per_pair  # without those that the layer sees no difference of
        train, test = (problem.losses(s) for s in ("train", "test"))
        gap = (test[kept.test] - train[kept.train]).mean()
        assert split.paired_gap == pytest.approx(float(gap), rel=1e-6)
    assert split.eq9 == pytest.approx(split.paired_gap, rel=1e-8)


@pytest.mark.parametrize("name", KINDS)
def test_the_analysis_says_nothing_untrue(name, tmp_path):
    case = OWNED[name]()
    before = {k: v.clone() for k, v in case.model.state_dict().items()}
    names = ["largest_eigenvalue", "margin", "path_norm", "spectral_norms", "relative_flatness"]
    if name not in SLOW:  # of attention and recurrence they take thousands of gradients
        names += ["trace", "normalized_sharpness", "flat_box"]
    analysis = ll.analyze(case.problem(), measures=names, brief=True, out=tmp_path / "out")
    results = analysis.results
    reasons = [row.reason for row in results.measures if row.reason]
    for text in [analysis.answer, *results.notes, *reasons]:
        assert not UNTRUE.search(text), text
    values = {row.name: row.value for row in results.measures}
    assert values["train_loss"] is not None
    assert values["largest_eigenvalue"] is not None
    # A PINN has no outputs to pair; the GPT-2's layer has 16 weights for the logits of five tokens.
    assert (results.duality is None) == (name in ("pinn", "gpt2"))
    assert (name == "gpt2") == any("outputs cannot be reached" in note for note in results.notes)
    assert (tmp_path / "out" / "report.html").is_file()
    torch.testing.assert_close(dict(case.model.state_dict()), before, rtol=0, atol=0)


def test_a_problem_says_what_it_is_in_three_lines():
    assert repr(OWNED["frozen"]().problem()) == (
        "Problem(Sequential: 39 weights, and 20 frozen\n"
        "        cross_entropy, 8 training and 6 test samples\n"
        "        float32 on cpu)"
    )


def test_a_reason_does_not_advise_what_was_done():
    (row,) = ll.measure(OWNED["regression"]().problem(), ["normalized_sharpness"]).values()
    assert row.reason == (
        "does not apply: loss 'normalized_cross_entropy' compares the scores of two classes or "
        "more, but the model has one output"
    )


def test_images_of_whole_numbers_are_named_as_the_reason():
    x, y = torch.zeros(4, 1, 3, 3, dtype=torch.uint8), torch.arange(4) % 2
    with pytest.raises(ll.InputError, match=r"inputs.float\(\) / 255"):
        ll.Problem(nn.Conv2d(1, 2, 3), train=(x, y))


class Words(nn.Module):
    """As many classes as there are positions."""

    def __init__(self, **names: object) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 4)
        for name, value in names.items():
            setattr(self, name, value)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.embedding(input_ids)
        if labels is None:
            return {"logits": logits}
        own = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"logits": logits, "loss": own}


def test_which_token_is_meant_is_asked_of_the_model():
    ids = torch.randint(4, (6, 4), generator=torch.Generator().manual_seed(0))
    train = {"input_ids": ids, "labels": ids}
    ours = Words(main_input_name="input_ids")
    with torch.no_grad():
        z = ours.embedding(ids)
        shifted, same = (
            nn.functional.cross_entropy(a.transpose(1, 2), b, reduction="none").mean(1)
            for a, b in ((z[:, :-1], ids[:, 1:]), (z, ids.roll(1, 1)))
        )
    problem = ll.Problem(ours, train=train)
    assert problem.loss.name == "next_token"
    torch.testing.assert_close(problem.losses(), shifted)
    # Labels that are other tokens are what each position is compared with.
    other = ll.Problem(ours, train={"input_ids": ids, "labels": ids.roll(1, 1)})
    assert other.loss.name == "cross_entropy"
    torch.testing.assert_close(other.losses(), same)
    # Of another model it is not known, and both readings fit.
    with pytest.raises(ll.InputError, match="as many classes as positions"):
        ll.Problem(Words(), train=train)
    assert ll.Problem(Words(), "next_token", train=train).losses().shape == (6,)


@pytest.mark.slow
def test_a_language_model_has_the_loss_that_it_has_in_training():
    case = OWNED["gpt2"]()
    problem, model = case.problem(), case.model.eval()
    rows = [{k: v[i : i + 1] for k, v in case.train.items()} for i in range(8)]
    with torch.no_grad():
        own = torch.stack([model(**row).loss for row in rows])
    torch.testing.assert_close(problem.losses(), own)


def test_the_next_token_needs_two_positions():
    ids = torch.zeros(3, 1, dtype=torch.long)
    with pytest.raises(ll.InputError, match="two positions or more"):
        ll.Problem(Words(), "next_token", train={"input_ids": ids, "labels": ids})
