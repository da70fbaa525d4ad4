"""What runs and reports warn of, by the names of classes and cases."""

import numpy as np
import pytest
import torch

from lightning_calib.experiment import layout
from lightning_calib.experiment.concerns import concerns
from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import read_json, write_json
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from tests.experiment.synthetic import CLASSES, label_map, member_logits, write_results

NAMES = ("identity(p)", "ts(p)", "cms_op(p)")


def write(folder, edit, cases=6):
    """A small run on cases after ``edit(number, logits, target)``."""
    rng = np.random.default_rng(0)
    writer = OutputWriter(folder / "outputs", "toy", CLASSES, 2, [Member("0")], background=0, ignore_index=255)
    for n in range(cases):
        target = label_map(rng, (16, 20))
        writer.write(f"case_{n}", *edit(n, member_logits(rng, target, 1, 3.0), target))
    writer.finish()
    write_results(folder / "calibration", OutputStore(folder / "outputs"), pipelines=NAMES, repeats=1)
    return Results(folder / "calibration")


def test_a_healthy_run_gives_no_cause(tmp_path):
    assert concerns(write(tmp_path, lambda n, logits, target: (logits, target)), "cms_op(p)") == []


def test_a_class_that_is_never_predicted_is_named_with_its_voxels(tmp_path):
    results = write(tmp_path, lambda n, logits, target: (logits.index_fill(1, torch.tensor(3), -9.0), target))
    (told,) = concerns(results)
    store = OutputStore(tmp_path / "outputs")
    count = sum(int((store[case].target == 3).sum()) for case in results.test_cases(0))
    assert f"never predicts speck, to which {count:,} test voxels belong" in told


def test_cases_without_labels_are_named(tmp_path):
    results = write(tmp_path, lambda n, logits, target: (logits, target if n % 2 else torch.full_like(target, 255)))
    (told,) = concerns(results)
    empty = [case for case in results.test_cases(0) if int(case[-1]) % 2 == 0]
    assert empty
    assert f"No voxel of {', '.join(empty)} has a label that counts" in told


def test_one_class_only_is_told(tmp_path):
    results = write(tmp_path, lambda n, logits, target: (logits, torch.full_like(target, 1)))
    assert concerns(results) == ["All test voxels are disc: with one class there is nothing to calibrate."]


@pytest.mark.parametrize("pipeline", [None, "cms_op(p)"])
def test_what_cal_lacks_and_what_experts_lack(tmp_path, pipeline):
    results = write(tmp_path, lambda n, logits, target: (logits, target))
    path = layout.job_folder(results.folder, 0, "cms_op(p)") / layout.FIT
    facts = read_json(path)
    facts["certificate"] |= {"missing_classes": [2, 3], "expert_voxels": [90, 0, 40, 60]}
    write_json(path, facts)
    found = concerns(Results(results.folder), pipeline)
    assert "Cal of repeat 0 has no voxel of rod, speck" in found[0]
    assert [told for told in found if "predicted as disc" in told] == found[1:]
    assert len(found) == 1 + (pipeline is not None)
