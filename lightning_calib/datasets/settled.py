"""The division of a data set that a run has begun with: it stays when images are added."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from lightning_calib.datasets.cases import Case, Splits
from lightning_calib.datasets.content import Content, copies
from lightning_calib.kit.files import FileError, digest, read_json, write_json

PARTS = ("train", "val", "pool")
NewCases = Literal["leave_out", "pool", "train"]
NEW = "new since the run began (--new_cases pool or train takes them in)"
_NEAR = "new, and of a group that networks were trained on"
_WAITING = (NEW, _NEAR)
_DIGEST = "digest"  # of the rest of the file


@dataclass(frozen=True)
class Division:
    """Which cases are in which part, by id.

    Attributes:
        train: cases that networks are trained on.
        val: held-out part of the training side.
        pool: cases whose outputs are calibrated.
        left_out: reason by id of cases that are in no part.
    """

    train: tuple[str, ...]
    val: tuple[str, ...]
    pool: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, splits: Splits) -> Self:
        """The division of a data set as it is now."""
        train, val, pool = (tuple(case.case_id for case in getattr(splits, part)) for part in PARTS)
        return cls(train, val, pool, dict(splits.left_out))

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Read it; None where there is no such file."""
        if not path.is_file():
            return None
        remedy = f"{path} does not say which cases are in which part: bring it back from a copy, or name another run"
        facts = read_json(path, remedy)
        try:
            parts = {part: tuple(map(str, facts[part])) for part in PARTS}
            division, noted = cls(**parts, left_out=dict(facts["left_out"])), facts.get(_DIGEST)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise FileError(remedy) from problem
        if noted not in (None, digest(division.facts)):
            raise FileError(
                f"{path} has changed since it was written: bring it back from a copy; if you changed it on purpose, "
                f"remove its entry {_DIGEST}"
            )
        return division

    def save(self, path: Path) -> None:
        """Write it down."""
        write_json(path, self.facts | {_DIGEST: digest(self.facts)})

    @property
    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return {part: list(getattr(self, part)) for part in PARTS} | {"left_out": self.left_out}

    @classmethod
    def settled(cls, splits: Splits) -> Self:
        """The division to be written down: what is only waiting for a part is not in it."""
        found = cls.of(splits)
        return replace(found, left_out={name: why for name, why in found.left_out.items() if why not in _WAITING})

    def merged(self, earlier: "Division | None") -> "Division":
        """With the cases of an earlier one that are not there now: they may come back."""
        if earlier is None:
            return self
        gone = {part: [n for n in getattr(earlier, part) if n not in self.parts] for part in PARTS}
        parts = {part: (*getattr(self, part), *gone[part]) for part in PARTS}
        return Division(**parts, left_out=earlier.left_out | self.left_out)

    @property
    def parts(self) -> dict[str, str]:
        """Part of each case, by id."""
        return {case_id: part for part in PARTS for case_id in getattr(self, part)}


def without_copies(splits: Splits, contents: Mapping[str, Content]) -> Splits:
    """The parts without cases of the pool set whose image is also one of training, under whatever name."""
    training = {case.case_id: contents[case.case_id] for case in (*splits.train, *splits.val)}
    twins = copies({case.case_id: contents[case.case_id] for case in splits.pool}, training)
    pool = [case for case in splits.pool if case.case_id not in twins]
    reasons = {case_id: f"the same image as {twin} of the training side" for case_id, twin in twins.items()}
    return replace(splits, pool=pool, left_out={**splits.left_out, **reasons})


def settle(splits: Splits, division: Division, new: NewCases, depth: int) -> Splits:
    """The parts that a data set has now, as they were divided before.

    Args:
        splits: the parts as they would be drawn now.
        division: the parts that were written down.
        new: part of the cases that were not there then. Those of a group that is in training do not go to the pool
            set, unless groups were in several parts already.
        depth: level of the groups that stay whole.
    """
    known = division.parts
    cases = {case.case_id: case for case in splits.all}
    parts = {part: [cases[name] for name in getattr(division, part) if name in cases] for part in PARTS}
    left_out = dict(splits.left_out) | {name: why for name, why in division.left_out.items() if name in cases}
    fresh = [case for case in splits.all if case.case_id not in known and case.case_id not in division.left_out]
    seen = {case.group(depth) for part in ("train", "val") for case in parts[part]}
    whole = not any(case.group(depth) in seen for case in parts["pool"])
    for case in fresh:
        near = whole and new == "pool" and case.group(depth) in seen
        if near or new == "leave_out":
            left_out[case.case_id] = _NEAR if near else NEW
        else:
            parts[new].append(case)
    return Splits(**parts, left_out=left_out)


def moved(splits: Splits, division: Division) -> list[str]:
    """Ids of cases that a fresh draw puts elsewhere than the division that was written down."""
    drawn = Division.of(splits).parts
    return [case_id for case_id, part in division.parts.items() if drawn.get(case_id, part) != part]


def training_side(splits: Splits) -> list[Case]:
    """Cases of training and validation."""
    return [*splits.train, *splits.val]
