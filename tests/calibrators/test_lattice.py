"""The lattice of docs/calibrators.md: every cell holds what it names, every empty one has its reason."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_calib.calibrators import CALIBRATORS, Calibrator, GapSplines, Stack, build
from tests.calibrators.helpers import seeds

PAGE = Path(__file__).parents[2] / "docs" / "calibrators.md"
LOOKS = {"its own logits": "voxel", "its neighbourhood": "neighbourhood", "features": "features"}
KEEPS = {"order": "order", "argmax": "argmax", "nothing": None}
classes = st.integers(2, 6)


def cells():
    """Promises, what is looked at, and the text of each cell."""
    table = PAGE.read_text(encoding="utf-8").split("## The lattice")[1].split("\n## ")[0]
    head, _, *rows = ([cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*$", table, re.M))
    for invariant, keeps, *texts in rows:
        for column, text in zip(head[2:], texts, strict=True):
            yield (invariant == "yes", KEEPS[keeps]), LOOKS[column], text


CELLS = list(cells())
NAMED = [(*facts, looks, name) for facts, looks, text in CELLS for name in re.findall(r"`(.+?)`", text)]


def made(name):
    """A calibrator, or a stack of some, by its name in the table."""
    if not name.startswith("stack("):
        return build(name, 3)
    parts = [build(part.strip(), 3) for part in name[6:-1].split(",")]
    return Stack.of(parts, [0.5] * len(parts))


def flips(scores, logits):
    return int(np.argmax(scores)) != int(np.argmax(logits))


def test_no_cell_is_left_out():
    places = {(facts, looks) for facts, looks, _ in CELLS}
    columns = {looks for _, looks, _ in CELLS}
    assert places == {((ti, keeps), looks) for ti in (True, False) for keeps in KEEPS.values() for looks in columns}
    assert columns >= {"voxel", "neighbourhood"}
    assert [facts for facts, _, text in CELLS if "`" not in text] == [(False, "order"), (False, "argmax")]


def test_no_calibrator_is_left_out():
    ours = {name for name in CALIBRATORS if CALIBRATORS[name].__module__.startswith("lightning_calib.")}
    assert ours - {"stack"} <= {name for *_, name in NAMED}


@pytest.mark.parametrize(("invariant", "keeps", "looks", "name"), NAMED)
def test_a_cell_holds_what_it_names(invariant, keeps, looks, name):
    calibrator = made(name)
    found = (calibrator.translation_invariant, calibrator.preserves, calibrator.looks_at)
    assert found == (invariant, keeps, looks)


@given(seed=seeds, num_classes=classes, scale=st.sampled_from([1e-2, 1.0]))
@settings(max_examples=50)
def test_an_affine_map_that_keeps_the_argmax_is_a_temperature(seed, num_classes, scale):
    """Theorem 1: what is not of the form ``a I + 1 r^T`` flips at a multiple of a direction that spans the cone."""
    rng = np.random.default_rng(seed)
    temperature, row = rng.exponential(), rng.normal(size=num_classes)
    weight = temperature * np.eye(num_classes) + row
    for logits in rng.normal(size=(50, num_classes)):
        assert not flips(weight @ logits + 0.7, logits)
    bent = weight + scale * rng.normal(size=weight.shape)
    assert flips_somewhere(bent, np.zeros(num_classes))
    biases = scale * rng.normal(size=num_classes)
    assert flips_somewhere(weight, biases)


def flips_somewhere(weight, bias):
    """Whether an affine map flips a voxel: looked for along the directions that span the cone of each class."""
    num_classes = len(bias)
    eye = np.eye(num_classes)
    for winner in range(num_classes):
        spans = [np.ones(num_classes), -np.ones(num_classes), *(-eye[k] for k in range(num_classes) if k != winner)]
        inside = 1e-6 * eye[winner]  # no ties
        places = [inside] + [inside + size * span for span in spans for size in (1e2, 1e4, 1e6)]
        if any(flips(weight @ place + bias, place) for place in places):
            return True
    return False


@given(seed=seeds, num_classes=classes)
@settings(max_examples=50)
def test_an_affine_map_of_a_cone_that_keeps_the_argmax_ignores_shifts(seed, num_classes):
    """Theorem 2: with a share ``u`` of the level in the gaps, some shift makes the winner lose."""
    rng = np.random.default_rng(seed)
    inner, bias = rng.exponential(size=(num_classes - 1,) * 2), rng.exponential(size=num_classes - 1)
    level = rng.normal(size=num_classes - 1)
    logits = np.sort(rng.normal(size=num_classes))[::-1]

    def distances(shift):
        return inner @ (logits[0] - logits[1:]) + bias + level * (logits + shift).mean()

    assert (inner @ (logits[0] - logits[1:]) + bias >= 0).all()
    far = 2 * np.abs(distances(0.0)).max() / np.abs(level).max()
    assert min(distances(far).min(), distances(-far).min()) < 0


class FreeEnergyTemperature(Calibrator):
    """``S(z / T)`` with a temperature between 1 and 2 that grows with ``logsumexp z``."""

    translation_invariant = False
    preserves = "order"

    def calibrate(self, logits):
        return (logits / (1 + logits.logsumexp(1, keepdim=True).sigmoid())).log_softmax(1)


@given(seed=seeds)
@settings(max_examples=20)
def test_a_nonlinear_map_may_keep_the_order_and_see_shifts(seed):
    logits = torch.randn(20, 4, generator=torch.Generator().manual_seed(seed))
    calibrator = FreeEnergyTemperature(4)
    assert torch.equal(calibrator(logits).argsort(1), logits.argsort(1))
    assert (calibrator(logits + 3) - calibrator(logits)).abs().max() > 1e-2


@given(seed=seeds, stretch=st.integers(0, 5))
@settings(max_examples=20)
def test_one_falling_stretch_of_a_spline_inverts_a_pair(seed, stretch):
    """Theorem 4, with the bounds and the repair taken away."""
    rng = np.random.default_rng(seed)
    calibrator = GapSplines(3).double()
    slopes = torch.tensor(rng.exponential(size=6))
    assume(bool((slopes > 1e-6).all()))
    edges = [0.0, *calibrator.knots.tolist(), 64.0]
    low, high = np.sort(rng.uniform(edges[stretch], edges[stretch + 1], size=2))
    assume(high - low > 1e-6)
    logits = torch.tensor([[0.0, -low, -high]]).unsqueeze(-1)
    for sign in (1.0, -1.0):
        slopes[stretch] = sign * slopes[stretch].abs()
        scores = calibrator.scores((slopes - 1).view(1, -1, 1), -logits)
        assert bool(scores[0, 1, 0] > scores[0, 2, 0]) == (sign > 0)


def test_a_mixture_keeps_no_more_than_its_weakest_part():
    stack = made("stack(cms_ap, lts_ti)")
    with torch.no_grad():
        stack.parts[0].inner[:] = torch.tensor([[0.1, 0.0], [0.0, 5.0]])
    logits = torch.tensor([3.0, 1.0, 1.5]).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    log_probs = stack(logits)
    assert (log_probs.argmax(1) == 0).all()
    assert (log_probs[:, 1] > log_probs[:, 2]).all()  # turned around
