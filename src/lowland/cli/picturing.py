"""The verb that draws landscapes."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from lowland.cli.app import Json, Quiet, app, home, typed
from lowland.cli.terminal import Results, Say, fate_of, progress
from lowland.cli.verbs import LOSS, check_whose, chosen_problem
from lowland.errors import InputError

if TYPE_CHECKING:
    from lowland.findings import Landscape
    from lowland.problem import Problem

Kind = Literal["surface", "line", "plane", "path"]
_NEEDS = {"plane": 3, "path": 2}  # checkpoints


@app.command
def landscape(
    *checkpoints: Path,
    kind: Kind = "surface",
    model: str | None = None,
    checkpoint: Path | None = None,
    data: str | None = None,
    loss: str = LOSS,
    directions: str | None = None,
    span: str = "auto",
    steps: int | None = None,
    normalize: Literal["filter", "layer", "none"] | None = None,
    scale_vectors: Annotated[bool, Parameter(negative="")] = False,
    refine: int = 0,
    trajectory: Annotated[list[Path] | None, Parameter(negative="", consume_multiple=True)] = None,
    align: Annotated[bool, Parameter(negative="")] = False,
    renormalize: Annotated[bool, Parameter(negative="")] = False,
    curve: bool = True,
    title: str | None = None,
    data_dir: Path | None = None,
    seed: int = 0,
    figures: Literal["png", "pdf", "svg"] = "png",
    out: Path = Path("lowland-landscape"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw the loss around a minimum, through three, or on the way between two.

    Without arguments: the embedded default of `lowland analyze`, its surface and two cuts. What is
    done before an interrupt is kept beside the output directory, and the same command goes on.

    Parameters
    ----------
    checkpoints
        Other weights of the same model: marked on a surface or line; three for a plane, two for
        a path.
    kind
        surface, with a random cut and one along the leading eigenvector; line; plane through three
        checkpoints; path between two.
    model
        Your model as pkg.module:factory, as in `lowland analyze`.
    checkpoint
        Its weights, the centre of a surface or line.
    data
        Its training and test data, as in `lowland analyze`; here the test data may be None.
    loss
        Its loss, as in `lowland analyze`.
    directions
        One for a line, two with a comma for a surface: random, hessian, sam, dual, dual:LAYER, or
        a checkpoint to go towards; or trajectory, for the components of --trajectory. By default
        those, or random ones.
    span
        How far to go, in units of the directions; auto lets the basin fill the picture. The cuts
        beside a surface go as far where they are along one of its directions.
    steps
        Points along each axis; by default 51, or 31 for a path.
    normalize
        Of random directions: filter, as in Li et al., layer or none.
    scale_vectors
        Scale biases and norm parameters to their own length, rather than leave them.
    refine
        Up to so many more columns and rows, or points, where the loss bends.
    trajectory
        Checkpoints of a training in its order, or a directory that Trajectory wrote.
    align
        On a path: permute the second model's hidden units to match the first's.
    renormalize
        On a path: estimate the statistics of activities again at each point.
    curve
        On a path: train a curve of low loss.
    title
        How the page calls it.
    data_dir
        Folder with data sets in torchvision's layout.
    seed
        Of random directions, and of the embedded default.
    figures
        The kind of the figures' files.
    out
        Output directory: arrays, page and figures. An earlier result in it is replaced.
    """
    check_whose(model, checkpoint, data, loss)
    _check(kind, checkpoints, trajectory)
    from lowland.atomic import check_writable

    out = home(out)
    check_writable(out)
    unfinished = out.with_name(f"{out.name}.unfinished")
    with Results() as results:
        with progress(quiet) as say, fate_of(out, "the landscape"):
            say("loading torch")
            problem, own, _ = chosen_problem(model, checkpoint, data, loss, data_dir, seed, say)
            wanted = _Wanted(
                problem, [home(p) for p in checkpoints], _trajectory(problem, trajectory),
                directions, _span(span), steps, normalize,
                "scaled" if scale_vectors else "left", refine, seed, unfinished, say,
            )  # fmt: skip
            try:
                if kind == "path":
                    drawn = wanted.path(align, renormalize, curve)
                else:
                    drawn = getattr(wanted, kind)()
            except KeyboardInterrupt:
                if not unfinished.exists():
                    raise
                raise KeyboardInterrupt(
                    f"the points that are done are in {unfinished}; the same command goes on"
                ) from None
            from lowland.pictures import save_landscape

            save_landscape(drawn, out, title or own, typed(), figures)
            shutil.rmtree(unfinished, ignore_errors=True)
        _show(results, drawn, title or own, out, as_json)


def _check(kind: Kind, checkpoints: tuple[Path, ...], trajectory: list[Path] | None) -> None:
    need = _NEEDS.get(kind)
    if need is not None and len(checkpoints) != need:
        raise InputError(
            f"--kind {kind} needs {need} checkpoints: lowland landscape --kind {kind} "
            f"{' '.join('abc'[i] + '.pt' for i in range(need))} ...; got {len(checkpoints)}"
        )
    if trajectory is not None and kind == "path":
        raise InputError("--trajectory is drawn on a surface, a line or a plane, not on a path")


def _span(span: str) -> Any:
    if span == "auto":
        return span
    try:
        return float(span)
    except ValueError:
        raise InputError(f"--span is a number or auto; got {span!r}") from None


def _trajectory(problem: "Problem", paths: list[Path] | None) -> Any:
    if not paths:
        return None
    from lowland.landscape import Trajectory

    first = home(paths[0])
    if len(paths) == 1 and first.is_dir() and list(first.glob("step-*.safetensors")):
        return Trajectory.load(first, problem.model)
    return Trajectory.of_checkpoints(problem.model, [home(path) for path in paths])


class _Wanted:
    """What was asked for, and drawing it."""

    def __init__(
        self, problem: "Problem", checkpoints: list[Path], trajectory: Any, directions: str | None,
        span: Any, steps: int | None, normalize: Any, vectors: Any, refine: int, seed: int,
        keep: Path, say: Say,
    ) -> None:  # fmt: skip
        self.problem, self.checkpoints, self.trajectory = problem, checkpoints, trajectory
        self.directions = None
        if directions is not None:
            self.directions = [name.strip() for name in directions.split(",")]
        self.span, self.keep, self.say = span, keep, say
        self.steps = 51 if steps is None else steps
        self.path_steps = 31 if steps is None else steps
        self.seed, self.refine = seed, refine
        self.how = {"normalize": normalize, "vectors": vectors, "seed": seed}

    def _marks(self) -> dict[str, Path]:
        from lowland.landscape import names_of

        return dict(zip(names_of(self.checkpoints), self.checkpoints, strict=True))

    def _directions(self, count: int) -> Any:
        """As many directions as were asked for; a trajectory gives all of them."""
        names = self.directions
        if names is None:
            names = ["random"] * count if self.trajectory is None else ["trajectory"]
        if names == ["trajectory"]:
            return self._direction("trajectory")
        if len(names) != count:
            many = {1: "one direction", 2: "two directions with a comma between them"}[count]
            raise InputError(f"--directions: expected {many}; got {','.join(names)}")
        return tuple(map(self._direction, names))

    def _direction(self, name: str) -> Any:
        """A direction by its name; a file is a model to go towards."""
        if name in ("random", "hessian", "sam", "dual") or name.startswith("dual:"):
            return name
        if name == "trajectory":
            if self.trajectory is None:
                raise InputError("--directions trajectory needs --trajectory CHECKPOINTS")
            return self.trajectory
        path = home(Path(name))
        if not path.exists():
            raise InputError(
                f"--directions {name} is neither random, hessian, sam, dual, dual:LAYER, "
                "trajectory nor a checkpoint that exists"
            )
        from lowland.checkpoint import load_weights

        other = self.problem.copied_model()
        load_weights(other, path)
        return other

    def line(self) -> "Landscape":
        from lowland.findings import Landscape
        from lowland.landscape import line

        found = line(
            self.problem, self._directions(1), self.span, self.steps, refine=self.refine,
            marks=self._marks(), keep=self.keep / "line", progress=self.say, **self.how,
        )  # fmt: skip
        return Landscape(lines=(found,))

    def surface(self) -> "Landscape":
        from lowland.findings import Landscape
        from lowland.landscape import line, surface

        wanted = self._directions(2)
        drawn = surface(
            self.problem, wanted, self.span, self.steps, refine=self.refine, marks=self._marks(),
            trajectory=self.trajectory, keep=self.keep / "surface", progress=self.say, **self.how,
        )  # fmt: skip
        lines, notes = [], []
        for name in ("random", "hessian"):
            self.say(f"cut: {name}")
            span: Any = self.span if isinstance(wanted, tuple) and name in wanted else "auto"
            how = self.how if name == "random" else {}
            try:
                lines.append(line(self.problem, name, span, self.steps, progress=self.say, **how))
            except InputError as error:
                notes.append(f"There is no cut along {name!r}: {error}.")
        return Landscape(tuple(lines), drawn, notes=tuple(notes))

    def plane(self) -> "Landscape":
        from lowland.findings import Landscape
        from lowland.landscape import plane

        a, b, c = self.checkpoints
        drawn = plane(
            self.problem, a, b, c, self.steps, refine=self.refine,
            trajectory=self.trajectory, keep=self.keep / "plane", progress=self.say,
        )  # fmt: skip
        return Landscape(surface=drawn)

    def path(self, alignment: bool, renormalize: bool, curve: bool) -> "Landscape":
        from lowland.findings import Landscape
        from lowland.landscape import path

        a, b = self.checkpoints
        drawn = path(
            self.problem, a, b, self.path_steps, alignment=alignment,
            renormalize=renormalize, curve=curve, seed=self.seed, keep=self.keep / "path",
            progress=self.say,
        )  # fmt: skip
        return Landscape(path=drawn)


def _show(results: Results, drawn: "Landscape", title: str, out: Path, as_json: bool) -> None:
    if as_json:
        from lowland.findings import encode

        results.json({**encode(drawn, {}), "title": title, "out": str(out)})
    else:
        from lowland.cli.landscape_summary import draw_landscape

        results.text(lambda console: draw_landscape(console, title, drawn, out))
