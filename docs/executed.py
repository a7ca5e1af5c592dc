"""Pages whose Python runs when the docs are built, each block with what it printed and drew below.

The pages stay plain Markdown. The blocks of a page share their names, as the cells of a notebook
do, and run in an empty directory. A block that fails is a warning, and so fails the build.
"""

import contextlib
import io
import os
import re
import tempfile
import textwrap
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import torch

BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PAGES = re.compile(r"(questions|tutorials)/\w+|migration")


def with_outputs(text: str, page: str, pictures: Path) -> str:
    """The Markdown of a page with the outputs of its blocks; figures go to ``pictures``."""
    names = {"__name__": "__main__"}
    count = 0

    def run(match: re.Match) -> str:
        nonlocal count
        count += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match[1], f"{page}, block {count}", "exec"), names)
        shown = [match[0]]
        if output := _folded(printed.getvalue().rstrip()):
            shown.append(f"```{{code-block}} text\n:class: output\n\n{output}\n```\n")
        for number in plt.get_fignums():
            file = pictures / f"{page.replace('/', '-')}-{count}-{number}.png"
            plt.figure(number).savefig(file, dpi=200)
            shown.append(f"![What this code draws](/{pictures.name}/{file.name})\n")
        plt.close("all")
        return "\n".join(shown)

    plt.close("all")  # figures that others left open are none of this page's
    with _at_an_empty_desk():
        return BLOCK.sub(run, text)


def _folded(output: str) -> str:
    """The output with its long lines, which are prose, folded; tables stay as they are."""
    lines = (textwrap.wrap(line, 84) if len(line) > 100 else [line] for line in output.split("\n"))
    return "\n".join(line for folded in lines for line in folded)


@contextlib.contextmanager
def _at_an_empty_desk():
    """An empty current directory; threads and random state are put back."""
    before, threads = os.getcwd(), torch.get_num_threads()
    matplotlib.use("Agg")
    with tempfile.TemporaryDirectory() as desk, torch.random.fork_rng():
        os.chdir(desk)
        try:
            yield
        finally:
            os.chdir(before)
            torch.set_num_threads(threads)
            plt.close("all")


def _read(app, page, source):
    if not PAGES.fullmatch(page):
        return
    pictures = Path(app.srcdir) / "generated"
    pictures.mkdir(exist_ok=True)
    try:
        source[0] = with_outputs(source[0], page, pictures)
    except Exception as error:  # whatever it is, the page says what does not work
        from sphinx.util import logging  # late: the tests run pages without Sphinx

        log = logging.getLogger(__name__)
        log.warning("its code fails: %s: %s", type(error).__name__, error, location=page)


def setup(app):
    app.connect("source-read", _read)
