"""Two gloo ranks with uneven shards, started by torchrun, against one process."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES, descend
from lowland.measures import registered
from lowland.problem import Problem
from ranks import be_rank, run_both


def results(problem: Problem) -> dict[str, torch.Tensor]:
    """Products, blocks and diagonals that must not depend on how the samples are shared out."""
    found = {}
    for make in (ll.hessian, ll.ggn, ll.fisher):
        A = make(problem)
        V = torch.randn(A.size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        found[make.__name__] = A @ V
    found["block"] = ll.layer_hessian(problem, "3")
    operator = ll.layer_operator(problem, "3")
    found["operator"] = operator @ V[: operator.size]
    found.update({f"diagonal {k}": v for k, v in ll.diagonal(problem).items()})
    return found


def shard(rank: int) -> Problem:
    """Rank 0 has five of the seven samples; its model comes wrapped in DDP."""
    whole = CASES["lenet"].problem()
    batch = whole.train.take(slice(0, 5) if rank == 0 else slice(5, 7))
    model = torch.nn.parallel.DistributedDataParallel(whole.model)
    return Problem(model, train=(batch.inputs, batch.targets), batch_size=2)


def classifier(rank: int | None = None) -> Problem:
    """Smooth and piecewise linear units, with all that any measure asks for.

    Rank 0 has 27 of 40 training samples and 5 of 20 test samples, rank 1 the others.
    """
    g = torch.Generator().manual_seed(1)
    y = torch.arange(60) % 3
    X = torch.randn(3, 6, generator=g).double()[y] + torch.randn(60, 6, generator=g).double()
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    ).double()
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    descend(model, (X[:40], y[:40]), 60, 0.1)
    train, test = {0: (slice(27), slice(40, 45)), 1: (slice(27, 40), slice(45, 60))}.get(
        rank, (slice(40), slice(40, 60))
    )
    training = {"learning_rate": 0.1, "batch_size": 8}
    return Problem(
        *(model, "cross_entropy", (X[train], y[train]), (X[test], y[test])),
        initial=initial,
        training=training,
    )


def rows(problem: Problem) -> dict[str, tuple[float | None, float | None, str | None]]:
    """Value, standard error and reason of every measure, also of those that run when named."""
    measured = ll.measure(problem, list(registered()))
    return {
        n: (r.value if r.value is None else float(r.value), r.stderr, r.reason)
        for n, r in measured.items()
    }


def work(rank: int, out: Path) -> None:
    torch.distributed.init_process_group("gloo")
    problem = shard(rank)
    assert problem.count() == 7
    torch.save(results(problem), out / f"{rank}.pt")
    (out / f"{rank}.json").write_text(json.dumps(rows(classifier(rank))))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The directory in which both ranks have left what they computed."""
    out = tmp_path_factory.mktemp("ranks")
    run_both(__file__, out)
    return out


@pytest.mark.slow
def test_every_rank_gets_the_products_of_the_whole(two_ranks):
    expected = results(CASES["lenet"].problem())
    for rank in (0, 1):
        got = torch.load(two_ranks / f"{rank}.pt", weights_only=True)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.slow
def test_every_measure_is_that_of_the_whole_or_says_why_there_is_none(two_ranks):
    expected = rows(classifier())
    refused = {"sharp_part", "flat_part", "total_sigma_g", "total_sigma_w"}  # they pair samples
    for rank in (0, 1):
        got = json.loads((two_ranks / f"{rank}.json").read_text())
        assert got.keys() == expected.keys()
        for name, (value, stderr, reason) in got.items():
            if name in refused:
                assert value is None
                assert "2 ranks have a part of them each" in reason
            else:
                for number, whole in zip((value, stderr), expected[name], strict=False):
                    assert (number is None) == (whole is None), name
                    assert number is None or number == pytest.approx(whole, rel=1e-6), name
                assert reason == expected[name][2], name


if __name__ == "__main__":
    be_rank(work)
