"""Nested groups of cases, such as site and patient, from the cases' names or from a table."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightning_calib.datasets.cases import CASE, Case, level_depth
from lightning_calib.datasets.content import listed

Groups = Mapping[str, str | Sequence[str]]  # group of each case, or its groups, coarsest first

_LEVEL = re.compile(r"\w[\w ]*")


@dataclass(frozen=True)
class Grouping:
    """What cases share.

    Attributes:
        levels: names of the levels, coarsest first; empty where cases share nothing.
        names: by case id its group at each level.
        whole: the level that divisions keep whole.
    """

    levels: tuple[str, ...] = ()
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    whole: str = CASE

    @property
    def depth(self) -> int:
        """Number of the level that stays whole."""
        return level_depth(self.levels, self.whole)

    def assign(self, cases: Iterable[Case]) -> list[Case]:
        """Those of some cases whose groups are known, with them; all as they are where there are no levels."""
        if not self.levels:
            return list(cases)
        return [replace(case, groups=self.names[case.case_id]) for case in cases if case.case_id in self.names]


def find_groups(
    case_ids: Sequence[str], pattern: str | None = None, table: Path | str | None = None, whole: str | None = None
) -> tuple[Grouping, list[str]]:
    """Groups of cases by a regular expression or a table, and one line for each case that has none there.

    Args:
        case_ids: the cases.
        pattern: expression with a pair of parentheses for each level, coarsest first; ``(?P<site>...)`` names it.
        table: CSV file with a header: ``case_id``, then a column for each level, coarsest first.
        whole: level that divisions keep whole, or ``"case"``; None for the coarsest.

    Example:
        >>> find_groups(["a_p7_1", "b"], "^(?P<site>[a-z])_(?P<patient>p[0-9]+)_")[0]
        Grouping(levels=('site', 'patient'), names={'a_p7_1': ('a', 'p7')}, whole='site')
        >>> find_groups(["b"], "^([a-z])_")[1]
        ["b: group_regex '^([a-z])_' does not fit the name"]
    """
    if pattern is not None and table is not None:
        raise ValueError("group_regex and groups_csv both name groups; give one of them")
    grouping, wrong = Grouping(), list[str]()
    if pattern is not None:
        grouping, wrong = _by_pattern(case_ids, pattern)
    elif table is not None:
        grouping, wrong = _by_table(case_ids, Path(table))
    chosen = next(iter(grouping.levels), CASE) if whole is None else whole
    level_depth(grouping.levels, chosen)
    return replace(grouping, whole=chosen), wrong


def check_levels(levels: Sequence[str], where: str) -> tuple[str, ...]:
    """The names of levels, if they are names, all different, none of them ``"case"``."""
    if wrong := [level for level in levels if not _LEVEL.fullmatch(level) or level == CASE]:
        raise ValueError(f"{where}: {wrong[0]!r} cannot name a level of groups; use letters and digits, not 'case'")
    if len(set(levels)) < len(levels):
        raise ValueError(f"{where}: two levels of groups have one name among {', '.join(levels)}")
    return tuple(levels)


def check_names(case_id: str, names: Sequence[str], levels: Sequence[str]) -> tuple[str, ...]:
    """The groups of a case, if there is one for each level; slashes and empty names would make two groups one."""
    if isinstance(names, str) or len(names) != len(levels):
        raise ValueError(f"case {case_id} has the groups {names!r} for the levels ({', '.join(levels)}); name one each")
    if len(names) > 1 and any(not name or "/" in name for name in names):
        raise ValueError(f"case {case_id} has the groups {names!r}; their names must have no slash and not be empty")
    return tuple(names)


def unnamed(count: int) -> tuple[str, ...]:
    """Names for levels that have none: ``group``, or ``group1``, ``group2`` and so on."""
    return ("group",) if count == 1 else tuple(f"group{number}" for number in range(1, count + 1))


def nested(groups: Groups | None, levels: Sequence[str] | None) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Groups as tuples, and names of their levels.

    Example:
        >>> nested({"a": "p7"}, None)
        ({'a': ('p7',)}, ('group',))
    """
    names = {i: (group,) if isinstance(group, str) else tuple(group) for i, group in (groups or {}).items()}
    depth = max(map(len, names.values()), default=0)
    return names, tuple(levels if levels is not None else unnamed(depth) if depth else ())


def _by_pattern(case_ids: Sequence[str], pattern: str) -> tuple[Grouping, list[str]]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"group_regex {pattern!r} is no regular expression: {error}") from error
    if compiled.groups < 1:
        raise ValueError(f"group_regex {pattern!r} needs a pair of parentheses around what names the group")
    named = sorted(compiled.groupindex, key=lambda name: compiled.groupindex[name])
    levels = check_levels(named or unnamed(compiled.groups), f"group_regex {pattern!r}")
    pairs = [compiled.groupindex[name] for name in named] or range(1, compiled.groups + 1)
    matches = {case_id: compiled.search(case_id) for case_id in case_ids}
    found = {case_id: tuple(match[pair] or "" for pair in pairs) for case_id, match in matches.items() if match}
    return _sound(case_ids, levels, found, f"group_regex {pattern!r} does not fit the name")


def _by_table(case_ids: Sequence[str], path: Path) -> tuple[Grouping, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise ValueError(f"groups_csv {path} cannot be read ({problem})") from problem
    if not rows or rows[0][:1] != ["case_id"] or len(rows[0]) < 2:
        raise ValueError(
            f"{path}: the first line names the columns: case_id, then levels, such as case_id,site,patient"
        )
    levels = check_levels(rows[0][1:], str(path))
    if uneven := [row[0] for row in rows if len(row) != len(rows[0])]:
        raise ValueError(f"{path}: the line of {uneven[0]} does not have the {len(rows[0])} columns of the first line")
    names = {row[0]: tuple(row[1:]) for row in rows[1:]}
    if len(names) < len(rows) - 1:
        raise ValueError(f"{path}: a case is listed twice; give each one line")
    found = {case_id: names[case_id] for case_id in case_ids if case_id in names}
    return _sound(case_ids, levels, found, f"{path} does not name the groups")


def _sound(
    case_ids: Sequence[str], levels: tuple[str, ...], found: dict[str, tuple[str, ...]], lacking: str
) -> tuple[Grouping, list[str]]:
    """The grouping of those cases that have a name at each level, and one line on the others."""
    names = {case_id: check_names(case_id, groups, levels) for case_id, groups in found.items() if all(groups)}
    others = [case_id for case_id in case_ids if case_id not in names]
    told = others[0] if len(others) == 1 else f"{len(others)} cases ({listed(others, most=3)})"
    return Grouping(levels, names), [f"{told}: {lacking}"] if others else []
