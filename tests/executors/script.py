"""A script that registers something itself, and then asks Ray to work: ``script.py ADDRESS``."""

import sys

from lightning_calib.executors.base import register_executor
from lightning_calib.executors.local import LocalExecutor
from lightning_calib.executors.ray import RayExecutor

if __name__ == "__main__":
    register_executor("mine", LocalExecutor)
    list(RayExecutor(sys.argv[1]).run([1], print))
