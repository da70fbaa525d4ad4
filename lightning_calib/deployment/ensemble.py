"""A deployed ensemble as one module: images or member scores in, calibrated log-probabilities out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from lightning_calib.calibrators import Pipeline
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.deployment.networks import build_inference, build_members
from lightning_calib.deployment.result import Calibrated, calibrated
from lightning_calib.functional.pooling import pool
from lightning_calib.segmenters import Inference, Segmenter


class CalibratedEnsemble(nn.Module):
    """Networks, pooling and calibrator in one.

    Args:
        pipeline: pooling and fitted calibrator.
        members: the networks; none where only stored scores are calibrated.
        inference: how networks are applied to whole images; in one piece by default.
        deployment: facts of the folder that it was loaded from.

    Example:
        >>> ensemble = CalibratedEnsemble(Pipeline.parse("cms_op(p)", num_classes=3))
        >>> result = ensemble.calibrate(torch.randn(1, 5, 3, 8, 8))
        >>> result.log_probs.shape, result.mask.shape, result.confidence.shape
        (torch.Size([1, 3, 8, 8]), torch.Size([1, 8, 8]), torch.Size([1, 8, 8]))
    """

    def __init__(
        self,
        pipeline: Pipeline,
        members: Sequence[Segmenter] = (),
        inference: Inference | None = None,
        deployment: Deployment | None = None,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.members = nn.ModuleList(members)
        self.inference = inference or Inference()
        self.deployment = deployment
        self.register_buffer("_place", torch.empty(0), persistent=False)
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the module is; also known without networks and parameters."""
        return self._place.device  # type: ignore[return-value]

    @classmethod
    def load(cls, folder: str | Path, networks: bool = True) -> Self:
        """Load a folder that ``calibrate.py deploy`` wrote.

        Args:
            folder: the deployed folder.
            networks: also load the networks, where the folder names any; without them images cannot be taken.
        """
        folder = Path(folder)
        deployment = Deployment.load(folder)
        pipeline = deployment.read_pipeline(folder)
        if not networks or deployment.network is None:
            return cls(pipeline, deployment=deployment)
        members = build_members(deployment, deployment.checkpoints(folder))
        return cls(pipeline, members, build_inference(deployment), deployment)

    @torch.no_grad()
    def member_logits(self, images: Tensor) -> Tensor:
        """Scores ``(B, M, C, *S)`` of normalised images ``(B, channels, *S)``."""
        if not self.members:
            raise DeploymentError(
                "this ensemble has no networks, so it cannot take images: give member scores to `calibrate`, or "
                "deploy again where the members' checkpoints and configs are"
            )
        scores = []
        for member in self.members:
            assert isinstance(member, Segmenter)
            scores.append(self.inference(member.logits, images))
        return torch.stack(scores, dim=1)

    def forward(self, images: Tensor) -> Calibrated:
        """Calibrated output of normalised images ``(B, channels, *S)``."""
        return self.calibrate(self.member_logits(images))

    def calibrate(self, member_logits: Tensor) -> Calibrated:
        """Calibrated output of member scores ``(B, M, C, *S)``."""
        return self.calibrate_pooled(pool(member_logits, self.pipeline.pooling))

    def calibrate_pooled(self, pooled: Tensor) -> Calibrated:
        """Calibrated output of scores ``(B, C, *S)`` that are already pooled as the pipeline needs."""
        with torch.no_grad():
            return calibrated(pooled.to(self.device), self.pipeline.calibrator)
