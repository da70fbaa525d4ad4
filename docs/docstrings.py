"""Docstrings as the site shows them: examples as code, names in place of Sphinx's references."""

import re
from typing import Any

import griffe

REFERENCE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            text = REFERENCE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^(\s*)Example:$", r"\1Examples:", text)
