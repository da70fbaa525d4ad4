"""From cross-fitted candidates to a fitted stack."""

import math

import numpy as np
import pytest
import torch

from lightning_calib.calibrators import PipelineName, load_calibrator, save_calibrator
from lightning_calib.experiment.held_out import HeldOutSample
from lightning_calib.experiment.selection import select_by_groups
from lightning_calib.experiment.stacking import keeping, nll_without_each, stack_by_groups
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers import mean_nll
from tests.experiment.test_selection import write


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """Groups of which half are overconfident: no single temperature suits them, a mixture may."""
    store, groups = write(tmp_path_factory.mktemp("divided") / "outputs", [4.0, 1.0, 4.0, 1.0, 4.0, 1.0])
    found = select_by_groups(store, store.case_ids, groups, ["identity(p)", "ts(p)", "dc(p)"])
    return store, groups, found


def test_a_stack_of_the_selection(divided, tmp_path):
    store, groups, found = divided
    cases = StoredCases(store, "p")
    stacked = stack_by_groups(cases, store.case_ids, groups, found.samples["p"])
    assert stacked.pipeline == "stack(p)"
    assert stacked.parts[0] == "identity(p)"
    assert sum(stacked.weights.weights) == pytest.approx(1)
    used = [PipelineName.parse(n).calibrator for n, w in zip(stacked.parts, stacked.weights.weights, strict=True) if w]
    assert [part.name for part in stacked.calibrator.parts] == used
    torch.testing.assert_close(
        stacked.calibrator.mixture().double(), torch.tensor([w for w in stacked.weights.weights if w]).double()
    )
    assert stacked.weights.nll <= min(stacked.weights.part_nll) + 1e-9  # the sample's own optimum
    assert stacked.weights.nll <= stacked.nll.mean() + 1e-9  # which others have not seen
    batches = [(cases.pooled(i)[None], cases.target(i)[None], None) for i in store.case_ids]
    nll = [mean_nll(each, batches, cases.ignore_index)[0] for each in (stacked.calibrator, found.calibrator)]
    assert nll[0] < nll[1] + 0.02
    save_calibrator(tmp_path / "stack.safetensors", stacked.calibrator)
    logits = batches[0][0]
    assert torch.equal(load_calibrator(tmp_path / "stack.safetensors")(logits), stacked.calibrator(logits))


def test_a_stack_that_keeps_the_order_and_a_part_of_the_identity(divided):
    store, groups, found = divided
    stacked = stack_by_groups(StoredCases(store), store.case_ids, groups, found.samples["p"], "order", floor=0.5)
    assert stacked.parts == ("identity(p)", "ts(p)")
    assert stacked.calibrator.preserves == "order"
    assert stacked.calibrator.excess_bound <= math.log(2) + 1e-6


def sample(log_q, group, pipelines=("identity(p)", "ts(p)")):
    size = len(group)
    return HeldOutSample(
        pipelines, (0.0,) * len(pipelines), np.float32(log_q), np.full(size, 1 / size), np.array(group)
    )


def test_each_group_is_judged_by_weights_of_the_others():
    certain, doubtful = np.log([0.9, 0.9, 0.1, 0.1]), np.log([0.5, 0.5, 0.6, 0.6])
    found = nll_without_each(sample([doubtful, certain], [0, 0, 1, 1]))
    np.testing.assert_allclose(found, [-np.log(0.5), -np.log(0.1)], atol=1e-6)  # the other group's favourite loses


def test_the_identity_must_come_first():
    with pytest.raises(ValueError, match=r"the identity, got ts\(p\)"):
        keeping(sample(np.zeros((2, 3)), [0, 0, 0], ("ts(p)", "identity(p)")), None)
