"""One look for all figures: colours that colour-blind readers can tell apart, and figures without global state."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Okabe & Ito (2008), "Color universal design"; black is left to the ink.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, SKY, PURPLE, YELLOW = "#E69F00", "#56B4E9", "#CC79A7", "#F0E442"

# The page swaps these two for its own colours, so that a figure fits a light and a dark page.
INK, FAINT = "#20242B", "#C9CED6"

SEQUENTIAL, DIVERGING, ENERGY = "cividis", "PuOr", "magma"
BACKGROUND_COLOUR, DARK = "#D9DCE1", "#5B6470"

# One meaning for a colour: blue is calibrated or better, vermillion is wrong or worse, and no class has them.
# Further classes: Tol's muted scheme, then Kelly-like tints, none of them close to the first ones.
_CLASS_COLOURS = (
    *(GREEN, PURPLE, SKY, YELLOW, ORANGE),
    *("#332288", "#882255", "#117733", "#999933", "#661100", "#6699CC", "#AA4466", "#44AA99", "#888888"),
    *("#DDCC77", "#4B0055", "#A6761D", "#B2DF8A", "#7A4E9F", "#F4A6A6"),
)

# Colour, marker and dashes of lines: told apart in grey, too.
UNCALIBRATED: dict[str, Any] = {"color": INK, "marker": "s", "linestyle": ":"}
CALIBRATED: dict[str, Any] = {"color": BLUE, "marker": "o", "linestyle": "-"}
STYLES: tuple[dict[str, Any], ...] = (
    UNCALIBRATED,
    CALIBRATED,
    {"color": ORANGE, "marker": "^", "linestyle": "-"},
    {"color": GREEN, "marker": "D", "linestyle": "--"},
    {"color": PURPLE, "marker": "v", "linestyle": "-."},
    {"color": DARK, "marker": "P", "linestyle": "--"},
    {"color": SKY, "marker": "X", "linestyle": "-"},
)

_RC: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 9,
    "font.family": ["sans-serif"],
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "image.interpolation": "none",  # one pixel a voxel, small files
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: selectable, searchable, in the page's font
    "svg.hashsalt": "lightning_calib",  # the same figure gives the same bytes
    "text.color": INK,
    "text.parse_math": False,  # names of cases and classes may hold a dollar sign
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}


@contextmanager
def look() -> Iterator[None]:
    """Draw in the common look; the caller's settings are back afterwards."""
    with matplotlib.rc_context(_RC):
        yield


class ShownFigure(Figure):
    """A figure that notebooks show without pyplot, on white."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=100, facecolor="white")
        return content.getvalue()


def new_figure(width: float, height: float, images: bool = False) -> ShownFigure:
    """An empty figure of a size in inches that no global state knows about.

    Args:
        width: in inches.
        height: in inches.
        images: whether it holds panels of a fixed aspect, which then stand close together.
    """
    return ShownFigure(figsize=(width, height), layout="compressed" if images else "constrained")


def zero_line(axes: Axes, upright: bool = False) -> None:
    """Mark where a difference is none."""
    draw = axes.axvline if upright else axes.axhline
    draw(0, color=INK, linewidth=0.9)


def bare(axes: Axes, framed: bool = True) -> None:
    """Leave an image without ticks and grid."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(framed)
    axes.spines[:].set_color(FAINT)


def percent(share: float, _: float = 0) -> str:
    """A share as a percentage with as many digits as it needs, for the ticks of an axis.

    Example:
        >>> percent(0.5), percent(0.0001)
        ('50 %', '0.01 %')
    """
    return f"{100 * share:.6g} %".replace("-", "\N{MINUS SIGN}")


def rgb(names: Sequence[str]) -> NDArray[np.float64]:
    """Colours ``(n, 3)`` by their names."""
    return np.array([to_rgb(name) for name in names])


def class_colours(num_classes: int, background: int | None = None) -> NDArray[np.float64]:
    """RGB colours ``(C, 3)`` of the classes, the same in every figure and legend; a background is grey.

    Example:
        >>> class_colours(3, background=0).shape
        (3, 3)
    """
    palette = iter(_CLASS_COLOURS * (1 + num_classes // len(_CLASS_COLOURS)))
    return rgb([BACKGROUND_COLOUR if k == background else next(palette) for k in range(num_classes)])
