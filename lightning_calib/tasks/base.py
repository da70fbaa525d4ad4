"""What all tasks share: processes that take part in a training or a pass end in order."""

import atexit

import torch.distributed as dist
from pytorch_lightning import LightningModule


class Task(LightningModule):
    """A LightningModule whose processes leave their group before the interpreter ends.

    Lightning sees to that for nccl. Threads of gloo that are left when the interpreter goes down may end the process
    by SIGABRT, after its work is done: other processes then take it for failed.
    """

    def setup(self, stage: str) -> None:
        """Have a group of gloo left at the end."""
        if dist.is_available() and dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
            atexit.unregister(leave_group)  # a process sets up many tasks
            atexit.register(leave_group)


def leave_group() -> None:
    """Leave the group, if the process is still in one."""
    if dist.is_initialized():
        dist.destroy_process_group()
