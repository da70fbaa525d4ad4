"""Translation invariance where it is declared, and its absence where it is not."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.calibrators import CALIBRATORS, MatrixScaling, Pipeline, PipelineName
from tests.calibrators.helpers import INVARIANT, NAMES, SENSITIVE, class_counts, randomized, seeds

GRID = 2.0**-9


def on_grid(shape, limit, generator):
    """Multiples of 2^-9: sums of them up to 1e4 are exact in float32."""
    return (torch.rand(shape, generator=generator) * 2 - 1).mul(limit / GRID).round() * GRID


def shifted_pair(seed, num_classes, limit=1e4):
    generator = torch.Generator().manual_seed(seed)
    logits = on_grid((2, num_classes, 4, 5), 20.0, generator)
    shift = on_grid((2, 1, 4, 5), limit, generator)
    assert torch.equal((logits + shift).double(), logits.double() + shift.double())
    return logits, logits + shift


@pytest.mark.parametrize("name", INVARIANT)
@given(seed=seeds, num_classes=class_counts, scale=st.sampled_from([0.01, 1.0]))
def test_shifts_change_nothing(name, seed, num_classes, scale):
    calibrator = randomized(name, num_classes, seed, scale)
    logits, shifted = shifted_pair(seed, num_classes)
    torch.testing.assert_close(calibrator(shifted), calibrator(logits), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", INVARIANT)
def test_exact_shifts_give_the_same_bits(name):
    calibrator = randomized(name, 5, 3)
    logits, shifted = shifted_pair(11, 5)
    assert torch.equal(calibrator(shifted), calibrator(logits))


@pytest.mark.parametrize("name", SENSITIVE)
@given(seed=seeds)
def test_the_others_do_change(name, seed):
    calibrator = randomized(name, 4, seed, 0.1)
    logits, shifted = shifted_pair(seed, 4, limit=100.0)
    assert (calibrator(shifted) - calibrator(logits)).abs().max() > 1e-3


@given(seed=seeds, num_classes=class_counts)
def test_matrix_scaling_under_a_growing_shift_goes_to_the_largest_row_sum(seed, num_classes):
    calibrator = randomized("ms", num_classes, seed)
    assert isinstance(calibrator, MatrixScaling)
    row_sums = calibrator.weight.detach().sum(1)
    top = row_sums.topk(2).values
    shift = 1e4 / float(top[0] - top[1])
    logits = torch.randn(1, num_classes, 3, generator=torch.Generator().manual_seed(seed)).double()
    probs = calibrator(logits + shift).exp()
    assert (probs[:, row_sums.argmax()] > 1 - 1e-9).all()


def test_facts_match_the_table():
    facts = {
        cls.name: (cls.translation_invariant, cls.preserves) for cls in map(CALIBRATORS.__getitem__, CALIBRATORS.ours)
    }
    assert facts == {
        "identity": (True, "order"),
        "ts": (True, "order"),
        "ets": (True, "order"),
        "vs": (False, None),
        "ms": (False, None),
        "ms_c": (True, None),
        "dc": (True, None),
        "lts": (False, "order"),
        "lts_ti": (True, "order"),
        "cdc": (True, None),
        "cms_ap": (True, "argmax"),
        "cms_op": (True, "order"),
        "gs": (True, "order"),
        "fts": (True, "order"),
        "fts_pooled": (True, "order"),
        "case_ts": (True, "order"),
        "case_ts_pooled": (True, "order"),
        "fts_net": (True, "order"),
        "stack": (False, None),  # of all stacks; each instance says more
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pooling", ["z", "p", "p0"])
def test_pipelines_declare_what_they_do(name, pooling):
    text = f"{name}({pooling})"
    pipeline = Pipeline.parse(text, num_classes=4)
    pipeline.calibrator.load_state_dict(randomized(name, 4, 5, 0.1).state_dict())
    generator = torch.Generator().manual_seed(0)
    members = on_grid((1, 3, 4, 5, 6), 10.0, generator)
    shifts = on_grid((1, 3, 1, 5, 6), 50.0, generator)  # each member has its own
    change = (pipeline(members + shifts) - pipeline(members)).abs().max()
    assert pipeline.translation_invariant == PipelineName.parse(text).translation_invariant
    assert (change < 1e-3) == pipeline.translation_invariant  # means over members round
