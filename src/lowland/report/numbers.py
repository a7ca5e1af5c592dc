"""How a number is written, so that the page and the terminal never write it in two ways."""

import math
from datetime import UTC, datetime


def number(value: float | None, digits: int = 4) -> str:
    """Write a value with `digits` significant digits, or say in words why there is none.

    >>> number(0.16234), number(24720), number(1.234e-16), number(float("nan"))
    ('0.1623', '24,720', '1.23e-16', 'not defined: the computation gave no number')
    """
    if value is None:
        return "not recorded"
    if math.isnan(value):
        return "not defined: the computation gave no number"
    if math.isinf(value):
        return "not defined: the computation overflowed"
    if value == 0:
        return "0"
    if isinstance(value, int):
        return f"{value:,}"
    if 10 ** (digits - 1) <= abs(value) < 1e6:
        return f"{value:,.0f}"
    # Rounding first: 0.00099996 has four digits that read 0.001000, not 1e-3.
    if 1e-3 <= abs(float(f"{value:.{digits}g}")) < 1e6:
        return f"{value:#.{digits}g}".removesuffix(".")
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def percent(fraction: float | None, decimals: int = 1) -> str:
    """Write a fraction of one as per cent; words where there is no number."""
    if fraction is None or not math.isfinite(fraction):
        return number(fraction)
    return f"{100 * fraction:.{decimals}f} %"


def duration(seconds: float | None) -> str:
    """Write a time the way a person says it: '0.31 s', '21.3 s', '4 min 05 s'."""
    if seconds is None or not math.isfinite(seconds):
        return number(seconds)
    if seconds < 60:
        return f"{seconds:#.3g} s" if seconds >= 0.001 else "under 1 ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def date(text: str) -> str:
    """Write an ISO 8601 time stamp in words and UTC; any other text is returned as it came."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if moment.tzinfo is None:
        return f"{moment.day} {moment:%B %Y, %H:%M}"
    moment = moment.astimezone(UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
