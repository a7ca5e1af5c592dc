"""Sphinx settings. Nothing here reaches for the network: no inventories, no fonts, no scripts."""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import executed
import gallery
import mathml

import lowland

# The pages of the studies lie beside these, and are a part of this site.
DOCS = Path(__file__).parent
shutil.rmtree(DOCS / "reproduction", ignore_errors=True)
shutil.copytree(DOCS.parent / "studies" / "published", DOCS / "reproduction")

project = "Lowland"
author = "The Lowland authors"
copyright = "The Lowland authors, MIT licence"
version = release = lowland.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "generated"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"Lowland {version}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["formulas.css", "pages.css"]
html_copy_source = False


def setup(app):
    app.connect("builder-inited", lambda app: gallery.write(Path(app.srcdir)))
    mathml.setup(app)
    executed.setup(app)
