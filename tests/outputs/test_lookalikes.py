"""Near copies across groups are named; within a group, and where there is nothing to see, nothing is said."""

import numpy as np
import pytest
import torch

from lightning_calib.outputs.doctor import examine
from lightning_calib.outputs.doctor.perceptual import _BLOCK, agreement, alike_pairs
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter

SHAPES = [(96, 112), (36, 40, 38)]


def scene(shape, seed, objects=12):
    """Labels of some boxes of two classes on background."""
    rng, target = np.random.default_rng(seed), torch.zeros(shape, dtype=torch.long)
    for number in range(objects):
        corner = [int(rng.integers(0, size - size // 5)) for size in shape]
        target[tuple(slice(c, c + max(size // 6, 2)) for c, size in zip(corner, shape, strict=True))] = 1 + number % 2
    return target


def scores(target, seed):
    """A network that is less sure near borders, and never twice the same."""
    generator = torch.Generator().manual_seed(seed)
    onehot = torch.nn.functional.one_hot(target, 3).movedim(-1, 0).float()
    pool = torch.nn.functional.avg_pool2d if target.ndim == 2 else torch.nn.functional.avg_pool3d
    return 6 * pool(onehot[None], 3, stride=1, padding=1) + 0.1 * torch.randn(1, *onehot.shape, generator=generator)


def moved(target):
    return target.roll(1, dims=-1)


def write(path, targets, groups=None):
    spatial = next(iter(targets.values())).ndim
    writer = OutputWriter(path, "toy", ["background", "a", "b"], spatial, [Member("0")], groups=groups)
    for number, (case_id, target) in enumerate(targets.items()):
        writer.write(case_id, scores(target, number), target)
    writer.finish()
    return OutputStore(path)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_near_copy_in_another_group_is_named(tmp_path, shape):
    targets = {f"c{n}": scene(shape, n) for n in range(8)} | {"copy": moved(scene(shape, 1))}
    (finding,) = examine(write(tmp_path, targets, {"c1": "one", "copy": "two"}))
    assert (finding.name, finding.severity, finding.cases) == ("near_copies", "warning", ("c1", "copy"))
    assert "c1 and copy" in finding.evidence


@pytest.mark.parametrize("shape", SHAPES)
def test_a_near_copy_in_the_same_group_is_none(tmp_path, shape):
    targets = {f"c{n}": scene(shape, n) for n in range(8)} | {"copy": moved(scene(shape, 1))}
    assert examine(write(tmp_path, targets, {"c1": "one", "copy": "one"})) == []


def test_cases_without_content_are_not_alike(tmp_path):
    empty = torch.zeros(64, 64, dtype=torch.long)
    speck = empty.clone()
    speck[30:33, 30:33] = 1
    assert examine(write(tmp_path, {"a": empty, "b": empty.clone(), "c": speck, "d": moved(speck)})) == []


def test_the_same_labels_with_other_confidences_are_no_copy(tmp_path):
    target = scene((96, 112), 0)
    writer = OutputWriter(tmp_path, "toy", ["background", "a", "b"], 2, [Member("0")])
    for case_id, other in (("a", target), ("b", scene((96, 112), 1))):
        writer.write(case_id, scores(target, 0) + 2 * scores(other, 1), target)
    writer.finish()
    assert "near_copies" not in [finding.name for finding in examine(tmp_path)]


def test_pairs_are_those_of_a_slow_count():
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.integers(-1, 2, (_BLOCK + 40, 24))).to(torch.int8)
    rows[_BLOCK + 7] = rows[5]
    rows[_BLOCK + 9] = rows[_BLOCK + 3]
    rows[8] = 0
    found = {tuple(pair) for pair in alike_pairs(rows, 0.65).tolist()}
    assert {(5, _BLOCK + 7), (_BLOCK + 3, _BLOCK + 9)} <= found
    for first in (0, 5, 8, _BLOCK - 1, _BLOCK + 3):
        slow = [n for n in range(first + 1, len(rows)) if float(agreement(rows[first], rows[n])) >= 0.65]
        assert sorted(b for a, b in found if a == first) == slow
