"""Lowland measures, explains, pictures and finds flat minima of neural networks."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowland import data, optim, sweep, training
    from lowland.analysis import analyze
    from lowland.comparison import Comparison, compare
    from lowland.curvature import (
        Density,
        Diagonal,
        Eigenpairs,
        Estimate,
        diagonal,
        eigsh,
        fisher,
        ggn,
        hessian,
        layer_hessian,
        layer_operator,
        spectral_density,
        trace,
    )
    from lowland.dual import Pairs, duality, pair
    from lowland.errors import InputError
    from lowland.findings import (
        Decomposition,
        Decompositions,
        Landscape,
        Line,
        Origin,
        Surface,
    )
    from lowland.landscape import Trajectory, line, path, plane, surface
    from lowland.losses import ModelLoss
    from lowland.measures import Measurement, Measurements, Stress, measure, stress
    from lowland.pictures import load_landscape, save_landscape
    from lowland.probe import Probe
    from lowland.problem import Problem
    from lowland.radius import RhoRange, rho_range
    from lowland.rescaling import rescale
    from lowland.results import Analysis, load

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "Comparison",
    "Decomposition",
    "Decompositions",
    "Density",
    "Diagonal",
    "Eigenpairs",
    "Estimate",
    "InputError",
    "Landscape",
    "Line",
    "Measurement",
    "Measurements",
    "ModelLoss",
    "Origin",
    "Pairs",
    "Probe",
    "Problem",
    "RhoRange",
    "Stress",
    "Surface",
    "Trajectory",
    "analyze",
    "compare",
    "data",
    "diagonal",
    "duality",
    "eigsh",
    "fisher",
    "ggn",
    "hessian",
    "layer_hessian",
    "layer_operator",
    "line",
    "load",
    "load_landscape",
    "measure",
    "optim",
    "pair",
    "path",
    "plane",
    "rescale",
    "rho_range",
    "save_landscape",
    "spectral_density",
    "stress",
    "surface",
    "sweep",
    "trace",
    "training",
]

_ROOMS = {
    "analysis": ("analyze",),
    "comparison": ("Comparison", "compare"),
    "curvature": (
        "Density",
        "Diagonal",
        "Eigenpairs",
        "Estimate",
        "diagonal",
        "eigsh",
        "fisher",
        "ggn",
        "hessian",
        "layer_hessian",
        "layer_operator",
        "spectral_density",
        "trace",
    ),
    "dual": ("Pairs", "duality", "pair"),
    "errors": ("InputError",),
    "findings": ("Decomposition", "Decompositions", "Landscape", "Line", "Origin", "Surface"),
    "landscape": ("Trajectory", "line", "path", "plane", "surface"),
    "losses": ("ModelLoss",),
    "measures": ("Measurement", "Measurements", "Stress", "measure", "stress"),
    "pictures": ("load_landscape", "save_landscape"),
    "probe": ("Probe",),
    "problem": ("Problem",),
    "radius": ("RhoRange", "rho_range"),
    "rescaling": ("rescale",),
    "results": ("Analysis", "load"),
}


def __getattr__(name: str) -> Any:
    # Rooms load when first used: importing torch takes seconds, and `lowland --help` needs none.
    if name in ("data", "optim", "sweep", "training"):  # rooms that are public as they are
        return importlib.import_module(f"lowland.{name}")
    for room, names in _ROOMS.items():
        if name in names:
            attribute = getattr(importlib.import_module(f"lowland.{room}"), name)
            globals()[name] = attribute
            return attribute
    raise AttributeError(f"module 'lowland' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
