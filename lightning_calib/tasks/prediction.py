"""The LightningModule that applies all members of an ensemble, case by case."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from lightning_calib.segmenters import Members
from lightning_calib.tasks.base import Task
from lightning_calib.tasks.segmentation import Batch, SegmentationTask


@dataclass(frozen=True)
class Prediction:
    """Outputs of all members for one case, on the CPU: ``logits (M, C, *S)`` on the grid of the target.

    ``image (channels, *S)`` is what the networks saw, for people to look at.
    """

    case_id: str
    logits: Tensor
    target: Tensor
    valid: Tensor | None
    geometry: dict[str, Any] | None
    image: Tensor | None = None


class EnsemblePrediction(Task):
    """Score each case by every member.

    Args:
        members: the trained members.
        only: by case id the number of the one member that scores it; None lets all members score every case.

    Attributes:
        done: ids of cases to pass over, since they are written already.
    """

    def __init__(self, members: Members, only: Mapping[str, int] | None = None) -> None:
        """Keep the members."""
        super().__init__()
        self.members, self.only = members, only
        self.done: Set[str] = frozenset()

    @classmethod
    def load(
        cls, task: SegmentationTask, checkpoints: Mapping[str, Path], only: Mapping[str, int] | None = None
    ) -> Self:
        """Read the members' weights.

        Args:
            task: a task of the members' architecture.
            checkpoints: name and checkpoint file of each member.
            only: which member scores which case, see above.
        """
        return cls(Members.load(task.network, checkpoints, task.inference), only)

    def predict_step(self, batch: Batch, batch_idx: int) -> Prediction | str:
        """Outputs of one case; only its id where it is done already."""
        (case_id,) = batch["case_id"]
        if case_id in self.done:
            return str(case_id)
        restore = partial(self.trainer.datamodule.restore, case_id=case_id)  # type: ignore[attr-defined]
        valid, geometry = batch.get("valid"), batch.get("geometry")
        members = self.members if self.only is None else self.members.alone(self.only[case_id])
        return Prediction(
            case_id=case_id,
            logits=members.restored(batch["image"], restore),
            target=batch["target"][0].cpu(),
            valid=None if valid is None else valid[0].cpu(),
            geometry=None if geometry is None else geometry[0],
            image=restore(batch["image"][0].cpu().float()),
        )
