"""What the probe measures, read back from the loggers of the frameworks; each where installed.

They are no dependencies of Lowland, and its tests run without them: ``pip install wandb
mlflow-skinny trackio``.
"""

import json
import sqlite3
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KEY = "lowland/critical_learning_rate"
X, Y = torch.randn(48, 6, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 3


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch):
    """Nothing leaves the machine, or the directory of the test."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(tmp_path),
        "MLFLOW_TRACKING_URI": f"file://{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)


def by_lightning(logger) -> dict[int, float]:
    """Critical rates of a training with a logger, by step."""
    lightning = pytest.importorskip("lightning", reason="needs the package lightning")
    from lowland.integrations.lightning import SharpnessMonitor

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    monitor = SharpnessMonitor(batch=(X, Y), every=2, max_overhead=None)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[monitor], logger=logger,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(TensorDataset(X, Y), batch_size=8))
    return rates(monitor)


def by_transformers(report_to, **options) -> dict[int, float]:
    """The same of a Trainer that reports."""
    pytest.importorskip("accelerate", reason="needs the package accelerate")
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    from lowland.integrations.transformers import SharpnessMonitor

    tokens = torch.randint(0, 11, (24, 6), generator=torch.Generator().manual_seed(0))
    sizes = {"vocab_size": 11, "n_positions": 6, "n_embd": 16, "n_layer": 1, "n_head": 2}
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        "out", use_cpu=True, save_strategy="no", disable_tqdm=True, num_train_epochs=1,
        per_device_train_batch_size=4, dataloader_pin_memory=False, report_to=report_to,
        learning_rate=0.01, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)),
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    )
    batch = {"input_ids": tokens, "labels": tokens}
    monitor = SharpnessMonitor(trainer, batch, every=2, max_overhead=None)
    trainer.add_callback(monitor)
    trainer.train()
    return rates(monitor)


def rates(monitor) -> dict[int, float]:
    history = {row["step"]: row[KEY] for row in monitor.probe.history if KEY in row}
    assert history
    return history


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_scalars_reach_wandb(framework, tmp_path):
    wandb = pytest.importorskip("wandb", reason="needs the package wandb")
    if framework == "lightning":
        from lightning.pytorch.loggers import WandbLogger

        expected = by_lightning(WandbLogger(project="probe", offline=True, save_dir=tmp_path))
    else:
        expected = by_transformers("wandb")
    home = Path(wandb.run.dir).parent  # of the process's first run: W&B reads WANDB_DIR once
    wandb.finish()
    (log,) = home.glob("*.wandb")  # records with names and numbers as texts
    records = log.read_bytes()
    assert KEY.encode() in records
    for rate in expected.values():
        assert json.dumps(rate).encode()[:12] in records


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_scalars_reach_mlflow(framework, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="needs the package mlflow")
    uri = f"file://{tmp_path}/mlruns"
    mlflow.set_tracking_uri(uri)  # the environment's is read once
    if framework == "lightning":
        from lightning.pytorch.loggers import MLFlowLogger

        expected = by_lightning(MLFlowLogger(tracking_uri=uri))
    else:
        expected = by_transformers("mlflow")
        mlflow.end_run()
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    logged = client.get_metric_history(run.info.run_id, KEY)
    assert {entry.step: entry.value for entry in logged} == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore")
def test_scalars_reach_trackio(tmp_path):
    """By Transformers; Lightning has no logger for it."""
    pytest.importorskip("trackio", reason="needs the package trackio")
    expected = by_transformers("trackio", project="probe")
    logged = {}
    for database in Path(tmp_path, "trackio").rglob("*.db"):
        with sqlite3.connect(database) as connection:
            for (row,) in connection.execute("select metrics from metrics"):
                scalars = json.loads(row)  # Trackio counts calls; the Trainer's step stands beside
                for name in (name for name in scalars if name.endswith(KEY)):
                    logged[scalars["train/global_step"]] = scalars[name]
    assert logged == pytest.approx(expected)
