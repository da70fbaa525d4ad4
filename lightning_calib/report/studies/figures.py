"""Figures of the studies: scores along an axis, and the sheet of corruptions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lightning_calib.datasets.corruptions import KINDS, SEVERITIES, corrupt, psnr
from lightning_calib.report.figures import STYLES
from lightning_calib.report.style import INK, ORANGE, SKY, look, new_figure

# Colour, marker and dashes together: told apart in grey, too.
_STYLES: tuple[dict[str, str], ...] = (
    *STYLES,
    {"color": ORANGE, "marker": "P", "linestyle": "--"},
    {"color": SKY, "marker": "X", "linestyle": "-"},
)
MOST = len(_STYLES)
_PANEL = 2.7  # inches


@dataclass(frozen=True)
class Series:
    """One line of a panel; bounds may be NaN.

    Attributes:
        label: name in the legend.
        values: one a tick.
        low: lower bounds.
        high: upper bounds.
    """

    label: str
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def series_figure(
    panels: Sequence[tuple[str, Sequence[Series]]], ticks: Sequence[str], axis: str, zero: bool = False
) -> Figure:
    """Scores with their bounds along an axis, one panel a score, side by side.

    Args:
        panels: title and lines of each panel; lines of the same place are of the same pipeline.
        ticks: names along the axis.
        axis: what the axis is.
        zero: mark 0, for differences.

    Example:
        >>> line = Series("ts(z)", [0.1, 0.2], [0.0, 0.1], [0.2, 0.3])
        >>> len(series_figure([("NLL", [line]), ("ECE", [line])], ["mild", "strong"], "images").axes)
        2
    """
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    names = [series.label for series in panels[0][1]]
    with look():
        figure = new_figure(max(_PANEL * columns, 4.2), 2.5 * rows + 0.5)
        grid = np.atleast_1d(figure.subplots(rows, columns)).ravel()
        for axes, (title, lines) in zip(grid, panels, strict=False):
            _panel(axes, lines, len(ticks))
            axes.set_title(title)
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlabel(axis)
            if zero:
                axes.axhline(0, color=INK, linewidth=0.9)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        if len(names) > 1:
            handles, labels = grid[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper left", ncols=min(len(names), 2 + columns))
    return figure


def _panel(axes: Axes, lines: Sequence[Series], ticks: int) -> None:
    """Lines beside each other rather than on top."""
    width = 0.3 / max(len(lines), 1)
    for n, (series, style) in enumerate(zip(lines, _STYLES, strict=False)):
        place = np.arange(ticks) + (n - (len(lines) - 1) / 2) * width
        values, low, high = (np.asarray(x, dtype=np.float64) for x in (series.values, series.low, series.high))
        axes.plot(place, values, label=series.label, **style)  # type: ignore[arg-type]  # strings of a known kind
        axes.vlines(place, low, high, color=style["color"], linewidth=1.1, alpha=0.8)
    axes.grid(axis="x", visible=False)


def corruption_sheet(image: NDArray[np.uint8]) -> Figure:
    """An image as it is, and under every corruption, mild above and strong below.

    Args:
        image: 8-bit RGB ``(H, W, 3)``.
    """
    height, width = image.shape[:2]
    with look():
        figure = new_figure(1.75 * (len(KINDS) + 1), 2 * 1.75 * min(height / width, 1.5) + 0.9, images=True)
        grid = figure.subplots(len(SEVERITIES), len(KINDS) + 1, squeeze=False)
        for row, severity in zip(grid, SEVERITIES, strict=True):
            _picture(row[0], image, "clean")
            row[0].set_ylabel(severity)
            for axes, kind in zip(row[1:], KINDS, strict=True):
                changed = corrupt(image, kind, severity)
                _picture(axes, changed, f"{kind}, {psnr(image, changed):.1f} dB")
    return figure


def _picture(axes: Axes, image: NDArray[np.uint8], title: str) -> None:
    axes.imshow(image)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=8.5)
