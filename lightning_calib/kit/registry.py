"""Things by name: ours, those of other packages (entry points), those of a script (``register``), dotted paths."""

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

Thing = TypeVar("Thing")

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


class Registry(Generic[Thing]):
    """Named things of one kind, loaded when they are asked for.

    A name is looked up among what was registered, then among ours, then among the entry points of installed
    packages; a dotted path such as ``mypackage.module.Class`` is imported and registered under itself.

    Args:
        kind: what the things are, for messages.
        group: entry-point group of other packages, such as ``lightning_calib.calibrators``.
        ours: places ``module:attribute`` of our own, by name, in the order in which they are listed.
        check: refuses a thing that is none of this kind; gets the name and the thing.

    Example:
        >>> codecs = Registry("codec", "lightning_calib.codecs", {"json": "json:loads"})
        >>> codecs["json"]("[1]"), codecs.names()
        ([1], ('json',))
        >>> codecs["jsom"]
        Traceback (most recent call last):
        ...
        ValueError: unknown codec 'jsom'; did you mean json? There are: json
    """

    def __init__(
        self, kind: str, group: str, ours: Mapping[str, str], check: Callable[[str, Any], None] | None = None
    ) -> None:
        self.kind, self.group, self.ours, self.check = kind, group, dict(ours), check
        self.registered: dict[str, Thing] = {}

    def register(self, name: str, thing: Thing) -> Thing:
        """Add a thing of one's own; the same thing may be added again, another one under a taken name may not."""
        if name in self.ours or not self._same(self.registered.get(name, thing), thing):
            raise ValueError(f"there is a {self.kind} {name!r} already; choose another name")
        if self.check is not None:
            self.check(name, thing)
        self.registered[name] = thing
        _note_caller()
        return thing

    @staticmethod
    def _same(first: object, second: object) -> bool:
        """Whether two things are one, also where a module was run twice, as Python does with scripts in workers."""
        name = getattr(first, "__qualname__", None)
        return first is second or first == second or (name is not None and name == getattr(second, "__qualname__", 0))

    def __getitem__(self, name: str) -> Thing:
        """The thing of a name; a wrong name lists the right ones."""
        if name in self.registered:
            return self.registered[name]
        if name in self.ours:
            module, _, attribute = self.ours[name].partition(":")
            found: Thing = getattr(importlib.import_module(module), attribute)
            return found
        if name in _installed(self.group):
            return self.register(name, _load(_installed(self.group)[name], self.kind))
        if _DOTTED.fullmatch(name):
            return self.register(name, self._import(name))
        near = difflib.get_close_matches(name, self.names(), n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown {self.kind} {name!r}; {guess}There are: {', '.join(self.names())}")

    def __contains__(self, name: object) -> bool:
        """Whether a name is known without importing a dotted path."""
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        """All names."""
        return iter(self.names())

    def names(self) -> tuple[str, ...]:
        """Ours, then those of other packages, then registered ones."""
        return tuple(dict.fromkeys((*self.ours, *_installed(self.group), *self.registered)))

    def values(self) -> list[Thing]:
        """All things, loaded."""
        return [self[name] for name in self.names()]

    def name_of(self, thing: Thing) -> str | None:
        """The name under which a thing is known; None where it is not."""
        return next((name for name in self.names() if self[name] is thing), None)

    def _import(self, path: str) -> Thing:
        module, _, attribute = path.rpartition(".")
        try:
            found: Thing = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as problem:
            raise ValueError(
                f"cannot import the {self.kind} {path}: {problem}; is its package installed, or on PYTHONPATH?"
            ) from problem
        if module != "__main__":
            _MODULES[module] = None  # files that name the class by its path are read in workers, too
        return found


def refuse_strange(path: str, file: object, trust: bool = False) -> None:
    """Refuse a class path out of a file that would import another package's module: that runs its code.

    Args:
        path: dotted path of a class.
        file: the file that names it, for the message.
        trust: whether the user trusts the file.

    Raises:
        ValueError: where the module is neither ours nor imported already, and the file is not trusted.
    """
    module = path.rpartition(".")[0]
    ours = module.partition(".")[0] == __name__.partition(".")[0]
    if module and not ours and module not in sys.modules and not trust:
        raise ValueError(
            f"{file} names the class {path} of another package, which is not known here, and a file alone causes no "
            "import, since that runs code: where you trust the file, give --trust (in Python trust=True), or import "
            "the class before; a package can make its classes known by entry points"
        )


_MODULES: dict[str, None] = {}  # modules whose import registers something, in order


def _note_caller() -> None:
    """Remember the module that registers something, behind our ``register_*`` functions: workers import it, too."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name.startswith("register_"):
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__"))
    if name in sys.modules and name != __name__:  # entry points and dotted paths need no help
        _MODULES[name] = None


def registering_modules() -> list[str]:
    """Modules that registered something here; imported elsewhere, they register it there.

    Raises:
        ValueError: where that was done in a notebook or at a prompt, which other processes cannot import.
    """
    main = sys.modules["__main__"]
    if "__main__" in _MODULES and not hasattr(main, "__file__"):
        raise ValueError(
            "something was registered in a notebook or at a prompt, which worker processes cannot import: "
            "put it into a module, or do without workers (workers=0)"
        )
    return [name for name in _MODULES if name not in ("__main__", "__mp_main__")]  # Python itself runs these again


def registered_in_script() -> bool:
    """Whether the script that runs registered something itself: only processes that run it again know of it."""
    return "__main__" in _MODULES


def import_modules(names: list[str]) -> None:
    """Import the modules that registered something in the parent process."""
    for name in names:
        importlib.import_module(name)


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def _load(entry: EntryPoint, kind: str) -> Any:  # noqa: ANN401
    try:
        return entry.load()
    except Exception as problem:
        package = entry.dist.name if entry.dist is not None else entry.value
        raise ValueError(f"the package {package} offers the {kind} {entry.name!r}, but: {problem!r}") from problem
