"""Saved results as one self-contained HTML page; nothing here computes or imports torch."""

from lowland.report.analysis_page import render
from lowland.report.comparison_page import render_comparison
from lowland.report.comparison_words import compared
from lowland.report.landscape_page import render_landscape
from lowland.report.numbers import number
from lowland.report.page import show
from lowland.report.static import figure_files, notebook
from lowland.report.words import answer, standing

__all__ = [
    "answer",
    "compared",
    "figure_files",
    "notebook",
    "number",
    "render",
    "render_comparison",
    "render_landscape",
    "show",
    "standing",
]
