"""Formulas as MathML, which browsers draw themselves: no script to load, so the pages work offline.

docutils translates the LaTeX; what it does not know is a warning, and so fails the build.
"""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

_log = logging.getLogger(__name__)


def _translated(node, as_block):
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        _log.warning("docutils cannot translate this formula: %s", error, location=node)
        return f"<code>{node.astext()}</code>"


def _visit_inline(writer, node):
    writer.body.append(_translated(node, as_block=False))
    raise nodes.SkipNode


def _visit_block(writer, node):
    writer.body.append(f'<div class="math">{_translated(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_block, None))
