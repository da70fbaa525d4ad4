"""What several calibrators ask of the same scores is computed once, while they take turns at a chunk of voxels."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

Options = ParamSpec("Options")
Found = TypeVar("Found")


class Kept:
    """Results of functions of a tensor and of what came out of them.

    Args:
        source: the tensor.
    """

    def __init__(self, source: Tensor) -> None:
        self.results: dict[object, Any] = {}
        self.known = {id(source): source}  # alive, so that no other object takes their ids

    def result(self, function: Callable[..., Found], tensor: Tensor, *args: object, **kwargs: object) -> Found:
        """What a function says of a known tensor, asked the first time only."""
        key = (function, id(tensor), args, tuple(kwargs.items()))
        if key not in self.results:
            self.results[key] = found = function(tensor, *args, **kwargs)
            if isinstance(found, Tensor):
                self.known[id(found)] = found
        return self.results[key]  # type: ignore[no-any-return]


_KEPT: ContextVar[Kept | None] = ContextVar("kept", default=None)


@contextmanager
def shared(source: Tensor) -> Iterator[None]:
    """Within, functions that are :func:`once` are asked once about a tensor. Nobody may write into it meanwhile.

    Example:
        >>> scores = torch.tensor([1.0])
        >>> double = once(lambda tensor: 2 * tensor)
        >>> with shared(scores):
        ...     double(double(scores)) is double(double(scores))
        True
        >>> double(scores) is double(scores)
        False
    """
    token = _KEPT.set(Kept(source))
    try:
        yield
    finally:
        _KEPT.reset(token)


def once(function: Callable[Concatenate[Tensor, Options], Found]) -> Callable[Concatenate[Tensor, Options], Found]:
    """Have a function of a tensor look up within :func:`shared` what it has said before; gradients pass anew."""

    def found(tensor: Tensor, /, *args: Options.args, **kwargs: Options.kwargs) -> Found:
        kept = None if torch.compiler.is_compiling() or tensor.requires_grad else _KEPT.get()
        if kept is None or id(tensor) not in kept.known:
            return function(tensor, *args, **kwargs)
        return kept.result(function, tensor, *args, **kwargs)

    update_wrapper(found, function)
    return found
