"""The columns of the main table: what each metric is called, which way is better, how its numbers are written."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lightning_calib.report.numbers import format_number

Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Column:
    """One metric as readers see it.

    Attributes:
        key: its name in result files.
        label: heading of the column.
        title: its name in full.
        better: which direction is an improvement.
        explanation: one sentence for someone who meets the metric for the first time.
        percent: whether values are shown as percentages.
        decimals: fewest decimals shown.
        digits: digits shown of the smallest value of a column.
        interval: what the bounds are.
    """

    key: str
    label: str
    title: str
    better: Better
    explanation: str
    percent: bool = False
    decimals: int = 3
    digits: int = 2
    interval: str = "95 % interval"

    @property
    def arrow(self) -> str:
        """Arrow that points to better values."""
        return "↓" if self.better == "lower" else "↑"

    @property
    def heading(self) -> str:
        """Label with its unit."""
        return f"{self.label} (%)" if self.percent else self.label

    def shown(self, value: float) -> float:
        """A value in the unit of the column."""
        return 100 * value if self.percent else value


COLUMNS: tuple[Column, ...] = (
    Column(
        "nll",
        "NLL",
        "negative log-likelihood",
        "lower",
        "How surprised the model is by the true labels; it punishes confident mistakes most.",
        digits=3,
    ),
    Column(
        "dice",
        "Dice",
        "Dice score",
        "higher",
        "Overlap of the predicted and the true regions, averaged over the classes of an image.",
        percent=True,
        decimals=1,
    ),
    Column(
        "ece",
        "ECE",
        "expected calibration error",
        "lower",
        "Typical gap between how confident the model says it is and how often it is right; "
        "easy voxels dominate it, since they are many.",
    ),
    Column(
        "ba_ece",
        "BA-ECE",
        "boundary-aware calibration error",
        "lower",
        "The same kind of gap taken in bands of distance to the true boundary; the band at the boundary counts most.",
    ),
    Column(
        "ace",
        "ACE",
        "average calibration error",
        "lower",
        "The gap averaged over confidence levels, so that rare, uncertain voxels count as much as the many easy ones.",
        interval="smallest and largest repeat",
    ),
    Column(
        "brier",
        "Brier",
        "Brier score",
        "lower",
        "Squared distance between the predicted probabilities and the truth; mixes calibration with accuracy.",
        digits=3,
    ),
    Column(
        "flip",
        "Flips",
        "flip rate",
        "lower",
        "Share of voxels whose predicted class the calibrator changed: 0 means that the segmentation is untouched.",
        percent=True,
        decimals=1,
    ),
)
COLUMN = {column.key: column for column in COLUMNS}

_MAX_EXTRA_DECIMALS = 2


def choose_decimals(column: Column, values: Iterable[float]) -> int:
    """Decimals for a column of values: its digits of the smallest one, within reason.

    Args:
        column: the metric.
        values: what the column will show, in the unit of the result files; NaN and 0 are passed over.

    Example:
        >>> choose_decimals(COLUMN["ece"], [0.34, 0.0042]), choose_decimals(COLUMN["nll"], [0.041, 0.52])
        (4, 4)
    """
    sizes = [abs(column.shown(value)) for value in values if math.isfinite(value) and value != 0]
    if not sizes:
        return column.decimals
    needed = column.digits - 1 - math.floor(math.log10(min(sizes)))
    return min(max(needed, column.decimals), column.decimals + _MAX_EXTRA_DECIMALS)


def format_metric(column: Column, value: float | None, decimals: int | None = None, signed: bool = False) -> str:
    """A metric in the unit and precision of its column.

    Example:
        >>> format_metric(COLUMN["dice"], 0.7671), format_metric(COLUMN["flip"], 0.0)
        ('76.7', '0')
    """
    digits = column.decimals if decimals is None else decimals
    return format_number(None if value is None else column.shown(value), digits, signed)
