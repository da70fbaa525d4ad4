"""Division of a store's cases into ``cal``, ``val`` and ``test``, once for each repeat."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from lightning_calib.datasets.splits import by_count, by_group, by_list
from lightning_calib.kit.files import write_text
from lightning_calib.outputs.store import OutputStore

PARTS = ("cal", "val", "test")

# Number of cases, share of all, list of ids, text file of ids, or None for what the others leave over.
Size = int | float | list[str] | str | None


class Sizes(NamedTuple):
    """How large the parts are; each a number, a share, a list of ids, a file of ids, or None for the rest."""

    cal: Size = 50
    val: Size = 0.2
    test: Size = None


@dataclass(frozen=True)
class Split:
    """One partition of the pool set.

    Attributes:
        cal: cases that calibrators are fitted on.
        val: cases that hyperparameters and epochs are chosen on.
        test: cases that results are reported on.
        repeat: number of the partition.
        seed: seed that all repeats come from.
    """

    cal: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    repeat: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a case in two parts."""
        seen: dict[str, str] = {}
        for part in PARTS:
            for case_id in getattr(self, part):
                if case_id in seen:
                    raise ValueError(f"case {case_id!r} is in {seen[case_id]} and in {part}: each case belongs to one")
                seen[case_id] = part

    def save(self, path: Path) -> None:
        """Write the split as JSON."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote."""
        facts = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**facts, **{part: tuple(facts[part]) for part in PARTS}})

    def check_groups(self, groups: Mapping[str, str]) -> None:
        """Refuse a group with cases in two parts."""
        owner: dict[str, str] = {}
        for part in PARTS:
            for case_id in getattr(self, part):
                other = owner.setdefault(groups[case_id], part)
                if other != part:
                    raise ValueError(
                        f"group {groups[case_id]!r} has cases in {other} and in {part}: keep its cases together"
                    )


def make_split(
    store: OutputStore,
    repeat: int = 0,
    sizes: Sizes | tuple[Size, Size, Size] = Sizes(),  # noqa: B008  # immutable
    seed: int = 0,
    groups: Mapping[str, str] | None = None,
) -> Split:
    """Partition the cases of a store.

    Test cases are drawn first, calibration cases last: with fixed ``val`` and ``test`` sizes, a smaller ``cal`` is
    a subset of the larger one, and is judged on the same cases. The result depends on the set of case ids, the
    seed and the repeat only.

    Args:
        store: where the cases come from.
        repeat: number of the partition.
        sizes: sizes of ``cal``, ``val`` and ``test``; see :class:`Sizes`.
        seed: seed that all repeats come from.
        groups: group by case id; groups are then never torn apart, and sizes are met as closely as they allow.
            ``store.groups`` holds those that the data set knows.

    Example:
        >>> from types import SimpleNamespace
        >>> store = SimpleNamespace(case_ids=tuple("abcdefgh"), path="outputs")
        >>> split = make_split(store, repeat=0, sizes=(3, 1, None))
        >>> len(split.cal), len(split.val), len(split.test)
        (3, 1, 4)
    """
    wanted = dict(zip(PARTS, sizes, strict=True))
    chosen = {part: _named(store, part, size) for part, size in wanted.items() if isinstance(size, str | list)}
    fixed = {case_id for ids in chosen.values() for case_id in ids}
    left = [case_id for case_id in store.case_ids if case_id not in fixed]
    if groups is not None:
        torn = {groups[case_id] for case_id in fixed}
        left = [case_id for case_id in left if groups[case_id] not in torn]
    counts = _counts(store, {part: wanted[part] for part in PARTS if part not in chosen}, len(left))
    complete = sum(counts.values()) == len(left)
    for number, part in enumerate(reversed(PARTS)):  # test first
        if part in counts:
            count = counts.pop(part)
            if complete and not counts:  # groups may have left more or fewer cases than asked for
                count = len(left)
            state = np.random.SeedSequence([seed, repeat, number]).generate_state(1)
            left, chosen[part] = _draw(left, count, int(state[0]), groups)
    split = Split(**{part: tuple(sorted(chosen[part])) for part in PARTS}, repeat=repeat, seed=seed)
    _check_sizes(store, split, wanted)
    if groups is not None:
        split.check_groups(groups)
    return split


def _named(store: OutputStore, part: str, size: str | list[str]) -> list[str]:
    """Ids of a list or a text file."""
    if isinstance(size, str):
        if not Path(size).is_file():
            raise ValueError(f"{part} = {size!r} is neither a number, a share, a list of case ids nor a file of them")
        return by_list(store.case_ids, Path(size))[1]
    known = set(store.case_ids)
    if unknown := [case_id for case_id in size if case_id not in known]:
        raise ValueError(f"{part}: {', '.join(unknown[:5])} is no case of {store.path}")
    if len(set(size)) < len(size):
        raise ValueError(f"{part}: a case is listed twice in {size}")
    return size


def _counts(store: OutputStore, sizes: Mapping[str, Size], available: int) -> dict[str, int]:
    """Number of cases of each part that is drawn."""
    counts: dict[str, int] = {}
    for part, size in sizes.items():
        if isinstance(size, float):
            if not 0 < size < 1:
                raise ValueError(f"{part} = {size}: a share lies between 0 and 1; write whole numbers without a point")
            counts[part] = round(size * available)
        elif size is not None:
            counts[part] = int(size)  # type: ignore[arg-type]  # lists and files are taken out before
            if counts[part] < 0:
                raise ValueError(f"{part} = {size}: a part cannot have fewer than 0 cases")
    shares = [size for size in sizes.values() if isinstance(size, float)]
    if len(shares) == len(sizes) and abs(sum(shares) - 1) < 1e-6:  # rounding must not lose a case
        counts["test"] = available - sum(counts[part] for part in counts if part != "test")
    rest = [part for part, size in sizes.items() if size is None]
    if len(rest) > 1:
        raise ValueError(f"{' and '.join(rest)} are both to get the rest; give all but one of them a size")
    total = sum(counts.values())
    if total > available:
        raise ValueError(
            f"{' + '.join(f'{part} {count}' for part, count in counts.items())} = {total} cases, but the store "
            f"{store.path} has {available} to draw from; ask for fewer, or predict more"
        )
    return {part: counts.get(part, available - total) for part in sizes}


def _draw(left: list[str], count: int, seed: int, groups: Mapping[str, str] | None) -> tuple[list[str], list[str]]:
    """Cases that stay, and cases drawn."""
    if count >= len(left):
        return [], left
    if groups is None or count == 0:
        return by_count(left, count, seed)
    return by_group({case_id: groups[case_id] for case_id in left}, count / len(left), seed)


def _check_sizes(store: OutputStore, split: Split, wanted: Mapping[str, Size]) -> None:
    """Refuse an empty part that was not asked to be empty."""
    for part in PARTS:
        empty = not getattr(split, part)
        if empty and (part == "cal" or wanted[part] not in (0, None, [])):
            raise ValueError(
                f"no case is left for {part} (asked for: {wanted[part]}) in {store.path} with "
                f"{len(store.case_ids)} cases; make the other parts smaller"
            )
