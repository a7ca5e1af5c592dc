"""The way of a training through weight space: recorded on its way, or read from checkpoints."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lowland.checkpoint import load_weights
from lowland.errors import InputError
from lowland.landscape.points import Weights, dot
from lowland.problem import unwrap
from lowland.reading import check_file

_REACH = 0.9  # of the span: where the farthest point lies


@dataclass(frozen=True)
class Components:
    """Principal directions of a trajectory seen from one point, and the shares they explain."""

    vectors: list[dict[str, Tensor]]
    explained: list[float]  # of the sum of squared distances from that point


class Trajectory:
    """Weights along a training.

    Two lines record one in any training loop::

        trajectory = ll.Trajectory(model)
        for step, batch in enumerate(loader):
            ...
            trajectory.record(step)

    Args:
        model: the model that is trained.
        every: steps between two points.
        memory: the bytes that the points may take. When they would take more, every other point is
            dropped and from then on half as many are taken; first and last stay.
        directory: write the points there, as ``.safetensors`` files, and keep none in memory;
            :meth:`load` reads them again.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 1,
        memory: int = 1 << 30,
        directory: str | Path | None = None,
    ) -> None:
        if every < 1:
            raise InputError(f"every is a number of steps, at least 1; got {every}")
        self.model, self.every, self.memory = unwrap(model), every, memory
        self.directory = None if directory is None else Path(directory)
        self._points: dict[int, dict[str, Tensor] | Path] = {}
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return len(self._points)

    def __repr__(self) -> str:
        steps = list(self._points)
        span = f", steps {steps[0]} to {steps[-1]}" if steps else ""
        return f"Trajectory({len(steps)} points{span})"

    @property
    def steps(self) -> list[int]:
        """The steps at which points were taken."""
        return list(self._points)

    def record(self, step: int, *, always: bool = False) -> None:
        """Take the model's weights as a point, if the step is one of those that are taken."""
        if not always and step % self.every:
            return
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        state = {
            name: t.detach().to("cpu", copy=True).contiguous()
            for name, t in tensors.items()
            if t.is_floating_point()
        }
        if self.directory is not None:
            path = self.directory / f"step-{step:09d}.safetensors"
            save_file(state, path)
            self._points[step] = path
            return
        self._points[step] = state
        if sum(_bytes(p) for p in self._points.values()) > self.memory and len(self) > 2:
            self._thin()

    def _thin(self) -> None:
        self.every *= 2
        steps = self.steps
        kept = {*steps[::2], steps[-1]}
        self._points = {step: p for step, p in self._points.items() if step in kept}

    @classmethod
    def load(cls, directory: str | Path, model: nn.Module) -> "Trajectory":
        """The trajectory that was written to a directory."""
        paths = sorted(Path(directory).glob("step-*.safetensors"))
        if not paths:
            raise InputError(f"{directory} holds no step-*.safetensors, which Trajectory writes")
        read = cls(model)
        read._points = {int(path.stem.removeprefix("step-")): path for path in paths}
        return read

    @classmethod
    def of_checkpoints(
        cls, model: nn.Module, checkpoints: Iterable[str | Path | Mapping[str, Tensor] | nn.Module]
    ) -> "Trajectory":
        """Checkpoints of one training in its order: files, state dicts or models."""
        import copy

        read = cls(model)
        for step, checkpoint in enumerate(checkpoints):
            other = copy.deepcopy(read.model)
            if isinstance(checkpoint, nn.Module):
                other = unwrap(checkpoint)
            elif isinstance(checkpoint, Mapping):
                other.load_state_dict(dict(checkpoint))
            else:
                load_weights(other, Path(checkpoint))
            reader = cls(other)
            reader.record(step, always=True)
            read._points |= reader._points
        return read

    def states(self) -> Iterable[tuple[int, dict[str, Tensor]]]:
        """Each step and its parameters and buffers."""
        for step, point in self._points.items():
            if isinstance(point, Path):
                check_file(point, "the point")
                yield step, load_file(point)
            else:
                yield step, point

    def components(self, centre: Weights, count: int) -> Components:
        """The directions from ``centre`` that explain most of where the trajectory was.

        The singular vectors of the points' differences from the centre (as Li et al. have it, whose
        centre is the end of the training). One unit of a direction is so long that the farthest
        point lies at 0.9.
        """
        if len(self) < 2:
            raise InputError(
                f"a trajectory needs two points or more; this one has {len(self)}. Call "
                "trajectory.record(step) in the training loop"
            )
        rows = [self._difference(state, centre) for _, state in self.states()]  # one per point
        gram = torch.tensor([[dot(a, b) for b in rows] for a in rows], dtype=torch.float64)
        values, vectors = torch.linalg.eigh(gram)
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        if not values[0] > 0 or values[count - 1] <= 1e-14 * values[0]:
            raise InputError(
                f"the trajectory's points span fewer than {count} directions around the centre; "
                "record more of the training"
            )
        shares = (values / values.sum()).tolist()
        made = []
        for k in range(count):
            v = vectors[:, k]
            v = v * (1 if v[0] >= 0 else -1)  # the beginning lies on the positive side
            unit = float(values[k].sqrt())
            farthest = float((v * unit).abs().max())  # coordinates are sqrt(value) v
            scale = farthest / _REACH / unit
            weighted = [(scale * float(x), row) for x, row in zip(v, rows, strict=True)]
            made.append(
                {n: torch.stack([x * row[n] for x, row in weighted]).sum(0) for n in centre}
            )
        return Components(made, shares[:count])

    @staticmethod
    def _difference(state: Weights, centre: Weights) -> dict[str, Tensor]:
        wrong = [n for n, w in centre.items() if n not in state or state[n].shape != w.shape]
        if wrong:
            raise InputError(f"the trajectory is of another model: it has no fitting {wrong[0]!r}")
        return {n: state[n].to(w) - w for n, w in centre.items()}


def _bytes(point: dict[str, Tensor] | Path) -> int:
    if isinstance(point, Path):
        return 0
    return sum(t.numel() * t.element_size() for t in point.values())
