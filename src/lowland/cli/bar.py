"""A progress bar with the present stage and the time left, for a terminal."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from lowland.budget import Stage, in_words


@contextlib.contextmanager
def bar(console: Console) -> Iterator[Callable[[str], None]]:
    """Draw stages while the block runs; only lines that are meant to last stay afterwards."""
    stages = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    columns = (SpinnerColumn(), stages, _Share(bar_width=20), _TimeLeft())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("starting", total=None, ends=None)

        def draw(stage: str) -> None:
            if isinstance(stage, Stage) and stage.lasting:
                shown.console.print(Text(stage))
            done, left = getattr(stage, "done", None), getattr(stage, "left", None)
            ends = None if left is None else time.monotonic() + left
            if not getattr(stage, "lasting", False):
                shown.update(task, description=str(stage))
            shown.update(task, total=None if done is None else 1.0, completed=done, ends=ends)

        yield draw


class _Share(BarColumn):
    """A bar where the share of the work that is done is known."""

    def render(self, task: Task) -> RenderableType:  # type: ignore[override]
        return Text("") if task.total is None else super().render(task)


class _TimeLeft(ProgressColumn):
    """The time left, by the prediction at the last stage and the clock since."""

    def render(self, task: Task) -> Text:
        ends = task.fields["ends"]
        if ends is None:
            return Text("")
        left = ends - time.monotonic()
        return Text(f"about {in_words(left)} left" if left >= 1 else "nearly done", style="dim")
