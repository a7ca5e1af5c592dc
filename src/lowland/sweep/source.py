"""The source that a run imports: the closure of its modules, and a digest of what they say.

Nothing is imported to find it: import statements are read wherever they stand in a file. A name
that comes from a door is followed to the file that defines it, so that one door does not bring in
the whole house. A door is an ``__init__`` that only hands out names: its ``__all__`` says which.
"""

import functools
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

from lowland.sweep.syntax import Chain, Import, Source, read, without_comments

# What shows, says, hands out or keeps what others compute. It decides no number, so the closure
# does not enter it. What it reads of a run is on disk already.
SILENT_ROOMS = frozenset(
    {
        *("errors", "atomic", "manifest", "reading", "wording", "report", "figures"),
        *("reference", "comparison", "sweep", "cli"),
    }
)

_PACKAGE = Path(__file__).parents[1]
_COMPILED = (".c", ".h", ".cc", ".cpp", ".cu")  # sources that a module names and compiles


@functools.cache
def digest(roots: frozenset[str], package: Path = _PACKAGE) -> str | None:
    """Return 16 hexadecimal digits of SHA-256 of the code that these modules import.

    The digest is taken over the names of modules and their syntax trees, without docstrings: a
    comment or another layout changes nothing. It is None if a root is not here.
    """
    closure = Closure(package)
    if not all(closure.root(name) for name in sorted(roots)):
        return None
    parts = sorted(f"{name} {part}" for name, part in closure.parts())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


class Closure:
    """The modules that count for a run: Lowland's and the user's, but no installed libraries."""

    def __init__(self, package: Path = _PACKAGE) -> None:
        self.modules: dict[str, Path] = {}
        self._others: dict[str, str] = {}  # constants of doors, and libraries that are roots
        self._package = package
        self._roots: set[str] = set()
        self._tops: set[str] = set()  # packages that count although they are installed
        self._seen: set[tuple[str, Chain | None]] = set()
        self._files: dict[str, Path | None] = {}

    def root(self, module: str) -> bool:
        """Follow a module that the run begins with; False if it is not here."""
        top = module.partition(".")[0]
        spec = None if top == "lowland" else _spec(top, os.getcwd())
        if spec is not None and _is_library(spec):
            owners = sorted(packages_distributions().get(top, []))
            needed = {
                re.split(r"[^\w-]", line)[0] for name in owners for line in requires(name) or ()
            }
            if "lowland" not in needed:  # it cannot call our code, and is known by its version
                self._others[module] = " ".join(f"{name} {version(name)}" for name in owners)
                return True
            self._tops.add(top)
        self._roots.add(module)
        self._follow(module, ())
        return self._file(module) is not None

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield each name that counts, with a digest of what stands behind it."""
        yield from self._others.items()
        for name, file in self.modules.items():
            source = _read(file)
            yield name, source.digest
            for text in source.texts:
                if (
                    text.endswith(_COMPILED)
                    and (beside := file.with_name(Path(text).name)).exists()
                ):
                    code = without_comments(beside.read_text(encoding="utf-8"))
                    yield f"{name} {text}", hashlib.sha256(code.encode()).hexdigest()

    def _add(self, module: str) -> None:
        """Add a module, and follow all that it imports."""
        file = self._file(module)
        if module in self.modules or file is None:
            return
        self.modules[module] = file
        source = _read(file)
        for found in source.imports:
            self._follow(self._absolute(found, module), found.names)
        for package in source.every:
            for below in self._below(package or module):
                self._follow(below, ())

    def _follow(self, module: str, names: Chain | None) -> None:
        """Add what an import brings, from the module or from behind its door."""
        file = self._file(module)
        if (module, names) in self._seen or file is None:
            return
        self._seen.add((module, names))
        parent = module.rpartition(".")[0]
        if parent:
            self._follow(parent, None)  # Python runs it first
        source = _read(file)
        if source.handed is None:
            self._add(module)
            if names and self._file(f"{module}.{names[0]}"):
                self._follow(f"{module}.{names[0]}", names[1:])
            return
        for found in source.imports:  # a door does not hand these out: they are run for an effect
            self._follow(self._absolute(found, module), found.names)
        for name in names[:1] or source.handed if names is not None else ():
            self._enter(module, source, name, (names or ())[1:])

    def _enter(self, module: str, door: Source, name: str, more: Chain) -> None:
        """Follow a name to where a door has it from."""
        found = door.handed.get(name) if door.handed else None
        origin = self._absolute(found, module) if found else ""
        if found and (origin, found.names) != (module, (name,)):
            self._follow(origin, (*(found.names or ()), *more))
        elif self._file(f"{module}.{name}"):
            self._follow(f"{module}.{name}", more)
        elif name in door.constants:
            self._others[f"{module}.{name}"] = door.constants[name]

    def _absolute(self, found: Import, module: str) -> str:
        """Return the full name of a module that may be written with dots."""
        if not found.dots:
            return found.module
        file = self._file(module)
        up = found.dots - (file is not None and file.stem == "__init__")
        base = module.split(".")
        return ".".join([*base[: len(base) - up], *filter(None, [found.module])])

    def _below(self, package: str) -> Iterator[str]:
        """Yield the modules of a package."""
        file = self._file(package)
        if file is not None and file.stem == "__init__":
            for beside in sorted(file.parent.iterdir()):
                name = f"{package}.{beside.stem}"
                if beside.stem != "__init__" and self._file(name):
                    yield name

    def _file(self, module: str) -> Path | None:
        """Return the file of a module that counts; None for any other."""
        if module not in self._files:
            self._files[module] = self._found(module)
        return self._files[module]

    def _found(self, module: str) -> Path | None:
        top, *parts = module.split(".")
        if top == "lowland":
            if parts and parts[0] in SILENT_ROOMS and module not in self._roots:
                return None
            place = self._package
        elif (spec := _spec(top, os.getcwd())) is None or (
            top not in self._tops and _is_library(spec)
        ):
            return None
        elif not spec.submodule_search_locations:
            return Path(spec.origin) if spec.origin and not parts else None
        else:
            place = Path(next(iter(spec.submodule_search_locations)))
        path = place.joinpath(*parts)
        files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
        return next((file for file in files if file.is_file()), None)


def _read(file: Path) -> Source:
    return read(file.read_text(encoding="utf-8", errors="replace"))


@functools.cache
def _spec(top: str, folder: str) -> ModuleSpec | None:
    """Find a module, or the package around modules, as an import would from this folder."""
    if top in sys.stdlib_module_names:
        return None
    try:
        return PathFinder.find_spec(top, [folder]) or importlib.util.find_spec(top, os.getcwd())
    except (ImportError, ValueError):  # of __main__, for one
        return None


def _is_library(spec: ModuleSpec) -> bool:
    """Tell whether a package was installed, and is not worked on in place."""
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return any(part in ("site-packages", "dist-packages") for p in places for part in Path(p).parts)
