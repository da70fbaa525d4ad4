"""Numbers are asked of tensors once a case, not once a chunk: counted here is what test_fake_cuda.py takes out."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_calib.solvers import AdamSolver, NewtonSolver
from lightning_calib.solvers.base import check_size
from lightning_calib.solvers.stream import Walk
from tests.solvers.synthetic import confused, fresh


class Waits(TorchDispatchMode):
    """Counts numbers that are asked of tensors, as `.item()` and `bool()` do."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


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
        check_size([logits])
        solver.optimizer.step()
    assert own == waits.count
    solver.end_pass()
    later = waits_of(solver, logits, target)  # the first epoch has looked for NaN
    with Waits() as waits:
        solver.optimizer.step()
    assert later == waits.count
