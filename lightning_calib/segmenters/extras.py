"""Import of heavy or optional libraries where they are used, without the noise of their own imports."""

import importlib
import warnings
from types import ModuleType


def quiet_import(module: str) -> ModuleType:
    """Import a module; warnings about the parts of torch that it imports in turn are not the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def require(module: str, purpose: str) -> ModuleType:
    """Import a module of the extra ``volumes``.

    Args:
        module: dotted name.
        purpose: what it is needed for; part of the error.

    Example:
        >>> require("no_such_library", "residual-encoder U-Nets")
        Traceback (most recent call last):
        ImportError: residual-encoder U-Nets need no_such_library: pip install "lightning-calib[volumes]"
    """
    try:
        return quiet_import(module)
    except ImportError as problem:
        library = module.split(".")[0]
        raise ImportError(f'{purpose} need {library}: pip install "lightning-calib[volumes]"') from problem
