"""How long a run may take: reading it, keeping to it, and ending early without losing anything."""

import contextlib
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any

from lowland.errors import InputError

DEFAULT = 300.0  # seconds
EVERYTHING = "none"
_LONG = 60.0  # seconds that an estimate says before it takes them

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_FORM = re.compile(r"(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s?)?")
# The moment at which work that is under way stops, by the clock of time.monotonic.
_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)


class OutOfBudget(BaseException):
    """Raised between two passes over the data when the time is up.

    Not an ``Exception``: like an interrupt it is no error of the code that it comes out of, and
    whatever tries another way after an error must not try one after this.
    """


def seconds(budget: float | str) -> float:
    """A budget in seconds; infinite for ``"none"``.

    >>> seconds(90), seconds("90"), seconds("90s"), seconds("5m"), seconds("1h30m")
    (90.0, 90.0, 90.0, 300.0, 5400.0)
    """
    read = None
    if isinstance(budget, str):
        text = budget.strip().lower().replace(" ", "")
        if text == EVERYTHING:
            return math.inf
        if text and (parts := _FORM.fullmatch(text)):
            with contextlib.suppress(ValueError):  # 1.2.3
                read = sum(
                    float(part) * unit
                    for part, unit in zip(parts.groups(), _UNITS.values(), strict=True)
                    if part
                )
    elif isinstance(budget, int | float) and not isinstance(budget, bool):
        read = float(budget)
    if read is None or not read > 0:  # also NaN
        raise InputError(
            f"budget is a time such as '90s', '5m' or '1h30m', a number of seconds, or "
            f"{EVERYTHING!r} for no limit; got {budget!r}"
        )
    return read


def in_words(duration: float) -> str:
    """A time in seconds the way a person says it.

    >>> in_words(0.034), in_words(1.52), in_words(220), in_words(300), in_words(8000)
    ('34 ms', '1.5 s', '3 min 40 s', '5 min', '2 h 13 min')
    """
    if not math.isfinite(duration):
        return "no limit"
    if duration < 0.0995:
        return f"{1000 * duration:.2g} ms" if duration >= 1e-4 else "under 0.1 ms"
    if duration < 9.95:
        return f"{duration:.1f} s"
    if duration < 59.5:
        return f"{duration:.0f} s"
    high, low, factor = ("min", "s", 1) if duration < 3570 else ("h", "min", 60)
    whole, rest = divmod(round(duration / factor), 60)
    return f"{whole} {high}" + (f" {rest} {low}" if rest else "")


@dataclass(frozen=True)
class Work:
    """What a computation takes, as it stands beside its code: passes over the training data.

    ``needs`` are shared computations that it reads. They have a cost of their own, and are counted
    once however many read them.
    """

    forwards: float = 0  # losses of all samples
    gradients: float = 0
    products: float = 0  # of the Hessian with one vector
    columns: float = 0  # the same in blocks of a few
    ggn_columns: float = 0  # of the Gauss-Newton matrix, one by one
    diagonals: float = 0  # exact Gauss-Newton diagonals of all parameters
    fishers: float = 0  # exact diagonals of the empirical Fisher matrix
    sample_flops: float = 0  # of linear algebra with every sample
    flops: float = 0  # of linear algebra, whatever the number of samples
    needs: tuple[Callable[..., Any], ...] = ()

    def __add__(self, other: "Work") -> "Work":
        """Both together."""
        sums = {unit: getattr(self, unit) + getattr(other, unit) for unit in UNITS}
        return Work(**sums, needs=(*self.needs, *other.needs))

    def times(self, factor: float) -> "Work":
        """The same more often; what is shared is still done once."""
        return replace(self, **{unit: factor * getattr(self, unit) for unit in UNITS})


UNITS = tuple(field.name for field in fields(Work) if field.name != "needs")
DERIVATIVES = ("gradients", "products", "columns", "ggn_columns", "diagonals", "fishers")


class Stage(str):
    """The name of a stage of work, as progress callbacks get it: a text that knows more.

    ``done`` is the share of all work, from 0 to 1, that was done when it began; ``left`` the
    seconds from there to the end, and ``takes`` those of the stage itself, by prediction. All are
    None where nothing was predicted. ``lasting`` marks a line for the reader to keep, as the plan.
    """

    done: float | None
    left: float | None
    takes: float | None
    lasting: bool

    def __new__(
        cls,
        text: str,
        done: float | None = None,
        left: float | None = None,
        takes: float | None = None,
        lasting: bool = False,
    ) -> "Stage":
        """The text with what is known of it."""
        stage = super().__new__(cls, text)
        stage.done, stage.left, stage.takes, stage.lasting = done, left, takes, lasting
        return stage


class Clock:
    """The time of one run: what it may take, what it took, and why it ended early, if it did."""

    def __init__(self, allowed: float = math.inf) -> None:
        self.allowed = allowed
        self.stopped: str | None = None  # in words
        self.interrupted = False
        self._began = time.monotonic()

    @property
    def spent(self) -> float:
        """The seconds since the run began."""
        return time.monotonic() - self._began

    @contextlib.contextmanager
    def limited(self, *, timed: bool = True) -> Iterator[None]:
        """Work that ends when the time is up, unless not ``timed``, or by Ctrl-C.

        ``stopped`` then says why.
        Both end this block quietly, so that what was done before it can be kept. An interrupt that
        comes outside of such a block, a second one for example, ends the program as usual.
        """
        token = _DEADLINE.set(self._began + self.allowed if timed else math.inf)
        try:
            yield
        except OutOfBudget:
            self.stopped = f"the budget of {in_words(self.allowed)} ran out"
        except KeyboardInterrupt:
            self.stopped, self.interrupted = "interrupted", True
        finally:
            _DEADLINE.reset(token)


@contextlib.contextmanager
def at_most(allowed: float) -> Iterator[None]:
    """Work that ends quietly after so many seconds; and with the run, if its time is up before."""
    token = _DEADLINE.set(min(_DEADLINE.get(), time.monotonic() + allowed))
    try:
        yield
    except OutOfBudget:
        pass
    finally:
        _DEADLINE.reset(token)
    check_time()


def check_time() -> None:
    """Stop here if the time of the run is up; called wherever data go through a model."""
    if time.monotonic() > _DEADLINE.get():
        raise OutOfBudget


class Forecast:
    """Says once, before it is spent, that work without a time limit will take long."""

    def __init__(self) -> None:
        self._began, self._told = time.monotonic(), False

    def tell(self, done: float, left: float, unit: str) -> None:
        """Warn if what is left takes more than a minute at the pace so far."""
        spent = time.monotonic() - self._began
        seconds = spent * left / max(done, 1.0)
        if self._told or seconds < _LONG or _DEADLINE.get() < math.inf:
            return
        self._told = True
        warnings.warn(
            f"this estimate takes about {in_words(seconds)} from here: {left:,.0f} {unit}, where "
            f"{done:,.0f} took {in_words(spent)}; max_matvecs=... ends it earlier, with the error "
            "that it has then",
            stacklevel=2,
        )


def limit(budget: float | str | None, default: float) -> float:
    """The seconds of a budget that may be left out."""
    return default if budget is None else seconds(budget)
