"""On another device the figures of the CPU, to 1e-6; where this machine has one."""

import pytest
import torch

from lightning_calib.calibrators import CALIBRATORS, build
from lightning_calib.functional.devices import Fetched, accelerator_of, ahead, moved
from lightning_calib.solvers import choose_solver, fit
from lightning_calib.solvers.fit import takes_epochs
from lightning_calib.tasks.evaluation import EvaluationTask
from tests.solvers.synthetic import confused

THERE = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
DEVICES = [
    pytest.param(name, marks=pytest.mark.skipif(not there, reason=f"this machine has no {name} device"))
    for name, there in THERE.items()
]
IGNORED = 9


def batches(device):
    logits, target = confused(num_classes=4, count=3, size=48, dtype=torch.float32)
    target[:, :4] = IGNORED
    cases = [(logits[i : i + 1], target[i : i + 1], [str(i)]) for i in range(len(logits))]
    return list(ahead(cases, torch.device(device)))


def figures(name, device):
    """NLL of a fit and all scores of its calibrator."""
    torch.manual_seed(0)
    calibrator = build(name, 4).to(device)
    options = {"max_epochs": 3} if takes_epochs(choose_solver(calibrator)) else {}
    found = {"nll": fit(calibrator, batches(device), ignore_index=IGNORED, **options).nll}
    task = EvaluationTask({"it": calibrator.eval()}, IGNORED).to(device)
    with torch.no_grad():
        for logits, target, case_ids in batches(device):
            task.test_step({"logits": logits, "target": target, "case_id": case_ids}, 0)
    task.conclude()
    return found | task.evaluated["it"].figures()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(CALIBRATORS))
def test_figures_are_those_of_the_cpu(name, device):
    assert figures(name, device) == pytest.approx(figures(name, "cpu"), abs=1e-6)


@pytest.mark.parametrize("device", ["cpu", *DEVICES])
def test_batches_come_whole_and_in_order(device):
    sent = [
        {"logits": torch.full((3,), float(k)), "case_id": [str(k)], "pair": (torch.ones(1), None)} for k in range(4)
    ]
    found = list(ahead(sent, torch.device(device), lambda batch: batch["case_id"] == ["2"]))
    assert [batch["case_id"] for batch in found] == [["0"], ["1"], ["2"], ["3"]]
    assert [batch["logits"].device.type for batch in found] == [device, device, "cpu", device]
    for before, after in zip(sent, found, strict=True):
        back = moved(after, lambda tensor: Fetched([tensor]).read()[0])
        assert torch.equal(back["logits"], before["logits"])
        assert back["pair"][1] is None


def test_mps_is_left_with_a_warning():
    with pytest.warns(UserWarning, match="float64"):
        assert accelerator_of("mps") == "cpu"
    assert accelerator_of("cuda") == "cuda"
