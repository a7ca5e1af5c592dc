"""The verbs that make minima: one network, or a sweep of them."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from lowland.cli.app import Json, Quiet, app, home, typed
from lowland.cli.showing import show_analysis
from lowland.cli.terminal import Results, fate_of, progress
from lowland.errors import InputError
from lowland.experiment import SETTINGS, Configuration
from lowland.wording import counted

if TYPE_CHECKING:
    from lowland.sweep import SweepProgress


def train(
    *,
    out: Path = Path("lowland-report"),
    as_json: Json = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train a network, and explain the minimum that it found.

    Parameters
    ----------
    out
        Output directory: weights, curves over the epochs, results and report. An earlier result
        in it is replaced, and nothing else.
    """
    configuration = Configuration.of(settings)
    from lowland.atomic import check_writable

    out = home(out)
    check_writable(out)
    with Results() as results:
        with progress(quiet) as say, fate_of(out, "the result"):
            say("loading torch")
            from lowland.experiment.recording import analysed
            from lowland.experiment.subject import Subject
            from lowland.training import train_many

            subject = Subject.of(configuration)
            (training,) = train_many(
                [subject.model],
                subject.train,
                [subject.settings],
                lambda now: say(
                    f"training: epoch {now.epoch}, loss {now.losses[0]:.2e} (until "
                    f"{configuration.stop_loss:.0e}), about {_time(now.seconds_left)} left"
                ),
                loss=subject.loss,
                judged=[subject.judged],
            )
            if training.failure is not None:
                raise InputError(training.failure)
            analysis = analysed(
                configuration,
                subject,
                subject.problem(),
                training,
                command=typed(),
                out=out,
                progress=say,
            )
        show_analysis(results, analysis, out, as_json)


def _with_settings() -> inspect.Signature:
    """The signature of ``train``, whose options are the keys of a configuration.

    Those of the group "sweep" are left out: one network has no row in a table of runs.
    """
    names = ("data", "network", "training", "analysis")
    groups = {name: Group(name.capitalize(), sort_key=i) for i, name in enumerate(names)}
    plain = inspect.signature(train)
    own = [p for p in plain.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            setting.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=setting.default,
            annotation=Annotated[
                setting.type,
                Parameter(
                    help=f"{setting.meaning[0].upper()}{setting.meaning[1:]} ({setting.expected}).",
                    group=groups[setting.group],
                    negative="" if setting.kind is tuple else None,
                ),
            ],
        )
        for setting in SETTINGS.values()
        if setting.group in groups
    ]
    return plain.replace(parameters=[*options, *own])


train.__signature__ = _with_settings()  # type: ignore[attr-defined]
app.command(train)


@app.command
def sweep(
    grid: Path | None = None,
    /,
    *,
    out: Path | None = None,
    executor: str = "processes",
    workers: int | None = None,
    retry: Annotated[bool, Parameter(negative="")] = False,
    old: Annotated[bool, Parameter(negative="")] = False,
    status: Path | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train and analyse every run of a grid; started again, it does only what is missing.

    Parameters
    ----------
    grid
        The grid as a TOML file: the options of `lowland train` as keys, lists where they vary.
    out
        The directory that keeps the runs. Several sweeps may work on it at once.
    executor
        serial, processes, dask (a local cluster), or tcp://host:port of a Dask scheduler.
    workers
        How many processes; by default one for each core.
    retry
        Do runs again that failed.
    old
        Put runs of older code, Lowland's or yours, into the table of results as well.
    status
        Only tell how far the sweeps on this directory are.
    """
    if status is not None:
        if grid is not None or out is not None:
            raise InputError("--status takes a directory and nothing else")
        _tell_status(home(status), as_json)
        return
    if grid is None or out is None:
        raise InputError(
            "expected a grid and where to keep the runs: lowland sweep grid.toml --out DIR"
        )
    from lowland.sweep.grid import Grid

    runs = Grid.read(home(grid))
    out = home(out)
    with Results() as results:
        done = 0
        with progress(quiet) as say:
            say(
                f"{counted(len(runs), 'run')} over {', '.join(runs.varied) or 'nothing'}; "
                "loading torch"
            )
            from lowland.sweep import run

            def tell(now: "SweepProgress") -> None:
                nonlocal done
                done = now.done
                say(told(now))

            try:
                summary = run(
                    runs,
                    out,
                    executor=executor,
                    workers=workers,
                    retry=retry,
                    old=old,
                    progress=tell,
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"{done} of {counted(len(runs), 'run', ('is', 'are'))} whole in {out}; the "
                    "same command goes on"
                ) from None
        if as_json:
            results.json(
                {
                    "out": str(out),
                    "runs": summary.runs,
                    "fresh": summary.fresh,
                    "failed": summary.failed,
                    "unconverged": summary.unconverged,
                    "damaged": summary.damaged,
                    "files": [str(path) for path in summary.files],
                    "seconds": summary.seconds,
                }
            )
        else:
            from lowland.cli.summary import draw_sweep

            results.text(lambda console: draw_sweep(console, summary, runs.varied))


def told(now: "SweepProgress") -> str:
    """The progress of a sweep in a line."""
    loss = f", loss {now.loss:.2e}" if now.loss is not None else ""
    left = f", about {_time(now.seconds_left)} left" if now.seconds_left is not None else ""
    return f"{now.done} of {now.total} runs done: {now.running} under way{loss}{left}"


def _time(seconds: float) -> str:
    """A time as one would say it: 40 s, 3 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _tell_status(directory: Path, as_json: bool) -> None:
    from lowland.sweep import status

    with Results() as results:
        sweeps = status(directory)
        if as_json:
            results.json(sweeps)
        else:
            from lowland.cli.summary import draw_status

            results.text(lambda console: draw_status(console, directory, sweeps))
