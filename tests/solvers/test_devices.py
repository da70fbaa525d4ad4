"""What a GPU would see of a pass: no number is asked for chunk by chunk, and no tensor is on the wrong device.

There is none here: a CPU run counts what would wait for the device, and fake tensors tell where others live. Not
traced, because they need values or a driver: the choice of voxels, the runs of experts, autograd, torch's optimiser.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_calib.calibrators import Calibrator, build
from lightning_calib.solvers import AdamSolver, NewtonSolver
from lightning_calib.solvers import stream as stream_module
from lightning_calib.solvers.objective import PooledNLL
from lightning_calib.solvers.stream import Walk
from lightning_calib.solvers.sums import AffineNLL, PassSums
from tests.solvers.synthetic import confused, fresh


class Waits(TorchDispatchMode):
    """Counts numbers that are asked of tensors, as `.item()` and `bool()` do."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


class Devices(TorchDispatchMode):
    """Notes the operations that touch a tensor with values on the CPU."""

    def __init__(self):
        super().__init__()
        self.on_cpu = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        tensors = [value for value in (*args, found) if isinstance(value, torch.Tensor)]
        if any(value.device.type == "cpu" and value.ndim for value in tensors):
            self.on_cpu.append(str(function))
        return found


def waits_of(solver, logits, target):
    with Waits() as waits:
        solver.accumulate(logits, target, ["a"])
    return waits.count


@pytest.mark.parametrize("name", ["ts", "ms"])
@pytest.mark.parametrize("ignore_index", [None, 9])
def test_a_pass_of_newton_asks_for_numbers_once_a_case(name, ignore_index):
    logits, target = confused(num_classes=3, count=1, size=64, dtype=torch.float32)
    target[0, :5] = 0 if ignore_index is None else ignore_index
    counts = []
    for chunk_values in (2**18, 2**9):  # one chunk, 24 chunks
        calibrator = fresh(name, 3, torch.float32)
        solver = NewtonSolver(calibrator, ignore_index=ignore_index, walk=Walk(calibrator, ignore_index, chunk_values))
        waits_of(solver, logits, target)
        solver.end_pass()
        counts.append(waits_of(solver, logits, target))
    assert counts[0] == counts[1] <= 2  # the range of the labels


def test_a_step_of_adam_asks_for_the_range_of_its_input_only():
    logits, target = confused(num_classes=3, count=1, size=16, dtype=torch.float32)
    solver = AdamSolver(fresh("ms", 3, torch.float32))
    waits_of(solver, logits, target)
    own = waits_of(solver, logits, target)
    with Waits() as waits:
        solver.calibrator.check_input(logits)
        solver.optimizer.step()
    assert own == waits.count


@pytest.fixture
def no_values(monkeypatch):
    """Checks of values cannot be taken where there are none."""
    monkeypatch.setattr(Calibrator, "check_input", lambda *_: None)
    monkeypatch.setattr(Calibrator, "finish", lambda _, log_probs, __: log_probs)  # looks for voxels to repair
    monkeypatch.setattr(stream_module, "check_labels", lambda *_: None)


@pytest.mark.parametrize("name", ["ts", "vs", "ms", "ms_c", "dc"])
def test_sums_and_nll_stay_on_the_gpu(name, no_values):
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            calibrator = build(name, 3)
        logits, target = torch.randn(1, 3, 8, 8, device="cuda"), torch.zeros(1, 8, 8, dtype=torch.long, device="cuda")
        walk = Walk(calibrator, chunk_values=60)
        sums, pooled = PassSums(torch.eye(3, 4)[None].double()), PooledNLL(calibrator)
        affine = AffineNLL(calibrator, walk)

        def go():
            for chunk in walk(logits, target, ["a"]):
                sums.add(chunk)
            pooled.add(logits, target)
            affine.add(logits, target, ["a"])

        go()  # brings the point there
        with Devices() as devices:
            go()
        assert devices.on_cpu == []
        assert {value.device.type for value in (sums.loss, sums.gradient, pooled.sums, affine.sums.loss)} == {"cuda"}


@pytest.mark.parametrize("name", ["ts", "ms", "cdc", "lts_ti"])
def test_a_step_of_adam_stays_on_the_gpu(name, no_values, monkeypatch):
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            calibrator = build(name, 3)
        logits, target = torch.randn(1, 3, 8, 8, device="cuda"), torch.zeros(1, 8, 8, dtype=torch.long, device="cuda")
        solver = AdamSolver(calibrator)
        monkeypatch.setattr(solver.optimizer, "step", lambda: None)  # torch's own
        monkeypatch.setattr(torch.autograd, "grad", lambda loss, parameters, **_: map(torch.zeros_like, parameters))
        solver.accumulate(logits, target)
        with Devices() as devices:
            solver.accumulate(logits, target)
        assert devices.on_cpu == []
        assert solver.loss.device.type == "cuda"
        assert all(parameter.grad.device.type == "cuda" for parameter in calibrator.parameters())
