"""Saved results as one self-contained HTML page; nothing here computes or imports torch."""

from lowland.report.analysis_page import render
from lowland.report.comparison_page import compared, render_comparison
from lowland.report.words import answer

__all__ = ["answer", "compared", "render", "render_comparison"]
