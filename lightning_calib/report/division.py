"""How many groups each part of a division has, and what that allows to conclude."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_calib.report.numbers import format_count

Parts = Mapping[str, Sequence[str]]  # cases of cal, val and test

ENOUGH = 5  # groups below which nothing can be concluded across them


@dataclass(frozen=True)
class LevelCounts:
    """Groups of one level in the parts of all repeats.

    Attributes:
        level: its name.
        parts: for each part the smallest and the largest number of groups over repeats.
        fitting: smallest number of groups of ``cal`` and ``val`` together.
        torn: largest number of groups over repeats with cases in several parts.
    """

    level: str
    parts: dict[str, tuple[int, int]]
    fitting: int
    torn: int

    @property
    def text(self) -> str:
        """Numbers of groups in cal, val and test."""
        ranges = (
            format_count(low) if low == high else f"{format_count(low)} to {format_count(high)}"
            for low, high in self.parts.values()
        )
        return " / ".join(ranges)


def count_groups(level: str, groups: Mapping[str, str], splits: Sequence[Parts]) -> LevelCounts:
    """Count the groups of a level in the parts of each repeat.

    Args:
        level: its name.
        groups: group of each case at this level.
        splits: parts of each repeat.

    Example:
        >>> split = {"cal": ["a1"], "val": ["b1"], "test": ["a2", "c1"]}
        >>> count_groups("site", {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}, [split])
        LevelCounts(level='site', parts={'cal': (1, 1), 'val': (1, 1), 'test': (2, 2)}, fitting=2, torn=1)
    """
    found = [{part: {groups[case] for case in cases} for part, cases in split.items()} for split in splits]
    sizes = {part: [len(each[part]) for each in found] for part in found[0]}
    return LevelCounts(
        level=level,
        parts={part: (min(counts), max(counts)) for part, counts in sizes.items()},
        fitting=min(len(each["cal"] | each["val"]) for each in found),
        torn=max(_shared(each) for each in found),
    )


def _shared(parts: Mapping[str, set[str]]) -> int:
    """Groups that are in several parts."""
    homes = Counter(group for groups in parts.values() for group in groups)
    return sum(count > 1 for count in homes.values())


def conclusion(levels: Sequence[LevelCounts]) -> str:
    """What the numbers of groups allow to conclude, in plain sentences; the coarsest whole level counts.

    Args:
        levels: counts, coarsest first.
    """
    whole = next((counts for counts in levels if not counts.torn), None)
    said = [_torn(counts) for counts in levels[: None if whole is None else levels.index(whole)]]
    return " ".join(said if whole is None else [_whole(whole), *said])


def _whole(counts: LevelCounts) -> str:
    """What a level that no part shares with another allows to say."""
    level, tested = _named(counts.level), counts.parts["test"][0]
    if tested < ENOUGH:
        return (
            f"No group{level} is in two parts, but test has only {tested}: fewer than {ENOUGH} allow no conclusion "
            f"across groups{level}, however many cases they have."
        )
    text = (
        f"No group{level} is in two parts: scores on test are those of groups that no calibrator has seen, "
        f"and the unit that counts in intervals is the group, {tested} in test, not the case."
    )
    if counts.fitting < ENOUGH:
        text += f" cal and val have {counts.fitting} together: too few to choose between calibrators by groups."
    return text


def _named(level: str) -> str:
    """A level in parentheses, unless it says no more than that these are groups."""
    return "" if level == "group" else f" ({level})"


def _torn(counts: LevelCounts) -> str:
    """What a level with groups in several parts does not allow to say."""
    return (
        f"Cases of one group{_named(counts.level)} are in several parts: nothing follows for a new one, and scores may "
        f"be too good (--group_level {counts.level} keeps them apart)."
    )
