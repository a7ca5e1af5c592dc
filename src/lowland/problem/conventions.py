"""What models have for outputs and losses: where classes lie, which token is meant, structures."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lowland.batches import OWN_LOSS, Batch, Both, Form, Inputs, arguments
from lowland.losses import ClassLoss, Loss, ModelLoss, OwnLoss, class_axis, resolve

if TYPE_CHECKING:
    from lowland.problem.problem import Problem


def form_of_targets(model: nn.Module, loss: Loss) -> Form:
    """What the targets may be: a user's own loss may take any, and some models take them too.

    The decoder of an encoder-decoder of Transformers gets the labels, moved by one place.
    """
    if loss.needs_model:
        return "none"
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return "kept"
    return "any" if isinstance(loss, OwnLoss) else "tensor"


def tensor_of(out: Any) -> Any:
    """The logits of what a Transformers model returns; what another model returns, unchanged."""
    return out["logits"] if isinstance(out, Mapping) and "logits" in out else out


def of_any_outputs(problem: "Problem", loss: Loss) -> Loss:
    """A user's function of outputs or targets that are no tensor as a loss of the model itself."""
    if not isinstance(loss, OwnLoss):
        return loss
    sample = problem.first(1)
    if not isinstance(sample.inputs, Both):
        with problem.measuring(), torch.no_grad():
            try:
                out = tensor_of(problem.run(sample.inputs))
            except Exception:  # it does not run at all, which is said elsewhere
                return loss
        if isinstance(out, Tensor):
            return loss

    def of_model(model: nn.Module, batch: Batch) -> Tensor:
        args, kwargs = arguments(model, batch.inputs)
        return loss.losses(tensor_of(model(*args, **kwargs)), batch.targets)

    own = ModelLoss(of_model)
    own.name = loss.name
    return own


def loss_of_outputs(inputs: Inputs) -> str:
    """A line to copy, for a model that runs on the inputs and returns something else."""
    star = "**" if isinstance(inputs, Mapping) else "*" if isinstance(inputs, tuple) else ""
    return OWN_LOSS.replace("batch.inputs", f"{star}batch.inputs")


def loss_of_the_first(loss: Loss, inputs: Inputs) -> str:
    """A line to copy, for a model that takes some of the inputs only: the first of several."""
    several = isinstance(inputs, tuple | list) and len(inputs) > 1
    first = f"[{next(iter(inputs))!r}]" if isinstance(inputs, Mapping) else "[0]" * several
    targets, weight = ("batch.inputs[1]", "batch.targets * ") if several else ("batch.targets", "")
    losses = {
        "cross_entropy": "torch.nn.functional.cross_entropy({}, {}, reduction='none')",
        "mse": "({} - {}).square().flatten(1).mean(1)",
    }.get(loss.name, "your_losses({}, {})")
    losses = losses.format(f"model(batch.inputs{first})", targets)
    line = f"loss=ll.ModelLoss(lambda model, batch: {weight}{losses})"
    return f"if these are inputs, targets and weights of the samples, {line}" if several else line


def as_the_model_has_it(problem: "Problem", loss: Loss) -> Loss:
    """The loss with the classes last, and of the next token where the model's own loss is.

    Language models of Transformers take ``labels`` that are the input tokens themselves, and
    compare each position's scores with the token that follows. That is meant if the labels are the
    tokens, wherever they count, and the model's own loss of a sample is that of the next token.
    """
    if not isinstance(loss, ClassLoss):
        return loss
    if not hasattr(problem.model, "main_input_name"):
        last = _classes_last(problem) if problem.train.ragged else None
        return loss if last is None else loss.placed(classes_last=last)
    loss = loss.placed(classes_last=True)
    with problem.measuring(), torch.no_grad():
        sample = problem.first(1)
        means_next = _labels_are_tokens(problem, sample, loss) and _predicts_next(problem, sample)
    return loss.placed(next_token=True) if means_next else loss


def _classes_last(problem: "Problem") -> bool | None:
    """Whether the classes lie last, from the first batch whose length leaves no doubt."""
    with problem.measuring(), torch.no_grad():
        for batch in problem.batches():
            sample = next(batch.split(1))
            try:
                outputs = problem.outputs(sample.inputs)
                return outputs.ndim > 2 and class_axis(outputs, sample.targets) > 1
            except Exception:  # as many classes as positions, or an error that is told elsewhere
                continue
    return None


def _labels_are_tokens(problem: "Problem", sample: "Batch", loss: ClassLoss) -> bool:
    inputs, labels = sample.inputs, sample.targets
    name = str(problem.model.main_input_name)
    tokens = inputs.get(name) if isinstance(inputs, Mapping) else inputs
    if not isinstance(tokens, Tensor) or tokens.shape != labels.shape or labels.ndim != 2:
        return False
    counted = loss.counted(labels)
    return bool(counted.any() and (labels == tokens)[counted].all())


def _predicts_next(problem: "Problem", sample: "Batch") -> bool:
    following = resolve("next_token")
    try:
        out = problem.run(sample.inputs, labels=sample.targets)
    except Exception:
        return False  # it takes no labels, or does not run at all, which is said elsewhere
    if not isinstance(out, Mapping) or not {"loss", "logits"} <= out.keys():
        return False
    own = out["loss"].reshape(1)
    return torch.allclose(own, following(out["logits"], sample.targets).to(own), rtol=1e-3)
