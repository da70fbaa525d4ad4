"""Pictures of cases: confidences before and after, flips, free energy, local temperatures."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from numpy.typing import NDArray

from lightning_calib.report.maps import IGNORED, CaseMaps, Floats, Labels
from lightning_calib.report.style import (
    BACKGROUND_COLOUR,
    BLUE,
    ENERGY,
    FAINT,
    ORANGE,
    SEQUENTIAL,
    VERMILLION,
    class_colours,
    look,
    new_figure,
)

_PANEL = 2.0  # inches of a panel's width
_LEGEND_COLUMNS = 8
_Place = Literal["outside lower left", "outside upper right"]
_SMALLEST_RANGE = 0.1  # of a colour scale
_FLIP_COLOURS = (BACKGROUND_COLOUR, VERMILLION, BLUE, ORANGE)
_FLIP_NAMES = (
    "unchanged",
    "harmful: right before, wrong now",
    "beneficial: wrong before, right now",
    "wrong both times",
)


def confidence_figure(
    maps: Sequence[CaseMaps], class_names: Sequence[str], background: int | None, names: tuple[str, str]
) -> Figure:
    """Truth, prediction, errors, and the confidence before and after calibration; one row a case.

    Args:
        maps: the cases.
        class_names: names of the classes.
        background: index of the background class, where there is one.
        names: titles of the two confidence panels.
    """
    colours = class_colours(len(class_names), background)
    with look():
        figure, grid = _grid(maps, 5)
        for row, case in zip(grid, maps, strict=True):
            _labels(row[0], case.target, colours)
            _labels(row[1], case.before, colours)
            _labels(row[2], _errors(case), _rgb([BACKGROUND_COLOUR, VERMILLION]))
            low = 1 / len(class_names)
            images = [_scalar(row[3 + n], shown, SEQUENTIAL, low, 1.0) for n, shown in enumerate(_confidences(case))]
            row[0].set_ylabel(case.title, fontsize=8)
        _titles(grid[0], ["truth", "prediction", "errors (orange)", *names])
        figure.colorbar(images[0], ax=grid[:, 3:].ravel().tolist(), label="confidence", shrink=0.8, aspect=30)
        _legend(figure, class_names, colours)
    return figure


def border_figure(
    maps: Sequence[CaseMaps], class_names: Sequence[str], background: int | None, names: tuple[str, str]
) -> Figure:
    """Close-ups: truth, errors, and the confidence before and after with the true borders as lines; one row a case.

    Args:
        maps: close-ups of the cases.
        class_names: names of the classes.
        background: index of the background class, where there is one.
        names: titles of the two confidence panels.
    """
    colours = class_colours(len(class_names), background)
    with look():
        figure, grid = _grid(maps, 4)
        for row, case in zip(grid, maps, strict=True):
            _labels(row[0], case.target, colours)
            _labels(row[1], _errors(case), _rgb([BACKGROUND_COLOUR, VERMILLION]))
            low = 1 / len(class_names)
            images = [_scalar(row[2 + n], shown, SEQUENTIAL, low, 1.0) for n, shown in enumerate(_confidences(case))]
            for axes in row[2:]:
                _borders(axes, case.target)
            row[0].set_ylabel(case.title, fontsize=8)
        _titles(grid[0], ["truth", "errors (orange)", *names])
        figure.colorbar(images[0], ax=grid[:, 2:].ravel().tolist(), label="confidence", shrink=0.8, aspect=30)
        _legend(figure, class_names, colours)
    return figure


def flip_figure(maps: Sequence[CaseMaps], class_names: Sequence[str], background: int | None) -> Figure:
    """Truth, prediction before and after, and where they differ; one row a case."""
    colours = class_colours(len(class_names), background)
    flip_colours = _rgb(_FLIP_COLOURS)
    with look():
        figure, grid = _grid(maps, 4)
        for row, case in zip(grid, maps, strict=True):
            for axes, labels in zip(row, (case.target, case.before, case.after), strict=False):
                _labels(axes, labels, colours)
            _labels(row[3], np.where(case.target == IGNORED, IGNORED, case.flips), flip_colours)
            row[0].set_ylabel(case.title, fontsize=8)
        _titles(grid[0], ["truth", "before", "after", "flips"])
        _legend(figure, class_names, colours)
        _legend(figure, _FLIP_NAMES[1:], flip_colours[1:], "outside upper right", title="flips: ")
    return figure


def energy_figure(maps: Sequence[tuple[str, Floats]]) -> Figure:
    """Free energy of the pooled logits, side by side on one colour scale.

    Args:
        maps: title and map ``(H, W)`` of each case.
    """
    return _scalar_figure(maps, ENERGY, "free energy")


def local_temperature_figure(maps: Sequence[tuple[str, Floats]]) -> Figure:
    """Temperatures that a local calibrator gives to each voxel, side by side on one colour scale."""
    return _scalar_figure(maps, SEQUENTIAL, "temperature")


def _scalar_figure(maps: Sequence[tuple[str, Floats]], colour_map: str, label: str) -> Figure:
    low, high = _limits(np.concatenate([values.ravel() for _, values in maps]))
    height, width = maps[0][1].shape
    with look():
        figure = new_figure(2.6 * len(maps) + 0.9, 2.6 * min(height / width, 2.0) + 0.5, images=True)
        grid = np.atleast_1d(figure.subplots(1, len(maps)))
        for axes, (title, values) in zip(grid, maps, strict=True):
            image = _scalar(axes, values, colour_map, low, high)
            axes.set_title(title, fontsize=8.5)
        figure.colorbar(image, ax=grid.tolist(), label=label, shrink=0.9)
    return figure


def _grid(maps: Sequence[CaseMaps], columns: int) -> tuple[Figure, NDArray[np.object_]]:
    """A figure with one row of panels a case, rows as high as their maps."""
    ratios = [min(case.target.shape[0] / case.target.shape[1], 2.0) for case in maps]
    figure = new_figure(_PANEL * columns + 0.9, _PANEL * sum(ratios) + 0.1 * len(maps) + 0.7, images=True)
    return figure, figure.subplots(len(maps), columns, squeeze=False, height_ratios=ratios)


def _bare(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(FAINT)


def _titles(row: NDArray[np.object_], titles: Sequence[str]) -> None:
    for axes, title in zip(row, titles, strict=True):
        axes.set_title(title, fontsize=9)


def _labels(axes: Axes, labels: Labels, colours: Floats) -> None:
    """Paint labels; those that are ``IGNORED`` stay blank."""
    opaque = np.concatenate([colours, np.ones((len(colours), 1))], axis=1)
    axes.imshow(np.concatenate([opaque, np.zeros((1, 4))])[labels])  # IGNORED is -1: the last colour
    _bare(axes)


def _borders(axes: Axes, target: Labels) -> None:
    """Lines around the regions of every label but one, whose borders the others have drawn."""
    for label in np.unique(target)[1:]:
        axes.contour(target == label, levels=[0.5], colors=VERMILLION, linewidths=0.7)


def _scalar(axes: Axes, values: Floats, colour_map: str, low: float, high: float) -> AxesImage:
    image = axes.imshow(values, cmap=colour_map, vmin=low, vmax=high)
    _bare(axes)
    return image


def _errors(case: CaseMaps) -> Labels:
    wrong: Labels = np.where(case.target == IGNORED, IGNORED, (case.before != case.target).astype(np.int64))
    return wrong


def _confidences(case: CaseMaps) -> tuple[Floats, Floats]:
    return case.confidence_before, case.confidence_after


def _rgb(names: Sequence[str]) -> Floats:
    return np.array([to_rgb(name) for name in names])


def _legend(
    figure: Figure, names: Sequence[str], colours: Floats, place: _Place = "outside lower left", title: str = ""
) -> None:
    """Patches in rows, read from left to right as the names are given."""
    patches = [Patch(color=tuple(colour), label=title + name) for name, colour in zip(names, colours, strict=True)]
    columns = min(_LEGEND_COLUMNS, len(patches))
    by_column = [patch for column in range(columns) for patch in patches[column::columns]]
    figure.legend(handles=by_column, loc=place, ncols=columns, fontsize=8, handlelength=1.1, columnspacing=1.2)


def _limits(values: Floats) -> tuple[float, float]:
    """Ends of a colour scale, which does not blow rounding errors up."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = max(0.0, _SMALLEST_RANGE - (high - low)) / 2
    return low - margin, high + margin
