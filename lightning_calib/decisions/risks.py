"""Losses of masks that can be controlled: missed voxels, false voxels, and losses of one's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_calib.kit.registry import Registry

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Side = Literal["outer", "inner"]


@dataclass(frozen=True)
class Risk:
    """A loss of a case's mask, in [0, 1].

    Attributes:
        side: ``outer`` where larger masks lose less, so that the smallest safe mask is looked for; ``inner`` where
            smaller ones do, and the largest safe mask is looked for.
        loss: from the false and the true voxels in the masks of all thresholds, each ``(K,)`` from the full mask to
            the empty one, to the losses ``(K,)``.
        told: what it is the share of, in words.
    """

    side: Side
    loss: Callable[[Counts, Counts], Floats]
    told: str


def missed(false: Counts, true: Counts) -> Floats:
    """Share of the true voxels that are not in the mask; 0 where there are none to miss.

    Example:
        >>> missed(np.array([6, 1, 0]), np.array([4, 3, 0])).tolist()
        [0.0, 0.25, 1.0]
    """
    return _share(true[0] - true, np.full_like(true, true[0]))


def false_share(false: Counts, true: Counts) -> Floats:
    """Share of the mask's voxels that are not true; 0 where it is empty.

    Example:
        >>> false_share(np.array([6, 1, 0]), np.array([4, 3, 0])).tolist()
        [0.6, 0.25, 0.0]
    """
    return _share(false, false + true)


def _share(part: Counts, whole: Counts) -> Floats:
    found: Floats = part / np.maximum(whole, 1)
    return found


MISSED = Risk("outer", missed, "true voxels that the mask misses")
FALSE = Risk("inner", false_share, "voxels of the mask that are false")


def _check(name: str, thing: Any) -> None:  # noqa: ANN401
    if not isinstance(thing, Risk):
        raise ValueError(f"{name} is no lightning_calib.decisions.Risk, but {thing!r}")


_HERE = "lightning_calib.decisions.risks"
RISKS: Registry[Risk] = Registry(
    "risk", "lightning_calib.risks", {"missed": f"{_HERE}:MISSED", "false": f"{_HERE}:FALSE"}, _check
)


def register_risk(name: str, risk: Risk) -> Risk:
    """Add a loss of one's own; a dotted path to it does without."""
    return RISKS.register(name, risk)


def case_losses(risk: Risk, table: Counts) -> Floats:
    """Losses ``(K,)`` of a case from its table ``(2, K)``; anything outside [0, 1] is refused.

    Example:
        >>> case_losses(MISSED, np.array([[6, 1, 0], [4, 3, 0]])).tolist()
        [0.0, 0.25, 1.0]
    """
    found = np.asarray(risk.loss(table[0], table[1]), dtype=np.float64)
    if found.shape != table[0].shape or not ((found >= 0) & (found <= 1)).all():
        raise ValueError(
            f"the loss '{risk.told}' must give one number in [0, 1] a threshold, {table[0].shape}; it gave "
            f"{found.shape} from {found.min():g} to {found.max():g}"
        )
    return found


def group_means(values: Floats, groups: list[str]) -> tuple[list[str], Floats]:
    """Mean over the cases of each group: names, sorted, and ``(G, K)`` from ``(n, K)``.

    Example:
        >>> group_means(np.array([[0.0], [1.0], [0.4]]), ["b", "b", "a"])
        (['a', 'b'], array([[0.4],
               [0.5]]))
    """
    names, place = np.unique(np.asarray(groups), return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, place, values)
    return names.tolist(), sums / np.bincount(place)[:, None]
