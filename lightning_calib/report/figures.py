"""Charts of calibration results: reliability, distance bands, differences between pipelines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lightning_calib.kit.style import (
    BLUE,
    FAINT,
    INK,
    STYLES,
    VERMILLION,
    ShownFigure,
    look,
    new_figure,
    percent,
    zero_line,
)
from lightning_calib.report.svg import hot

Floats = NDArray[np.float64]

MOST = len(STYLES)  # lines that can be told apart
_VERDICTS = {"better": (BLUE, "o"), "worse": (VERMILLION, "s"), "within noise": (INK, "d")}


@dataclass(frozen=True)
class Reliability:
    """What a reliability diagram shows of one pipeline.

    Attributes:
        label: name in the legend.
        confidence: mean confidence of each bin ``(K,)``; NaN where it is empty.
        accuracy: share of correct voxels in each bin ``(K,)``; NaN where it is empty.
        count: voxels in each bin ``(K,)``.
    """

    label: str
    confidence: Floats
    accuracy: Floats
    count: Floats


@dataclass(frozen=True)
class BandProfile:
    """Mean uncertainty and error of one pipeline in each distance band ``(K,)``; NaN where a band is empty."""

    label: str
    uncertainty: Floats
    error: Floats


@dataclass(frozen=True)
class Difference:
    """A difference between two pipelines with its interval and verdict."""

    label: str
    value: float
    low: float
    high: float
    verdict: str


def reliability_figure(curves: Sequence[Reliability]) -> ShownFigure:
    """Accuracy against confidence, with the share of voxels at each confidence below.

    A curve below the diagonal is too confident, one above it too careful.

    Args:
        curves: up to seven pipelines.

    Example:
        >>> curve = Reliability("toy", np.array([0.6, 0.9]), np.array([0.5, 0.9]), np.array([10.0, 90.0]))
        >>> len(reliability_figure([curve]).axes)
        2
    """
    with look():
        figure = new_figure(6.2, 5.6)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        top.plot([0, 1], [0, 1], color=FAINT, linewidth=1.4, linestyle="--", zorder=0)
        for curve, style in zip(curves, STYLES, strict=False):
            filled = curve.count > 0
            top.plot(curve.confidence[filled], curve.accuracy[filled], label=curve.label, **style)
            for x, y in zip(curve.confidence[filled], curve.accuracy[filled], strict=True):
                hot(top, x, y, f"{curve.label}: of voxels that are {x:.0%} certain, {y:.1%} are right")
            _histogram(bottom, curve, style)
        top.set(ylabel="share of correct voxels", xlim=(0, 1), ylim=(0, 1))
        top.text(0.98, 0.04, "too confident", ha="right", color=INK, alpha=0.65, fontsize=8.5)
        top.text(0.02, 0.94, "too careful", ha="left", color=INK, alpha=0.65, fontsize=8.5)
        top.legend(loc="upper left", bbox_to_anchor=(0, 0.92))
        bottom.set(xlabel="confidence", ylabel="voxels", yscale="log")
        bottom.yaxis.set_major_formatter(percent)
    return figure


def _histogram(axes: Axes, curve: Reliability, style: dict[str, str]) -> None:
    edges = np.linspace(0, 1, len(curve.count) + 1)
    shares = np.where(curve.count > 0, curve.count / max(curve.count.sum(), 1), np.nan)
    axes.stairs(shares, edges, color=style["color"], linestyle=style["linestyle"], linewidth=1.3)


def band_figure(profiles: Sequence[BandProfile], edges: Sequence[float]) -> Figure:
    """Stated uncertainty minus actual error in each band of distance to the true boundary.

    Args:
        profiles: up to seven pipelines.
        edges: edges of the bands in voxels, ``K + 1`` of them.

    Example:
        >>> profile = BandProfile("toy", np.array([0.3, 0.1]), np.array([0.4, 0.1]))
        >>> len(band_figure([profile], [0, 3, float("inf")]).axes)
        1
    """
    with look():
        figure = new_figure(6.2, 3.4)
        axes = figure.subplots()
        width = 0.8 / max(len(profiles), 1)
        for n, (profile, style) in enumerate(zip(profiles, STYLES, strict=False)):
            position = np.arange(len(edges) - 1) + (n - (len(profiles) - 1) / 2) * width
            gap = profile.uncertainty - profile.error
            axes.bar(position, gap, 0.9 * width, label=profile.label, color=style["color"])
            for x, y, band in zip(position, gap, band_names(edges), strict=True):
                if not np.isnan(y):
                    hot(axes, x, y, f"{profile.label}, {band} voxels away: uncertainty {y:+.1%} against the errors")
        zero_line(axes)
        axes.set_xticks(range(len(edges) - 1), band_names(edges))
        axes.grid(axis="x", visible=False)
        axes.set(xlabel="distance to the true boundary (voxels)", ylabel="stated uncertainty minus error rate")
        axes.yaxis.set_major_formatter(percent)
        figure.legend(loc="outside upper left", ncols=min(len(profiles), 2))
    return figure


def band_names(edges: Sequence[float]) -> list[str]:
    """Bands of distance between edges, of which the last is open.

    Example:
        >>> band_names([0, 3, 7, float("inf")])
        ['0 to 3', '3 to 7', '7 and more']
    """
    return [*(f"{low:g} to {high:g}" for low, high in pairwise(edges[:-1])), f"{edges[-2]:g} and more"]


def difference_figure(panels: Sequence[tuple[str, Sequence[Difference]]]) -> Figure:
    """Differences between matched pipelines, one panel a metric; the colour and shape tell the verdict.

    Args:
        panels: title of a metric and its differences, each panel with the same pairs in the same order.
    """
    labels = [difference.label for difference in panels[0][1]]
    with look():
        figure = new_figure(max(2.3 * len(panels) + 1.6, 5.0), 0.32 * len(labels) + 1.2)
        all_axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
        for axes, (title, differences) in zip(all_axes, panels, strict=True):
            zero_line(axes, upright=True)
            for row, difference in enumerate(differences):
                colour, marker = _VERDICTS[difference.verdict]
                axes.plot([difference.low, difference.high], [row, row], color=colour, linewidth=1.8)
                axes.plot([difference.value], [row], color=colour, marker=marker, markersize=5.5)
                value, low, high = (f"{x:+.4g}" for x in (difference.value, difference.low, difference.high))
                hot(axes, difference.value, row, f"{difference.label}: {value} ({low} to {high}), {difference.verdict}")
            axes.set_title(title)
            axes.locator_params(axis="x", nbins=4)
        _name_rows(all_axes[0], labels)
    return figure


def _name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Names along the vertical axis, the first one on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def temperature_figure(temperatures: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """Learned temperatures of every repeat, one row a pipeline; above 1 the calibrator softens confidences.

    Example:
        >>> len(temperature_figure([("ts(z)", [1.4, 1.5, 1.4])]).axes)
        1
    """
    with look():
        figure = new_figure(6.2, 0.34 * len(temperatures) + 1.0)
        axes = figure.subplots()
        axes.axvline(1, color=INK, linewidth=0.9)
        for row, (_, values) in enumerate(temperatures):
            axes.plot(values, [row] * len(values), linestyle="", marker="o", color=BLUE, alpha=0.75)
        _name_rows(axes, [label for label, _ in temperatures])
        axes.set_xlabel("temperature T (one dot a repeat): left of 1 sharper, right of 1 softer")
        low = min((min(values) for _, values in temperatures if values), default=1.0)
        high = max((max(values) for _, values in temperatures if values), default=1.0)
        axes.set_xlim(min(low, 1) - 0.08 * (high - low + 1), max(high, 1) + 0.08 * (high - low + 1))
    return figure


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

    @classmethod
    def of(
        cls, label: str, rows: Sequence[Any], shown: Callable[[float], float] = float, mean: str = "mean"
    ) -> "Series":
        """A line through rows with a mean and bounds; a gap where a row is None.

        Args:
            label: name in the legend.
            rows: objects with the attributes ``low``, ``high`` and that of the mean.
            shown: turns values into the unit of the panel.
            mean: name of the attribute that holds the value.
        """
        keys = (mean, "low", "high")
        return cls(label, *([np.nan if row is None else shown(getattr(row, key)) for row in rows] for key in keys))


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
        figure = new_figure(max(2.7 * columns, 4.2), 2.5 * rows + 0.5)
        grid = np.atleast_1d(figure.subplots(rows, columns)).ravel()
        for axes, (title, lines) in zip(grid, panels, strict=False):
            _panel(axes, lines, len(ticks))
            axes.set_title(title)
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlabel(axis)
            if zero:
                zero_line(axes)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        if len(names) > 1:
            handles, labels = grid[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper left", ncols=min(len(names), 2 + columns))
    return figure


def _panel(axes: Axes, lines: Sequence[Series], ticks: int) -> None:
    """Lines beside each other rather than on top."""
    width = 0.3 / max(len(lines), 1)
    for n, (series, style) in enumerate(zip(lines, STYLES, strict=False)):
        place = np.arange(ticks) + (n - (len(lines) - 1) / 2) * width
        values, low, high = (np.asarray(x, dtype=np.float64) for x in (series.values, series.low, series.high))
        axes.plot(place, values, label=series.label, **style)
        axes.vlines(place, low, high, color=style["color"], linewidth=1.1, alpha=0.8)
    axes.grid(axis="x", visible=False)
