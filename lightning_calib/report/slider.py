"""A temperature to be moved by hand over its reliability curve, in a notebook or on a page of its own."""

import base64
import itertools
from dataclasses import dataclass
from typing import Any, Self

from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from lightning_calib.functional.scores import negative_log_likelihood, reliability_table
from lightning_calib.kit.style import BLUE, FAINT, INK, VERMILLION, ShownFigure
from lightning_calib.report.figures import Reliability, reliability_figure

_STEPS, _RANGE = 41, 4.0  # temperatures from a quarter to 4, evenly spaced in their logarithms, 1 in the middle
_NUMBERS = itertools.count()  # pages may hold several


@dataclass(frozen=True, repr=False)
class TemperatureSlider:
    """Reliability curves of logits divided by temperatures.

    A notebook shows the curves with a slider; where scripts do not run, the picture of two of them. No package and no
    network is needed.

    Attributes:
        temperatures: in rising order.
        nll: negative log-likelihood of each, all voxels pooled.
        ece: expected calibration error of each, all voxels pooled.
        curves: reliability curve of each.
    """

    temperatures: list[float]
    nll: list[float]
    ece: list[float]
    curves: list[Reliability]

    @classmethod
    def of(cls, logits: Tensor, target: Tensor, bins: int = 15, ignore_index: int | None = None) -> Self:
        """Curves of temperatures from 0.25 to 4.

        Args:
            logits: ``(B, C, *S)`` or ``(N, C)``.
            target: labels ``(B, *S)`` or ``(N,)``.
            bins: equal bins of the confidence.
            ignore_index: label of voxels that count nowhere.

        Example:
            >>> import torch
            >>> slider = TemperatureSlider.of(torch.tensor([[2.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]))
            >>> slider.temperatures[0], slider.temperatures[20], f"{slider.best:.2f}"
            (0.25, 1.0, '1.87')
        """
        temperatures = [round(_RANGE ** (2 * step / (_STEPS - 1) - 1), 4) for step in range(_STEPS)]
        nll, ece, curves = [], [], []
        for temperature in temperatures:
            log_probs = (logits / temperature).log_softmax(dim=1)
            table = reliability_table(log_probs, target, bins, ignore_index)
            nll.append(float(negative_log_likelihood(log_probs, target, ignore_index, average="pool")))
            ece.append(float(table.expected_error()))
            columns = (table.mean_confidence(), table.accuracy(), table.voxels.double())
            curves.append(Reliability(f"T = {temperature:.2f}", *(column.numpy() for column in columns)))
        return cls(temperatures, nll, ece, curves)

    def __repr__(self) -> str:
        """The range, and the best temperature."""
        return f"TemperatureSlider({self.temperatures[0]} to {self.temperatures[-1]}, lowest NLL at {self.best:.2f})"

    @property
    def best(self) -> float:
        """The temperature with the lowest negative log-likelihood."""
        return self.temperatures[self.nll.index(min(self.nll))]

    def figure(self) -> ShownFigure:
        """The curves of temperature 1 and of the best one."""
        places = dict.fromkeys([self.temperatures.index(1.0), self.temperatures.index(self.best)])
        return reliability_figure([self.curves[place] for place in places])

    def _repr_html_(self) -> str:
        loader = PackageLoader("lightning_calib.report", "assets")
        environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
        return environment.get_template("slider.html").render(
            id=f"temperature-{next(_NUMBERS)}",
            data=self._data(),
            start=self.temperatures.index(1.0),
            best=self.best,
            bins=len(self.curves[0].count),
            picture=base64.b64encode(self.figure()._repr_png_()).decode(),
            colours={"line": BLUE, "gap": VERMILLION, "faint": FAINT, "ink": INK},
        )

    def _data(self) -> list[dict[str, Any]]:
        """What the script draws of each temperature: confidence, accuracy and share of voxels of the filled bins."""
        found = []
        for temperature, nll, ece, curve in zip(self.temperatures, self.nll, self.ece, self.curves, strict=True):
            points = zip(curve.confidence, curve.accuracy, curve.count / curve.count.sum(), strict=True)
            bins = [[round(float(x), 4) for x in point] for point in points if point[2] > 0]
            found.append({"t": temperature, "nll": round(nll, 4), "ece": round(ece, 4), "bins": bins})
        return found
