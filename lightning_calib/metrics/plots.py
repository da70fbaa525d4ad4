"""Reliability diagrams."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from lightning_calib.functional.binning import BinTable
from lightning_calib.kit.style import BLUE, FAINT, INK, VERMILLION, class_colours, look, new_figure


def draw_reliability(table: BinTable, ax: Axes | None = None, title: str | None = None) -> tuple[Figure, Axes]:
    """Accuracy in each confidence bin, its gap to the diagonal, and below how many voxels there are.

    Args:
        table: sums of each bin ``(K,)``.
        ax: axes to draw into; a new figure by default.
        title: heading; by default the expected calibration error, its bins, and that voxels are pooled.

    Returns:
        Figure and axes of the diagram; the histogram of confidences hangs below it.

    Example:
        >>> import torch
        >>> from lightning_calib.functional import reliability_table
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> figure, axes = draw_reliability(reliability_table(log_probs, torch.tensor([0, 0, 1, 1])))
        >>> axes.get_title()
        'ECE 0.250 (15 bins, all voxels pooled)'
    """
    size = table.voxels.shape[-1]
    left = np.arange(size) / size
    accuracy, confidence = table.accuracy().numpy(), table.mean_confidence().numpy()
    low, gap = np.fmin(accuracy, confidence), np.abs(accuracy - confidence)
    with look():
        axes = new_figure(4, 5).subplots() if ax is None else ax
        axes.bar(left, accuracy, 1 / size, align="edge", color=BLUE, edgecolor="white", label="accuracy")
        axes.bar(left, gap, 1 / size, low, align="edge", color=VERMILLION, alpha=0.6, label="gap to mean confidence")
        axes.plot([0, 1], [0, 1], color=INK, lw=1, ls="--")
        axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        axes.set_title(
            title or f"ECE {table.expected_error().item():.3f} ({size} bins, all voxels pooled)", loc="center"
        )
        axes.legend(loc="upper left")
        _histogram(axes, left, table.voxels.numpy())
    return _figure(axes), axes


def _histogram(axes: Axes, left: np.ndarray, voxels: np.ndarray) -> None:
    """Voxels of each bin below the diagram, on a log scale: most of an image is sure."""
    below = axes.inset_axes((0, -0.28, 1, 0.22))  # hangs on the axes, so it works in any grid of axes
    below.bar(left, voxels, 1 / len(left), align="edge", color=FAINT, edgecolor="white")
    below.set(xlim=(0, 1), yscale="log", xlabel="confidence", ylabel="voxels")
    below.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelbottom=False)


def draw_classwise_reliability(
    table: BinTable, class_names: Sequence[str] | None = None, ax: Axes | None = None
) -> tuple[Figure, Axes]:
    """Frequency of each class against its predicted probability, a line a class.

    Args:
        table: sums of each class and bin ``(C, K)``.
        class_names: names for the legend; numbers by default.
        ax: axes to draw into; a new figure by default.

    Returns:
        Figure and axes.
    """
    names = [str(c) for c in range(len(table.voxels))] if class_names is None else list(class_names)
    if len(names) != len(table.voxels):
        raise ValueError(f"{len(names)} class names for {len(table.voxels)} classes: {names}")
    frequency, probability, errors = table.accuracy(), table.mean_confidence(), table.expected_error()
    with look():
        axes = new_figure(5.5, 4).subplots() if ax is None else ax
        for c, (name, colour) in enumerate(zip(names, class_colours(len(names)), strict=True)):
            seen = table.voxels[c] > 0
            label = f"{name} ({errors[c].item():.3f})"
            axes.plot(probability[c][seen], frequency[c][seen], ".-", color=tuple(colour), lw=1, label=label)
        axes.plot([0, 1], [0, 1], color=INK, lw=1, ls="--")
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="frequency", aspect="equal")
        axes.legend(title="class (ECE)", loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7)
    return _figure(axes), axes


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure
