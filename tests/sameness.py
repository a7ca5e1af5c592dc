"""Whether two computations of the same thing in float64 came to the same."""

import torch
from torch import Tensor, nn


def assert_same(
    found: nn.Module | Tensor, expected: nn.Module | Tensor, rtol: float = 1e-13
) -> None:
    """Compare two tensors, or the weights and buffers of two models.

    The default is the rounding of one step; a training of many has a larger one.
    """
    values, others = (
        m.state_dict() if isinstance(m, nn.Module) else {"": m.detach()} for m in (found, expected)
    )
    assert values.keys() == others.keys()
    for name, value in values.items():
        torch.testing.assert_close(
            value, others[name], rtol=rtol, atol=rtol / 10, msg=lambda m, n=name: f"{n}: {m}"
        )
