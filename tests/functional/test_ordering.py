"""Order without a permutation: sorted values, places of labels, voxels in a cone, against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_calib.calibrators import build
from lightning_calib.functional.cones import canonical_permutation, into_cone, place_in_cone
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.ordering import comparisons, descending_place, descending_values


@pytest.mark.parametrize("count", range(1, 11))
def test_comparisons_sort_all_zeros_and_ones(count):
    """A network that sorts every sequence of 0 and 1 sorts every sequence (Knuth 1998, theorem 5.3.4 Z)."""
    rows = ((np.arange(2**count) >> np.arange(count)[:, None]) & 1).astype(float)
    found = descending_values(torch.from_numpy(rows).T).numpy()
    assert (found == -np.sort(-rows.T, axis=1)).all()
    assert all(0 <= high < low < count for high, low in comparisons(count))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 24), st.integers(0, 10**6), st.sampled_from([1, 3, 1000]))
def test_values_and_places_are_those_of_a_stable_sort(classes, seed, levels):
    rng = np.random.default_rng(seed)
    logits = rng.integers(-levels, levels, (2, classes, 30)) / 2  # many ties
    target = rng.integers(0, classes, (2, 30))
    order = np.argsort(-logits, axis=1, kind="stable")
    assert (descending_values(torch.from_numpy(logits)).numpy() == np.take_along_axis(logits, order, 1)).all()
    place = descending_place(torch.from_numpy(logits), torch.from_numpy(target)).numpy()
    assert (np.take_along_axis(order, place[:, None], 1)[:, 0] == target).all()


@pytest.mark.parametrize("cone", ["argmax", "order"])
def test_a_cone_without_its_permutation(cone):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-3, 4, (2, 7, 50), generator=generator).float()
    target = torch.randint(0, 7, (2, 50), generator=generator)
    winner, (permutation, _) = winning_class(logits), canonical_permutation(logits, cone)
    assert torch.equal(into_cone(logits, winner, cone), logits.gather(1, permutation))
    place = place_in_cone(logits, target, winner, cone)
    assert torch.equal(permutation.gather(1, place.unsqueeze(1))[:, 0], target)


@pytest.mark.parametrize("name", ["ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op"])
def test_what_a_fit_sees_is_what_the_calibrator_sees(name):
    generator = torch.Generator().manual_seed(0)
    calibrator, target = build(name, 5), torch.randint(0, 5, (2, 40), generator=generator)
    logits = calibrator.start(torch.randint(-3, 4, (2, 5, 40), generator=generator).float())
    view = calibrator.inputs(logits)
    features, expert, position = calibrator.labelled(logits, target)
    assert torch.equal(features, view.features)
    assert (expert is None) == (view.expert is None)
    assert expert is None or torch.equal(expert, view.expert)
    classes = torch.arange(5).view(1, 5, 1).expand(2, 5, 40) if view.permutation is None else view.permutation
    assert torch.equal(classes.gather(1, position.unsqueeze(1))[:, 0], target)
