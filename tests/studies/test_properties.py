"""Properties as measured: known matrices, broken promises, all pipelines of a run."""

import numpy as np
import pytest
import torch

from lightning_calib.calibrators import Identity, build
from lightning_calib.experiment.rows import read_rows
from lightning_calib.studies.audit import Measured, measure
from lightning_calib.studies.properties import Properties, PropertyRow, parameter_counts


def logits(classes=4, voxels=500, seed=0):
    return 3 * torch.randn(1, classes, voxels, generator=torch.Generator().manual_seed(seed))


def test_a_shift_shows_in_the_row_sums_of_a_matrix():
    """W (z + c) + b = W z + b + c W 1: nothing changes exactly where all row sums are equal."""
    calibrator = build("ms", 2)
    with torch.no_grad():
        calibrator.weight.copy_(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))  # sums 1.5 and 1
    found = measure(calibrator, logits(2))
    generator = torch.Generator().manual_seed(0)
    largest = (10 * torch.randn(1, 1, 500, generator=generator)).abs().max().item()
    assert 0.2 * largest < found.shift_change <= 0.5 * largest + 1e-3
    assert not found.invariant
    with torch.no_grad():
        calibrator.weight.copy_(torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    assert measure(calibrator, logits(2)).shift_change < 1e-4


def test_argmax_changes_and_inversions_are_counted():
    swap = build("ms", 3)
    with torch.no_grad():
        swap.weight.copy_(torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 1]]))  # classes 0 and 1 change places
    z = logits(3)
    found = measure(swap, z)
    values = z[0].numpy()
    assert found.argmax_changes == int((values[:2].max(0) > values[2]).sum())
    ranked = np.argsort(-values, axis=0)
    moved = np.take_along_axis(values[[1, 0, 2]], ranked, axis=0)
    assert found.inversions == int((moved[1:] > moved[:-1]).sum())
    assert found.preserved is None
    last = build("ms", 3)
    with torch.no_grad():
        last.weight.copy_(torch.diag(torch.tensor([1.0, 1.0, 1.0])))
        last.weight[2] = torch.tensor([0.0, 0.0, 0.9])
    kept = measure(last, z.sort(dim=1, descending=True).values + 10)
    assert (kept.preserved, kept.argmax_changes) == ("order", 0)


@pytest.mark.parametrize("name", ["ts", "ets", "lts_ti", "cms_ap", "cms_op", "dc", "ms_c", "cdc"])
def test_exact_shifts_leave_every_bit(name):
    calibrator = build(name, 4)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    found = measure(calibrator, logits().view(1, 4, 20, 25))
    assert found.shift_change == 0.0
    assert not found.violations(calibrator.translation_invariant, calibrator.preserves)


class Liar(Identity):
    """Declares the order and turns it round."""

    def forward(self, logits):
        return (-logits).log_softmax(dim=1)


def test_broken_promises_are_named():
    found = measure(Liar(4), logits())
    assert found.violations(True, "order") == [
        "argmax: 500 of 500 voxels changed their class",
        "order: 1,500 neighbouring classes in 500 voxels are inverted",
    ]
    assert not found.violations(True, None)
    assert Measured(5, shift_change=0.5).violations(True, None) == [
        "translation invariance: a shift changed a log-probability by 0.5 (> 1e-06)"
    ]


def test_all_pipelines_of_a_run_are_measured(study, folder):
    facts = study(Properties).run(cases=2)
    assert facts["broken"] == []
    rows = read_rows(folder / "calibration" / "studies" / "properties" / "properties.csv", PropertyRow)
    assert len(rows) == 18
    by_name = {row.pipeline: row for row in rows if row.repeat == 0}
    assert all(row.voxels == 2 * 32 * 40 for row in rows)
    assert (by_name["ms(z)"].measured_invariant, by_name["ms_c(z)"].measured_invariant) == ("no", "yes")
    assert (by_name["cms_op(p)"].measured_preserves, by_name["ms(z)"].measured_preserves) == ("order", "nothing")
    assert (by_name["cdc(p)"].optimized, by_name["cdc(p)"].identifiable) == (80, 60)  # C²(C+1), C(C²-1)


def test_parameters_are_those_of_the_papers_table():
    found = {}
    for row in parameter_counts([2, 5, 20]):
        found.setdefault(row.calibrator, []).append((row.optimized, row.identifiable))
    assert found["ts"] == [(1, 1)] * 3
    assert found["ets"] == [(4, 3)] * 3
    assert found["ms"] == found["dc"] == [(6, 3), (30, 24), (420, 399)]
    assert found["ms_c"] == [(5, 2), (26, 20), (401, 380)]
    assert found["lts"] == found["lts_ti"] == [(357, 357), (882, 882), (3507, 3507)]
    assert found["cdc"] == [(12, 6), (150, 120), (8400, 7980)]
    assert found["cms_ap"] == found["cms_op"] == [(10, 4), (130, 100), (8020, 7600)]
