"""What masks of all thresholds cost or gain, from the voxels in them."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def cost_curve(table: Counts, cost_fn: float, cost_fp: float) -> Floats:
    r"""Cost ``(K,)`` of a case at every threshold: missed and false voxels by their prices.

    .. math:: C(t) = c_{fn}\, \#\{v : y_v = 1, p_v < t\} + c_{fp}\, \#\{v : y_v = 0, p_v \ge t\}

    Where probabilities are calibrated, :func:`best_threshold` has the least expected cost.

    Args:
        table: voxels by truth in the mask of each threshold ``(2, K)``.
        cost_fn: price of a missed voxel.
        cost_fp: price of a false one.

    Example:
        >>> cost_curve(np.array([[6, 1, 0], [4, 3, 0]]), cost_fn=5, cost_fp=1).tolist()
        [6.0, 6.0, 20.0]
    """
    false, true = table
    found: Floats = cost_fn * (true[0] - true) + cost_fp * false.astype(np.float64)
    return found


def best_threshold(cost_fn: float, cost_fp: float) -> float:
    """The threshold of least expected cost for calibrated probabilities.

    Example:
        >>> best_threshold(cost_fn=4, cost_fp=1)
        0.2
    """
    return cost_fp / (cost_fn + cost_fp)


def dice_curve(table: Counts) -> Floats:
    """Dice ``(K,)`` of a case at every threshold; NaN where mask and truth are empty.

    Example:
        >>> dice_curve(np.array([[6, 1, 0], [4, 3, 0]])).round(3).tolist()
        [0.571, 0.75, 0.0]
    """
    false, true = table
    sizes = false + true + true[0]
    found: Floats = np.divide(2.0 * true, sizes, out=np.full(len(sizes), np.nan), where=sizes > 0)
    return found
