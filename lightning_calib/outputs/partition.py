"""Division of a store's cases into ``cal``, ``val`` and ``test``, once for each repeat."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from lightning_calib.datasets.splits import by_count, by_group, by_list
from lightning_calib.kit.files import write_json
from lightning_calib.kit.mend import Mendable
from lightning_calib.kit.typed import read_typed
from lightning_calib.outputs.store import OutputStore

PARTS = ("cal", "val", "test")
_SHARES = {"cal": "0.5", "val": "0.2", "test": "0.3"}  # these fit whatever the number of cases

# Number of cases, share of all, list of ids, text file of ids, or None for what the others leave over.
Size = int | float | list[str] | str | None


class PartitionError(ValueError):
    """A part would get no case."""


class Sizes(NamedTuple):
    """How large the parts are; each a number, a share, a list of ids, a file of ids, or None for the rest."""

    cal: Size = 0.5
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
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote."""
        return read_typed(path, cls)

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


def whole_groups(store: OutputStore, group_aware: bool, group_level: str | None) -> dict[str, str] | None:
    """Groups that a partition keeps whole, by case id.

    Args:
        store: where the cases come from.
        group_aware: keep groups of the data set's own level whole.
        group_level: keep groups of this level whole; None leaves it to ``group_aware``.

    Returns:
        None where cases are divided one by one.
    """
    if group_level is not None:
        return store.groups_at(group_level)
    return store.groups if group_aware else None


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
            see :func:`whole_groups`.

    Example:
        >>> from types import SimpleNamespace
        >>> store = SimpleNamespace(case_ids=tuple("abcdefgh"), path="outputs")
        >>> split = make_split(store, repeat=0, sizes=(3, 1, None))
        >>> len(split.cal), len(split.val), len(split.test)
        (3, 1, 4)
    """
    wanted = dict(zip(PARTS, sizes, strict=True))
    listed = {part: _listed(store, part, size) for part, size in wanted.items() if isinstance(size, str | list)}
    free = _free(store.case_ids, {case_id for ids in listed.values() for case_id in ids}, groups)
    counts = _counts({part: size for part, size in wanted.items() if part not in listed}, len(free), store.path)
    parts = listed | _draw_parts(free, counts, [seed, repeat], groups)
    split = Split(**{part: tuple(sorted(parts[part])) for part in PARTS}, repeat=repeat, seed=seed)
    for part in PARTS:
        if not parts[part] and (part == "cal" or wanted[part] not in (0, None, [])):
            few = len(store.case_ids) < len(PARTS)
            remedy = "add cases: it takes three, one for each part" if few else "make the other parts smaller"
            raise PartitionError(
                f"no case is left for {part} (asked for: {wanted[part]}) in {store.path} with "
                f"{len(store.case_ids)} cases; {remedy}"
            )
    if groups is not None:
        split.check_groups(groups)
    return split


def _listed(store: OutputStore, part: str, size: str | list[str]) -> list[str]:
    """Ids of a part that is given as a list or a text file."""
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


def _free(case_ids: Sequence[str], listed: set[str], groups: Mapping[str, str] | None) -> list[str]:
    """Cases that may be drawn: not listed, and of no group that has a listed case."""
    taken = set() if groups is None else {groups[case_id] for case_id in listed}
    return [i for i in case_ids if i not in listed and (groups is None or groups[i] not in taken)]


def _counts(sizes: Mapping[str, Size], available: int, where: Path) -> dict[str, int]:
    """Number of cases of each part that is drawn; one part without a size gets the rest."""
    counts = {part: _count(part, size, available) for part, size in sizes.items() if size is not None}
    shares = [size for size in sizes.values() if isinstance(size, float)]
    if len(shares) == len(sizes) and abs(sum(shares) - 1) < 1e-6:  # rounding must neither lose nor add a case
        counts["test"] = available - sum(count for part, count in counts.items() if part != "test")
    total, rest = sum(counts.values()), [part for part in sizes if part not in counts]
    if len(rest) > 1:
        raise ValueError(f"{' and '.join(rest)} are both to get the rest; give all but one of them a size")
    if total > available:
        raise Mendable(
            f"{' + '.join(f'{part} {count}' for part, count in counts.items())} = {total} cases, but the store "
            f"{where} has {available} to draw from; ask for shares of them, for fewer, or predict more",
            **{part: _SHARES[part] for part in sizes},
        )
    return {part: counts.get(part, available - total) for part in sizes}


def _count(part: str, size: Size, available: int) -> int:
    """Number of cases that a number or a share stands for."""
    if isinstance(size, float):
        if not 0 < size < 1:
            raise ValueError(f"{part} = {size}: a share lies between 0 and 1; write whole numbers without a point")
        return round(size * available)
    assert isinstance(size, int)
    if size < 0:
        raise ValueError(f"{part} = {size}: a part cannot have fewer than 0 cases")
    return size


def _draw_parts(
    free: list[str], counts: Mapping[str, int], seed: list[int], groups: Mapping[str, str] | None
) -> dict[str, list[str]]:
    """Draw ``test``, ``val`` and ``cal`` one after the other, as far as they have a count."""
    drawn: dict[str, list[str]] = {}
    all_used = sum(counts.values()) == len(free)
    last = next((part for part in PARTS if part in counts), None)
    for number, part in enumerate(reversed(PARTS)):
        if part not in counts:
            continue
        # Whole groups may have left more or fewer cases than asked for: the last part takes them.
        count = len(free) if all_used and part == last else counts[part]
        state = int(np.random.SeedSequence([*seed, number]).generate_state(1)[0])
        if count >= len(free):
            free, drawn[part] = [], free
        elif groups is None or count == 0:
            free, drawn[part] = by_count(free, count, state)
        else:
            free, drawn[part] = by_group({i: groups[i] for i in free}, count / len(free), state)
    return drawn
