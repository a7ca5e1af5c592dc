"""A problem lives: after any change of its model, data or loss every number is that of a new one.

The networks choose by their weights and buffers which of their parts run, so that what was found
before a change is wrong after it.
"""

import contextlib
import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import lowland as ll
from lowland.errors import InputError
from lowland.problem import Problem

WIDTH, CLASSES = 3, 2
OPERATORS = {"hessian": ll.hessian, "ggn": ll.ggn, "fisher": ll.fisher}


class Branching(nn.Module):
    """Experts that run where a weight, a buffer, an attribute or the data says so."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def chance(count: int) -> int:
            return int(torch.randint(count, (), generator=generator))

        self.kinds = [("weight", "buffer", "attribute", "data")[chance(4)] for _ in range(2)]
        self.activation = (torch.tanh, torch.relu, nn.functional.silu)[chance(3)]
        self.first, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.norm = nn.BatchNorm1d(WIDTH) if chance(2) else nn.LayerNorm(WIDTH)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in self.kinds)
        self.gate = nn.Parameter(-torch.ones(2))
        self.register_buffer("open", torch.zeros(2))
        self.threshold = 1e6
        self.used = False
        with torch.no_grad():
            for p in (*self.first.parameters(), *self.experts.parameters()):
                p.copy_(torch.randn(p.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.activation(self.first(x)))
        for i, (kind, expert) in enumerate(zip(self.kinds, self.experts, strict=True)):
            if kind == "data":
                chosen = (x.sum(1) + self.gate[i] > self.threshold).nonzero()[:, 0]
                x = x.index_add(0, chosen, torch.tanh(expert(x[chosen])))
            elif {"weight": self.gate[i], "buffer": self.open[i], "attribute": self.used}[kind] > 0:
                x = x + torch.tanh(expert(x)) * self.gate[i]
        return self.head(x)


def opened(model: Branching) -> None:
    """All parts run, by attributes and buffers."""
    model.used, model.threshold = True, 0.0
    model.open += 1


def in_place(model: Branching) -> None:
    with torch.no_grad():
        model.gate.fill_(0.7)
        model.head.weight.mul_(1.5)


def past_versions(model: Branching) -> None:
    model.gate.data += 2
    model.first.weight.data[0, 0] += 0.3


def permuted(model: Branching) -> None:
    """The same numbers in other places."""
    model.gate.data.fill_(0.5)
    model.head.weight.data.copy_(model.head.weight.data.flip(1).clone())


def loaded(model: Branching) -> None:
    state = {n: t + 0.25 if t.is_floating_point() else t for n, t in model.state_dict().items()}
    model.load_state_dict(state | {"gate": torch.ones_like(model.gate)})


def assigned(model: Branching) -> None:
    state = {n: t.detach().clone() for n, t in model.state_dict().items()}
    model.load_state_dict(state | {"gate": torch.ones_like(model.gate)}, assign=True)


def trained(model: Branching) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    for p in model.parameters():
        p.grad = -torch.ones_like(p)
    for _ in range(3):
        optimizer.step()
    model.zero_grad()


def from_vector(model: Branching) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(vector.abs() + 0.1, model.parameters())


def buffers(model: Branching) -> None:
    model.open.add_(1)
    if isinstance(model.norm, nn.BatchNorm1d):
        model.norm.running_mean.add_(0.5)
        model.norm.running_var.mul_(3)


def frozen(model: Branching) -> None:
    model.first.weight.requires_grad_(False)
    model.head.bias.requires_grad_(False)


def activated(model: Branching) -> None:
    model.activation = nn.functional.softplus


def hooked(model: Branching) -> None:
    model.first.register_forward_hook(lambda module, inputs, out: out * out)


def there_and_back(model: Branching) -> None:
    """The numbers are the same, which graphs that were kept do not know."""
    with torch.no_grad():
        model.head.weight.mul_(2)
        model.head.weight.div_(2)


CHANGES = (
    *(opened, in_place, past_versions, permuted, loaded, assigned, trained, from_vector),
    *(buffers, frozen, activated, hooked, there_and_back),
)


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(9, 4, generator=generator), torch.arange(9) % CLASSES


def numbers(problem: Problem) -> dict[str, Tensor]:
    """What is computed from the model in one way or another."""
    loss, slopes = problem.gradient()
    found = {"losses": problem.losses(), "loss": torch.tensor(loss)}
    found |= {f"gradient {n}": g for n, g in slopes.items()}
    found |= {kind: make(problem).dense() for kind, make in OPERATORS.items()}
    trace = ll.trace(ll.hessian(problem))
    found |= {"trace": torch.tensor(trace.value)}
    found |= {f"diagonal {n}": d for n, d in ll.diagonal(problem).items()}
    seen = ll.curvature.layers(problem)
    found |= {f"block {n}": ll.layer_hessian(problem, n) for n in seen}
    return found


def products(operators: dict) -> dict[str, Tensor]:
    """The matrices of operators, without those that refuse."""
    every = {}
    for name, A in operators.items():
        with contextlib.suppress(InputError):
            every[name] = A @ torch.eye(A.size, dtype=A.dtype)
    return every


def assert_agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.abs().max()) if value.numel() else 0.0
        tolerance = 1e-4 * max(scale, 1e-3) if value.dtype == torch.float32 else 1e-7 + 1e-6 * scale
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=name)


def operators(problem: Problem) -> dict:
    made = {kind: make(problem) for kind, make in OPERATORS.items()}
    return made | {"block": ll.layer_operator(problem, "head")}


def check(seed: int, change, *, half: bool = False, parts: bool = True, **options) -> None:
    """Measure a problem, and a part of it, before and after a change of its model."""
    model = Branching(seed).bfloat16() if half else Branching(seed)

    def both() -> list[Problem]:
        problem = Problem(model, "cross_entropy", data(), **options)
        return [problem, problem.subset(torch.arange(5))] if parts else [problem]

    problems = both()
    for problem in problems:
        numbers(problem)
    old = [operators(problem) for problem in problems]
    for made in old:
        products(made)
    change(model)
    for made, problem, fresh in zip(old, problems, both(), strict=True):
        assert_agree(numbers(problem), numbers(fresh))
        found = products(made)
        fewer = change is frozen and options.get("params") != "all"
        refused = OPERATORS.keys() if fewer else set()
        assert found.keys() == made.keys() - refused
        new = products(operators(fresh))
        assert_agree(found, {name: new[name] for name in found})


def test_after_a_change_every_number_is_that_of_a_new_problem():
    check(2, past_versions, dtype=torch.float64, parts=False)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": torch.float64},
        {"half": True},
        {"dtype": torch.float64, "batch_size": 4},
        {"params": "all"},
    ],
)
def test_so_it_is_of_any_network_and_precision(change, seed, options):
    check(seed + 17, change, **options)


def test_an_expert_that_is_used_later_counts_in_a_probe():
    model = Branching(0).double()
    batch = data()[0].double(), data()[1]
    probe = ll.Probe(model, "cross_entropy", batch, every=1, measures="trace", max_overhead=None)
    assert probe(0).keys() == {"lowland/trace", "lowland/overhead"}
    opened(model)
    in_place(model)
    fresh = Problem(model, "cross_entropy", batch)
    assert ll.curvature.parameters(fresh).keys() > {"experts.0.weight", "experts.1.weight"}
    found = probe(1)["lowland/trace"]
    assert found == pytest.approx(float(torch.trace(ll.hessian(fresh).dense())), rel=1e-6)


class Scaled(nn.Module):
    """A loss of the user's own, with a number that changes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.scale.detach() * (outputs - targets.unsqueeze(1)).square().sum(1)


def test_data_and_loss_are_followed():
    (inputs, targets), model, loss = data(), nn.Linear(4, CLASSES), Scaled()
    A = ll.ggn(Problem(model, loss, (inputs, targets)))
    V = torch.eye(A.size)
    for change in (
        lambda: inputs.mul_(2),
        lambda: inputs.numpy().__imul__(2),
        lambda: loss.scale.data.mul_(3),
    ):
        before = A @ V
        change()
        fresh = ll.ggn(Problem(model, loss, (inputs, targets))) @ V
        torch.testing.assert_close(A @ V, fresh)
        assert not torch.allclose(before, fresh)


def test_nothing_is_run_to_notice_that_nothing_changed():
    model = Branching(0)
    problem = Problem(model, "cross_entropy", data())
    numbers(problem)
    H = ll.hessian(problem)
    v = torch.ones(H.size)
    H @ v
    calls = []
    handle = model.head.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        calls.clear()  # the first time, as a hook is a change
        H @ v
        ll.curvature.parameters(problem)
    assert not calls
    handle.remove()


def test_a_structure_or_precision_that_changes_is_refused_in_words():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    problem = Problem(model, "cross_entropy", data())
    model.append(nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"a new parameter '3\.bias'; make a new Problem"):
        problem.losses()
    del model[3]
    problem.losses()
    with pytest.raises(InputError, match="brought to half precision"):
        Problem(model, "cross_entropy", data()).of(model.half()) and problem.losses()


def test_an_operator_that_cannot_be_prepared_refuses_every_time():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    problem = Problem(model, "cross_entropy", data())
    H = ll.hessian(problem)
    v = torch.ones(H.size)
    expected = H @ v
    model[0].weight.requires_grad_(False)
    assert problem.gradient()[1].keys() == {"0.bias", "2.weight", "2.bias"}
    assert ll.hessian(problem).size == H.size - model[0].weight.numel()
    for _ in range(2):
        with pytest.raises(InputError, match="make a new operator"):
            H @ v
    model[0].weight.requires_grad_(True)
    kept = model[0].weight.data[0, 0].clone()
    model[0].weight.data[0, 0] = torch.nan
    for _ in range(2):
        with pytest.raises(InputError, match=r"'0.weight' holds 1 NaN"):
            H @ v
    model[0].weight.data[0, 0] = kept
    torch.testing.assert_close(H @ v, expected)


# Problems that are made from others ---------------------------------------------------------------


class Dicing(nn.Module):
    """Random in eval mode, too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.layer(x))


def derived(problem: Problem) -> dict[str, Problem]:
    return {
        "with_loss": problem.with_loss("mse"),
        "subset": problem.subset(torch.arange(5)),
        "test": problem.subset(torch.arange(5), "test"),
        "at": problem.at({"head.bias": torch.ones(CLASSES)}),
        "of": problem.of(Branching(3)),
        "part": problem.subset(torch.arange(5)).of(Branching(3)),
    }


FOUND = {"_variants", "_found", "_looked_at", "_looked_in"}
DATA, LOSS, WEIGHTS = {"train", "_test"}, {"loss", "_asked"}, {"_network", "_initial"}
RELATIONS = {"_whole", "_base"}
SETTINGS = {"memory", "_batch_size", "training"}
OWN = {  # beside what was found, which none shares, and relations; the rest is the very same
    "with_loss": LOSS,
    "subset": {"train"},
    "test": {"_test"},
    "at": {"_network"},
    "of": WEIGHTS,
    "part": {*WEIGHTS, "train"},
}


@pytest.mark.parametrize("kind", OWN)
def test_every_attribute_of_a_derived_problem_is_shared_or_its_own(kind):
    targets = torch.eye(CLASSES)[data()[1]]
    model = Branching(0)
    problem = Problem(model, "mse", (data()[0], targets), (data(1)[0], targets), initial=model)
    problem.with_loss("cross_entropy")
    numbers(problem)
    other = derived(problem)[kind]
    assert problem._found.keys()
    assert vars(other).keys() == FOUND | DATA | LOSS | WEIGHTS | RELATIONS | SETTINGS
    assert (other._variants, other._found) == ({}, {})
    assert other._looked_at is None
    assert other._looked_in is None
    for name in DATA | LOSS | WEIGHTS | SETTINGS:
        is_own = name in OWN[kind] and not (name in LOSS and other.loss is problem.loss)
        assert (getattr(other, name) is getattr(problem, name)) is not is_own, name
    assert other.base is (problem if kind == "with_loss" else other)
    is_part = kind in ("subset", "test")
    assert (other.whole is problem) is is_part
    assert (other.whole is other) is (kind not in ("subset", "test", "part"))


def test_another_model_is_checked_and_measured_like_that_of_a_new_problem():
    problem = Problem(nn.Linear(4, CLASSES), "cross_entropy", data(), memory=4 * 3000)
    with pytest.raises(InputError, match="other outputs for the same inputs"):
        problem.of(Dicing())
    half = nn.Linear(4, CLASSES).bfloat16()
    other = problem.of(half)
    assert other.dtype == torch.float32
    half.weight.data.mul_(2)
    assert_agree({"losses": other.losses()}, {"losses": Problem(half, train=data()).losses()})
    problem.gradient()
    wide = nn.Sequential(nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, CLASSES))
    batches = []
    wide.register_forward_hook(lambda module, args, outputs: batches.append(len(outputs)))
    other = problem.of(wide)
    few = Problem(wide, "cross_entropy", data(), memory=problem.memory)
    of_others = []
    for each in (other, few):
        batches.clear()
        each.gradient()
        of_others.append(list(batches))
    assert of_others[0] == of_others[1]  # as many samples at once as have graphs that fit
    assert max(batches) < len(problem.train)
    exact = Problem(nn.Linear(4, CLASSES), train=data(), dtype=torch.float64)
    assert exact.of(nn.Linear(4, CLASSES)).dtype == torch.float64


def test_class_weights_of_a_subset_are_those_of_all_data():
    inputs, _ = data()
    targets = torch.tensor([0] * 7 + [1] * 2)
    problem = Problem(nn.Linear(4, CLASSES), "cross_entropy", (inputs, targets))
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))
    whole, places = problem.with_loss(weighted), torch.tensor([0, 1, 8])
    expected = whole.losses()[places]
    assert_agree({"": problem.subset(places).with_loss(weighted).losses()}, {"": expected})
    assert_agree({"": whole.subset(places).losses()}, {"": expected})
    own = Problem(nn.Linear(4, CLASSES), weighted, (inputs, targets))
    model = nn.Linear(4, CLASSES)
    expected = own.of(model).losses()[places]
    assert_agree({"": own.subset(places).of(model).losses()}, {"": expected})


# Threads ------------------------------------------------------------------------------------------


def test_threads_measure_in_turn():
    torch.manual_seed(0)
    layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.ReLU(), nn.Linear(8, CLASSES))
    model = nn.Sequential(*layers).train()
    problems = [
        Problem(model, "cross_entropy", data(), batch_size=2),
        Problem(model, "cross_entropy", data(), batch_size=2, dtype=torch.float64),
        Problem(Branching(0).bfloat16(), "cross_entropy", data(), batch_size=2),
    ]
    problems += [problems[0], problems[0].with_loss("normalized_cross_entropy")]
    expected = [problem.losses() for problem in problems]
    before = copy.deepcopy(model.state_dict())

    def measured(number: int) -> bool:
        return all(torch.allclose(problems[number].losses(), expected[number]) for _ in range(20))

    with ThreadPoolExecutor(len(problems)) as pool:
        assert all(pool.map(measured, range(len(problems))))
    assert model.training
    assert model[1].training
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.get_default_dtype() == torch.float32
    assert torch.backends.mha.get_fastpath_enabled()
