"""What one source file says: its imports, its names if it is a door, a digest of its code."""

import ast
import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Chain = tuple[str, ...]  # the names behind a module's: ("mlp",) of lowland.training.mlp

_NO_CODE = {"ctx", "kind", "type_comment", "type_ignores"}  # fields of syntax that change no run


@dataclass(frozen=True)
class Import:
    """An import as it is written: dots, the module, and the names that are asked of it.

    The names are () for all of the module, and None if it is only run.
    """

    dots: int
    module: str
    names: Chain | None


@dataclass(frozen=True)
class Source:
    """A file of Python."""

    digest: str  # of its code, without comments, docstrings and layout
    imports: tuple[Import, ...]  # wherever they stand, but for type checkers only
    every: tuple[str, ...]  # packages whose modules it imports one by one; "" is its own
    handed: dict[str, Import] | None  # of a door: where each name that it hands out comes from
    constants: dict[str, str]  # of a door: the digests of its constants
    texts: frozenset[str]  # its string constants: they may name files beside it


@functools.cache
def read(text: str) -> Source:
    """Read a file; one that is no Python is taken as it is."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return Source(_sha(text), (), (), None, {}, frozenset())
    uses = _uses(tree)
    run = list(_run(tree))
    imports = [(name, found) for node in run for name, found in _imports(node, uses)]
    handed, constants = None, {}
    if (names := _handed_out(tree)) is not None:
        every = [pair for node in ast.walk(tree) for pair in _imports(node, {})]
        handed = {name: found for name, found in every if name in names}
        imports = [(name, found) for name, found in imports if name not in names]
        constants = {
            target.id: _sha(" ".join(_code(node)))
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and not target.id.startswith("_")
        }
    return Source(
        _sha(" ".join(_code(tree))),
        tuple(dict.fromkeys(found for _, found in imports)),
        tuple(package for node in run if (package := _every(node)) is not None),
        handed,
        constants,
        frozenset(n.value for n in run if isinstance(n, ast.Constant) and isinstance(n.value, str)),
    )


def without_comments(text: str) -> str:
    """Return C without comments, in single spaces."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')', re.DOTALL)
    return " ".join(token.sub(lambda match: match[1] or " ", text).split())


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _code(node: Any) -> Iterator[str]:
    """Yield the syntax of a node as words that every version of Python has in common."""
    if isinstance(node, ast.Constant):
        yield repr(node.value)
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for field in node._fields:
            value = getattr(node, field, None)
            if value is not None and value != [] and field not in _NO_CODE:
                yield f"{field}="
                yield from _code(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for inner in node:
            if not _is_idle(inner):
                yield from _code(inner)
        yield "]"
    else:
        yield repr(node)


def _is_idle(node: Any) -> bool:
    """Tell whether a statement does nothing, as a docstring does."""
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a file but for those that only type checkers read."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo += node.orelse if _is_for_type_checkers(node) else ast.iter_child_nodes(node)  # type: ignore[attr-defined]


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING"


def _last_name(node: ast.AST) -> str:
    """Return ``c`` of ``a.b.c``."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _imports(node: ast.AST, uses: dict[str, set[Chain]]) -> Iterator[tuple[str, Import]]:
    """Yield the imports of a statement, each with the name that it binds."""
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            bound = alias.asname or alias.name
            for more in uses.get(bound) or [()]:
                names = () if alias.name == "*" else (alias.name, *more)
                yield bound, Import(node.level, node.module or "", names)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            module = alias.name if alias.asname else bound
            yield bound, Import(0, alias.name, None)
            for more in uses.get(bound) or ():
                yield bound, Import(0, module, more)
    elif isinstance(path := _imported_path(node), ast.Constant):
        yield "", Import(0, str(path.value), ())


def _imported_path(node: ast.AST) -> ast.expr | None:
    """Return what ``import_module`` is called with."""
    called = isinstance(node, ast.Call) and node.args and _last_name(node.func)
    return node.args[0] if called in ("import_module", "__import__") else None  # type: ignore[attr-defined]


def _every(node: ast.AST) -> str | None:
    """Return the package of ``import_module(f"package.{name}")``, which takes all that is in it."""
    path = _imported_path(node)
    if not isinstance(path, ast.JoinedStr):
        return None
    first = path.values[0]
    if isinstance(first, ast.Constant):
        return str(first.value).rpartition(".")[0] or None
    own = isinstance(first, ast.FormattedValue) and _last_name(first.value) == "__name__"
    return "" if own else None


def _uses(tree: ast.AST) -> dict[str, set[Chain]]:
    """Return the attributes that are asked of each name: ("b", "c") of a for ``a.b.c``."""
    uses: dict[str, set[Chain]] = defaultdict(set)
    within: set[int] = set()
    for node in ast.walk(tree):
        chain: list[str] = []
        below: ast.AST = node
        while isinstance(below, ast.Attribute):
            chain.append(below.attr)
            below = below.value
        if isinstance(below, ast.Name) and id(below) not in within:
            within.add(id(below))
            uses[below.id].add(tuple(reversed(chain)))
    return uses


def _handed_out(tree: ast.Module) -> set[str] | None:
    """Return the names that a door hands out; None for a file that does more than that."""
    names = None
    for node in tree.body:
        if isinstance(node, ast.Assign) and _is_literal(node.value):
            if _last_name(node.targets[0]) == "__all__":
                names = set(ast.literal_eval(node.value))
        elif isinstance(node, ast.FunctionDef):
            if node.name not in ("__getattr__", "__dir__"):
                return None
        elif not (
            isinstance(node, ast.Import | ast.ImportFrom)
            or _is_for_type_checkers(node)
            or _is_idle(node)
        ):
            return None
    return names


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True
