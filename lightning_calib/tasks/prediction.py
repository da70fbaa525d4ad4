"""The LightningModule that applies all members of an ensemble, case by case."""

import copy
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from lightning_calib.tasks.segmentation import Batch, SegmentationTask


@dataclass(frozen=True)
class Prediction:
    """Outputs of all members for one case, on the CPU: ``logits (M, C, *S)`` on the grid of the target."""

    case_id: str
    logits: Tensor
    target: Tensor
    valid: Tensor | None
    geometry: dict[str, Any] | None


class EnsemblePrediction(LightningModule):
    """Score each case by every member.

    Args:
        members: the trained members.

    Attributes:
        done: ids of cases to pass over, since they are written already.
    """

    def __init__(self, members: Sequence[SegmentationTask]) -> None:
        """Keep the members."""
        super().__init__()
        self.members = nn.ModuleList(members)
        self.done: Set[str] = frozenset()

    @classmethod
    def load(cls, task: SegmentationTask, checkpoints: Mapping[str, Path]) -> Self:
        """Read the members' weights.

        Args:
            task: a task of the members' architecture.
            checkpoints: name and checkpoint file of each member.
        """
        members = []
        for name, path in checkpoints.items():
            member = copy.deepcopy(task)
            weights = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
            try:
                member.load_state_dict(weights)
            except RuntimeError as problem:
                raise ValueError(
                    f"member {name}: {path} was trained with another network than the config names: {problem}"
                ) from problem
            members.append(member)
        return cls(members)

    def predict_step(self, batch: Batch, batch_idx: int) -> Prediction | str:
        """Outputs of one case; only its id where it is done already."""
        (case_id,) = batch["case_id"]
        if case_id in self.done:
            return str(case_id)
        restore = self.trainer.datamodule.restore  # type: ignore[attr-defined]
        scores = []
        for member in self.members:
            assert isinstance(member, SegmentationTask)
            scores.append(restore(member.score(batch["image"])[0].cpu(), case_id))
        valid, geometry = batch.get("valid"), batch.get("geometry")
        return Prediction(
            case_id=case_id,
            logits=torch.stack(scores),
            target=batch["target"][0].cpu(),
            valid=None if valid is None else valid[0].cpu(),
            geometry=None if geometry is None else geometry[0],
        )
