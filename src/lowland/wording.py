"""Words that many rooms need: counts, suggestions for a name, and text that is safe to show."""

import difflib
from collections.abc import Iterable, Mapping


def counted(count: int, noun: str, verbs: tuple[str, str] | None = None) -> str:
    """Write a count with its noun and, if given, the verb that agrees with it.

    >>> counted(1, "pair"), counted(1200, "pair"), counted(1, "sample", ("has", "have"))
    ('1 pair', '1,200 pairs', '1 sample has')
    """
    words = f"{count:,} {noun}{'' if count == 1 else 's'}"
    return words if verbs is None else f"{words} {verbs[count != 1]}"


def suggestion(word: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Ask whether another name was meant: one of that meaning, or that is spelt alike.

    The text is empty where no name comes near.

    >>> suggestion("hessian_trace", ["trace", "fisher_trace"], {"hessian_trace": "trace"})
    "did you mean 'trace'?"
    """
    plain = str(word).strip().lower().replace("-", "_").replace(" ", "_")
    meant = {name.lower(): name for name in names} | dict(synonyms or {})
    near = [plain] if plain in meant else difflib.get_close_matches(plain, meant, n=1)
    return f"did you mean {meant[near[0]]!r}?" if near else ""


def printable(text: str) -> str:
    """Replace what a terminal could take for a command, or turn around, by question marks.

    >>> printable("a \\x1b[31mred\\x07 name")
    'a ?[31mred? name'
    """
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def cell(value: object) -> object:
    """Return a table's cell as a spreadsheet shows it rather than runs it; numbers stay numbers.

    >>> cell("=cmd()"), cell("plain"), cell(-1.5)
    ("'=cmd()", 'plain', -1.5)
    """
    if not isinstance(value, str):
        return value
    mark = "'" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else ""
    return mark + value.replace("\r", " ")  # which would begin a row, and is not quoted
