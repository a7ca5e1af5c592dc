"""Noise that a saved state can go on with: it follows from a seed and a number of steps."""

from typing import Any

import numpy as np
import torch


def seed_of(seed: int, number: int, steps: int) -> int:
    """The seed of the noise in one step, for the group of parameters with this number."""
    words = np.random.SeedSequence((seed, number, steps))
    return int(words.generate_state(1, np.uint64)[0])


def generators_of(group: dict[str, Any], number: int, steps: int) -> dict[Any, torch.Generator]:
    """A generator for each device that the parameters of a group are on.

    Its seed is made of the group's ``seed`` and ``number``, and of how many steps were taken.
    """
    seed = seed_of(group["seed"], number, steps)
    devices = {p.device for p in group["params"]}
    return {device: torch.Generator(device).manual_seed(seed) for device in devices}
