"""Processes of a task leave a group of gloo before the interpreter goes down."""

import subprocess
import sys
from pathlib import Path

import torch.distributed as dist

from lightning_calib.tasks.base import Task, leave_group
from lightning_calib.tasks.calibration import CalibrationTask
from lightning_calib.tasks.evaluation import EvaluationTask
from lightning_calib.tasks.modules import ModuleEnsemble
from lightning_calib.tasks.prediction import EnsemblePrediction
from lightning_calib.tasks.segmentation import SegmentationTask

ROOT = Path(__file__).parents[2]
PROGRAM = """
import atexit, sys
import torch.distributed as dist
from lightning_calib.tasks.base import Task

atexit.register(lambda: print("left" if not dist.is_initialized() else "still there"))  # runs last
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
for _ in range(2):
    Task().setup("test")
"""


def test_a_process_that_set_up_a_task_leaves_its_group(tmp_path):
    line = [sys.executable, "-c", PROGRAM, str(tmp_path / "meeting")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["left"]


def test_without_a_group_there_is_nothing_to_leave():
    Task().setup("test")
    leave_group()
    assert not dist.is_initialized()


def test_every_task_does():
    tasks = (CalibrationTask, EvaluationTask, SegmentationTask, EnsemblePrediction, ModuleEnsemble)
    assert all(issubclass(task, Task) for task in tasks)
