"""How well time is predicted: ``python benchmarks/prediction.py [--budget 5m] [model ...]``.

Prints, for each model, the plan, the seconds predicted and taken of all that was done to its end,
and the measures that were furthest off.
"""

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import _cifar, _normalised_by, _trained, wide_mlp

import lowland as ll

AIM = 1.5  # times too long or too short


class BasicBlock(nn.Module):
    """Two convolutions and a way around them, as torchvision has it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            skip = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(skip, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


def resnet18(width: int, images: int, unseen: int) -> ll.Problem:
    """ResNet-18 with the first layer for images of 32 x 32."""
    X, y, _ = _cifar(images + unseen)
    torch.manual_seed(0)
    blocks, before = [], width
    for after, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        blocks += [BasicBlock(before, after, stride), BasicBlock(after, after, 1)]
        before = after
    stem = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10)]
    model = nn.Sequential(*stem, *blocks, *head)
    _trained(model, X[:images], y[:images], epochs=8)
    _normalised_by(model, X[:images])
    return ll.Problem(model, train=(X[:images], y[:images]), test=(X[images:], y[images:]))


def gpt2() -> ll.Problem:
    """A language model of 3 million weights on sequences that repeat themselves."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=512, n_positions=128, n_embd=240, n_layer=4, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(512, (96, 32)).repeat(1, 4)
    targets = torch.cat([tokens[:, 1:], torch.full((96, 1), -100)], 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(20):
        logits = model(input_ids=tokens[:64]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets[:64].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    train, test = (
        {"input_ids": tokens[part], "labels": targets[part]}
        for part in (slice(0, 64), slice(64, 96))
    )
    return ll.Problem(model.eval(), train=train, test=test)


MODELS: dict[str, Callable[[], ll.Problem]] = {
    "mlp": lambda: wide_mlp().problem(),
    "resnet18-16": lambda: resnet18(16, 500, 250),
    "resnet18": lambda: resnet18(64, 256, 128),
    "gpt2": gpt2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="*", help=f"any of: {', '.join(MODELS)}")
    parser.add_argument("--budget", default="5m")
    options = parser.parse_args()
    for name in options.model or MODELS:
        results = ll.analyze(MODELS[name](), budget=options.budget, progress=say).results
        course = results.course
        done = [row for row in results.measures if row.predicted is not None and is_done(row)]
        print(f"{name}: {course.planned}")
        if course.stopped is None:
            ratio = course.spent / course.predicted
            verdict = "within" if 1 / AIM <= ratio <= AIM else "NOT within"
            print(
                f"  predicted {course.predicted:.1f} s, took {course.spent:.1f} s: {verdict} {AIM}"
            )
        else:
            print(f"  {course.stopped} after {course.spent:.1f} s of {course.predicted:.1f} s")
        done.sort(key=lambda row: -abs(row.seconds - row.predicted))
        for row in done[:6]:
            print(f"  {row.name}: predicted {row.predicted:.1f} s, took {row.seconds:.1f} s")
        worst = math.fsum(row.predicted for row in results.measures if row.value is None)
        print(f"  not done: {worst:.0f} s by prediction\n", flush=True)


def is_done(row: Any) -> bool:
    """Whether the measure ran to its end."""
    return row.seconds > 0 and not (row.reason or "").startswith(("stopped", "interrupted"))


def say(stage: str) -> None:
    print(f"  {stage}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
