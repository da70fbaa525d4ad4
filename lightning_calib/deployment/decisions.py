"""``decisions.json``: what was learned from labelled cases about the maps of a deployed folder, for ``apply``."""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from torch import Tensor

from lightning_calib.decisions.quality import QualityModel
from lightning_calib.decisions.tables import inside
from lightning_calib.decisions.volumes import VolumeModel
from lightning_calib.deployment.folder import DECISIONS, Deployment, DeploymentError
from lightning_calib.deployment.maps import Maps
from lightning_calib.deployment.regions import RegionEnsemble, is_region_folder
from lightning_calib.kit.checksums import note_checksums, refuse_changed
from lightning_calib.kit.files import locked, plain, sha256, write_json
from lightning_calib.kit.typed import read_typed
from lightning_calib.outputs.regions import Region

FORMAT_VERSION = 1
MaskKind = Literal["outer", "inner", "chosen"]


@dataclass(frozen=True)
class MaskRule:
    """A threshold on the calibrated probability of a structure.

    Attributes:
        structure: name and labels.
        kind: ``outer`` and ``inner`` masks have a controlled risk, a ``chosen`` one the least cost.
        threshold: voxels whose probability reaches it are in the mask.
        facts: what is promised, by what, from how many groups, and what was measured.
    """

    structure: Region
    kind: MaskKind
    threshold: float
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """End of the names of its files."""
        return f"{self.structure.slug}_{self.kind}"


@dataclass(frozen=True)
class Decisions:
    """All that was learned, by one calibrator.

    Attributes:
        calibrator_sha256: hash of the calibrator.
        masks: rules for masks.
        volumes: prediction intervals of volumes, by structure.
        quality: predicts the Dice of structures.
    """

    calibrator_sha256: str
    masks: tuple[MaskRule, ...] = ()
    volumes: dict[str, VolumeModel] = field(default_factory=dict)
    quality: QualityModel | None = None
    format_version: int = FORMAT_VERSION

    @classmethod
    def load(cls, deployed: Path) -> Self:
        """Read what a deployed folder has; empty where nothing was learned yet."""
        path, calibrator = deployed / DECISIONS, calibrator_sha256(deployed)
        if not path.is_file():
            return cls(calibrator)
        refuse_changed(deployed, "deploy again")
        found = read_typed(path, cls, "deploy again")
        if found.calibrator_sha256 != calibrator or found.format_version != FORMAT_VERSION:
            raise DeploymentError(
                f"{path} is of another calibrator: delete it, and learn it again (calibrate.py control, structures)"
            )
        return found

    def save(self, deployed: Path) -> Path:
        """Write ``decisions.json`` and note its hash."""
        write_json(deployed / DECISIONS, plain(asdict(self)))
        note_checksums(deployed, [DECISIONS])
        return deployed / DECISIONS

    def masks_of(self, maps: Maps) -> dict[str, Tensor]:
        """Masks of a calibrated case, bool ``(*S)``, by the ends of their files' names."""
        return {rule.name: inside(maps.probs_of(rule.structure), rule.threshold) for rule in self.masks}


def calibrator_sha256(deployed: Path) -> str:
    """Hash of the calibrator of a deployed folder, or of those of its regions."""
    if is_region_folder(deployed):
        return RegionEnsemble.load(deployed).sha256
    return Deployment.load(deployed).calibrator_sha256


def keep_mask(deployed: Path, rule: MaskRule) -> Path:
    """Add a rule to a deployed folder, in place of an earlier one for masks of this name."""
    with _held(deployed):
        known = Decisions.load(deployed)
        kept = tuple(each for each in known.masks if each.name != rule.name)
        return replace(known, masks=(*kept, rule)).save(deployed)


def keep_models(deployed: Path, volumes: dict[str, VolumeModel], quality: QualityModel | None) -> Path:
    """Add models of volumes and of quality to a deployed folder, in place of earlier ones."""
    with _held(deployed):
        return replace(Decisions.load(deployed), volumes=volumes, quality=quality).save(deployed)


def _held(deployed: Path) -> AbstractContextManager[None]:
    """Other calls that change the decisions wait."""
    return locked(deployed, "the decisions in", timeout=60)


def decisions_sha256(deployed: Path) -> str | None:
    """Hash of ``decisions.json``; None where there is none."""
    path = deployed / DECISIONS
    return sha256(path) if path.is_file() else None
