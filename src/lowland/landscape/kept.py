"""Points that are done, on disk: a picture that was interrupted goes on where it stopped."""

import hashlib
import io
from pathlib import Path

import numpy as np
import torch
from torch.utils import _pytree as pytree

from lowland.atomic import write_file
from lowland.landscape.points import Frame, Values
from lowland.problem import Problem
from lowland.reading import arrays, content

FILE = "points.npz"


class Kept:
    """The values of points of one frame, in a file that is replaced as a whole.

    The file knows which problem and frame it is of, by a hash of weights, directions and data. One
    of another problem is not read, and is replaced.
    """

    def __init__(self, directory: str | Path, problem: Problem, frame: Frame, test: bool) -> None:
        self.path = Path(directory) / FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._mark = _mark(problem, frame, test)
        self._values: dict[tuple[float, ...], tuple[float, ...]] = {}
        self._fields: tuple[str, ...] = ()
        self.route = ""
        self._read()

    def __len__(self) -> int:
        return len(self._values)

    def has(self, coefficients: np.ndarray) -> np.ndarray:
        """Which of the points (points, k) are done."""
        return np.array([tuple(map(float, c)) in self._values for c in coefficients], dtype=bool)

    def values(self, coefficients: np.ndarray) -> Values:
        """What was found at points that are done."""
        rows = np.array([self._values[tuple(map(float, c))] for c in coefficients])
        columns = dict(zip(self._fields, rows.T, strict=True))
        return Values(*(columns.get(name) for name in Values.FIELDS))  # type: ignore[arg-type]

    def add(self, coefficients: np.ndarray, values: Values, route: str) -> None:
        """Keep more points, and write all."""
        self._fields = tuple(n for n in Values.FIELDS if getattr(values, n) is not None)
        rows = np.stack([getattr(values, name) for name in self._fields], 1)
        for c, row in zip(coefficients, rows, strict=True):
            self._values[tuple(map(float, c))] = tuple(map(float, row))
        self.route = route
        content = io.BytesIO()
        np.savez(
            content,
            mark=np.array(self._mark),
            route=np.array(route),
            fields=np.array(self._fields),
            coefficients=np.array(list(self._values)),
            values=np.array(list(self._values.values())),
        )
        write_file(self.path, content.getvalue())

    def _read(self) -> None:
        try:
            stored = arrays(content(self.path), FILE)
            if str(stored["mark"]) != self._mark:
                return
            self._fields = tuple(map(str, stored["fields"]))
            self.route = str(stored["route"])
            pairs = zip(stored["coefficients"], stored["values"], strict=True)
            self._values = {tuple(c.tolist()): tuple(v.tolist()) for c, v in pairs}
        except Exception:  # absent or damaged: the points are computed again
            return


def _mark(problem: Problem, frame: Frame, test: bool) -> str:
    mark = hashlib.sha256()
    splits = ["train", "test"] if test and problem.has_test else ["train"]
    facts = [problem.loss.name, str(problem.dtype), *(str(problem.count(s)) for s in splits)]
    mark.update(repr(facts).encode())
    tensors = [*frame.centre.values(), *(t for d in frame.directions for t in d.values())]
    for split in splits:
        first = problem.first(8, split)
        tensors += pytree.tree_leaves([first.inputs, first.targets])
    for t in tensors:
        numbers = t.detach().cpu().contiguous().view(-1)
        mark.update(numbers.view(torch.uint8).numpy().tobytes())
    return mark.hexdigest()
