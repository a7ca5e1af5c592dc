"""What must hold of a model, a loss and data before anything is measured: fail here, in words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lowland.batches import Batch, Inputs
from lowland.distributed import total_count
from lowland.errors import InputError
from lowland.problem.conventions import loss_of_outputs, loss_of_the_first
from lowland.problem.stored import is_sharded, local
from lowland.usercode import located

if TYPE_CHECKING:
    from lowland.problem.problem import Problem

_TRIED = 8  # samples
_PASSES = 3  # over each of their batches
_PARTS = (1, 3)  # samples at once, to compare with whole batches
_CHECKPOINTED = (
    "the model recomputes activations in the backward pass (by hooks on saved tensors, or an "
    "activation checkpointing that is not torch's), where weights that were put in place for a "
    "product are gone; switch it off for measuring"
)


def check_tensors(model: nn.Module) -> None:
    """Parameters and statistics must be finite, buffers numbers, and gradients those of the loss.

    Other buffers may be infinite, as masks of attention are.
    """
    for name, module in model.named_modules():
        if getattr(module, "scale_grad_by_freq", False):
            raise InputError(
                f"module {name!r} divides its gradient by how often a token occurs in a batch "
                "(scale_grad_by_freq), which is not that of the loss; switch it off for measuring"
            )
    sharded = is_sharded(model)
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, t in named:
            if nn.parameter.is_lazy(t) or t.is_meta:
                raise InputError(
                    f"{kind} {name!r} has no values yet (a lazy layer, or the meta device); run "
                    "the model once, or load its weights"
                )
            if t.is_complex() and kind == "parameter":
                raise InputError(
                    f"parameter {name!r} is complex; curvature is defined for real parameters: "
                    "store its real and imaginary parts as two"
                )
            if not t.is_floating_point() and not t.is_complex():
                continue
            values = local(t.detach())
            owner = model.get_submodule(name.rpartition(".")[0])
            finite = kind == "parameter" or isinstance(owner, nn.modules.batchnorm._NormBase)
            bad = int((~values.isfinite() if finite else values.isnan()).sum())
            bad = total_count(bad) if sharded else bad
            if bad:
                what = "NaN or infinite" if finite else "NaN"
                raise InputError(
                    f"{kind} {name!r} holds {bad} {what} value(s); the training diverged, or the "
                    "checkpoint is damaged"
                )


def check_model(problem: "Problem") -> None:
    """The model must run, and what it gives for a sample depend on nothing but the sample.

    The first samples of the training data go through it several times, in batches and in parts of
    batches. If chance changes a call with probability p, it goes unnoticed with probability
    ``p^k + (1 - p)^k`` in k calls: at p = 1/2 once in 4,000 problems, at p = 1/100 in 87 of 100.
    """
    seen = 0
    with problem.measuring(), torch.no_grad():
        for batch in (
            [problem.first(_TRIED)] if problem.sharded else problem.batches("train", _TRIED)
        ):
            batch = problem.same_everywhere(batch)
            whole = _evaluated(problem, batch)
            for _ in range(_PASSES - 1):
                if not torch.equal(whole, _evaluated(problem, batch)):
                    raise InputError(
                        "the model returns other outputs for the same inputs, even in eval mode; "
                        "switch off its randomness (functional dropout without "
                        "training=self.training?)"
                    )
            if not all(_is_same_in_parts(problem, batch, whole, size) for size in _PARTS):
                raise InputError(
                    "a sample's outputs depend on the other samples of its batch (BatchNorm "
                    "without running statistics?), or on chance, so no sample has a loss of its own"
                    + _of_a_list(problem)
                )
            seen += len(batch)
            if seen >= _TRIED:
                break
        if problem.stored is not None:
            return  # what a forward pass could write into are copies that only it reads
        own = dict(problem.model.named_parameters())
        for name, p in problem.params.items():  # copies, while the model is measured
            if not torch.equal(p, own[name].detach()):
                raise InputError(
                    f"the forward pass writes into parameter {name!r} (max_norm of an embedding, "
                    "weights clamped in forward?), so that its curvature is not defined; do that "
                    "in the training loop instead"
                )


def check_loss(problem: "Problem") -> None:
    """The loss must fit the outputs and all targets, and give every sample a loss of its own."""
    loss, few = problem.loss, problem.first(_TRIED)
    with problem.measuring(), torch.no_grad():
        outputs = _evaluated(problem, few)
        if loss.needs_model:
            return
        splits = ("train", "test") if problem.has_test else ("train",)
        for split in splits:
            for targets in problem.data(split).target_chunks():
                loss.check(outputs, few.targets, {split: targets})
        losses = loss(outputs, few.targets)
        for size in () if loss.separate else _PARTS:
            parts = zip(outputs.split(size), few.targets.split(size), strict=True)
            alone = torch.cat([loss(z, y) for z, y in parts])
            if not _are_close(losses, alone, 1e-4):
                raise InputError(
                    f"loss {loss.name!r} mixes samples: the losses of {len(losses)} training "
                    f"samples together are not those of the same samples {size} at a time, so no "
                    "sample has a loss of its own; return what each sample's own target gives"
                )


def _evaluated(problem: "Problem", batch: Batch) -> Tensor:
    """The model's outputs or, if the loss runs the model itself, the losses."""
    try:
        if problem.loss.needs_model:
            return problem.batch_losses(batch)
        out = problem.outputs(batch.inputs)
    except InputError:
        raise
    except Exception as error:  # whatever the user's code raises
        if problem.loss.needs_model:
            raise InputError(
                f"loss {problem.loss.name!r} cannot be computed from the model and a batch "
                f"({_described(batch.given.inputs)}): {located(error)}{_of_a_list(problem)}"
            ) from error
        leaves = pytree.tree_leaves(batch.inputs)
        hint = (
            "; should the images become real numbers first (inputs.float() / 255), as they did for "
            "the training?"
            if any(t.dtype == torch.uint8 for t in leaves)
            else ""
        )
        raise InputError(
            f"the model cannot run on the training inputs ({_described(batch.inputs)}): "
            f"{located(error)}{hint}; where it is to run on other parts of a batch, say how: "
            f"{loss_of_the_first(problem.loss, batch.inputs)}{_of_a_list(problem)}"
        ) from error
    if out.ndim == 0 or len(out) != len(batch):
        raise InputError(
            f"the model returns outputs of shape {tuple(out.shape)} for {len(batch)} samples; "
            "their first dimension must be that of the samples, or the loss be computed from them: "
            f"{loss_of_outputs(batch.inputs)}"
        )
    if not out.isfinite().all():
        raise InputError(
            "the model's outputs on the training inputs are NaN or infinite; are its weights or "
            "inputs too large for its precision?"
        )
    return out


def _is_same_in_parts(problem: "Problem", batch: Batch, whole: Tensor, size: int) -> bool:
    if len(batch) <= size:
        return True
    try:
        parts = [_evaluated(problem, part) for part in batch.split(size)]
    except InputError as error:
        if isinstance(error.__cause__, ValueError):
            return False  # torch's BatchNorm refuses to normalise a single sample by itself
        raise
    # Products of matrices of other sizes may round otherwise.
    return _are_close(whole, torch.cat(parts), 1e-3 if whole.dtype == torch.float32 else 1e-6)


def _are_close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * float(a.abs().max()))


def check_gradients(problem: "Problem") -> None:
    """Refuse what goes wrong when a model is differentiated.

    What recomputes activations would do so with other weights than were asked for (torch's own
    checkpointing is switched off while a model is measured). Sparse gradients have no second
    derivative. And a forward pass must not ask whether it will be differentiated.
    """
    with problem.measuring(packing=False):
        leaves = {n: p.detach().requires_grad_() for n, p in problem.select().items()}
        # Where no input has a gradient, one kind of checkpointing gives none to the weights either.
        few = problem.first(1)
        with_gradient = few.map(lambda t: t.detach().requires_grad_(t.is_floating_point()))
        sample = Batch(with_gradient.inputs, few.targets)
        try:
            with torch.autograd.graph.disable_saved_tensors_hooks(_CHECKPOINTED):
                losses = problem.batch_losses(sample, leaves)
            slopes: Sequence[Tensor | None] = ()
            if losses.requires_grad:
                reached = [t for t in pytree.tree_leaves(sample.inputs) if t.requires_grad]
                every = [*leaves.values(), *reached]
                slopes = torch.autograd.grad(losses.sum(), every, allow_unused=True)
        except RuntimeError as error:
            if _CHECKPOINTED in str(error) or "torch.utils.checkpoint" in str(error):
                raise InputError(_CHECKPOINTED) from error
            return  # whatever differentiates the model says what is the matter
        if any(slope is not None and slope.is_sparse for slope in slopes):
            raise InputError(
                "a gradient of the model is sparse, which has no second derivative; call "
                "torch.nn.functional.embedding with sparse=False"
            )
        with torch.no_grad():
            plain = problem.batch_losses(few)
        if not _are_close(plain, problem.batch_losses(few, leaves).detach(), 1e-3):
            raise InputError(
                "the model computes something else when its gradients are asked for (a branch on "
                "requires_grad or torch.is_grad_enabled()?), so that they are not those of its loss"
            )


def _of_a_list(problem: "Problem") -> str:
    if not problem.train.listed:
        return ""
    return (
        "; the items of the list were read as batches: if they are samples, pass "
        "torch.utils.data.DataLoader(data, batch_size=64)"
    )


def _described(inputs: Inputs) -> str:
    shapes = pytree.tree_map(lambda t: f"{tuple(t.shape[1:])} {t.dtype}", inputs)
    return f"one sample is {shapes}"
