"""Pictures of the loss in weight space: lines, surfaces, planes through models, and paths."""

from lowland.landscape.alignment import Aligned, align
from lowland.landscape.line import line
from lowland.landscape.models import ModelLike, model_at, names_of, state_of
from lowland.landscape.path import path
from lowland.landscape.surface import plane, surface
from lowland.landscape.trajectory import Trajectory

__all__ = [
    "Aligned",
    "ModelLike",
    "Trajectory",
    "align",
    "line",
    "model_at",
    "names_of",
    "path",
    "plane",
    "state_of",
    "surface",
]
