"""Two gloo ranks with uneven shards, started by torchrun, against one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lowland as ll
from cases import CASES
from lowland.problem import Problem


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


def main() -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    problem = shard(rank)
    assert problem.count() == 7
    torch.save(results(problem), f"{os.environ['LOWLAND_TEST_OUT']}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_every_rank_gets_the_products_of_the_whole(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, __file__],
        env={
            **os.environ,
            "LOWLAND_TEST_OUT": str(tmp_path),
            "PYTHONPATH": str(Path(__file__).parent),
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = results(CASES["lenet"].problem())
    for rank in (0, 1):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, msg=lambda m, n=name: f"{n}: {m}")


if __name__ == "__main__":
    main()
