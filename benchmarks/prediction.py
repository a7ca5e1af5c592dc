"""How well time is predicted: ``python benchmarks/prediction.py [--budget 5m] [model ...]``.

Writes, for each model, the seconds predicted and taken, the same in gradients, and the peak of
memory into ``measured/`` and ``prediction.md``; prints the measures that were furthest off. With
``--cpu`` all times, the budget's too, are CPU time of one thread: for a machine that others use.
"""

import argparse
import datetime
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import _cifar, _normalised_by, _trained, wide_mlp

import lowland as ll

FOLDER = Path(__file__).parent
MEASURED, PAGE = FOLDER / "measured", FOLDER / "prediction.md"


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


# From the seconds of each measure that `--cpu --budget 11m resnet18-16` recorded; the PAC-Bayes
# bounds, which take fewer passes since, from `resnet18-16`.
_LIMIT = (
    "The aim of 200 gradients for all of ResNet-18 of width 16 is missed. What sets the limit, in",
    "gradients, where the budget has room for the spectral pass on all samples: this pass 63 (some",
    "32 columns of the Hessian, each with six convolutions for the three of a gradient), the exact",
    "diagonals and what is added to them for the trace 25, two PAC-Bayes bounds 19 (50 forward",
    "passes), two searches for the worst weights of a box 24, two averages over noise 21, two",
    "ascents 10, widths 8: 173 for the measures. The split of a layer, whether it is a minimum and",
    "the landscape take about 100 more.",
)

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
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread")
    options = parser.parse_args()
    unknown = set(options.model) - set(MODELS)
    if unknown:
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    chosen = options.model or list(MODELS)
    if len(chosen) > 1:  # each in a process of its own, whose peak of memory is its own
        for name in chosen:
            command = [sys.executable, __file__, name, "--budget", options.budget]
            subprocess.run([*command, *["--cpu"] * options.cpu], check=True)
        return
    (name,) = chosen
    torch.set_num_threads(1 if options.cpu else 2)
    if options.cpu:
        time.monotonic = time.perf_counter = time.process_time
    results = ll.analyze(MODELS[name](), budget=options.budget, progress=say).results
    record = {**measured(results), "cpu": options.cpu}
    MEASURED.mkdir(exist_ok=True)
    path = MEASURED / f"prediction-{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    print(page())
    done = [row for row in results.measures if row.predicted is not None and is_done(row)]
    done.sort(key=lambda row: -abs(row.seconds - row.predicted))
    for row in done[:6]:
        print(f"  {row.name}: predicted {row.predicted:.1f} s, took {row.seconds:.1f} s")


def measured(results: Any) -> dict[str, Any]:
    """What is told of one model."""
    course = results.course
    values = [row for row in results.measures if row.value is not None]
    late = [row for row in results.measures if "budget" in (row.reason or "")]
    return {
        "date": datetime.date.today().isoformat(),
        "weights": results.subject.parameters,
        "samples": results.subject.train_samples,
        "budget": course.budget,
        "gradient": course.gradient,
        "predicted": course.predicted,
        "spent": course.spent,
        "whole": results.seconds,
        "stopped": course.stopped,
        "values": len(values),
        "subset": course.samples and sum(row.samples is not None for row in values),
        "left_out": len(late),
        "gibibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "seconds": {row.name: [row.predicted, row.seconds] for row in results.measures},
    }


def page() -> str:
    """All that was measured, as Markdown."""
    lines = [
        "# Real models under a budget",
        "",
        "Written by `python benchmarks/prediction.py [--budget 5m] [model ...]`: `ll.analyze` of",
        "each model in a process of its own, on an otherwise idle machine of two cores; where it",
        "says CPU, in CPU time of one thread (`--cpu`), beside other work.",
        "*Predicted* is what the plan says of all that it takes up, *took* what that took; *before",
        "the plan* are pairs, losses and prices.",
        "",
        "| model | weights, samples | one gradient | predicted | took | ratio | before the plan | "
        "in gradients | values | left out | peak memory | on |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in MODELS:
        path = MEASURED / f"prediction-{name}.json"
        if not path.exists():
            continue
        r = json.loads(path.read_text(encoding="utf-8"))
        ratio = f"{r['spent'] / r['predicted']:.2f}" if r["stopped"] is None else r["stopped"]
        subset = f" ({r['subset']} on a subset)" if r["subset"] else ""
        cells = [
            name,
            f"{r['weights']:,}, {r['samples']:,}",
            f"{r['gradient']:.2f} s",
            f"{r['predicted']:.0f} s",
            f"{r['spent']:.0f} s",
            ratio,
            f"{r['whole'] - r['spent']:.0f} s",
            f"{r['whole'] / r['gradient']:.0f}",
            f"{r['values']}{subset}",
            f"{r['left_out']}",
            f"{r['gibibytes']:.1f} GiB",
            r["date"] + (", CPU" if r.get("cpu") else ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_LIMIT]) + "\n"


def is_done(row: Any) -> bool:
    """Whether the measure ran to its end."""
    return row.seconds > 0 and not (row.reason or "").startswith(("stopped", "interrupted"))


def say(stage: str) -> None:
    print(f"  {stage}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
