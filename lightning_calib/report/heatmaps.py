"""Heat maps of learned matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lightning_calib.kit.style import DIVERGING, look, new_figure

Floats = NDArray[np.float64]

_WRITTEN_UP_TO = 6  # classes for which the numbers are written into the cells
_BIAS_WRITTEN_UP_TO = 12  # classes for which at least those of the bias are
_LIMIT_QUANTILE = 0.99  # of absolute weights: a few large entries, or the bias, would bleach the rest


@dataclass(frozen=True)
class Matrix:
    """A learned map ``W x + b`` to show.

    Attributes:
        title: whose it is.
        weight: ``W (C, C)``, output by input.
        bias: ``b (C,)``.
        labels: names of the rows and columns.
    """

    title: str
    weight: Floats
    bias: Floats
    labels: tuple[str, ...]


def without_common_part(weight: Floats, bias: Floats) -> tuple[Floats, Floats]:
    """``W`` and ``b`` without what moves all classes together, which softmax does not see.

    Args:
        weight: ``(..., C, C)``.
        bias: ``(..., C)``.

    Returns:
        Both with a mean of 0 over the outputs: two calibrators with equal probabilities look equal.

    Example:
        >>> weight, bias = without_common_part(np.eye(2) + [[5.0, 7.0]], np.array([3.0, 1.0]))
        >>> weight.tolist(), bias.tolist()
        ([[0.5, -0.5], [-0.5, 0.5]], [1.0, -1.0])
    """
    return weight - weight.mean(axis=-2, keepdims=True), bias - bias.mean(axis=-1, keepdims=True)


def matrix_figure(matrices: Sequence[Matrix], columns: int = 4) -> Figure:
    """Weights and, after a gap, the bias of each matrix; one colour scale for all, 0 in the middle.

    Args:
        matrices: at least one.
        columns: matrices side by side.

    Example:
        >>> matrix = Matrix("dc(p)", np.eye(2), np.zeros(2), ("sky", "road"))
        >>> len(matrix_figure([matrix]).axes)  # the matrix and the colour bar
        2
    """
    columns = min(columns, len(matrices))
    rows = math.ceil(len(matrices) / columns)
    with look():
        figure = new_figure(2.3 * columns + 1.2, 2.35 * rows + 0.5)
        grid = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
        norm = TwoSlopeNorm(0.0, *_limits(matrices))
        for n, (axes, matrix) in enumerate(zip(grid, matrices, strict=False)):
            _draw(axes, matrix, norm, named=n % columns == 0)
        for axes in grid[len(matrices) :]:
            axes.remove()
        shown = grid[: len(matrices)].tolist()
        figure.colorbar(shown[0].images[0], ax=shown, shrink=min(1.0, 1.6 / rows), label="weight", extend="both")
    return figure


def _limits(matrices: Sequence[Matrix]) -> tuple[float, float]:
    values = np.concatenate([np.abs(m.weight.ravel()) for m in matrices])
    limit = max(float(np.quantile(values, _LIMIT_QUANTILE)), 1e-6)
    return -limit, limit


def _draw(axes: Axes, matrix: Matrix, norm: TwoSlopeNorm, named: bool) -> None:
    size = len(matrix.labels)
    gap = np.full((size, 1), np.nan)
    values = np.concatenate([matrix.weight, gap, matrix.bias[:, None]], axis=1)
    axes.imshow(values, cmap=DIVERGING, norm=norm)
    axes.set_title(matrix.title)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=7)
    axes.set_xticks([*range(size), size + 1], [*matrix.labels, "bias"], rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(size), matrix.labels if named else [""] * size)
    if size <= _BIAS_WRITTEN_UP_TO:
        _write(axes, values, norm, bias_only=size > _WRITTEN_UP_TO)


def _write(axes: Axes, values: Floats, norm: TwoSlopeNorm, bias_only: bool) -> None:
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 5 if bias_only else 6.5}
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value) and (not bias_only or column == len(values) + 1):
            dark = abs(float(norm(value)) - 0.5) > 0.33
            text = f"{value:.1f}".replace("-0.0", "0.0")
            axes.text(column, row, text, color="#FFFFFF" if dark else "#000000", **style)
