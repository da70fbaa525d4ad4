"""A deployed ensemble as one module: images or member scores in, calibrated log-probabilities out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from lightning_calib.calibrators import Calibrator, Identity, Pipeline, Stack
from lightning_calib.calibrators.base import features_of, seen_by
from lightning_calib.datasets.preprocessing import LoadedImage, Loader, Preprocessing
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.pooling import pool
from lightning_calib.segmenters import Inference, Members, Segmenter, build_network

RawImage = str | Path | Sequence[Path] | Image.Image | NDArray[Any]


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
        facts = self.deployment.preprocessing
        self.require_loader()
        assert facts is not None  # there is a loader
        with image_files(image, facts) as files:
            return self.calibrate(self.scores_of(files)[0])

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
            identity = Identity(calibrator.num_classes, calibrator.spatial_dims)
            calibrator = Stack.of([calibrator, identity], [1 - identity_weight, identity_weight]).to(self.device)
        with torch.no_grad():
            return calibrated(pooled, calibrator, features)


@contextmanager
def image_files(image: RawImage, facts: Preprocessing) -> Iterator[list[Path]]:
    """The files of a raw image, for the reader that read those of the training; one in memory is written for it.

    Args:
        image: see :meth:`CalibratedEnsemble.predict`.
        facts: what the networks were trained on.
    """
    if isinstance(image, str | Path):
        yield [Path(image)]
    elif isinstance(image, Image.Image | np.ndarray):
        with TemporaryDirectory(prefix="lightning_calib-") as folder:
            path = Path(folder) / "image"
            try:
                yield [
                    _save_picture(path, image) if isinstance(image, Image.Image) else _save_array(path, image, facts)
                ]
            except ValueError as problem:
                raise DeploymentError(str(problem).replace(f"{path}.", "the image, as .")) from problem
    elif isinstance(image, Sequence):
        yield [Path(file) for file in image]
    else:
        told = "; a tensor of the networks' own input goes to `predict_input`" if isinstance(image, Tensor) else ""
        raise DeploymentError(f"a raw image is a file, a PIL image or a NumPy array, got {type(image).__name__}{told}")


def _save_picture(path: Path, image: Image.Image) -> Path:
    image.save(path.with_suffix(".png"))
    return path.with_suffix(".png")


def _save_array(path: Path, array: NDArray[Any], facts: Preprocessing) -> Path:
    """An array as a file: a picture where a picture can hold it."""
    if facts.kind == "image":
        channels = {facts.in_channels, 1, 4} if array.dtype == np.uint8 else {facts.in_channels}
        if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in channels):
            raise ValueError(
                f"an image is an array (H, W) or (H, W, {facts.in_channels} channels), one at a time and channels "
                f"last, got the shape {array.shape}"
            )
        if array.dtype == np.uint8 and facts.in_channels in (1, 3):
            return _save_picture(path, Image.fromarray(array.squeeze(2) if array.shape[2:] == (1,) else array))
    elif array.ndim not in (3, 4):
        raise ValueError(f"a volume is an array (D, H, W) or (channels, D, H, W), got the shape {array.shape}")
    np.save(path.with_suffix(".npy"), array)
    return path.with_suffix(".npy")
