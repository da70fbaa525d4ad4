"""A deployed model of regions: a deployed pipeline of two classes for each, and what puts them together."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from lightning_calib.calibrators import Pipeline
from lightning_calib.calibrators.regions import RegionCalibrator
from lightning_calib.calibrators.stack import towards_identity
from lightning_calib.deployment.folder import CARD, Deployment, DeploymentError
from lightning_calib.functional.pooling import Pooling
from lightning_calib.functional.regions import pool_one_channel
from lightning_calib.kit.files import write_json, write_text
from lightning_calib.kit.tables import Table
from lightning_calib.kit.typed import read_typed
from lightning_calib.outputs.manifest import MANIFEST, Manifest
from lightning_calib.outputs.regions import Region, painted, within

REGIONS = "regions.json"
_VERSION = 1


@dataclass(frozen=True)
class _Facts:
    """What ``regions.json`` holds."""

    format_version: int
    regions: tuple[Region, ...]


class CalibratedRegions(NamedTuple):
    """Calibrated output of a batch.

    Attributes:
        logits: nested log-odds ``(B, R, *S)``, above 0 inside a region.
        probs: probabilities ``(B, R, *S)``, above 1/2 inside a region.
        mask: label map ``(B, *S)``, int64: smaller regions painted over larger ones. Where every calibrator preserves
            decisions, they are those of the pooled scores themselves.
    """

    logits: Tensor
    probs: Tensor
    mask: Tensor


class RegionEnsemble(nn.Module):
    """Pooling and calibrators of all regions in one.

    Args:
        regions: the regions, in the order of the channels.
        pipelines: for each its pooling and its calibrator of two classes.
        deployments: facts of the folders that they were loaded from.

    Example:
        >>> regions = Region.all_of({"whole": [1, 2], "core": [2]})
        >>> ensemble = RegionEnsemble(regions, [Pipeline.parse("cms_op(p)", 2), Pipeline.parse("ts(z)", 2)])
        >>> result = ensemble.calibrate(torch.randn(1, 5, 2, 8, 8))
        >>> result.probs.shape, result.mask.shape
        (torch.Size([1, 2, 8, 8]), torch.Size([1, 8, 8]))
    """

    def __init__(
        self, regions: Sequence[Region], pipelines: Sequence[Pipeline], deployments: Sequence[Deployment] = ()
    ) -> None:
        super().__init__()
        self.regions, self.deployments = tuple(regions), tuple(deployments)
        self.poolings: tuple[Pooling, ...] = tuple(pipeline.pooling for pipeline in pipelines)
        calibrators = [pipeline.calibrator for pipeline in pipelines]
        self.calibrator = RegionCalibrator(calibrators, [region.labels for region in regions])
        self.register_buffer("_place", torch.empty(0), persistent=False)
        self.eval().requires_grad_(False)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a folder that ``calibrate.py deploy`` wrote for a store of regions."""
        folder = Path(folder)
        facts = read_typed(folder / REGIONS, _Facts, "deploy again")
        if facts.format_version != _VERSION:
            raise DeploymentError(f"{folder / REGIONS} is of another version: deploy again")
        regions = facts.regions
        places = [folder / region.slug for region in regions]
        deployments = [Deployment.load(place) for place in places]
        pairs = zip(deployments, places, strict=True)
        return cls(regions, [deployment.read_pipeline(place) for deployment, place in pairs], deployments)

    @property
    def sha256(self) -> str:
        """Hash of all calibrators."""
        return hashlib.sha256("".join(each.calibrator_sha256 for each in self.deployments).encode()).hexdigest()

    def refuse_others(self, store: Path) -> Manifest:
        """The manifest of a store of regions, if it is of the kind that the pipelines were fitted on."""
        manifest = Manifest.load(store / MANIFEST)
        if manifest.regions != self.regions:
            ours, theirs = (", ".join(each.name for each in regions) for regions in (self.regions, manifest.regions))
            raise DeploymentError(f"{store} holds {f'the regions {theirs}' if theirs else 'no regions'}, not {ours}")
        for channel, deployment in enumerate(self.deployments):
            deployment.refuse_others(manifest.of_region(channel), store)
        return manifest

    def pool(self, member_logits: Tensor) -> Tensor:
        """Pooled log-odds ``(B, R, *S)`` of member scores ``(B, M, R, *S)``, each region by its own pooling."""
        pairs = zip(member_logits.unbind(dim=2), self.poolings, strict=True)
        return torch.stack([pool_one_channel(scores, pooling) for scores, pooling in pairs], dim=1)

    def forward(self, member_logits: Tensor) -> Tensor:
        """Calibrated log-odds ``(B, R, *S)`` of member scores ``(B, M, R, *S)``."""
        return self.calibrate(member_logits).logits

    def calibrate(self, member_logits: Tensor) -> CalibratedRegions:
        """Calibrated output of member scores ``(B, M, R, *S)``."""
        return self.calibrate_pooled(self.pool(member_logits))

    def calibrate_pooled(self, pooled: Tensor, identity_weight: float = 0.0) -> CalibratedRegions:
        """Calibrated output of log-odds ``(B, R, *S)`` that are already pooled as each pipeline needs.

        Args:
            pooled: the log-odds.
            identity_weight: weight of the uncalibrated probabilities of all regions in the result, in [0, 1].
        """
        pooled = pooled.to(self._place.device)  # type: ignore[arg-type]  # a buffer
        calibrator = self._mixed(identity_weight) if identity_weight > 0 else self.calibrator
        logits: Tensor = calibrator(pooled)
        inside = (pooled if calibrator.preserves_decisions else logits) > 0
        return CalibratedRegions(logits, calibrator.probs(logits), self._paint(inside))

    def _mixed(self, weight: float) -> RegionCalibrator:
        """The calibrators, each mixed with the identity."""
        parts = [towards_identity(each, weight) for each in self.calibrator.calibrators]  # type: ignore[arg-type]
        mixed = RegionCalibrator(parts, [region.labels for region in self.regions])
        return mixed.to(self._place.device).requires_grad_(False)  # type: ignore[arg-type]  # a buffer

    def _paint(self, inside: Tensor) -> Tensor:
        """Label map ``(B, *S)`` of decisions ``(B, R, *S)``."""
        channels = {region.name: number for number, region in enumerate(self.regions)}
        mask = torch.zeros_like(inside[:, 0], dtype=torch.long)
        for name, label in painted(self.regions).items():
            mask = torch.where(inside[:, channels[name]], label, mask)
        return mask


def is_region_folder(folder: Path) -> bool:
    """Whether a deployed folder holds a model of regions."""
    return (folder / REGIONS).is_file()


def save_regions(folder: Path, regions: Sequence[Region], deployments: Sequence[Deployment]) -> None:
    """Write the card and ``regions.json``, the last file: it says that the folder of every region is whole."""
    if looking := [each.pipeline for each in deployments if each.name.cls.looks_at == "features"]:
        raise DeploymentError(f"{looking[0]} looks at features, which regions do not hand out: name another --pipeline")
    larger, labels, rows = within(regions), painted(regions), []
    for region, each in zip(regions, deployments, strict=True):
        made, outer = ", ".join(map(str, region.labels)), ", ".join(larger[region.name]) or "none"
        card = f"[{region.slug}]({region.slug}/{CARD})"
        rows.append([region.name, made, outer, f"`{each.pipeline}`", str(labels[region.name]), card])
    heads = ("region", "labels", "lies within", "pipeline", "painted as", "card")
    caption = (
        "Each region is calibrated by itself; then no region keeps a higher probability than one that it lies within. "
        "That changes no decision. Where the networks contradict themselves (inside the smaller region, outside the "
        "larger), they are left as they are."
    )
    table = Table.of("regions", caption, heads, rows).to_markdown()
    usage = (
        "```python\nfrom lightning_calib.deployment import RegionEnsemble\n\n"
        'ensemble = RegionEnsemble.load("this/folder")\n'
        "logits, probs, mask = ensemble.calibrate(member_logits)  # (B, members, regions, *S)\n```\n"
    )
    write_text(folder / CARD, f"# Regions of {deployments[0].dataset.rpartition(': ')[0]}\n\n{table}\n{usage}")
    write_json(folder / REGIONS, {"format_version": _VERSION, "regions": [asdict(region) for region in regions]})
