"""Results as figures for papers and notebooks, in one style, by matplotlib.

Each function draws one result, by the fields of its type, on given axes. Nothing here computes or
imports another room, so that every type can have its ``plot``.
"""

from lowland.figures.landscapes import draw_line, draw_path, draw_solid, draw_surface
from lowland.figures.measures import draw_measures
from lowland.figures.spectra import draw_density, draw_eigenvalues
from lowland.figures.splits import draw_directions, draw_layers, draw_split, draw_training
from lowland.figures.style import FORMATS, Draw, drawn_on, picture, saved

__all__ = [
    "FORMATS",
    "Draw",
    "draw_density",
    "draw_directions",
    "draw_eigenvalues",
    "draw_layers",
    "draw_line",
    "draw_measures",
    "draw_path",
    "draw_solid",
    "draw_split",
    "draw_surface",
    "draw_training",
    "drawn_on",
    "picture",
    "saved",
]
