"""From cross-fitted candidates to a fitted stack."""

import math

import numpy as np
import pytest
import torch

from lightning_calib.calibrators import PipelineName, load_calibrator, save_calibrator
from lightning_calib.experiment.selection.evidence import Evidence
from lightning_calib.experiment.selection.held_out import HeldOutSample
from lightning_calib.experiment.selection.select import choose
from lightning_calib.experiment.selection.stacking import nll_without_each, stack_by_groups, stacks_of
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers import mean_nll
from tests.experiment.test_selection import write


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """Groups of which half are overconfident: no single temperature suits them, a mixture may."""
    store, groups = write(tmp_path_factory.mktemp("divided") / "outputs", [4.0, 1.0, 4.0, 1.0, 4.0, 1.0])
    return store, Evidence(store, store.case_ids, groups, ["identity(p)", "ts(p)", "dc(p)"])


def test_a_stack_of_all_candidates(divided, tmp_path):
    store, evidence = divided
    stacked = stack_by_groups(evidence, "p", keep=None)
    assert stacked.pipeline == "stack(p)"
    assert stacked.parts == ("identity(p)", "ts(p)", "dc(p)")
    assert sum(stacked.weights.weights) == pytest.approx(1)
    used = [PipelineName.parse(n).calibrator for n, w in zip(stacked.parts, stacked.weights.weights, strict=True) if w]
    assert [part.name for part in stacked.calibrator.parts] == used
    torch.testing.assert_close(
        stacked.calibrator.mixture().double(), torch.tensor([w for w in stacked.weights.weights if w]).double()
    )
    assert stacked.weights.nll <= min(stacked.weights.part_nll) + 1e-9  # the sample's own optimum
    assert stacked.weights.nll <= stacked.nll.mean() + 1e-9  # which others have not seen
    cases = StoredCases(store, "p")
    batches = [(cases.pooled(i)[None], cases.target(i)[None], None) for i in store.case_ids]
    alone = [evidence.fit(name, strength)[0] for name, strength in zip(stacked.parts, stacked.strengths, strict=True)]
    nll, *others = (mean_nll(each, batches, cases.ignore_index)[0] for each in (stacked.calibrator, *alone))
    assert nll < min(others) + 0.02
    save_calibrator(tmp_path / "stack.safetensors", stacked.calibrator)
    logits = batches[0][0]
    assert torch.equal(load_calibrator(tmp_path / "stack.safetensors")(logits), stacked.calibrator(logits))


def test_a_stack_keeps_the_order_and_a_part_of_the_identity(divided):
    stacked = stack_by_groups(divided[1], "p", floor=0.5)
    assert stacked.parts == ("identity(p)", "ts(p)")
    assert stacked.calibrator.preserves == "order"
    assert stacked.calibrator.excess_bound <= math.log(2) + 1e-6


def test_a_stack_at_the_top_of_the_ladder(divided):
    _, evidence = divided
    stacks = stacks_of(evidence)
    found = choose(evidence, ["ts(p)"], stacks, alpha=0.999)  # nearly everything is accepted
    assert [rung.pipeline for rung in found.rungs] == ["ts(p)", "stack(p)"]
    assert found.pipeline == "stack(p)"
    assert found.calibrator is stacks[0].calibrator
    assert sum(part["weight"] for part in found.certificate["parts"].values()) == pytest.approx(1)
    np.testing.assert_array_equal(found.held_out.paths[-1].nll[0], stacks[0].nll)


def test_too_few_groups_give_the_identity(tmp_path):
    store, groups = write(tmp_path / "outputs", [4.0, 1.0])
    stacked = stack_by_groups(Evidence(store, store.case_ids, groups, ["ts(p)"]), "p")
    assert stacked.calibrator.excess_bound == 0
    assert stacked.certificate["parts"] == {"identity(p)": {"strength": "0", "weight": 1.0}}


def sample(log_q, group, pipelines=("identity(p)", "ts(p)")):
    size = len(group)
    return HeldOutSample(
        pipelines, (0.0,) * len(pipelines), np.float32(log_q), np.full(size, 1 / size), np.array(group)
    )


def test_each_group_is_judged_by_weights_of_the_others():
    certain, doubtful = np.log([0.9, 0.9, 0.1, 0.1]), np.log([0.5, 0.5, 0.6, 0.6])
    found = nll_without_each(sample([doubtful, certain], [0, 0, 1, 1]))
    np.testing.assert_allclose(found, [-np.log(0.5), -np.log(0.1)], atol=1e-6)  # the other group's favourite loses
