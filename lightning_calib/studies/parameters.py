"""Numbers of fitted and of identifiable parameters of every calibrator, for any number of classes (Table 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_calib.calibrators.registry import CALIBRATORS, build

CLASSES = (2, 5, 20)  # of the paper's data sets


@dataclass(frozen=True)
class CountRow:
    """Parameters of a calibrator (``parameters.csv``)."""

    calibrator: str
    classes: int
    optimized: int
    identifiable: int


def parameter_counts(classes: Sequence[int]) -> list[CountRow]:
    """Counts of all calibrators, taken from calibrators that are built for it.

    Args:
        classes: numbers of classes.

    Example:
        >>> [(row.optimized, row.identifiable) for row in parameter_counts([2]) if row.calibrator == "ms"]
        [(6, 3)]
    """
    rows = []
    for name in CALIBRATORS:
        for number in sorted(set(classes)):
            calibrator = build(name, number)
            rows.append(CountRow(name, number, calibrator.num_optimized, calibrator.num_identifiable))
    return rows
