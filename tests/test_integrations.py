"""The probe in Lightning, Transformers and Accelerate, each run for real."""

import importlib
import math
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lowland as ll
from lowland.errors import InputError
from sameness import assert_same
from test_optim_frameworks import (
    NOTHING,
    TOKENS,
    language_model,
    sam_by_hand,
    shared_loss,
    token_groups,
    token_loss,
)
from test_probe import network

G = torch.Generator().manual_seed(3)
X = torch.randn(48, 6, generator=G)
Y = torch.randint(0, 3, (48,), generator=G)
BOTH = ["critical_sharpness", "largest_eigenvalue"]
KEYS = {f"lowland/{name}" for name in (*BOTH, "critical_learning_rate", "overhead")}


def failing(outputs, targets):
    raise RuntimeError("out of reach")


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_missing_framework_is_one_line_that_names_the_extra(framework, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == framework]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"lowland.integrations.{framework}", raising=False)
    with pytest.raises(ImportError, match=rf"^[^\n]*pip install 'lowland\[{framework}\]'$"):
        importlib.import_module(f"lowland.integrations.{framework}")


# Lightning ----------------------------------------------------------------------------------------


def fit(lightning, callbacks, **options):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, number):
            assert not torch.is_grad_enabled()
            self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    lightning.seed_everything(0, verbose=False)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, callbacks=callbacks, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, inference_mode=True,
        **{"logger": False, **options},
    )  # fmt: skip
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    trainer.fit(module, loader, DataLoader(TensorDataset(X, Y), batch_size=16))
    return module, trainer


@pytest.mark.filterwarnings("ignore:The '\\w+_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
@pytest.mark.filterwarnings("ignore:The number of training batches")
class TestLightning:
    @pytest.mark.parametrize("on", ["step", "validation"])
    def test_scalars_reach_tensorboard_and_the_run_is_the_same(self, lightning, on, tmp_path):
        pytest.importorskip("tensorboard", reason="needs the package tensorboard")
        from lightning.pytorch.loggers import TensorBoardLogger
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        from lowland.integrations.lightning import SharpnessMonitor

        options = {
            "accumulate_grad_batches": 2,
            "gradient_clip_val": 0.5,
            "precision": "bf16-mixed",
        }
        monitor = SharpnessMonitor(
            batch=(X, Y), on=on, every=2 if on == "step" else 1, measures=BOTH, max_overhead=None
        )
        logger = TensorBoardLogger(tmp_path, name="run", version=0)
        module, trainer = fit(lightning, [monitor], logger=logger, **options)
        plain, _ = fit(lightning, [], **options)
        for name, value in plain.state_dict().items():
            assert torch.equal(module.state_dict()[name], value), name
        events = EventAccumulator(str(tmp_path / "run" / "version_0"))
        events.Reload()
        assert set(events.Tags()["scalars"]) >= KEYS
        logged = events.Scalars("lowland/largest_eigenvalue")
        # six updates; Lightning counts a step when it is done, and validates after three and six
        assert [event.step for event in logged][-3:] == ([2, 4, 6] if on == "step" else [2, 5])[
            -len(logged) :
        ]
        rows = monitor.probe.history
        assert [event.value for event in logged] == pytest.approx(
            [row["lowland/largest_eigenvalue"] for row in rows]
        )
        assert trainer.callback_metrics.keys() >= KEYS

    def test_the_first_batch_is_the_probes_and_a_part_may_be_named(self, lightning):
        from lowland.integrations.lightning import SharpnessMonitor

        monitor = SharpnessMonitor(model="network", every=1, measures="weight_norm")
        module, _ = fit(lightning, [monitor])
        assert monitor.probe.model is module.network
        assert len(monitor.probe.problem.train) == 8
        given = SharpnessMonitor(batch=(X, Y), every=1, measures="weight_norm")
        fit(lightning, [given])
        assert len(given.probe.problem.train) == 48

    def test_sams_own_update_is_measured(self, lightning):
        from lowland.integrations.lightning import SharpnessMonitor

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.network = network()

            def forward(self, x):
                return self.network(x)

            def training_step(self, batch, number):
                return nn.functional.cross_entropy(self(batch[0]), batch[1])

            def configure_optimizers(self):
                return ll.optim.SAM(self.parameters(), torch.optim.SGD, rho=0.1, lr=0.1)

        monitor = SharpnessMonitor(every=1, batch=(X, Y), max_overhead=None)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, callbacks=[monitor], enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, logger=False,
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(TensorDataset(X, Y), batch_size=8))
        assert [row["step"] for row in monitor.probe.history] == [2, 3, 4, 5, 6]

    def test_mistakes_are_told_once_and_end_no_training(self, lightning):
        from lowland.integrations.lightning import SharpnessMonitor

        with pytest.raises(InputError, match="on must be 'step' or 'validation'"):
            SharpnessMonitor(on="epoch")
        plain, _ = fit(lightning, [])
        for options, words in (
            ({"every": 0}, "every is a whole number of steps, at least 1; got 0"),
            ({"model": "head"}, "a part of the module, such as network; got 'head'"),
            ({"measures": "sharpness"}, "no measure named 'sharpness'"),
            ({"loss": failing}, "RuntimeError: out of reach|cannot compare"),
        ):
            monitor = SharpnessMonitor(**{"every": 1, **options})
            with pytest.warns(UserWarning, match=words) as told:
                module, _ = fit(lightning, [monitor])
            assert len([each for each in told if "measures nothing more" in str(each.message)]) == 1
            assert monitor.probe is None
            for name, value in plain.state_dict().items():
                assert torch.equal(module.state_dict()[name], value), name

    def test_batches_in_dicts_and_a_forward_of_one_tensor(self, lightning):
        from lowland.integrations.lightning import SharpnessMonitor

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.network = network()

            def forward(self, x):
                return self.network(x)

            def training_step(self, batch, number):
                return nn.functional.cross_entropy(self(batch["image"]), batch["label"])

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

        def train(monitor):
            trainer = lightning.Trainer(
                accelerator="cpu", max_epochs=1, callbacks=[monitor], enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, logger=False,
            )  # fmt: skip
            rows = [{"image": x, "label": y} for x, y in zip(X, Y, strict=True)]
            trainer.fit(Module(), DataLoader(rows, batch_size=8))
            assert trainer.global_step == 6
            return monitor.probe

        with pytest.warns(UserWarning, match="measures nothing more") as told:
            assert train(SharpnessMonitor(every=1)) is None
        said = next(str(each.message) for each in told if "nothing more" in str(each.message))
        line = said[said.index("loss=ll.ModelLoss") :].removeprefix("loss=")
        loss = eval(line, {"ll": ll, "torch": torch})  # as it stands
        for options in ({"loss": loss}, {"batch": (X, Y)}):
            probe = train(SharpnessMonitor(every=1, max_overhead=None, **options))
            assert len(probe.history) == 5


# Transformers -------------------------------------------------------------------------------------


def trainer_of(transformers, make, model, path, **options):
    """A Trainer on the tokens, in their order."""
    own = {name: options.pop(name) for name in ("optimizers", "rho") if name in options}
    arguments = transformers.TrainingArguments(
        output_dir=path, use_cpu=True, save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=4, num_train_epochs=2, lr_scheduler_type="linear",
        train_sampling_strategy="sequential", dataloader_pin_memory=False,
        **{"report_to": "none", **options},
    )  # fmt: skip
    data = [{"input_ids": row, "labels": torch.cat([NOTHING, row[1:]])} for row in TOKENS]
    return make(model, arguments, train_dataset=data, compute_loss_func=shared_loss, **own)


class TestTransformers:
    def test_scalars_reach_the_trainers_log_and_the_run_is_the_same(
        self, transformers, tmp_path, monkeypatch
    ):
        pytest.importorskip("tensorboard", reason="needs the package tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        from lowland.integrations.transformers import SharpnessMonitor

        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
        options = {
            "gradient_accumulation_steps": 2,
            "max_grad_norm": 0.5,
            "bf16": True,
            "learning_rate": 0.01,
            "logging_steps": 100,
        }
        models = [language_model(transformers).float() for _ in range(2)]
        plain, watched = (
            trainer_of(
                transformers, transformers.Trainer, model, tmp_path, report_to=board, **options
            )
            for model, board in zip(models, ("none", "tensorboard"), strict=True)
        )
        batch = {"input_ids": TOKENS, "labels": TOKENS}
        monitor = SharpnessMonitor(watched, batch, every=2, measures=BOTH, max_overhead=None)
        watched.add_callback(monitor)
        plain.train()
        watched.train()
        for a, b in zip(*(model.state_dict().values() for model in models), strict=True):
            assert torch.equal(a, b)
        rows = [row for row in watched.state.log_history if "lowland/largest_eigenvalue" in row]
        assert [row["step"] for row in rows] == [2, 4, 6]
        assert all(row.keys() >= KEYS for row in rows)
        events = EventAccumulator(str(tmp_path / "board"))
        events.Reload()
        (tag,) = [t for t in events.Tags()["scalars"] if t.endswith("lowland/largest_eigenvalue")]
        assert [event.value for event in events.Scalars(tag)] == pytest.approx(
            [row["lowland/largest_eigenvalue"] for row in rows]
        )

    @pytest.mark.parametrize("steps", [1, 2])
    def test_sam_trainer_is_sam_by_hand(self, transformers, steps, tmp_path):
        from lowland.integrations.transformers import SAMTrainer

        model = language_model(transformers)
        optimizer = ll.optim.SAM(token_groups(model), torch.optim.SGD, lr=0.1, rho=0.1)
        trainer_of(
            transformers, SAMTrainer, model, tmp_path, optimizers=(optimizer, None),
            gradient_accumulation_steps=steps, max_grad_norm=0.5,
        ).train()  # fmt: skip
        expected = language_model(transformers)
        plain = torch.optim.SGD(token_groups(expected), lr=0.1)
        batches = list(TOKENS.split(4))
        windows = [batches[i : i + steps] for i in range(0, 6, steps)] * 2
        schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda t: 1 - t / len(windows))
        sam_by_hand(expected, windows, plain, token_loss, rho=0.1, clip=0.5, schedule=schedule)
        assert_same(model, expected, rtol=1e-11)

    def test_sam_trainer_asks_an_optimiser_whether_it_climbs(self, transformers, tmp_path):
        from lowland.integrations.transformers import SAMTrainer

        class Counting(SAMTrainer):
            passes = 0

            def compute_loss(self, *args, **options):
                self.passes += 1
                return super().compute_loss(*args, **options)

        model, expected = language_model(transformers), language_model(transformers)
        options = {"lr": 0.1, "rho": 0.1, "every": 3}
        optimizer = ll.optim.LookSAM(token_groups(model), torch.optim.SGD, **options)
        trainer = trainer_of(
            transformers, Counting, model, tmp_path, optimizers=(optimizer, None), max_grad_norm=0.0
        )
        trainer.train()
        plain = ll.optim.LookSAM(token_groups(expected), torch.optim.SGD, **options)
        batches = list(TOKENS.split(4)) * 2
        schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda t: 1 - t / len(batches))
        for batch in batches:

            def closure(batch=batch):
                plain.zero_grad()
                loss = token_loss(expected, batch)
                loss.backward()
                return loss

            plain.step(closure)
            schedule.step()
        assert trainer.passes == len(batches) + len(batches) // 3
        assert_same(model, expected, rtol=1e-11)

    def test_sam_trainer_wraps_the_optimiser_of_the_arguments(self, transformers, tmp_path):
        from lowland.integrations.transformers import SAMTrainer, SharpnessMonitor

        model = language_model(transformers)
        trainer = trainer_of(
            transformers, SAMTrainer, model, tmp_path, rho=0.2, learning_rate=0.01,
            weight_decay=0.1, optim="adamw_torch", adam_epsilon=1e-4, max_grad_norm=0.0,
            gradient_accumulation_steps=2,
        )  # fmt: skip
        monitor = SharpnessMonitor(
            trainer, {"input_ids": TOKENS, "labels": TOKENS}, every=3, max_overhead=None
        )
        trainer.add_callback(monitor)
        trainer.train()
        assert [row["step"] for row in monitor.probe.history] == [2, 3, 6]
        expected = language_model(transformers)
        plain = torch.optim.AdamW(
            [
                {"params": [p for p in expected.parameters() if p.ndim > 1], "weight_decay": 0.1},
                {"params": [p for p in expected.parameters() if p.ndim == 1], "weight_decay": 0.0},
            ],
            lr=0.01,
            eps=1e-4,
        )
        batches = list(TOKENS.split(4))
        windows = [batches[i : i + 2] for i in (0, 2, 4)] * 2
        schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda t: 1 - t / 6)
        sam_by_hand(expected, windows, plain, token_loss, rho=0.2, schedule=schedule)
        assert_same(model, expected, rtol=1e-11)

    # Torch warns that a hook on all modules also sees its wrapper, which is what it should.
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
    def test_sam_trainer_with_a_compiled_model(self, transformers, tmp_path):
        from lowland.integrations.transformers import SAMTrainer

        models = [language_model(transformers) for _ in range(2)]
        for model, options in zip(
            models, ({}, {"torch_compile": True, "torch_compile_backend": "aot_eager"}), strict=True
        ):
            trainer_of(
                transformers, SAMTrainer, model, tmp_path, optim="sgd", learning_rate=0.1, rho=0.1,
                **options,
            ).train()  # fmt: skip
        assert_same(*models, rtol=1e-11)

    def test_an_error_on_the_way_up_puts_the_weights_back(self, transformers, tmp_path):
        from lowland.integrations.transformers import SAMTrainer

        class Failing(SAMTrainer):
            calls = 0

            def compute_loss(self, *args, **options):
                self.calls += 1
                if self.calls == 2:
                    raise RuntimeError("out of memory")
                return super().compute_loss(*args, **options)

        model = language_model(transformers)
        with pytest.raises(RuntimeError, match="out of memory"):
            trainer_of(transformers, Failing, model, tmp_path, rho=0.2).train()
        assert_same(model, language_model(transformers), rtol=1e-11)

    def test_mistakes(self, transformers, tmp_path):
        from lowland.integrations.transformers import SAMTrainer, SharpnessMonitor

        model = language_model(transformers)
        with pytest.raises(InputError, match="first_step, such as lowland.optim.SAM; got SGD"):
            trainer_of(
                transformers, SAMTrainer, model, tmp_path,
                optimizers=(torch.optim.SGD(model.parameters(), 0.1), None),
            )  # fmt: skip
        first, second = (
            trainer_of(transformers, transformers.Trainer, model, tmp_path) for _ in range(2)
        )
        second.add_callback(SharpnessMonitor(first, {"input_ids": TOKENS, "labels": TOKENS}))
        with pytest.warns(UserWarning, match="another Trainer than the one that it was added to"):
            second.train()
        with pytest.raises(InputError, match="the first argument is the Trainer"):
            SharpnessMonitor({"input_ids": TOKENS}, "cross_entropy")


def test_accelerate_needs_no_integration():
    accelerate = pytest.importorskip("accelerate", reason="needs the package accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    probe = ll.Probe(
        model, "cross_entropy", (X, Y), optimizer=optimizer, every=1, max_overhead=None
    )
    updates = 0
    for rows in torch.arange(48).split(8):
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(X[rows]), Y[rows]))
            optimizer.step()
            optimizer.zero_grad()
        updates += accelerator.sync_gradients
        probe(updates)
    assert [row["step"] for row in probe.history] == [1, 2, 3]
    assert all(math.isfinite(value) for row in probe.history for value in row.values())
