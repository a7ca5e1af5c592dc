"""A model sharded by FSDP2 over two gloo ranks, measured in place, against one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowland as ll
from lowland.curvature.xtrace import estimate_trace
from lowland.errors import InputError
from lowland.problem import Problem
from ranks import be_rank, run_both

SHARES = (slice(0, 7), slice(7, 12))  # uneven


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(216, 11),  # eleven rows: not the same on both ranks
        nn.LayerNorm(11),
        nn.ReLU(),
        nn.Linear(11, 4),
    )


def data() -> tuple[Tensor, Tensor]:
    X = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return X, torch.arange(12) % 4


def results(problem: Problem) -> dict[str, Any]:
    """What must not depend on where the weights and the samples are."""
    numbers: dict[str, Any] = {}
    loss, slopes = problem.gradient()
    numbers["loss"] = torch.tensor(loss)
    numbers |= {f"gradient {name}": slope for name, slope in slopes.items()}
    for make in (ll.hessian, ll.ggn, ll.fisher):
        A = make(problem)
        V = torch.randn(A.size, 2, generator=torch.Generator().manual_seed(0))
        numbers[make.__name__] = A @ V
    H = ll.hessian(problem)
    numbers["eigenvalues"] = ll.eigsh(H, k=2, tol=1e-3).values
    numbers["trace"] = torch.tensor(estimate_trace(H, rtol=0.05).value)
    numbers["density"] = ll.spectral_density(H, steps=6, probes=2).density
    # another point of weight space: a step along a random direction, forwards only
    moved = {n: p + 0.1 * torch.ones_like(p) for n, p in problem.params.items()}
    numbers["moved"] = torch.tensor(problem.gradient(moved)[0])
    return numbers


def shards_of(model: nn.Module) -> list[Tensor]:
    return [p.detach().to_local().clone() for p in model.parameters()]


def work(rank: int, directory: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    model, (X, Y) = network().train(), data()
    for layer in (model[0], model[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    before, hooks = shards_of(model), [len(m._forward_pre_hooks) for m in model.modules()]
    out: dict[str, Any] = {}
    for name, batch_size in (("whole", None), ("chunks", 2)):
        problem = Problem(model, train=(X[SHARES[rank]], Y[SHARES[rank]]), batch_size=batch_size)
        out[name] = results(problem)
    small = Problem(model, train=(X[SHARES[rank]], Y[SHARES[rank]]), memory=40_000)
    again, V = ll.hessian(small), torch.randn(2637, 2, generator=torch.Generator().manual_seed(0))
    assert not again.kept
    assert ll.hessian(problem).kept
    out["again"] = again @ V
    for refused in (ll.diagonal, lambda p: p.at(p.params), lambda p: ll.layer_hessian(p, "4")):
        with pytest.raises(InputError, match="on a sharded model losses, gradients, products"):
            refused(problem)

    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(KeyboardInterrupt):
        Problem(model, broken, train=(X[SHARES[rank]], Y[SHARES[rank]])).gradient()
    # nothing is left on the model, which trains on as it did
    assert all(map(torch.equal, shards_of(model), before))
    assert [len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert all(type(m._parameters) is dict for m in model.modules())
    assert all(m.training for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    nn.functional.cross_entropy(model.eval()(X[:4]), Y[:4]).backward()
    out["trained"] = [p.grad.full_tensor() for p in model.parameters()]
    torch.save(out, directory / f"{rank}.pt")


@pytest.mark.slow
def test_a_sharded_model_is_measured_in_place(tmp_path):
    run_both(__file__, tmp_path)
    model = network()
    expected = results(Problem(model, train=data()))
    X, Y = data()
    nn.functional.cross_entropy(model.eval()(X[:4]), Y[:4]).backward()
    for rank in (0, 1):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for kind in ("whole", "chunks"):
            assert got[kind].keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(
                    got[kind][name], value, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
                )
        torch.testing.assert_close(got["again"], expected["hessian"], rtol=1e-3, atol=1e-5)
        for gradient, p in zip(got["trained"], model.parameters(), strict=True):
            torch.testing.assert_close(gradient, p.grad)


if __name__ == "__main__":
    be_rank(work)
