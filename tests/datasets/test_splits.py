"""Parts share nothing, depend on the seed alone, and keep groups whole."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.datasets.cases import Case, Splits
from lightning_calib.datasets.splits import (
    assert_disjoint,
    by_count,
    by_fraction,
    by_group,
    by_list,
    hold_out_blocks,
    time_blocks,
)

IDS = st.lists(st.text("abcdef0123", min_size=1, max_size=4), min_size=1, max_size=40, unique=True)
FRACTION = st.floats(0, 0.99)
SEED = st.integers(0, 99)


def assert_parts(ids, *parts):
    """Every id is in exactly one part."""
    assert sorted(i for part in parts for i in part) == sorted(ids)


@given(IDS, FRACTION, SEED, st.randoms())
def test_fraction(ids, fraction, seed, shuffler):
    kept, held = by_fraction(ids, fraction, seed)
    assert_parts(ids, kept, held)
    assert kept
    assert (len(held) > 0) == (fraction > 0 and len(ids) > 1)
    assert abs(len(held) - fraction * len(ids)) <= 1
    shuffler.shuffle(ids)
    assert by_fraction(ids, fraction, seed) == (kept, held)


def test_seeds_give_other_parts():
    ids = [str(n) for n in range(40)]
    assert by_fraction(ids, 0.5, 0) != by_fraction(ids, 0.5, 1)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.sampled_from("uvwxyz"), min_size=1), FRACTION, SEED)
def test_groups_stay_whole(groups, fraction, seed):
    kept, held = by_group(groups, fraction, seed)
    assert_parts(groups, kept, held)
    assert not {groups[i] for i in kept} & {groups[i] for i in held}
    assert kept
    assert (len(held) > 0) == (fraction > 0 and len(set(groups.values())) > 1)


@given(st.integers(2, 60), st.integers(1, 59), SEED)
def test_groups_of_one_give_the_exact_count(size, count, seed):
    count = min(count, size - 1)
    kept, held = by_group({f"{n:02d}": f"{n:02d}" for n in range(size)}, count / size, seed)
    assert (len(kept), len(held)) == (size - count, count)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=4), st.integers(1, 8), st.integers(0, 4), st.floats(0.01, 0.6))
def test_blocks_are_held_out_with_a_gap(lengths, block, gap, fraction):
    videos = {f"v{v}": [f"v{v}_{n:03d}" for n in range(length)] for v, length in enumerate(lengths)}
    kept, held, near = hold_out_blocks(videos, block, gap, fraction, seed=0)
    assert_parts([i for ids in videos.values() for i in ids], kept, held, near)
    for ids in videos.values():
        for n, frame in enumerate(ids):
            neighbours = set(ids[max(n - gap, 0) : n + gap + 1])
            assert frame not in kept or not neighbours & set(held)
            assert frame not in near or neighbours & set(held)


@given(st.integers(1, 60), st.integers(1, 10), st.integers(0, 4))
def test_time_blocks(length, block, gap):
    ids = [f"{n:03d}" for n in range(length)]
    groups, left_out = time_blocks(ids, block, gap, "v")
    assert_parts(ids, groups, left_out)
    members = {}
    for frame, group in groups.items():
        members.setdefault(group, []).append(int(frame))
    ordered = sorted(members.values())
    assert all(frames == list(range(frames[0], frames[0] + len(frames))) for frames in ordered)
    assert all(len(frames) == block for frames in ordered[:-1])
    assert all(b[0] - a[-1] == gap + 1 for a, b in itertools.pairwise(ordered))


def test_list(tmp_path):
    path = tmp_path / "pool.txt"
    path.write_text("# held out\nb\n\n  d \n")
    assert by_list(["d", "c", "b", "a"], path) == (["a", "c"], ["b", "d"])


def test_list_names_wrong_lines(tmp_path):
    path = tmp_path / "pool.txt"
    path.write_text("b\nx.png\nb\n")
    with pytest.raises(ValueError, match=r"pool\.txt: line 2: 'x\.png' is no case; line 3: 'b' is listed twice"):
        by_list(["a", "b"], path)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: by_fraction(["a"], 1.0, 0), "fraction = 1.0"),
        (lambda: by_fraction(["a"], -0.1, 0), "fraction = -0.1"),
        (lambda: by_count(["a", "b"], 2, 0), "cannot hold out 2 of 2 cases"),
        (lambda: time_blocks(["a"], 0, 0, "v"), "block = 0"),
        (lambda: time_blocks(["a"], 1, -1, "v"), "gap = -1"),
    ],
)
def test_impossible_requests(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_shared_cases_are_refused():
    a, b = Case("a", (Path("a.png"),)), Case("b", (Path("b.png"),))
    assert_disjoint(Splits([a], [], [b]))
    with pytest.raises(ValueError, match=r"a \(pool\) and a \(train\)"):
        assert_disjoint(Splits([a], [], [b, a]))
    with pytest.raises(ValueError, match=r"c \(pool\) and a \(train\)"):  # another name, the same file
        assert_disjoint(Splits([a], [b], [Case("c", (Path("a.png"),))]))
    with pytest.raises(ValueError, match="a appears 2 times"):
        assert_disjoint(Splits([a, a], [], [b]))


def test_windows_of_one_file_are_no_clash():
    windows = [Case(f"t{n}", (Path("t.png"),), window=(n, 0, 1, 4)) for n in range(2)]
    assert_disjoint(Splits([windows[0]], [], [windows[1]]))
