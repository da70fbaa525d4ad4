"""Curves of confidences before and after calibration: reliability with its bands, risk against coverage."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lightning_calib.experiment.reliability import Curve
from lightning_calib.kit.style import CALIBRATED, FAINT, INK, STYLES, UNCALIBRATED, look, new_figure, percent
from lightning_calib.report.svg import hot

Floats = NDArray[np.float64]

FEWEST = 100  # voxels below which a bin says nothing
_PANEL_COLUMNS = 4


@dataclass(frozen=True)
class Risk:
    """Errors among the surest voxels: ``risk (K,)`` of the voxels kept, a share ``coverage (K,)`` of all."""

    coverage: Floats
    risk: Floats


@dataclass(frozen=True)
class ClassCurve:
    """How often voxels that get a probability of a class belong to it, bin by bin; NaN where a bin is empty."""

    probability: Floats
    share: Floats


def before_after_figure(curves: Mapping[str, Curve]) -> Figure:
    """Reliability of the uncalibrated ensemble and of a pipeline, with bands of uncertainty.

    Args:
        curves: by label, the uncalibrated one first.
    """
    with look():
        figure = new_figure(4.6, 4.3)
        axes = figure.subplots()
        _diagonal(axes)
        for (label, curve), style in zip(curves.items(), (UNCALIBRATED, CALIBRATED), strict=False):
            held = curve.voxels >= min(FEWEST, curve.voxels.max())
            place, low, high = (part[held] for part in (curve.confidence, curve.low, curve.high))
            axes.fill_between(place, low, high, color=style["color"], alpha=0.2, linewidth=0)
            axes.plot(curve.confidence[held], curve.accuracy[held], label=label, **style)
            numbers = zip(place, curve.accuracy[held], low, high, curve.share[held], strict=True)
            for x, y, least, most, share in numbers:
                told = f"{label}: of voxels that are {x:.0%} certain, {y:.1%} are right ({least:.1%} to {most:.1%})"
                hot(axes, x, y, f"{told}; {share:.1%} of all voxels")
        axes.set(xlabel="confidence", ylabel="share of right voxels", xlim=(0, 1), ylim=(0, 1))
        axes.text(0.98, 0.04, "too confident", ha="right", color=INK, alpha=0.65, fontsize=8.5)
        axes.legend(loc="upper left")
    return figure


def _diagonal(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.4, linestyle="--", zorder=0)


def risk_figure(curves: Mapping[str, Risk]) -> Figure:
    """Error rate among the voxels that are kept, against the share that is kept, the surest first.

    Args:
        curves: by label, the uncalibrated one first.
    """
    with look():
        figure = new_figure(6.2, 3.6)
        axes = figure.subplots()
        for (label, curve), style in zip(curves.items(), STYLES, strict=False):
            axes.plot(curve.coverage, curve.risk, label=label, color=style["color"], linestyle=style["linestyle"])
            for share in (0.5, 0.8, 0.9, 0.95, 1.0):
                risk = float(np.interp(share, curve.coverage, curve.risk))
                axes.plot([share], [risk], color=style["color"], marker=style["marker"])
                hot(axes, share, risk, f"{label}: of the surest {share:.0%} of voxels, {risk:.2%} are wrong")
        axes.set(xlabel="share of voxels kept, the surest first", ylabel="wrong among them", xlim=(0, 1.01))
        axes.set_ylim(bottom=0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(percent)
        axes.legend(loc="upper left")
    return figure


def class_figure(panels: Mapping[str, Mapping[str, ClassCurve]]) -> Figure:
    """A small reliability diagram for each class.

    Args:
        panels: by class, its curves by label, the uncalibrated one first.
    """
    columns = min(_PANEL_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with look():
        figure = new_figure(1.75 * columns + 0.3, 1.8 * rows + 0.7)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes, (name, curves) in zip(grid.ravel(), panels.items(), strict=False):
            _diagonal(axes)
            for (label, curve), style in zip(curves.items(), (UNCALIBRATED, CALIBRATED), strict=False):
                held = ~np.isnan(curve.share)
                axes.plot(curve.probability[held], curve.share[held], label=label, **style | {"markersize": 3})
                for x, y in zip(curve.probability[held], curve.share[held], strict=True):
                    hot(axes, x, y, f"{name}, {label}: where its probability is {x:.0%}, {y:.1%} of voxels are {name}")
            axes.set(title=name, xlim=(0, 1), ylim=(0, 1))
        for axes in grid.ravel()[len(panels) :]:
            axes.remove()
        figure.supxlabel("probability of the class", fontsize=9)
        figure.supylabel("share of voxels", fontsize=9)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure
