"""The optimisers as Lightning, Accelerate and Transformers call them, and beside another library.

Every run of a framework is compared with a loop written out by hand, which takes the rule from the
paper and the step from torch.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

import lowland as ll
from lowland.errors import InputError
from sameness import assert_same

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=G, dtype=torch.float64)
Y = torch.arange(24) % 2
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 24, 4)]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    # No bias before the normalisation: its gradient is nothing but rounding, which Adam blows up.
    layers = nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)
    return nn.Sequential(*layers).double()


def groups_of(model):
    return [{"params": model[:2].parameters()}, {"params": model[2:].parameters(), "lr": 0.02}]


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sam_by_hand(model, windows, base, loss=loss_of, rho=0.05, clip=None, schedule=None):
    """``w <- w - step(grad L(w + rho g / |g|))``, with L the mean over a window of batches."""
    params = list(model.parameters())

    def gradients(window):
        mean = sum(loss(model, batch) for batch in window) / len(window)
        return torch.autograd.grad(mean, params)

    for window in windows:
        g = gradients(window)
        norm = sum(part.square().sum() for part in g).sqrt()
        kept = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for p, part in zip(params, g, strict=True):
                p.add_(rho * part / norm)
        up = gradients(window)
        model.load_state_dict(kept)  # weights and running averages
        for p, part in zip(params, up, strict=True):
            p.grad = part
        if clip is not None:
            clip_grad_norm_(params, clip)
        base.step()
        if schedule is not None:
            schedule.step()


# Lightning ---------------------------------------------------------------------------------------


def module_of(lightning, make, **options):
    """A module of Lightning with automatic optimisation."""

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, number):
            return loss_of(self.model, batch)

        def configure_optimizers(self):
            optimizer = make(groups_of(self.model), lr=0.1, **options)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    return Module()


def manual_module_of(lightning, make, step, **options):
    """A module of Lightning that optimises by hand, with ``step(module, optimizer, batch, i)``."""

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.model = network()
            self.window = []

        def training_step(self, batch, number):
            step(self, self.optimizers(), batch, number)

        def configure_optimizers(self):
            return make(groups_of(self.model), lr=0.1, **options)

    return Module()


def fit(lightning, module, checkpoint=None, **options):
    trainer = lightning.Trainer(
        accelerator="cpu",
        **{"max_epochs": 2, **options},
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(TensorDataset(X, Y), batch_size=4)
    trainer.fit(module, data, ckpt_path=checkpoint, weights_only=checkpoint and True)
    return trainer


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
class TestLightning:
    @pytest.mark.parametrize("clip", [None, 0.3])
    @pytest.mark.parametrize("base", [SGD, Adam])
    def test_sam_just_works(self, lightning, base, clip):
        options = {"momentum": 0.9} if base is SGD else {}
        module = module_of(lightning, ll.optim.SAM, base=base, **options)
        trainer = fit(lightning, module, gradient_clip_val=clip)
        assert trainer.global_step == 12
        expected = network()
        optimizer = base(groups_of(expected), lr=0.1, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        windows = [[batch] for batch in BATCHES] * 2
        sam_by_hand(expected, windows, optimizer, clip=clip, schedule=schedule)
        assert_same(module.model, expected, rtol=1e-11)

    @pytest.mark.parametrize("make", [ll.optim.SAM, ll.optim.ASAM, ll.optim.EntropySGD])
    def test_a_checkpoint_goes_on_as_if_nothing_had_happened(self, lightning, make, tmp_path):
        options = {"base": Adam, **({"noise": 0.1} if make is ll.optim.EntropySGD else {})}
        through = module_of(lightning, make, **options)
        fit(lightning, through)
        module = module_of(lightning, make, **options)
        fit(lightning, module, max_epochs=1).save_checkpoint(tmp_path / "half.ckpt")
        resumed = module_of(lightning, make, **options)
        fit(lightning, resumed, checkpoint=tmp_path / "half.ckpt")
        for name, value in through.state_dict().items():
            assert torch.equal(resumed.state_dict()[name], value), name

    def test_entropy_sgd_goes_through_one_batch_in_a_step(self, lightning):
        options = {"langevin": 3, "noise": 0.1, "gamma": 0.5}
        module = module_of(lightning, ll.optim.EntropySGD, **options)
        fit(lightning, module, max_epochs=1, gradient_clip_val=0.3)
        expected = network()
        optimizer = ll.optim.EntropySGD(groups_of(expected), lr=0.1, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        for batch in BATCHES:
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(expected, batch).backward()
                clip_grad_norm_(expected.parameters(), 0.3)
                optimizer.step()
            schedule.step()
        assert_same(module.model, expected, rtol=1e-11)

    def test_accumulated_batches_are_refused_where_they_cannot_be_repeated(self, lightning):
        module = module_of(lightning, ll.optim.SAM)
        with pytest.raises(InputError, match="to accumulate gradients over batches, use the form"):
            fit(lightning, module, accumulate_grad_batches=2)

    @pytest.mark.parametrize("scaled", [False, True])
    def test_accumulated_batches_by_hand(self, lightning, scaled):
        def step(module, optimizer, batch, number):
            module.window.append(batch)
            if len(module.window) < 2:
                return
            for done in (optimizer.first_step, optimizer.step):
                for part in module.window:
                    module.manual_backward(loss_of(module.model, part) / 2)
                done()
            optimizer.zero_grad()
            module.window = []

        # autocast leaves float64 alone: what remains is Lightning's GradScaler
        plugins = [lightning.pytorch.plugins.MixedPrecision("16-mixed", "cpu")] if scaled else None
        module = manual_module_of(lightning, ll.optim.SAM, step)
        trainer = fit(lightning, module, plugins=plugins)
        assert trainer.global_step == 6
        expected = network()
        windows = [BATCHES[i : i + 2] for i in (0, 2, 4)] * 2
        sam_by_hand(expected, windows, SGD(groups_of(expected), lr=0.1))
        assert_same(module.model, expected, rtol=1e-11)

    def test_inner_steps_by_hand(self, lightning):
        def step(module, optimizer, batch, number):
            module.manual_backward(loss_of(module.model, batch))
            optimizer.inner_step()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

        options = {"langevin": 3, "noise": 0.1, "gamma": 0.5}
        module = manual_module_of(lightning, ll.optim.EntropySGD, step, **options)
        trainer = fit(lightning, module)
        assert trainer.global_step == 4
        expected = network()
        optimizer = ll.optim.EntropySGD(groups_of(expected), lr=0.1, **options)
        for batch in BATCHES * 2:
            optimizer.zero_grad()
            loss_of(expected, batch).backward()
            optimizer.step()
        assert_same(module.model, expected, rtol=1e-11)

    def test_a_scaler_without_manual_optimisation_is_refused(self, lightning):
        plugins = [lightning.pytorch.plugins.MixedPrecision("16-mixed", "cpu")]
        with pytest.raises(InputError, match="call first_step before step"):
            fit(lightning, module_of(lightning, ll.optim.SAM), plugins=plugins)


# Accelerate and Transformers ---------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [False, True])
def test_accelerate_passes_both_forms_on(explicit):
    accelerate = pytest.importorskip("accelerate", reason="needs the package accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    optimizer = ll.optim.SAM(groups_of(model), SGD, lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in BATCHES:

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            return loss

        if explicit:
            closure()
            optimizer.optimizer.first_step()
            closure()
            accelerator.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
        else:
            optimizer.step(closure)
    expected = network()
    base = SGD(groups_of(expected), lr=0.1, momentum=0.9)
    sam_by_hand(expected, [[batch] for batch in BATCHES], base)
    assert_same(model, expected, rtol=1e-11)


TOKENS = torch.randint(0, 11, (24, 6), generator=G)
NOTHING = torch.tensor([-100])  # no label: nothing comes before the first token


def language_model(transformers):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=6, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).double()


def token_groups(model):
    vectors = [p for p in model.parameters() if p.ndim == 1]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.05}]


def token_loss(model, rows):
    logits = model(input_ids=rows).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def shared_loss(outputs, labels, num_items_in_batch):
    """What Trainer asks for: a part of the mean over a step. Its own would be in float32."""
    logits = outputs.logits[:, :-1].flatten(0, 1)
    sums = nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    return sums / num_items_in_batch


def train(transformers, trainer, model, optimizer, path, **options):
    arguments = transformers.TrainingArguments(
        output_dir=path, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=4, num_train_epochs=2, lr_scheduler_type="linear",
        train_sampling_strategy="sequential", dataloader_pin_memory=False, **options,
    )  # fmt: skip
    data = [{"input_ids": row, "labels": torch.cat([NOTHING, row[1:]])} for row in TOKENS]
    trainer(
        model,
        arguments,
        train_dataset=data,
        optimizers=(optimizer, None),
        compute_loss_func=shared_loss,
    ).train()


def backward(model, optimizer, rows):
    """The closure of a model that computes its own loss."""
    optimizer.zero_grad()
    loss = model(input_ids=rows, labels=rows).loss
    loss.backward()
    return loss


class TestTransformers:
    @pytest.mark.parametrize("steps", [1, 2])
    @pytest.mark.parametrize("base", [SGD, Adam])
    def test_sam_repeats_the_batches_of_a_step(self, transformers, base, steps, tmp_path):
        class SAMTrainer(transformers.Trainer):
            batches = ()

            def training_step(self, model, inputs, *rest):
                loss = super().training_step(model, inputs, *rest)
                self.batches = (*self.batches, inputs)
                if self.accelerator.sync_gradients:
                    self.optimizer.optimizer.first_step()
                    for inputs in self.batches:
                        super().training_step(model, inputs, *rest)
                    self.batches = ()
                return loss

        # Biases of keys have gradients that are nothing but rounding: Adam must not blow them up.
        options = {"lr": 0.1, **({"eps": 1e-4} if base is Adam else {})}
        model = language_model(transformers)
        optimizer = ll.optim.SAM(token_groups(model), base, **options)
        train(
            transformers, SAMTrainer, model, optimizer, tmp_path,
            gradient_accumulation_steps=steps, max_grad_norm=0.5,
        )  # fmt: skip
        expected = language_model(transformers)
        plain = base(token_groups(expected), **options)
        batches = list(TOKENS.split(4))
        windows = [batches[i : i + steps] for i in range(0, 6, steps)] * 2
        schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda t: 1 - t / len(windows))
        sam_by_hand(expected, windows, plain, token_loss, clip=0.5, schedule=schedule)
        assert_same(model, expected, rtol=1e-11)

    def test_entropy_sgd_needs_nothing(self, transformers, tmp_path):
        options = {"langevin": 3, "noise": 0.1, "gamma": 0.5, "lr": 1.0}
        model = language_model(transformers)
        optimizer = ll.optim.EntropySGD(token_groups(model), **options)
        train(transformers, transformers.Trainer, model, optimizer, tmp_path, max_grad_norm=0.5)
        expected = language_model(transformers)
        optimizer = ll.optim.EntropySGD(token_groups(expected), **options)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / 12)
        for rows in TOKENS.split(4) * 2:
            optimizer.zero_grad()
            token_loss(expected, rows).backward()
            clip_grad_norm_(expected.parameters(), 0.5)
            optimizer.step()
            schedule.step()
        assert_same(model, expected, rtol=1e-11)

    def test_functional_sam_of_a_model_that_computes_its_loss(self, transformers):
        """Hooked at its last layer; by hand with the slope of the mean of the next tokens."""
        model, expected = language_model(transformers), language_model(transformers)
        optimizer = ll.optim.FunctionalSAM(model.parameters(), SGD, rho=0.1, lr=0.2)
        model.lm_head.register_forward_hook(lambda layer, args, out: optimizer.logits(out))
        params = list(expected.parameters())
        for rows in TOKENS.split(4):
            optimizer.step(lambda rows=rows: backward(model, optimizer, rows))
            logits = expected(input_ids=rows).logits
            shifted = logits[:, :-1].flatten(0, 1)
            loss = nn.functional.cross_entropy(shifted, rows[:, 1:].flatten())
            (slope,) = torch.autograd.grad(loss, logits, retain_graph=True)
            g = torch.autograd.grad(loss, params)
            norm = sum(part.square().sum() for part in g).sqrt()
            kept = copy.deepcopy(expected.state_dict())
            with torch.no_grad():
                for p, part in zip(params, g, strict=True):
                    p.add_(0.1 * part / norm)
            up = torch.autograd.grad(expected(input_ids=rows).logits, params, slope)
            expected.load_state_dict(kept)
            with torch.no_grad():
                for p, part in zip(params, up, strict=True):
                    p.sub_(0.2 * part)
        for p, q in zip(model.parameters(), params, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)  # its own loss is in float32

    def test_sam_in_a_plain_trainer_is_refused(self, transformers, tmp_path):
        model = language_model(transformers)
        optimizer = ll.optim.SAM(model.parameters(), SGD, lr=0.1)
        with pytest.raises(InputError, match="call first_step before step"):
            train(transformers, transformers.Trainer, model, optimizer, tmp_path)


# pytorch_optimizer -------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [SGD, Adam])
@pytest.mark.parametrize("adaptive", [False, True])
def test_step_by_step_with_pytorch_optimizer(adaptive, base):
    """Two differences are bridged.

    Its SAM(adaptive=True) has T = |w| for all parameters: the paper's T = |w| + eta with eta = 0,
    which is where the two coincide. And it rounds rho / norm to float32, and adds an epsilon to the
    norm: our radius is what that makes of it, and all the rest agrees to the rounding of float64.
    """
    other = pytest.importorskip("pytorch_optimizer", reason="needs the package pytorch_optimizer")
    from pytorch_optimizer.optimizer.utils.gradient import get_global_gradient_norm

    radii = 0.3, 0.1
    models = [network(), network()]
    options = {"lr": 0.1, **({"momentum": 0.9} if base is SGD else {})}
    groups = [
        [{**group, "rho": rho} for group, rho in zip(groups_of(model), radii, strict=True)]
        for model in models
    ]
    if adaptive:
        ours = ll.optim.ASAM(groups[0], base, eta=0.0, **options)
    else:
        ours = ll.optim.SAM(groups[0], base, **options)
    theirs = other.SAM(groups[1], base, adaptive=adaptive, **options)
    for batch in BATCHES:
        for model in models:
            model.zero_grad()
            loss_of(model, batch).backward()
        parts = [p.grad * (p.detach() if adaptive else 1) for p in models[0].parameters()]
        norm = torch.cat([part.flatten() for part in parts]).norm()
        rounded = get_global_gradient_norm(theirs.param_groups, weight_adaptive=True).sqrt() + 1e-12
        for group, rho in zip(ours.param_groups, radii, strict=True):
            group["rho"] = float(norm) * float(rho / rounded)
            assert group["rho"] == pytest.approx(rho, rel=4 * torch.finfo(torch.float32).eps)
        ours.first_step()
        theirs.first_step(zero_grad=True)
        for p, q in zip(*(m.parameters() for m in models), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-13, atol=1e-14)
        averages = copy.deepcopy(dict(models[1].named_buffers()))
        for model in models:
            loss_of(model, batch).backward()
        ours.step()
        theirs.second_step()
        for name, buffer in models[1].named_buffers():
            buffer.copy_(averages[name])  # which it leaves to its caller
        assert_same(*models, rtol=1e-11)
    assert not torch.equal(models[0][0].weight, network()[0].weight)


def gsam_page() -> str:
    """The module of docs/optimisers.md that makes their GSAM an optimiser of `lowland train`."""
    page = (Path(__file__).parents[1] / "docs" / "optimisers.md").read_text()
    return page.partition("```python\n# gsam.py\n")[2].partition("```")[0]


def test_gsam_of_pytorch_optimizer_in_our_training(tmp_path, monkeypatch):
    """Zhuang et al., ICLR 2022, Algorithm 1, with running averages of the first pass only."""
    pytest.importorskip("pytorch_optimizer", reason="needs the package pytorch_optimizer")
    (tmp_path / "gsam.py").write_text(gsam_page())
    monkeypatch.chdir(tmp_path)
    model, expected = network(), network()
    settings = ll.training.TrainingSettings(
        "gsam:make", 0.1, batch_size=4, momentum=0.9, radius=0.2, max_epochs=2, seed=3
    )
    ll.training.train_many([model], (X, Y), [settings])
    params, order = list(expected.parameters()), torch.Generator().manual_seed(3)
    base = SGD(params, lr=0.1, momentum=0.9)

    def gradient(rows):
        grads = torch.autograd.grad(loss_of(expected, (X[rows], Y[rows])), params)
        return torch.cat([g.flatten() for g in grads])

    def move(vector):
        with torch.no_grad():
            for p, part in zip(params, vector.split([p.numel() for p in params]), strict=True):
                p.add_(part.view_as(p))

    for _ in range(2):
        expected.train()
        for rows in torch.randperm(24, generator=order).split(4):
            below = gradient(rows)
            kept = copy.deepcopy(expected.state_dict())
            move(0.2 * below / below.norm())
            above = gradient(rows)
            expected.load_state_dict(kept)
            across = below - (below @ above) * above / above.norm() ** 2
            parts = (above - 0.4 * across).split([p.numel() for p in params])
            for p, part in zip(params, parts, strict=True):
                p.grad = part.view_as(p)
            base.step()
    values = expected.state_dict()
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue  # which theirs counts in both passes
        # Theirs rounds the radius to float32.
        torch.testing.assert_close(value, values[name], rtol=1e-5, atol=1e-7, msg=name)
