"""Draw the pictures of docs/invariance.md: ``python docs/figures/invariance.py``."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from lightning_calib.calibrators import MatrixScaling, OrderPreservingScaling, TemperatureScaling, VectorScaling

IMAGES = Path(__file__).parents[1] / "images" / "invariance"
NAMES = ("road", "car", "tree")
INK, BLUE, ORANGE, GREEN, GREY = "#22303c", "#2f5d9b", "#d1661f", "#2b8a5b", "#c9d1d8"
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.866]])
LOGITS = torch.tensor([2.0, 1.2, -0.5])


def vector_scaling() -> VectorScaling:
    """Scales each class by a number of its own, so that a shift does not cancel."""
    calibrator = VectorScaling(3)
    with torch.no_grad():
        calibrator.scale.copy_(torch.tensor([0.9, 0.35, 0.5]))
    return calibrator


def temperature(value: float) -> TemperatureScaling:
    """A temperature."""
    calibrator = TemperatureScaling(3)
    with torch.no_grad():
        calibrator.log_temperature.fill_(value).log_()
    return calibrator


def probabilities(calibrator: torch.nn.Module, logits: Tensor) -> Tensor:
    """Calibrated probabilities ``(N, C)`` of logits ``(N, C)``."""
    with torch.no_grad():
        return calibrator(logits).exp()


def shift() -> plt.Figure:
    """Softmax does not see a constant; a calibrator should not see it either."""
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 2.9), layout="constrained")
    for offset, place, colour in ((0, -0.2, BLUE), (3, 0.2, ORANGE)):
        heights = [float(value) + offset for value in LOGITS]
        places = [n + place for n in range(3)]
        axes[0].bar(places, heights, 0.38, color=colour, label="logits" if not offset else "logits + 3")
        axes[1].bar(places, (LOGITS + offset).softmax(0).tolist(), 0.38, color=colour)
    axes[0].axhline(0, color=INK, linewidth=0.8)
    axes[0].set_ylim(-1, 7)
    axes[0].legend(frameon=False, fontsize=9, ncols=2, loc="upper center")
    axes[0].set_title("Add 3 to all three logits ...", fontsize=10)
    axes[1].set_title("... and softmax gives the same", fontsize=10)
    axes[1].set_ylabel("probability")
    for axis in axes[:2]:
        axis.set_xticks(range(3), NAMES)
    shifts = torch.linspace(-6, 6, 61)
    moved = LOGITS + shifts[:, None]
    for name, calibrator, colour in (
        ("vector scaling", vector_scaling(), ORANGE),
        ("temperature", temperature(1.8), BLUE),
    ):
        axes[2].plot(shifts, probabilities(calibrator, moved)[:, 0], color=colour, linewidth=2, label=name)
    axes[2].set(xlabel="constant added to all logits", ylim=(0, 1))
    axes[2].set_ylabel("calibrated probability of road")
    axes[2].set_title("Not every calibrator ignores it", fontsize=10)
    axes[2].legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def draw_triangle(axis: plt.Axes, title: str, borders: str) -> None:
    """The triangle of all probabilities of three classes, cut by who wins or by the whole order."""
    axis.fill(*CORNERS.T, facecolor="#f4f6f8", edgecolor=INK, linewidth=1)
    centre = CORNERS.mean(0)
    for corner in range(3):
        middle = (CORNERS[(corner + 1) % 3] + CORNERS[(corner + 2) % 3]) / 2
        start = centre if borders == "argmax" else CORNERS[corner]
        axis.plot(*torch.stack((start, middle)).T, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        outward = CORNERS[corner] + 0.13 * (CORNERS[corner] - centre)
        axis.text(*outward, NAMES[corner], ha="center", va="center", fontsize=9)
    axis.set_title(title, fontsize=10)
    axis.set(aspect="equal", xlim=(-0.18, 1.18), ylim=(-0.12, 1.02))
    axis.axis("off")


def draw_arrows(axis: plt.Axes, calibrator: torch.nn.Module, logits: Tensor) -> None:
    """Where a calibrator takes each point; orange where the predicted class changes."""
    before, after = logits.softmax(1), probabilities(calibrator, logits)
    for start, end in zip(before, after, strict=True):
        flipped = start.argmax() != end.argmax()
        reordered = not torch.equal(start.argsort(), end.argsort())
        colour = ORANGE if flipped else GREEN if reordered else BLUE
        arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", (end @ CORNERS).tolist(), (start @ CORNERS).tolist(), arrowprops=arrow)


def matrix() -> MatrixScaling:
    """A matrix that moves mass from class to class."""
    calibrator = MatrixScaling(3)
    with torch.no_grad():
        calibrator.weight.copy_(torch.tensor([[0.62, 0.16, 0.0], [0.0, 0.5, 0.42], [0.16, 0.0, 0.55]]))
        calibrator.bias.copy_(torch.tensor([0.0, 0.55, -0.2]))
    return calibrator


def order_preserving() -> OrderPreservingScaling:
    """Shrinks the gaps of a ranking, by an amount for each winner and each gap."""
    calibrator = OrderPreservingScaling(3)
    with torch.no_grad():
        calibrator.inner.mul_(torch.tensor([[0.25, 0.9], [0.5, 0.5], [0.9, 0.3]])[:, :, None])
    return calibrator


def triangles() -> plt.Figure:
    """Three promises: none, the winner stays, the whole order stays."""
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.2), layout="constrained")
    generator = torch.Generator().manual_seed(4)
    logits = 1.9 * torch.randn(34, 3, generator=generator)
    draw_triangle(axes[0], "ms: labels may change (orange)", "argmax")
    draw_arrows(axes[0], matrix(), logits)
    draw_triangle(axes[1], "ts: towards the middle, order kept", "order")
    draw_arrows(axes[1], temperature(2.0), logits)
    draw_triangle(axes[2], "cms_op: within its own chamber", "order")
    draw_arrows(axes[2], order_preserving(), logits)
    return figure


def main() -> None:
    """Write the pictures."""
    plt.switch_backend("svg")
    plt.rcParams.update({"svg.hashsalt": "lightning_calib", "font.size": 9, "axes.spines.top": False})
    plt.rcParams["axes.spines.right"] = False
    IMAGES.mkdir(parents=True, exist_ok=True)
    for draw in (shift, triangles):
        draw().savefig(IMAGES / f"{draw.__name__}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
