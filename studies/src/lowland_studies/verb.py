"""The verb that makes the papers' figures again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from lowland.cli.app import Json, Quiet, home
from lowland.cli.making import told
from lowland.cli.terminal import Results, progress
from lowland.errors import InputError
from lowland.reading import content

if TYPE_CHECKING:
    from lowland_studies import Outcome


def reproduce(
    *studies: str,
    quick: Annotated[bool, Parameter(negative="")] = False,
    original: Annotated[bool, Parameter(negative="")] = False,
    out: Path = Path("lowland-reproduction"),
    executor: str = "processes",
    workers: int | None = None,
    pages: Path | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make figures of the papers again, with a verdict on every claim; without a name, list them.

    Parameters
    ----------
    studies
        Studies such as feng-tu:fig3, papers (feng-tu, tsuzuku), field, or all.
    quick
        Smaller versions, about a minute each.
    original
        With the networks and data of the paper, where the study has smaller ones: hours, days.
    out
        The store that keeps runs and figures. Studies share runs; started again, they go on.
    executor
        serial, processes, dask (a local cluster), or tcp://host:port of a Dask scheduler.
    workers
        How many processes; by default one for each core.
    pages
        Also write a page for each paper, of all that is in the store, with its figures here;
        earlier pages are replaced, and nothing else.
    """
    if not studies and pages is None:
        _list(as_json)
        return
    if quick and original:
        raise InputError("--quick and --original are two versions of a study; leave out one")
    out = home(out)
    done: list[Outcome] = []
    written: list[Path] = []
    with Results() as results:
        with progress(quiet) as say:
            from lowland_studies import find
            from lowland_studies import reproduce_all as run

            chosen = find(*studies)
            if original:  # of a group, those that have one
                chosen = [s for s in chosen if s.name in studies or s.readings_of("original")]
                if studies and not chosen:
                    raise InputError(
                        f"no study of {', '.join(studies)} has an original version; leave out "
                        "--original"
                    )
            folder = _made(home(pages)) if pages is not None else None
            named = studies[0] if len(studies) == 1 else f"{len(chosen)} studies"
            work = run(
                chosen,
                out,
                version="quick" if quick else "original" if original else "full",
                executor=executor,
                workers=workers,
                progress=lambda now: say(f"{named}: {told(now)}"),
            )
            say(f"{named}: loading torch")
            try:
                for outcome in work:
                    done.append(outcome)
                    say(f"{outcome.name}: drawn and judged, {len(done)} of {len(chosen)}")
                if folder is not None:
                    written = _write_pages(out, folder)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"{len(done)} of {len(chosen)} studies are done, and single runs are kept "
                    f"in {out}; the same command goes on"
                ) from None
        if as_json:
            results.json(
                {
                    "studies": [outcome.to_dict() for outcome in done],
                    "pages": [str(p) for p in written],
                }
            )
        else:
            from lowland_studies.summary import draw_outcomes

            results.text(lambda console: draw_outcomes(console, done, out, written))


def _list(as_json: bool) -> None:
    from lowland_studies import STUDIES

    rows: list[dict[str, Any]] = [
        {
            "name": s.name,
            "title": s.title,
            "runs": sum(len(reading.grid) for reading in s.readings),
            "quick_runs": sum(len(reading.quick) for reading in s.readings),
            "original_runs": sum(len(r.original or ()) for r in s.readings),
        }
        for s in STUDIES.values()
    ]
    with Results() as results:
        if as_json:
            results.json(rows)
        else:
            from lowland_studies.summary import draw_studies

            results.text(lambda console: draw_studies(console, rows))


def _made(folder: Path) -> Path:
    """The folder for the pages, made before the work, so that an error comes early."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"there can be no pages in {folder}: {error.strerror}; choose another folder"
        ) from error
    return folder


def _write_pages(store: Path, folder: Path) -> list[Path]:
    """A page for each paper with what was reproduced in the store, and the figures beside it."""
    import shutil

    from lowland.atomic import write_file
    from lowland_studies import PAPERS, outcomes, page

    reproduced = outcomes(store)
    if not reproduced:
        raise InputError(f"{store} holds no study that was reproduced; name one to begin with")
    written = []
    for paper in dict.fromkeys(outcome.paper for outcome in reproduced):
        own = [outcome for outcome in reproduced if outcome.paper == paper]
        figures = [
            path
            for outcome in own
            for facts in outcome.readings
            for ending in (".png", "-runs.csv")
            if (path := store / outcome.folder / f"{facts.file}{ending}").exists()
        ]
        written.append(folder / f"{paper}.md")
        _check_ours(written[-1], [figure.name for figure in figures])
        for figure in figures:
            shutil.copyfile(figure, folder / figure.name)
        title = own[0].title if own[0].name == paper else paper
        write_file(written[-1], page(own, PAPERS.get(paper, title)))
    return written


def _check_ours(target: Path, figures: list[str]) -> None:
    """Raise if a page or its figures would take the place of files that are not ours."""
    if target.is_file():
        written = content(target).decode(errors="replace")
        foreign = [] if "command: `lowland reproduce " in written else [target.name]
    else:
        foreign = [name for name in figures if (target.parent / name).exists()]
    if foreign:
        raise InputError(
            f"{target.parent} holds {foreign[0]!r}, which Lowland did not write and will not "
            "replace; move it away, or choose another folder"
        )
