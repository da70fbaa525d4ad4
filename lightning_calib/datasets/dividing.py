"""Division of a user's cases by lists, fractions and groups."""

import re
from dataclasses import replace
from pathlib import Path

from lightning_calib.datasets.cases import Case, Splits, pick
from lightning_calib.datasets.splits import Parts, by_group, by_list


def group_cases(cases: list[Case], pattern: str | None) -> tuple[list[Case], list[str]]:
    """Cases with the group that a regular expression finds in their ids, and one line for each it does not fit.

    Example:
        >>> cases, wrong = group_cases([Case("p7_slice3"), Case("other")], "^(p[0-9]+)_")
        >>> cases[0].group, wrong
        ('p7', ["other: group_regex '^(p[0-9]+)_' does not fit its name"])
    """
    if pattern is None:
        return [replace(case, group=case.case_id) for case in cases], []
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"group_regex {pattern!r} is no regular expression: {error}") from error
    if compiled.groups < 1:
        raise ValueError(f"group_regex {pattern!r} needs a pair of parentheses around what names the group")
    found = [(case, compiled.search(case.case_id)) for case in cases]
    wrong = [f"{case.case_id}: group_regex {pattern!r} does not fit its name" for case, match in found if not match]
    return [replace(case, group=match.group(1)) for case, match in found if match], wrong


def divide(
    cases: list[Case],
    pattern: str | None,
    lists: tuple[Path | str | None, Path | str | None],
    fractions: tuple[float, float],
    seed: int,
) -> tuple[Splits, list[str]]:
    """Hold out the pool set, then validation, each by list or by whole groups.

    Args:
        cases: all cases.
        pattern: regular expression that finds a case's group, see :func:`group_cases`.
        lists: files that name the pool set's and validation's cases; None to draw them.
        fractions: shares to draw where there is no list.
        seed: seed of the draw.

    Returns:
        The parts, and one line for each case without a group and each group that a list tears apart.
    """

    def hold_out(rest: list[Case], file: Path | str | None, fraction: float) -> Parts:
        groups = {case.case_id: case.group for case in rest}
        return by_group(groups, fraction, seed) if file is None else by_list(groups, Path(file))

    cases, strange = group_cases(cases, pattern)
    kept, pool = hold_out(cases, lists[0], fractions[0])
    train, val = hold_out(pick(cases, kept), lists[1], fractions[1])
    splits = Splits(pick(cases, train), pick(cases, val), pick(cases, pool))
    return splits, strange + _torn(splits)


def _torn(splits: Splits) -> list[str]:
    """One line for each group with cases in several parts."""
    homes: dict[str, set[str]] = {}
    for part, cases in (("training", splits.train), ("validation", splits.val), ("pool", splits.pool)):
        for case in cases:
            homes.setdefault(case.group, set()).add(part)
    return [f"group {g!r} is in {' and '.join(sorted(h))}; list all of it" for g, h in homes.items() if len(h) > 1]
