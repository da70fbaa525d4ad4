"""How the full help shows an option."""

from argparse import SUPPRESS
from typing import Any

from jsonargparse import DefaultHelpFormatter

from lightning_calib.cli.signatures import as_typed


class PlainHelp(DefaultHelpFormatter):
    """Help that says what an option is for and what it is by default, and leaves Python's types out."""

    def _get_help_string(self, action: Any) -> str:  # noqa: ANN401  # argparse's parts have no types
        text = as_typed(action.help or "")
        if action.required:
            return f"{text} (required)"
        tells = action.option_strings and action.default not in (None, SUPPRESS)
        shown = str(action.default).lower() if isinstance(action.default, bool) else "%(default)s"
        return f"{text} (default: {shown})" if tells else text
