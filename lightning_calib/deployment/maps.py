"""Calibrated maps of one case in memory; :mod:`lightning_calib.deployment.writers` makes files of them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_calib.deployment.folder import Deployment
from lightning_calib.functional.experts import winning_class
from lightning_calib.outputs.regions import Region

if TYPE_CHECKING:
    from lightning_calib.deployment.ensemble import Calibrated
    from lightning_calib.deployment.guard import Guarded

Precision = Literal["float32", "16bit", "8bit"]
Array = NDArray[Any]


@dataclass(frozen=True)
class Legend:
    """What the labels of a mask stand for.

    Attributes:
        names: name of label 0, 1, ...
        background: label of the background, where there is one.
        values: what the mask's file holds for label 0, 1, ...; None for the labels.
        made_by: the pipeline, such as ``cms_op(p)``.
    """

    names: tuple[str, ...] = ()
    background: int | None = None
    values: tuple[int, ...] | None = None
    made_by: str = ""


@dataclass(frozen=True)
class Maps:
    """What is written of a case.

    Attributes:
        probs: calibrated probabilities ``(C, *S)``, float32; of regions ``(R, *S)``.
        mask: predicted labels ``(*S)``.
        geometry: where the voxels are, as what read the image has it (affine, DICOM series, CRS); None without.
        identity_weight: weight of the uncalibrated probabilities that a guard mixed in; None without a guard.
        legend: what the labels stand for.
        decided: further masks, bool ``(*S)``, by the ends of their files' names; files hold 0 and 1.
        votes: what the members say by themselves, where they are known: classes ``(M, *S)``, or of regions whether
            each voxel is inside ``(M, R, *S)``.
    """

    probs: Tensor
    mask: Tensor
    geometry: dict[str, Any] | None = None
    identity_weight: float | None = None
    legend: Legend = Legend()
    decided: dict[str, Tensor] = field(default_factory=dict)
    votes: Tensor | None = None

    def labels(self) -> dict[str, Tensor]:
        """Maps of labels ``(*S)`` by the names of their files."""
        return {"mask": self.mask} | self.decided

    def written_labels(self) -> dict[str, Array]:
        """The same as files hold them, each in the smallest type that does."""
        return {name: self._values(name, labels.numpy()) for name, labels in self.labels().items()}

    def _values(self, name: str, labels: Array) -> Array:
        if name in self.decided:
            return labels.astype(np.uint8)
        values = self.legend.values
        found = labels if values is None else np.asarray(values, dtype=np.int64)[labels]
        return found.astype(np.result_type(np.min_scalar_type(found.min()), np.min_scalar_type(found.max())))

    def arrays(self, probabilities: bool) -> dict[str, Tensor]:
        """Maps of probabilities by the names of their files; all of them, or only what must not be missing."""
        raise NotImplementedError

    def structures(self, name: str) -> tuple[str, ...]:
        """What the channels of a map are probabilities of; nothing for a map of something else."""
        raise NotImplementedError

    def probs_of(self, structure: Region) -> Tensor:
        """Probability ``(*S)`` of some classes together, or of one of the regions."""
        raise NotImplementedError

    def members_of(self, structure: Region) -> Tensor | None:
        """The members' masks of it, bool ``(M, *S)``."""
        raise NotImplementedError


@dataclass(frozen=True)
class CalibratedMaps(Maps):
    """Maps of classes, with the largest probability ``confidence (*S)``."""

    confidence: Tensor = field(kw_only=True)

    def arrays(self, probabilities: bool) -> dict[str, Tensor]:
        """The confidence, and the probabilities of all classes."""
        return {"confidence": self.confidence} | ({"probs": self.probs} if probabilities else {})

    def structures(self, name: str) -> tuple[str, ...]:
        """The classes."""
        return self.legend.names if name == "probs" else ()

    def probs_of(self, structure: Region) -> Tensor:
        """Sum of the probabilities of the structure's labels."""
        return self.probs[list(structure.labels)].sum(dim=0).clamp(max=1)

    def members_of(self, structure: Region) -> Tensor | None:
        """Where members see one of its labels."""
        return None if self.votes is None else structure.target(self.votes, None).bool()


@dataclass(frozen=True)
class RegionMaps(Maps):
    """Maps of regions, by the ``names`` of their files."""

    names: tuple[str, ...] = field(kw_only=True)

    def arrays(self, probabilities: bool) -> dict[str, Tensor]:
        """The probability of each region."""
        return dict(zip(self.names, self.probs, strict=True)) if probabilities else {}

    def structures(self, name: str) -> tuple[str, ...]:
        """The region."""
        return (name.removeprefix("probs_"),)

    def probs_of(self, structure: Region) -> Tensor:
        """The region's own."""
        return self.probs[self.names.index(region_map(structure))]

    def members_of(self, structure: Region) -> Tensor | None:
        """What members say about the region."""
        return None if self.votes is None else self.votes[:, self.names.index(region_map(structure))]


def region_map(region: Region) -> str:
    """Name of the map of a region's probability."""
    return f"probs_{region.slug}"


def legend_of(deployment: Deployment) -> Legend:
    """What labels stand for; written masks hold the values that the training's masks hold."""
    preprocessing = deployment.preprocessing
    values = None if preprocessing is None else preprocessing.mask_values
    return Legend(deployment.class_names, deployment.background, values, deployment.pipeline)


def votes(scores: Tensor | None) -> Tensor | None:
    """The class that each member sees ``(M, *S)``, from scores ``(M, C, *S)``; None without them."""
    return None if scores is None else winning_class(scores.float()).cpu()


def as_maps(
    result: "Calibrated | Guarded",
    valid: Tensor | None,
    legend: Legend,
    geometry: dict[str, object] | None,
) -> CalibratedMaps:
    """Maps of a batch of one; where the networks saw nothing, the background is certain if there is one.

    Probabilities keep the order of their logarithms but for ties, on every device: exp of float32 may not, that of
    float64 does.
    """
    background = legend.background
    probs, mask = result.log_probs[0].cpu().double().exp().clamp(max=1).float(), result.mask[0].cpu()
    confidence = probs.amax(dim=0)
    if valid is not None and background is not None:
        certain = torch.zeros(len(probs)).index_fill(0, torch.tensor([background]), 1.0)
        probs = torch.where(valid, probs, certain.view(-1, *(1 for _ in mask.shape)))
        mask, confidence = mask.where(valid, background), confidence.where(valid, 1.0)
    weight = getattr(result, "weight", None)
    return CalibratedMaps(
        probs, mask, geometry, None if weight is None else float(weight), legend, confidence=confidence
    )
