"""What a data set consists of: cases, and the parts they are divided into."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One image or volume with its target.

    Attributes:
        case_id: name of the case, unique within the data set; also the stem of its stored output.
        images: one file, or one per channel; empty where the image is generated.
        mask: file of the target; None where it is generated.
        group: what the case must stay together with (patient, sequence, tile); the case itself if empty.
        window: ``(top, left, height, width)`` of a crop of the file; None for all of it.
    """

    case_id: str
    images: tuple[Path, ...] = ()
    mask: Path | None = None
    group: str = ""
    window: tuple[int, int, int, int] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the case, the mask last."""
        return self.images if self.mask is None else (*self.images, self.mask)


def pick(cases: Iterable[Case], ids: Iterable[str]) -> list[Case]:
    """Cases of some ids, in the order of the ids."""
    by_id = {case.case_id: case for case in cases}
    return [by_id[case_id] for case_id in ids]


@dataclass(frozen=True)
class Splits:
    """The parts of a data set, and the cases that belong to none.

    Attributes:
        train: cases that networks are trained on.
        val: held-out part of the training side, for choosing checkpoints.
        pool: held-out cases whose outputs are calibrated and evaluated.
        left_out: reason by case id for cases that are in no part.
    """

    train: Sequence[Case]
    val: Sequence[Case]
    pool: Sequence[Case]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def all(self) -> list[Case]:
        """Every case that is in some part."""
        return [*self.train, *self.val, *self.pool]


class DataError(ValueError):
    """Everything that is wrong with a data set, in one message.

    Args:
        problems: one line for each problem; each names the file or case and the remedy.
        where: data set and folder.
    """

    def __init__(self, problems: Sequence[str], where: str) -> None:
        self.problems = list(problems)
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        super().__init__("\n".join([f"{count} in {where}:", *(f"- {problem}" for problem in self.problems)]))
