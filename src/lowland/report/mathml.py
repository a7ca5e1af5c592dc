"""Formulas as MathML, which browsers draw themselves.

A formula is written as one would type it, and can be read in a terminal as it is:
`sum_n l_n / (l_n + 1/N)`. An index or power is one symbol, or many in brackets that are not shown;
`a / b` is a fraction; |x| is a length; Greek letters and operators have names; other words of two
letters or more are words. Whatever cannot be read in this way is shown as it is written.
"""

import re
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup, escape

GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "eps": "ε",
    "lambda": "λ",
    "mu": "μ",
    "omega": "ω",
    "pi": "π",
    "rho": "ρ",
    "sigma": "σ",
}
BIG = {"sum": "∑", "prod": "∏"}
BELOW = {"max", "min", "mean"}  # like sums, they carry an index below them
NAMED = {"sqrt", "log", "log2", "ln", "exp", "tr", "diag", "argmax", "kl", "KL", *BELOW}
SIGNS = {
    "<=": "≤", ">=": "≥", "!=": "≠", "+-": "±", "->": "→", "-": "−", "*": "⊙", "||": "‖", "~": "∼",
    "'": "′",
}  # fmt: skip
WIDE, THIN = '<mspace width="0.6em"/>', '<mspace width="0.2em"/>'
PAIRS = {"(": ")", "[": "]", "{": "}"}
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<word>\d+th|log2|[^\W\d_]{2,}'|[^\W\d_]+)|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<sign><=|>=|!=|\+-|->|\|\||.)"
)


class _Unreadable(Exception):
    pass


@cache
def mathml(text: str) -> Markup:
    """Return the formula as a <math> element; as plain text where it cannot be read.

    >>> print(mathml("1 / x"))
    <math displaystyle="true"><mfrac><mn>1</mn><mi>x</mi></mfrac></math>
    """
    try:
        reader = _Reader(_tokens(text))
        body = reader.row(())
        if reader.place < len(reader.tokens):
            raise _Unreadable
    except _Unreadable:
        return Markup('<span class="plain">{}</span>').format(text)
    return Markup(f'<math displaystyle="true">{body}</math>')


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    spaced: bool  # a space stands before it


@dataclass(frozen=True)
class _Term:
    """A part of a formula; ``bare`` is the same without the brackets around it."""

    shown: str
    bare: str
    scripts: str = ""  # "under": an index goes below
    inside: str = ""  # what any brackets hold


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    spaced = False
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "space":
            spaced = True
            continue
        assert kind is not None
        tokens.append(_Token(kind, match[0], spaced))
        spaced = False
    return tokens


@dataclass
class _Reader:
    tokens: list[_Token]
    place: int = 0

    def next(self) -> _Token | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self) -> _Token:
        token = self.next()
        if token is None:
            raise _Unreadable
        self.place += 1
        return token

    def row(self, ends: tuple[str, ...]) -> str:
        """Terms up to one of the ends, which is not taken."""
        shown: list[str] = []
        last: _Term | None = None  # that a fraction could begin with
        words: list[str] = []

        def flush() -> None:
            nonlocal last, words
            if words:
                shown.append(_text(" ".join(words), shown != [], True))
                words = []
            if last is not None:
                shown.append(last.shown)
                last = None

        while (token := self.next()) is not None and not self._ends(token, ends):
            if token.text == "/" and last is not None:
                self.take()
                below = self.factor()
                last = _same(f"<mfrac>{_grouped(last.bare)}{_grouped(below.bare)}</mfrac>")
            elif self._is_word(token):
                flush() if last is not None else None
                words.append(self.take().text)
            elif token.kind == "sign" and token.text not in (*PAIRS, "|", "∂", "#"):
                flush()
                shown.append(_sign(self.take().text))
                if token.text == "," and (after := self.next()) is not None and after.spaced:
                    shown.append(WIDE)
            elif token.text == "|" and self._separates():
                flush()
                self.take()
                shown.append("<mo>|</mo>")
            else:
                flush()
                last = self.factor()
                if token.text in NAMED - {"sqrt"} and self._follows():
                    flush()
                    shown.append(THIN)
        flush()
        return "".join(shown)

    def _follows(self) -> bool:
        """Whether a symbol comes next, from which the name of a function stands apart."""
        token = self.next()
        return token is not None and token.kind != "sign"

    def _ends(self, token: _Token, ends: tuple[str, ...]) -> bool:
        return token.text in ends and not (token.text == "|" and self._separates())

    def _separates(self) -> bool:
        """Whether a bar stands alone between spaces: given that."""
        after = self.tokens[self.place + 1] if self.place + 1 < len(self.tokens) else None
        return self.tokens[self.place].spaced and after is not None and after.spaced

    def _is_word(self, token: _Token) -> bool:
        plain = token.kind == "word" and len(token.text) > 1
        if token.text == "mean":
            after = self.tokens[self.place + 1 : self.place + 2]
            return not (after and after[0].text == "_")
        return plain and not (token.text in GREEK or token.text in BIG or token.text in NAMED)

    def factor(self) -> _Term:
        """A symbol, number, bracket or length with its index and power."""
        partial = (token := self.next()) is not None and token.text == "∂"
        term = self.atom()
        scripts: dict[str, str] = {}
        while (token := self.next()) is not None and token.text in "_^":
            if token.text in scripts:
                break
            self.take()
            scripts[token.text] = self.script()
        if scripts:
            term = _scripted(term, scripts.get("_"), scripts.get("^"))
        if not partial:
            return term
        return _same(f"<mrow>{term.shown}{self.factor().shown}</mrow>")

    def script(self) -> str:
        token = self.next()
        sign = ""
        if token is not None and token.text in ("+", "-", "+-"):
            sign = _sign(self.take().text)
            token = self.next()
            if token is None or token.kind == "sign" or token.spaced:
                return sign
        if token is not None and token.text in "{(":
            return _grouped(sign + self.atom().inside)
        body = self._letters(self.take()) if token is not None and token.kind == "word" else None
        if body is None:
            body = self.atom().shown
        # sigma_g,n has two indices, as the papers write them
        while (after := self.next()) is not None and after.text == "'":
            body += _sign(self.take().text)
        while self._comma_index():
            self.take()
            body += "<mo>,</mo>" + self._letters(self.take())
        return _grouped(sign + body)

    def _comma_index(self) -> bool:
        rest = self.tokens[self.place : self.place + 2]
        return (
            len(rest) == 2
            and rest[0].text == ","
            and rest[1].kind == "word"
            and len(rest[1].text) == 1
            and not rest[1].spaced
        )

    def _letters(self, token: _Token) -> str:
        """The letters of an index: each is one of its own, as in W_ij, unless they are a word."""
        if token.text in GREEK or len(token.text) > 2:
            return _symbol(token.text)
        return "".join(f"<mi>{escape(letter)}</mi>" for letter in token.text)

    def atom(self) -> _Term:
        token = self.take()
        if token.text in PAIRS:
            close = PAIRS[token.text]
            inside = self.row((close,))
            if self.take().text != close:
                raise _Unreadable
            tall = "<mfrac>" in inside or "<munder>" in inside
            sign = "<mo>" if tall else '<mo stretchy="false">'
            shown = f"<mrow>{sign}{token.text}</mo>{inside}{sign}{close}</mo></mrow>"
            return _Term(shown, inside if token.text == "(" else shown, inside=inside)
        if token.text == "|":
            inside = self.row(("|",))
            if self.take().text != "|":
                raise _Unreadable
            bar = "<mo>|</mo>" if "<mfrac>" in inside else '<mo stretchy="false">|</mo>'
            return _same(f"<mrow>{bar}{inside}{bar}</mrow>")
        if token.text == "sqrt":
            if (after := self.next()) is None or after.text != "(":
                raise _Unreadable
            return _same(f"<msqrt>{self.atom().bare}</msqrt>")
        if token.kind == "number":
            return _same(f"<mn>{token.text}</mn>")
        if token.text in ("∂", "#"):
            return _same(f"<mo>{token.text}</mo>")
        if token.kind != "word":
            raise _Unreadable
        if token.text in BIG:
            return _Term(f"<mo>{BIG[token.text]}</mo>", f"<mo>{BIG[token.text]}</mo>", "under")
        shown = _symbol(token.text)
        while (after := self.next()) is not None and after.text == "'":
            self.take()
            shown = f"<msup>{shown}<mo>′</mo></msup>"
        return _Term(shown, shown, "under" if token.text in BELOW else "")


def _scripted(term: _Term, low: str | None, high: str | None) -> _Term:
    if term.scripts == "under":
        tag = "munderover" if low and high else "munder" if low else "mover"
    else:
        tag = "msubsup" if low and high else "msub" if low else "msup"
    return _same(f"<{tag}>{term.shown}{low or ''}{high or ''}</{tag}>")


def _same(shown: str) -> _Term:
    return _Term(shown, shown)


def _symbol(name: str) -> str:
    if name in GREEK:
        return f"<mi>{GREEK[name]}</mi>"
    if name == "log2":
        return "<msub><mi>log</mi><mn>2</mn></msub>"
    if name in NAMED:
        return f'<mi mathvariant="normal">{name}</mi>'
    return f"<mi>{escape(name)}</mi>" if len(name) == 1 else _text(name)


def _sign(text: str) -> str:
    return f"<mo>{escape(SIGNS.get(text, text))}</mo>"


def _text(words: str, before: bool = False, after: bool = False) -> str:
    space = "\u00a0"  # others at the ends of a text are not shown
    return f"<mtext>{space * before}{escape(words)}{space * after}</mtext>"


def _grouped(body: str) -> str:
    return body if len(re.findall("<m[a-z]", body)) == 1 else f"<mrow>{body}</mrow>"
