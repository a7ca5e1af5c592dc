"""What a Transformers model itself has for a loss: where classes lie, and which token is meant."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lowland.losses import ClassLoss, Loss, resolve

if TYPE_CHECKING:
    from lowland.batches import Batch
    from lowland.problem.problem import Problem


def as_the_model_has_it(problem: "Problem", loss: Loss) -> Loss:
    """The loss with the classes last, and of the next token where the model's own loss is.

    Language models of Transformers take ``labels`` that are the input tokens themselves, and
    compare each position's scores with the token that follows. That is meant if the labels are the
    tokens, wherever they count, and the model's own loss of a sample is that of the next token.
    """
    if not isinstance(loss, ClassLoss) or not hasattr(problem.model, "main_input_name"):
        return loss
    loss = loss.placed(classes_last=True)
    with problem.measuring(), torch.no_grad():
        sample = problem.first(1)
        means_next = _labels_are_tokens(problem, sample, loss) and _predicts_next(problem, sample)
    return loss.placed(next_token=True) if means_next else loss


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
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False  # it takes no labels, or does not run at all, which is said elsewhere
    if not isinstance(out, Mapping) or not {"loss", "logits"} <= out.keys():
        return False
    own = out["loss"].reshape(1)
    return torch.allclose(own, following(out["logits"], sample.targets).to(own), rtol=1e-3)
