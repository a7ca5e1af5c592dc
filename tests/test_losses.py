import math

import pytest
import torch
from torch import nn

from lowland.errors import InputError
from lowland.losses import resolve


def test_normalized_cross_entropy_is_equation_20_and_ignores_the_scale_of_logits():
    z, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    expected = []
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        mean = sum(row) / 4
        deviation = math.sqrt(sum((v - mean) ** 2 for v in row) / 4)
        scaled = [v / deviation for v in row]
        expected.append(math.log(sum(map(math.exp, scaled))) - scaled[label])
    loss = resolve("normalized_cross_entropy")
    torch.testing.assert_close(loss(z, y), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(loss(1000 * z, y), loss(z, y))


def test_constant_logits_give_the_uniform_loss_and_a_finite_gradient():
    z = torch.full((1, 5), 3.0, requires_grad=True)
    loss = resolve("normalized_cross_entropy")(z, torch.tensor([2]))
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(5))
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("name", ["cross_entropy", "normalized_cross_entropy", "mse"])
def test_second_derivatives_in_closed_form_are_those_of_autograd(name):
    loss = resolve(name)
    z = torch.randn(6, 5, dtype=torch.float64)
    z[1] = 1.5  # constant logits
    z[2] *= 100
    y = torch.randn(6, 5, dtype=torch.float64) if name == "mse" else torch.arange(6) % 5
    for row, target, found in zip(z, y, loss.second(z, y), strict=True):
        exact = torch.autograd.functional.hessian(
            lambda r, t=target: loss(r[None], t[None]).sum(), row
        )
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-14)


def test_mse_averages_over_outputs_and_never_broadcasts():
    loss = resolve("mse")
    z = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert loss(z, torch.zeros(2, 2)).tolist() == [5.0, 0.0]
    assert loss(torch.tensor([[2.0], [1.0]]), torch.tensor([0.0, 0.0])).tolist() == [4.0, 1.0]
    with pytest.raises(InputError, match=r"\(2, 2\).*\(3, 2\)"):
        loss(z, torch.zeros(3, 2))


def test_a_torch_module_keeps_its_options_and_itself():
    module = nn.CrossEntropyLoss(label_smoothing=0.2)
    z, y = torch.randn(5, 3), torch.arange(5) % 3
    loss = resolve(module)
    torch.testing.assert_close(loss(z, y).mean(), module(z, y))
    assert loss(z, y).shape == (5,)
    assert module.reduction == "mean"
    assert loss.classes


def test_positions_of_a_sample_are_averaged():
    z, y = torch.randn(4, 3, 6), torch.randint(0, 3, (4, 6))
    torch.testing.assert_close(resolve("cross_entropy")(z, y).mean(), nn.CrossEntropyLoss()(z, y))


def test_what_is_no_per_sample_loss_is_refused():
    z, y = torch.randn(4, 3), torch.arange(4) % 3
    with pytest.raises(InputError, match=r"one loss per sample, shape \(4,\)"):
        resolve(lambda z, y: nn.functional.cross_entropy(z, y))(z, y)
    with pytest.raises(InputError, match="did you mean 'cross_entropy'"):
        resolve("crossentropy")
    with pytest.raises(InputError, match="got int"):
        resolve(3)
