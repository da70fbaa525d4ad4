"""Division of cases into parts that share nothing.

The functions ``by_...`` give ``(kept, held)``, depend on the set of ids and the seed only (not on their order), and
keep what belongs together on one side.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from lightning_calib.datasets.cases import Case, Splits, pick

Parts = tuple[list[str], list[str]]


def _part(ids: Iterable[str], held: set[str]) -> Parts:
    ordered = sorted(ids)
    return [i for i in ordered if i not in held], [i for i in ordered if i in held]


def check_fraction(fraction: float, name: str = "fraction") -> float:
    """The fraction, if it is one: ``0 <= fraction < 1``."""
    if not 0 <= fraction < 1:
        raise ValueError(f"{name} = {fraction}; give a number from 0 to below 1")
    return fraction


def by_count(ids: Iterable[str], count: int, seed: int) -> Parts:
    """Hold out ``count`` ids at random.

    Raises:
        ValueError: if fewer than ``count + 1`` ids exist.

    Example:
        >>> kept, held = by_count(["a", "b", "c", "d"], 1, seed=0)
        >>> len(kept), len(held)
        (3, 1)
    """
    ordered = sorted(ids)
    if not 0 <= count < max(len(ordered), 1):
        raise ValueError(f"cannot hold out {count} of {len(ordered)} cases; ask for fewer, or add cases")
    order = np.random.default_rng(seed).permutation(len(ordered))
    return _part(ordered, {ordered[i] for i in order[:count]})


def by_fraction(ids: Iterable[str], fraction: float, seed: int) -> Parts:
    """Hold out a fraction of the ids at random: at least one if the fraction is above 0, never all."""
    ordered = sorted(ids)
    count = round(len(ordered) * check_fraction(fraction))
    return by_count(ordered, min(max(count, int(fraction > 0)), max(len(ordered) - 1, 0)), seed)


def by_group(groups: Mapping[str, str], fraction: float, seed: int) -> Parts:
    """Hold out whole groups until a fraction of the ids is reached, or would be passed by more than it lacks.

    At least one group is held out if the fraction is above 0, and at least one is kept.

    Args:
        groups: group by id.
        fraction: wanted share of ids.
        seed: seed of the order in which groups are taken.

    Example:
        >>> by_group({"a1": "a", "a2": "a", "b1": "b", "b2": "b"}, 0.5, seed=0)
        (['b1', 'b2'], ['a1', 'a2'])
    """
    sizes = Counter(sorted(groups.values()))
    wanted = len(groups) * check_fraction(fraction)
    order = np.random.default_rng(seed).permutation(len(sizes))
    taken: set[str] = set()
    count = 0
    for name in [list(sizes)[i] for i in order][:-1] if wanted else []:
        if taken and abs(count + sizes[name] - wanted) >= abs(count - wanted):
            continue
        taken.add(name)
        count += sizes[name]
    return _part(groups, {i for i, name in groups.items() if name in taken})


def make_folds(groups: Sequence[str], seed: int, folds: int) -> list[tuple[str, ...]]:
    """Groups dealt out to folds at random, as evenly as they go.

    Example:
        >>> [len(fold) for fold in make_folds([str(i) for i in range(11)], seed=0, folds=4)]
        [3, 3, 3, 2]
    """
    names = sorted(set(groups))
    order = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    count = min(folds, len(names))
    return [tuple(sorted(order[start::count])) for start in range(count)]


def by_list(ids: Iterable[str], path: Path) -> Parts:
    """Hold out the ids of a text file, one a line; blank lines and lines that start with # do not count.

    Raises:
        ValueError: naming the lines that are no ids, or come twice.
    """
    known, held = set(ids), set[str]()
    wrong: list[str] = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path} cannot be read as a list of cases ({problem}): one name a line") from problem
    for number, line in enumerate(lines, start=1):
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        if name not in known or name in held:
            wrong.append(f"line {number}: {name!r} {'is listed twice' if name in held else 'is no case'}")
        held.add(name)
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}. Cases are named by their files without ending")
    return _part(known, held)


def time_blocks(ids: Sequence[str], block: int, gap: int, name: str) -> tuple[dict[str, str], list[str]]:
    """Cut one video into blocks of consecutive frames with frames left out in between.

    Frames of a video resemble their neighbours; blocks may be divided among calibration and test without
    near-copies on both sides.

    Args:
        ids: frames in order of time.
        block: frames a block.
        gap: frames left out after each block.
        name: name of the video.

    Returns:
        Block name by frame id, and the frames left out.

    Example:
        >>> time_blocks(["f0", "f1", "f2", "f3", "f4"], block=2, gap=1, name="v")
        ({'f0': 'v-000', 'f1': 'v-000', 'f3': 'v-001', 'f4': 'v-001'}, ['f2'])
    """
    if block < 1 or gap < 0:
        raise ValueError(f"block = {block}, gap = {gap}; a block has at least 1 frame, a gap at least 0")
    period = block + gap
    groups = {i: f"{name}-{n // period:03d}" for n, i in enumerate(ids) if n % period < block}
    return groups, [i for i in ids if i not in groups]


def hold_out_blocks(
    videos: Mapping[str, Sequence[str]], block: int, gap: int, fraction: float, seed: int
) -> tuple[list[str], list[str], list[str]]:
    """Hold out blocks of frames, and leave out what lies closer than ``gap`` frames to them.

    Args:
        videos: frames in order of time, by video.
        block: frames a block.
        gap: frames left out on either side of a held-out block.
        fraction: wanted share of frames.
        seed: seed of the choice.

    Returns:
        Frames kept, held out, and left out.
    """
    groups: dict[str, str] = {}
    for name, ids in videos.items():
        groups |= time_blocks(ids, block, 0, name)[0]
    kept, held = by_group(groups, fraction, seed)
    chosen = set(held)
    near = {
        ids[n]
        for ids in videos.values()
        for n in range(len(ids))
        if ids[n] not in chosen and chosen.intersection(ids[max(n - gap, 0) : n + gap + 1])
    }
    return [i for i in kept if i not in near], held, sorted(near)


def assert_disjoint(splits: Splits) -> None:
    """Refuse parts that share a case, or a region of a file.

    Raises:
        ValueError: naming the cases in question.
    """
    owners: dict[object, tuple[str, str]] = {}
    clashes: list[str] = []
    for part, cases in (("train", splits.train), ("val", splits.val), ("pool", splits.pool)):
        for case in cases:
            for key in (case.case_id, *((file.resolve(), case.window) for file in case.images)):
                other, other_part = owners.setdefault(key, (case.case_id, part))
                if (other, other_part) != (case.case_id, part):
                    clashes.append(f"{case.case_id} ({part}) and {other} ({other_part})")
    counts = Counter(case.case_id for case in splits.all)
    clashes += [f"{i} appears {n} times" for i, n in counts.items() if n > 1]
    if clashes:
        raise ValueError(f"the same case twice: {'; '.join(dict.fromkeys(clashes))}")


def divide(
    cases: list[Case],
    depth: int,
    lists: tuple[Path | str | None, Path | str | None],
    fractions: tuple[float, float],
    seed: int,
) -> tuple[Splits, list[str]]:
    """Hold out the pool set, then validation, each by list or by whole groups.

    Args:
        cases: all cases.
        depth: number of the level of groups that stays whole; 0 for cases by themselves.
        lists: files that name the pool set's and validation's cases; None to draw them.
        fractions: shares to draw where there is no list.
        seed: seed of the draw.

    Returns:
        The parts, and one line for each group that a list tears apart.
    """
    check_fraction(fractions[0], "pool_fraction")

    def hold_out(rest: list[Case], file: Path | str | None, fraction: float) -> Parts:
        groups = {case.case_id: case.group(depth) for case in rest}
        return by_group(groups, fraction, seed) if file is None else by_list(groups, Path(file))

    kept, pool = hold_out(cases, lists[0], fractions[0])
    train, val = hold_out(pick(cases, kept), lists[1], fractions[1])
    splits = Splits(pick(cases, train), pick(cases, val), pick(cases, pool))
    return splits, _torn(splits, depth)


def divide_by_name(cases: list[Case], pool_pattern: str, fraction: float, seed: int) -> Splits:
    """Hold out the cases whose ids fit an expression as the pool set, then a fraction of the others for validation.

    Groups may be in several parts: networks that have seen some images of a site are calibrated on others.

    Args:
        cases: all cases.
        pool_pattern: regular expression that fits the ids of the pool set.
        fraction: share of the other cases to draw for validation.
        seed: seed of the draw.

    Example:
        >>> splits = divide_by_name([Case(f"site{n}") for n in range(4)], "[23]$", 0.5, seed=0)
        >>> len(splits.train), len(splits.val), [case.case_id for case in splits.pool]
        (1, 1, ['site2', 'site3'])
    """
    try:
        chosen = re.compile(pool_pattern)
    except re.error as error:
        raise ValueError(f"pool_regex {pool_pattern!r} is no regular expression: {error}") from error
    pool = [case for case in cases if chosen.search(case.case_id)]
    rest = [case for case in cases if not chosen.search(case.case_id)]
    train, val = by_fraction([case.case_id for case in rest], fraction, seed)
    return Splits(pick(rest, train), pick(rest, val), pool)


def _torn(splits: Splits, depth: int) -> list[str]:
    """One line for each group with cases in several parts."""
    homes: dict[str, set[str]] = {}
    for part, cases in (("training", splits.train), ("validation", splits.val), ("pool", splits.pool)):
        for case in cases:
            homes.setdefault(case.group(depth), set()).add(part)
    return [f"group {g!r} is in {' and '.join(sorted(h))}; list all of it" for g, h in homes.items() if len(h) > 1]
