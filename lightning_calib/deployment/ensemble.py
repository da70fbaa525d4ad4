"""A deployed ensemble as one module: images or member scores in, calibrated log-probabilities out."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from lightning_calib.calibrators import Calibrator, Identity, Pipeline, Stack
from lightning_calib.calibrators.base import features_of, seen_by
from lightning_calib.datasets.preprocessing import LoadedImage, Loader
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.pooling import pool
from lightning_calib.segmenters import Inference, Members, Segmenter, build_network


class Calibrated(NamedTuple):
    """Calibrated output of a batch.

    Attributes:
        log_probs: ``(B, C, *S)``, normalised.
        mask: predicted class ``(B, *S)``, int64. Where the calibrator preserves the argmax it is that of the pooled
            scores themselves, never taken from rounded probabilities.
        confidence: largest probability ``(B, *S)``.
    """

    log_probs: Tensor
    mask: Tensor
    confidence: Tensor


def calibrated(pooled: Tensor, calibrator: Calibrator, features: Tensor | None = None) -> Calibrated:
    """Calibrate pooled scores ``(B, C, *S)``, perhaps by features ``(B, F, *S)``, and take mask and confidence.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> calibrated(torch.tensor([[0.0, 2.0, 1.0]]), build("cms_op", 3)).mask
        tensor([1])
    """
    log_probs: Tensor = calibrator(pooled, *seen_by(calibrator, features))
    mask = winning_class(log_probs if calibrator.preserves is None else pooled)
    return Calibrated(log_probs, mask, log_probs.amax(dim=1).exp().clamp(max=1))


class CalibratedEnsemble(nn.Module):
    """Networks, pooling and calibrator in one.

    Args:
        pipeline: pooling and fitted calibrator.
        members: the networks; none where only stored scores are calibrated.
        inference: how networks are applied to whole images; in one piece by default.
        deployment: facts of the folder that it was loaded from.

    Attributes:
        load_image: reads image files; None where the ensemble was not loaded with networks.

    Example:
        >>> ensemble = CalibratedEnsemble(Pipeline.parse("cms_op(p)", num_classes=3))
        >>> result = ensemble.calibrate(torch.randn(1, 5, 3, 8, 8))
        >>> result.log_probs.shape, result.mask.shape, result.confidence.shape
        (torch.Size([1, 3, 8, 8]), torch.Size([1, 8, 8]), torch.Size([1, 8, 8]))
    """

    def __init__(
        self,
        pipeline: Pipeline,
        members: Sequence[Segmenter] | Members = (),
        inference: Inference | None = None,
        deployment: Deployment | None = None,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.members = members if isinstance(members, Members) else Members(members, inference)
        self.load_image: Loader | None = None
        self._deployment = deployment
        self.register_buffer("_place", torch.empty(0), persistent=False)
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the module is; also known without networks and parameters."""
        return self._place.device  # type: ignore[return-value]

    @property
    def deployment(self) -> Deployment:
        """Facts of the folder that it was loaded from."""
        if self._deployment is None:
            raise DeploymentError("this ensemble was not loaded from a deployed folder; use CalibratedEnsemble.load")
        return self._deployment

    @classmethod
    def load(cls, folder: str | Path, networks: bool = True, trust: bool = False) -> Self:
        """Load a folder that ``calibrate.py deploy`` wrote.

        Args:
            folder: the deployed folder.
            networks: also load the networks, where the folder names any; without them images cannot be taken.
            trust: import readers and networks of other packages that the folder names.
        """
        folder = Path(folder)
        deployment = Deployment.load(folder)
        pipeline, facts = deployment.read_pipeline(folder), deployment.preprocessing
        if not networks or deployment.network is None or facts is None:
            return cls(pipeline, deployment=deployment)
        checkpoints, loader = deployment.checkpoints(folder), facts.loader(trust)
        sizes = (facts.in_channels, deployment.num_classes, deployment.spatial_dims)
        network = build_network(deployment.network, *sizes, trust=trust)
        members = Members.load(network, checkpoints, Inference(**(facts.inference or {})))
        ensemble = cls(pipeline, members, deployment=deployment)
        ensemble.load_image = loader
        return ensemble

    def member_logits(self, images: Tensor) -> Tensor:
        """Scores ``(B, M, C, *S)`` of normalised images ``(B, channels, *S)``."""
        if not self.members:
            raise DeploymentError(
                "this ensemble has no networks, so it cannot take images: give member scores to `calibrate`, or "
                "deploy again where the members' checkpoints and configs are"
            )
        scores: Tensor = self.members(images)
        return scores

    def forward(self, member_logits: Tensor) -> Tensor:
        """Calibrated log-probabilities ``(B, C, *S)`` of member scores ``(B, M, C, *S)``."""
        return self.calibrate(member_logits).log_probs

    def predict(self, images: Tensor) -> Calibrated:
        """Calibrated output of normalised images ``(B, channels, *S)``."""
        return self.calibrate(self.member_logits(images))

    def require_loader(self) -> Loader:
        """What reads image files, where there are networks to take them."""
        if self.load_image is None:
            raise DeploymentError(
                "this deployment names no networks, so it cannot take images: give stored outputs (--outputs), or "
                "deploy again where the members' checkpoints and configs are"
            )
        return self.load_image

    def scores_of(self, files: Sequence[Path]) -> tuple[Tensor, LoadedImage]:
        """Member scores ``(1, M, C, *S)`` of an image's files on their own grid, and the image."""
        loaded = self.require_loader()(files)
        return self.members.restored(loaded.image[None].to(self.device), loaded.restore)[None], loaded

    def calibrate(self, member_logits: Tensor, identity_weight: float = 0.0) -> Calibrated:
        """Calibrated output of member scores ``(B, M, C, *S)``, mixed with the uncalibrated one by a weight."""
        scores = member_logits.to(self.device)
        pooled = pool(scores, self.pipeline.pooling)
        with torch.no_grad():
            features = features_of(self.pipeline.calibrator, pooled, scores)
        return self.calibrate_pooled(pooled, identity_weight, features)

    def calibrate_pooled(
        self, pooled: Tensor, identity_weight: float = 0.0, features: Tensor | None = None
    ) -> Calibrated:
        """Calibrated output of scores ``(B, C, *S)`` that are already pooled as the pipeline needs.

        Args:
            pooled: the scores.
            identity_weight: weight of the uncalibrated probabilities in the result, in [0, 1].
            features: ``(B, F, *S)`` that the calibrator looks at; made of the pooled scores where that is possible.
        """
        calibrator, pooled = self.pipeline.calibrator, pooled.to(self.device)
        features = features_of(calibrator, pooled) if features is None else features.to(self.device)
        if identity_weight > 0:
            identity = Identity(calibrator.num_classes, calibrator.spatial_dims)
            calibrator = Stack.of([calibrator, identity], [1 - identity_weight, identity_weight]).to(self.device)
        with torch.no_grad():
            return calibrated(pooled, calibrator, features)
