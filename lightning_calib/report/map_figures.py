"""Pictures of cases: confidences before and after, flips, free energy, local temperatures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from numpy.typing import NDArray

from lightning_calib.kit.style import (
    BACKGROUND_COLOUR,
    BLUE,
    DARK,
    SEQUENTIAL,
    VERMILLION,
    bare,
    class_colours,
    look,
    new_figure,
    rgb,
)
from lightning_calib.outputs.previews import IGNORED
from lightning_calib.report.maps import CasePlane, Floats, Labels

_PANEL = 2.0  # inches of a panel's width
_COLUMNS = 3  # panels side by side: what a phone can show
_LEGEND_COLUMNS = 5
_THUMBNAILS = 4  # side by side
_Place = Literal["outside lower left", "outside upper right"]
_SMALLEST_RANGE = 0.1  # of a colour scale
_FLIPS = {
    "unchanged": BACKGROUND_COLOUR,
    "harmful (was right)": VERMILLION,
    "beneficial (is right now)": BLUE,
    "wrong both times": DARK,
}
Panels = dict[str, Callable[[Axes, CasePlane], AxesImage]]


def confidence_figure(
    planes: Sequence[CasePlane], class_names: Sequence[str], background: int | None, close_up: bool = False
) -> Figure:
    """Image, truth, prediction, errors, and the confidence before and after calibration; two lines a case.

    Args:
        planes: the cases.
        class_names: names of the classes.
        background: index of the background class, where there is one.
        close_up: draw the true borders as lines over the confidences.
    """
    colours, low = class_colours(len(class_names), background), 1 / len(class_names)

    def confidence(axes: Axes, plane: CasePlane, values: Floats) -> AxesImage:
        image = _scalar(axes, values, SEQUENTIAL, low, 1.0)
        if close_up:
            _borders(axes, plane.target)
        return image

    panels: Panels = _image(planes) | {
        "truth": lambda axes, plane: _labels(axes, plane.target, colours),
        "prediction": lambda axes, plane: _labels(axes, plane.before, colours),
        "errors": lambda axes, plane: _labels(axes, plane.errors, rgb([BACKGROUND_COLOUR, VERMILLION])),
        "confidence before": lambda axes, plane: confidence(axes, plane, plane.confidence_before),
        "confidence after": lambda axes, plane: confidence(axes, plane, plane.confidence_after),
    }
    with look():
        figure = _case_figure(planes, panels)
        shown = figure.axes[list(panels).index("confidence before")].images[0]
        figure.colorbar(shown, ax=figure.axes, label="confidence", location="bottom", shrink=0.6, aspect=40, pad=0.02)
        _legend(figure, class_names, colours)
    return figure


def thumbnail_figure(
    planes: Sequence[CasePlane], titles: Sequence[str], class_names: Sequence[str], background: int | None
) -> Figure:
    """Small pictures of cases, worst first as they are given: the prediction over the image.

    Args:
        planes: the cases.
        titles: what stands above each.
        class_names: names of the classes.
        background: index of the background class, where there is one; the image shows through it.
    """
    colours, columns = class_colours(len(class_names), background), min(len(planes), _THUMBNAILS)
    lines = -(-len(planes) // columns)
    ratio = max(min(plane.target.shape[0] / plane.target.shape[1], 1.5) for plane in planes)
    with look():
        figure = new_figure(1.6 * columns, lines * (1.6 * ratio + 0.4) + 0.5, images=True)
        grid = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, plane, title in zip(grid, planes, titles, strict=False):
            _picture(axes, plane)
            shown = _labels(axes, plane.before, colours, clear=background)
            shown.set_alpha(1.0 if plane.image is None else 0.5)
            shape = plane.target.shape if plane.image is None else plane.image.shape
            shown.set_extent((-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5))
            axes.set_title(title, fontsize=7.5)
        for axes in grid[len(planes) :]:
            axes.remove()
        _legend(figure, class_names, colours)
    return figure


def flip_figure(planes: Sequence[CasePlane], class_names: Sequence[str], background: int | None) -> Figure:
    """Image, truth, prediction before and after, and where they differ; two lines a case."""
    colours, flip_colours = class_colours(len(class_names), background), rgb(list(_FLIPS.values()))
    panels: Panels = _image(planes) | {
        "truth": lambda axes, plane: _labels(axes, plane.target, colours),
        "before": lambda axes, plane: _labels(axes, plane.before, colours),
        "after": lambda axes, plane: _labels(axes, plane.after, colours),
        "flips": lambda axes, plane: _labels(
            axes, np.where(plane.target == IGNORED, IGNORED, plane.flips), flip_colours
        ),
    }
    with look():
        figure = _case_figure(planes, panels)
        _legend(figure, class_names, colours)
        _legend(figure, list(_FLIPS)[1:], flip_colours[1:], "outside upper right")
    return figure


def scalar_figure(maps: Sequence[tuple[str, Floats]], colour_map: str, label: str) -> Figure:
    """Maps of one quantity, side by side on one colour scale.

    Args:
        maps: title and map ``(H, W)`` of each case.
        colour_map: a colour map of matplotlib.
        label: what is shown.
    """
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


def image_sheet(rows: Mapping[str, Mapping[str, NDArray[np.uint8]]]) -> Figure:
    """Images of one size, row by row.

    Args:
        rows: by a name for the row, 8-bit RGB images ``(H, W, 3)`` by their titles.
    """
    columns = max(map(len, rows.values()))
    height, width = next(image.shape[:2] for row in rows.values() for image in row.values())
    with look():
        figure = new_figure(1.75 * columns, 1.75 * len(rows) * min(height / width, 1.5) + 0.9, images=True)
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for line, (name, images) in zip(grid, rows.items(), strict=True):
            line[0].set_ylabel(name)
            for axes, (title, image) in zip(line, images.items(), strict=True):
                axes.imshow(image)
                bare(axes, framed=False)
                axes.set_title(title, fontsize=8.5)
    return figure


def _image(planes: Sequence[CasePlane]) -> Panels:
    """The panel with the image, where a case has one."""
    if all(plane.image is None for plane in planes):
        return {}
    return {"image": _picture}


def _picture(axes: Axes, plane: CasePlane) -> AxesImage:
    """The image; blank where a case has none."""
    bare(axes)
    blank = np.zeros((*plane.target.shape, 4), dtype=np.uint8)
    return axes.imshow(blank if plane.image is None else plane.image)


def _case_figure(planes: Sequence[CasePlane], panels: Panels) -> Figure:
    """Two lines of panels a case, or one where they are few, so that they can be read on a phone."""
    columns = 2 if len(panels) == 4 else min(len(panels), _COLUMNS)
    lines = -(-len(panels) // columns)
    ratios = [min(plane.target.shape[0] / plane.target.shape[1], 2.0) for plane in planes for _ in range(lines)]
    size = (_PANEL * columns + 0.4, _PANEL * sum(ratios) + 0.25 * len(ratios) + 0.9)
    figure = new_figure(*size, images=True)
    grid = figure.subplots(len(ratios), columns, squeeze=False, height_ratios=ratios)
    for number, plane in enumerate(planes):
        own = grid[number * lines : (number + 1) * lines].ravel()
        for axes, (title, paint) in zip(own, panels.items(), strict=False):
            paint(axes, plane)
            axes.set_title(title, fontsize=9)
        for axes in own[len(panels) :]:
            axes.remove()
        own[0].set_ylabel(plane.title, fontsize=8)
    return figure


def _labels(axes: Axes, labels: Labels, colours: Floats, clear: int | None = None) -> AxesImage:
    """Paint labels; those that are ``IGNORED`` or ``clear`` stay blank."""
    opaque = np.concatenate([colours, np.ones((len(colours), 1))], axis=1)
    opaque[[] if clear is None else [clear]] = 0
    bare(axes)
    return axes.imshow(np.concatenate([opaque, np.zeros((1, 4))])[labels])  # IGNORED is -1: the last colour


def _borders(axes: Axes, target: Labels) -> None:
    """Lines around the regions of every label but one, whose borders the others have drawn."""
    for label in np.unique(target)[1:]:
        axes.contour(target == label, levels=[0.5], colors=VERMILLION, linewidths=0.7)


def _scalar(axes: Axes, values: Floats, colour_map: str, low: float, high: float) -> AxesImage:
    bare(axes)
    return axes.imshow(values, cmap=colour_map, vmin=low, vmax=high)


def _legend(figure: Figure, names: Sequence[str], colours: Floats, place: _Place = "outside lower left") -> None:
    """Patches in rows, read from left to right as the names are given."""
    patches = [Patch(color=tuple(colour), label=name) for name, colour in zip(names, colours, strict=True)]
    columns = min(_LEGEND_COLUMNS, len(patches))
    by_column = [patch for column in range(columns) for patch in patches[column::columns]]
    figure.legend(handles=by_column, loc=place, ncols=columns, fontsize=8, handlelength=1.1, columnspacing=1.2)


def _limits(values: Floats) -> tuple[float, float]:
    """Ends of a colour scale, which does not blow rounding errors up."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = max(0.0, _SMALLEST_RANGE - (high - low)) / 2
    return low - margin, high + margin
