"""All studies by name: the papers', the field's and the league."""

import difflib
import functools
import importlib
import pkgutil
from typing import Any

from lowland.errors import InputError
from lowland_studies import field
from lowland_studies.study import Study

PAPERS = {
    "feng-tu": "Feng and Tu, The activity-weight duality in feed forward neural networks",
    "tsuzuku": "Tsuzuku, Sato and Sugiyama, Normalized Flat Minima",
    "output-dual": "Claims of Feng and Tu by the output-level dual, and in other networks",
    "league": "The league table: which measure predicts the gap",
}

STUDIES: dict[str, Study]  # by name, made when first asked for: workers come for a network only


def __getattr__(name: str) -> Any:
    if name == "STUDIES":
        return _all()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def of_the_field() -> tuple[Study, ...]:
    """Return the study of every file and folder of ``field``, sorted by name."""
    places = sorted(pkgutil.iter_modules(field.__path__), key=lambda place: place.name)
    names = [f"{place.name}.study" if place.ispkg else place.name for place in places]
    return tuple(importlib.import_module(f"{field.__name__}.{name}").STUDY for name in names)


@functools.cache
def _all() -> dict[str, Study]:
    from lowland_studies import feng_tu, league, output_dual, tsuzuku, tsuzuku_algebra

    figures = *tsuzuku.STUDIES, *tsuzuku_algebra.STUDIES, *tsuzuku.LARGE
    every = *feng_tu.STUDIES, *figures, *output_dual.STUDIES, *of_the_field(), league.STUDY
    return {s.name: s for s in every}


def find(*names: str) -> list[Study]:
    """The studies of these names, of a paper, of the "field", or "all"; large ones if named."""
    return list({study.name: study for name in names for study in _find(name)}.values())


def _find(name: str) -> list[Study]:
    from lowland_studies.tsuzuku import LARGE

    studies = _all()
    if name in studies:
        return [studies[name]]
    if name == "field":
        return list(of_the_field())
    several = [s for s in studies.values() if name in ("all", s.paper) and s not in LARGE]
    if not several:
        names = [*studies, *PAPERS, "field", "all"]
        near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        raise InputError(f"there is no study {name!r}; {hint}")
    return several
