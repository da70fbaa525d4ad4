"""What a data set consists of: cases, and the parts they are divided into."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CASE = "case"  # the finest level of groups, which every data set has: each case by itself


def group_name(groups: Sequence[str], depth: int, case_id: str) -> str:
    """Name of the group that a case belongs to at a level; at level 0 it is the case itself.

    Args:
        groups: the case's groups, coarsest first.
        depth: number of the level, from 1 for the coarsest; 0 for the case itself.
        case_id: the case.

    Example:
        >>> group_name(("utrecht", "p7"), 1, "a"), group_name(("utrecht", "p7"), 2, "a"), group_name((), 0, "a")
        ('utrecht', 'utrecht/p7', 'a')
    """
    return "/".join(groups[:depth]) or case_id


def level_depth(levels: Sequence[str], level: str) -> int:
    """Number of a level, from 1 for the coarsest; 0 for ``"case"``.

    Raises:
        ValueError: naming the levels that there are.
    """
    if level != CASE and level not in levels:
        raise ValueError(f"there is no level of groups {level!r}; choose one of {', '.join((*levels, CASE))}")
    return 0 if level == CASE else levels.index(level) + 1


@dataclass(frozen=True)
class Case:
    """One image or volume with its target.

    Attributes:
        case_id: name of the case, unique within the data set; also the stem of its stored output.
        images: one file, or folder of slices, or one per channel; empty where the image is generated.
        mask: file of the target; None where it is generated.
        groups: what it shares with other cases, coarsest first, such as ``("utrecht", "p7")`` for site and patient;
            a finer group is known by its coarser ones, too: ``p7`` of another site is another patient.
        window: ``(top, left, height, width)`` of a crop of the file; None for all of it.
    """

    case_id: str
    images: tuple[Path, ...] = ()
    mask: Path | None = None
    groups: tuple[str, ...] = ()
    window: tuple[int, int, int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse a bare name, which would be taken for a sequence of letters."""
        if isinstance(self.groups, str):
            raise TypeError(f"groups of {self.case_id}: write ({self.groups!r},), the names coarsest first")

    def group(self, depth: int) -> str:
        """Name of the group at a level, see :func:`group_name`."""
        return group_name(self.groups, depth, self.case_id)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the case, those of a folder one by one, the mask last."""
        return tuple(file for path in self.paths for file in files_of(path))

    @property
    def paths(self) -> tuple[Path, ...]:
        """Files of the case, and folders that are one image; the mask last."""
        return self.images if self.mask is None else (*self.images, self.mask)


def files_of(path: Path) -> list[Path]:
    """A file, or the files of a folder that is one image (a DICOM series), in order of name."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))


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
