"""The probe and its integrations on two gloo ranks, by torchrun, against one process."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import lowland as ll
from ranks import be_rank, run_both

HALVES = (slice(0, 6), slice(6, 12))  # of the training
SHARES = (slice(0, 7), slice(7, 12))  # of the probe: uneven
BOTH = ["critical_sharpness", "largest_eigenvalue"]
X = torch.randn(12, 9, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(9, 11), nn.Tanh(), nn.LayerNorm(11), nn.Linear(11, 4))  # 11: uneven shards
    )


def trained(model, mine, share=None):
    """Six steps of momentum on all data, of which this process has some; with or without a probe.

    Every other step is measured along the update; at the end, once along the gradient.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    probe, batch = None, (X[share], Y[share])
    if share is not None:
        options = {"every": 2, "measures": BOTH, "max_overhead": None}
        probe = ll.Probe(model, "cross_entropy", batch, optimizer=optimizer, **options)
    for step in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X[mine]), Y[mine]).backward()
        optimizer.step()
        if probe is not None:
            probe(step)
    if probe is None:
        return []
    last = ll.Probe(model, "cross_entropy", batch, measures=["critical_sharpness", "train_loss"])
    return without_time([*probe.history, {"step": 6, **last(6)}])


def without_time(rows):
    return [{k: v for k, v in row.items() if k != "lowland/overhead"} for row in rows]


def local(model):
    return [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]


def ddp(rank):
    wrap = nn.parallel.DistributedDataParallel
    models = [wrap(network()), wrap(network())]
    rows = trained(models[0], HALVES[rank], SHARES[rank])
    trained(models[1], HALVES[rank])
    assert all(map(torch.equal, *(local(model) for model in models)))
    return rows


def fsdp2(rank):
    from torch.distributed.fsdp import fully_shard

    models = [network(), network()]
    for model in models:
        fully_shard(model[3])
        fully_shard(model)
    rows = trained(models[0], HALVES[rank], SHARES[rank])
    trained(models[1], HALVES[rank])
    assert all(map(torch.equal, *(local(model) for model in models)))
    return rows


def lightning_ddp(rank):
    """Whose pace is that of a clock: the ranks must agree on it, or wait for each other forever."""
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    from lowland.integrations.lightning import SharpnessMonitor

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, number):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = []
    for on in ("step", "validation"):
        monitor = SharpnessMonitor(on=on, every=1, measures=BOTH, max_overhead=0.5)
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=10, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[monitor],
        )  # fmt: skip
        loader = DataLoader(TensorDataset(X, Y), batch_size=2)
        trainer.fit(Module(), loader, loader)
        assert monitor.probe.history
        rows += without_time(monitor.probe.history)
    return rows


def lightning_fsdp2(rank):
    """A model that is sharded in ``configure_model``, with SAM around the optimiser."""
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard
    from torch.utils.data import DataLoader, TensorDataset

    from lowland.integrations.lightning import SharpnessMonitor

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def configure_model(self):
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return ll.optim.SAM(self.parameters(), torch.optim.SGD, rho=0.05, lr=0.1)

    modules = [Module(), Module()]
    monitor = SharpnessMonitor(batch=(X, Y), every=1, measures=BOTH, max_overhead=None)
    for module, callbacks in zip(modules, ([monitor], []), strict=True):
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy=ModelParallelStrategy(2, 1), max_epochs=2,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=callbacks,
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=2))
    assert all(hasattr(p, "to_local") for p in modules[0].parameters())
    assert all(map(torch.equal, *(local(module) for module in modules)))
    return without_time(monitor.probe.history)


def transformers_ddp(rank):
    """SAM, with accumulated batches and a monitor; also the weights that come out."""
    import transformers

    from lowland.integrations.transformers import SAMTrainer, SharpnessMonitor
    from test_optim_frameworks import TOKENS, language_model

    model = language_model(transformers)
    with tempfile.TemporaryDirectory() as path:
        arguments = transformers.TrainingArguments(
            output_dir=path, use_cpu=True, ddp_backend="gloo", save_strategy="no",
            disable_tqdm=True, per_device_train_batch_size=2, num_train_epochs=2,
            gradient_accumulation_steps=2, lr_scheduler_type="constant", learning_rate=0.1,
            optim="sgd", train_sampling_strategy="sequential", dataloader_pin_memory=False,
            max_grad_norm=0.0, report_to="none",
        )  # fmt: skip
        trainer = SAMTrainer(
            model,
            arguments,
            rho=0.1,
            train_dataset=[{"input_ids": row, "labels": row} for row in TOKENS],
            compute_loss_func=summed_loss,
        )
        mine = TOKENS[rank::2]
        batch = {"input_ids": mine, "labels": mine}
        monitor = SharpnessMonitor(trainer, batch, every=1, max_overhead=0.5)
        trainer.add_callback(monitor)
        trainer.train()
    assert monitor.probe.history
    weights = {name: p.flatten().tolist() for name, p in model.named_parameters()}
    return [*without_time(monitor.probe.history), weights]


def summed_loss(outputs, labels, num_items_in_batch):
    """A part of the mean over a step of all ranks; of all tokens but the first of each row."""
    logits = outputs.logits[:, :-1].flatten(0, 1)
    sums = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    return sums / (5 * 8)


TASKS = (transformers_ddp, lightning_ddp, lightning_fsdp2, ddp, fsdp2)


def work(rank: int, out: Path) -> None:
    rows = {}
    for task in TASKS:
        if task is ddp and not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        rows[task.__name__] = task(rank)
    (out / f"{rank}.json").write_text(json.dumps(rows))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """What each rank has logged, by task."""
    for package in ("lightning", "transformers", "accelerate"):
        pytest.importorskip(package, reason=f"needs the package {package}")
    out = tmp_path_factory.mktemp("ranks")
    run_both(__file__, out)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("task", [task.__name__ for task in TASKS])
def test_ranks_measure_at_the_same_steps_and_get_the_same_numbers(rows, task):
    first, second = (of_rank[task] for of_rank in rows)
    assert first == second
    assert first


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ddp", "fsdp2"])
def test_the_numbers_are_those_of_one_process(rows, task):
    expected = trained(network(), slice(12), slice(12))
    assert len(rows[0][task]) == len(expected) == 4
    for got, whole in zip(rows[0][task], expected, strict=True):
        assert got == pytest.approx(whole, rel=1e-3)


@pytest.mark.slow
def test_sam_of_two_ranks_is_that_of_one(rows):
    transformers = pytest.importorskip("transformers")
    from test_optim_frameworks import TOKENS, language_model, sam_by_hand, token_loss

    expected = language_model(transformers)
    plain = torch.optim.SGD(expected.parameters(), lr=0.1)
    sam_by_hand(expected, [[window] for window in TOKENS.split(8)] * 2, plain, token_loss, rho=0.1)
    got = rows[0]["transformers_ddp"][-1]
    for name, p in expected.named_parameters():
        assert got[name] == pytest.approx(p.flatten().tolist(), rel=1e-9, abs=1e-12)


if __name__ == "__main__":
    be_rank(work)
