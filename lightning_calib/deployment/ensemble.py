"""A deployed ensemble as one module: images or member scores in, calibrated log-probabilities out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from lightning_calib.calibrators import Calibrator, Pipeline
from lightning_calib.calibrators.base import features_of, seen_by
from lightning_calib.calibrators.stack import towards_identity
from lightning_calib.datasets.preprocessing import LoadedImage, Loader
from lightning_calib.datasets.readers import stem
from lightning_calib.deployment.decided import Decided, decide
from lightning_calib.deployment.decisions import Decisions
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.deployment.maps import as_maps, legend_of, votes
from lightning_calib.deployment.raw_images import RawImage, image_files
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.pooling import pool
from lightning_calib.segmenters import Inference, Members, Segmenter, build_network

_FOLDERLESS = "this ensemble was not loaded from a deployed folder; use CalibratedEnsemble.load"


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
        folder: the deployed folder that it was loaded from, or None.

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
        self.folder: Path | None = None
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
            raise DeploymentError(_FOLDERLESS)
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
            ensemble = cls(pipeline, deployment=deployment)
        else:
            ensemble = cls.with_networks(pipeline, deployment, deployment.checkpoints(folder), trust)
        ensemble.folder = folder
        return ensemble

    @classmethod
    def with_networks(
        cls, pipeline: Pipeline, deployment: Deployment, checkpoints: Mapping[str, Path], trust: bool = False
    ) -> Self:
        """Networks of some checkpoints, by the names of the members, and what reads their images."""
        facts = deployment.preprocessing
        assert deployment.network is not None  # callers have made sure
        assert facts is not None
        loader = facts.loader(trust)
        sizes = (facts.in_channels, deployment.num_classes, deployment.spatial_dims)
        network = build_network(deployment.network, *sizes, trust=trust)
        members = Members.load(network, dict(checkpoints), Inference(**(facts.inference or {})))
        ensemble = cls(pipeline, members, deployment=deployment)
        ensemble.load_image = loader
        return ensemble

    def member_logits(self, images: Tensor) -> Tensor:
        """Scores ``(B, M, C, *S)`` of normalised images ``(B, channels, *S)``."""
        self._refuse_other_axes(images)
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

    def predict(self, image: RawImage) -> Calibrated:
        """Calibrated output of one raw image as a batch of one, on the image's own grid.

        It is read and normalised as the images of the training were.

        Args:
            image: a file, or one a channel; a PIL image; an array ``(H, W[, channels])`` of a 2D image, or
                ``([channels,] D, H, W)`` of a volume.
        """
        return self.calibrate(self._raw_scores(image)[0])

    def decide(self, image: RawImage) -> Decided:
        """Calibrated maps of one raw image, the masks that were learned for the folder, and its structures in numbers.

        Masks with a guaranteed risk, thresholds, intervals of volumes and the predicted quality are those of
        ``decisions.json``, as ``calibrate.py apply`` writes them; without it, volumes and expected quality alone.

        Args:
            image: see :meth:`predict`.
        """
        scores, loaded = self._raw_scores(image)
        return self.decide_scores(scores[0], loaded.valid, loaded.geometry, _name(image))

    def decide_scores(
        self,
        member_logits: Tensor,
        valid: Tensor | None = None,
        geometry: dict[str, Any] | None = None,
        case: str = "case",
    ) -> Decided:
        """The same of the members' scores of one case.

        Args:
            member_logits: scores ``(M, C, *S)``.
            valid: where the networks saw something ``(*S)``; everywhere by default.
            geometry: facts on the voxels; with ``{"spacing": [d, h, w]}`` in mm volumes are in ml.
            case: a name for it.
        """
        if self.folder is None:
            raise DeploymentError(_FOLDERLESS)
        result = self.calibrate(member_logits[None])
        maps = as_maps(result, valid, legend_of(self.deployment), geometry)
        whole = replace(maps, votes=votes(member_logits))
        return decide(case, whole, self.folder, Decisions.load(self.folder))

    def _raw_scores(self, image: RawImage) -> tuple[Tensor, LoadedImage]:
        """Member scores ``(1, M, C, *S)`` of a raw image, and the image as it was read."""
        self.require_loader()
        facts = self.deployment.preprocessing
        assert facts is not None  # there is a loader
        with image_files(image, facts) as files:
            return self.scores_of(files)

    def predict_input(self, images: Tensor) -> Calibrated:
        """Calibrated output of the networks' own input: normalised images ``(B, channels, *S)``."""
        return self.calibrate(self.member_logits(images))

    def _refuse_other_axes(self, images: Tensor) -> None:
        """Stop where a tensor cannot be the networks' input."""
        facts = None if self._deployment is None else self._deployment.preprocessing
        if facts is None or self._deployment is None:
            return
        shape, axes = tuple(images.shape), ", ".join("DHW"[-self._deployment.spatial_dims :])
        if len(shape) != 2 + self._deployment.spatial_dims or shape[1] != facts.in_channels:
            raise DeploymentError(
                f"the networks take normalised images (batch, {facts.in_channels} channels, {axes}), got the shape "
                f"{shape}; raw images go to `predict`"
            )

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
        shape, classes = tuple(member_logits.shape), self.pipeline.calibrator.num_classes
        if len(shape) < 3 or shape[2] != classes:
            raise ValueError(f"member scores have the axes (batch, members, {classes} classes, ...), got {shape}")
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
            calibrator = towards_identity(calibrator, identity_weight).to(self.device)
        with torch.no_grad():
            return calibrated(pooled, calibrator, features)


def _name(image: RawImage) -> str:
    """Name of a case: that of its file, if it has one."""
    return stem(Path(image)) if isinstance(image, str | Path) else "image"
