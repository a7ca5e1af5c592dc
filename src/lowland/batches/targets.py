"""Targets that come in parts, joined."""

import torch
from torch import Tensor

from lowland.errors import InputError

_PADDING = -100  # the label that torch and Transformers ignore


class Targets:
    """Targets that come in parts, put in one place whose size is known from the start.

    Small tensors that stay, between large ones that go, would keep the C library from giving back
    the memory of these: data that is read and dropped batch by batch then takes its whole size.
    """

    def __init__(self, expected: int, most: int) -> None:
        self.expected, self.most = expected, most  # samples, and bytes
        self.count = self.nbytes = 0
        self._place: Tensor | None = None
        self._filled = 0
        self._others: list[Tensor] = []  # from the first one on that has another shape

    def append(self, part: Tensor) -> None:
        """Add the targets of the next samples."""
        need = part.nbytes // max(1, len(part)) * self.expected
        if not self.count and 0 < need <= self.most:
            self._place = part.new_empty(self.expected, *part.shape[1:])
        fits = self._place is not None and part.shape[1:] == self._place.shape[1:]
        if self._place is not None and fits and not self._others:
            self._place[self.count : self.count + len(part)] = part
            self._filled += len(part)
        else:
            self._others.append(part)
        self.count, self.nbytes = self.count + len(part), self.nbytes + part.nbytes

    def joined(self, split: str) -> Tensor:
        """All targets; labels of sequences of different lengths are padded with the ignored one."""
        parts = self._others
        if self._place is not None and self._filled:
            parts = [self._place[: self._filled], *parts]
        shapes = {t.shape[1:] for t in parts}
        if len(shapes) == 1:
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        if any(t.ndim != 2 or t.is_floating_point() for t in parts):
            raise InputError(
                f"the {split} targets differ in shape from batch to batch "
                f"({', '.join(str(tuple(s)) for s in sorted(shapes)[:3])}); pad them to one shape"
            )
        longest = max(t.shape[1] for t in parts)
        pad = torch.nn.functional.pad
        return torch.cat([pad(t, (0, longest - t.shape[1]), value=_PADDING) for t in parts])
