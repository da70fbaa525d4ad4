"""What a function takes and says about itself, read from its source: nothing is imported for it."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def as_typed(text: str) -> str:
    """What a docstring says, in the words of the command line.

    Example:
        >>> as_typed("``order``, or None for all.")
        'order, or null for all.'
    """
    return re.sub(r"\bNone\b", "null", text.replace("``", ""))


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function.

    Attributes:
        told: what the docstring says about it.
        default: as the source has it; None where one has to be given.
    """

    told: str
    default: str | None

    @property
    def required(self) -> bool:
        """Whether a value has to be given."""
        return self.default is None

    def __str__(self) -> str:
        """Explanation and default, where the default tells something."""
        if self.default is None:
            return f"{self.told} (required)"
        known = re.fullmatch(r"'[^']*'|[\d.]+|True|False", self.default)
        return f"{self.told} (default: {self.default.strip(chr(39)).lower()})" if known else self.told


def described(place: str) -> str:
    """First line of the docstring of ``module:object``; what its module says where the object is no function.

    Example:
        >>> described("lightning_calib.cli.doctor:doctor")
        'Examine frozen outputs for the mistakes that make calibration meaningless.'
    """
    node = _found(place)
    if node is not None:
        return (ast.get_docstring(node) or "").partition("\n")[0]
    text = (ast.get_docstring(_tree(place.partition(":")[0])) or "").partition("\n")[0].rpartition("``: ")[2]
    return as_typed(text[:1].upper() + text[1:])


def parameters(place: str) -> dict[str, Parameter]:
    """Parameters of a function, or of what makes an object of a class, by name.

    Example:
        >>> parameters("lightning_calib.cli.report:report")["preserve"].default
        "'order'"
    """
    node = _found(place)
    assert node is not None, place
    told = {name: " ".join(as_typed(text).split()) for name, text in _ARGUMENT.findall(_arguments(node))}
    return {name: Parameter(told.get(name, ""), default) for name, default in _defaults(node).items()}


def _arguments(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The part of a docstring that is on arguments."""
    return (ast.get_docstring(node) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]


def _defaults(node: ast.FunctionDef | ast.ClassDef) -> dict[str, str | None]:
    """Names and defaults, of a function, of a class with a constructor, or of a dataclass."""
    if isinstance(node, ast.ClassDef):
        constructors = (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__")
        if (constructor := next(constructors, None)) is not None:
            return _defaults(constructor)
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        return {ast.unparse(part.target): ast.unparse(part.value) if part.value else None for part in fields}
    names = [argument.arg for argument in node.args.args]
    given = [ast.unparse(value) for value in node.args.defaults]
    values: list[str | None] = [*[None] * (len(names) - len(given)), *given]
    return {name: value for name, value in zip(names, values, strict=True) if name != "self"}


def _found(place: str) -> ast.FunctionDef | ast.ClassDef | None:
    module, _, name = place.partition(":")
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    return None


@cache
def _tree(module: str) -> ast.Module:
    # Parents of a module are imported to find it; ours are light.
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
