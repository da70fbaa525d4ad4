"""Every structure of a calibrated case in numbers: volume with an interval, expected quality of its mask."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_calib.decisions.quality import StructureFacts, structure_facts
from lightning_calib.decisions.volumes import voxel_volume
from lightning_calib.deployment.decisions import Decisions
from lightning_calib.deployment.folder import Deployment
from lightning_calib.deployment.maps import Maps
from lightning_calib.deployment.regions import RegionEnsemble, is_region_folder
from lightning_calib.kit.files import write_csv
from lightning_calib.kit.typed import typed
from lightning_calib.outputs.regions import Region

FOREGROUND = "foreground"


def structures_of(deployed: Path) -> dict[str, Region]:
    """What decisions can be made on, by name: classes, any foreground where there is a background, or regions."""
    if is_region_folder(deployed):
        return {region.name: region for region in RegionEnsemble.load(deployed).regions}
    facts = Deployment.load(deployed)
    found = {name: Region(name, (label,)) for label, name in enumerate(facts.class_names)}
    if facts.background is not None:
        rest = tuple(label for label in range(facts.num_classes) if label != facts.background)
        found.setdefault(FOREGROUND, Region(FOREGROUND, rest))
    return found


def single_structures(deployed: Path) -> dict[str, Region]:
    """Those that have volumes and masks of their own: all classes but the background, or all regions."""
    known = structures_of(deployed)
    if is_region_folder(deployed):
        return known
    facts = Deployment.load(deployed)
    return {name: known[name] for label, name in enumerate(facts.class_names) if label != facts.background}


def find_structure(deployed: Path, name: str) -> Region:
    """A structure by its name; an unknown one is refused with those that there are."""
    known = structures_of(deployed)
    if name not in known:
        raise ValueError(f"{deployed} has no structure {name!r}; it has {', '.join(known)}")
    return known[name]


@dataclass(frozen=True)
class StructureRow:
    """One structure of a case (``structures.csv``); what is not known is NaN, an empty field of the file.

    Attributes:
        case: the case.
        structure: name of the class or region.
        volume: expected volume, the sum of the calibrated probabilities.
        low: lower bound of its prediction interval.
        high: upper bound.
        mask_volume: volume of the mask.
        unit: of all volumes, ``ml`` or ``voxels``.
        expected_dice: of the mask, by the calibrated probabilities.
        certainty: 1 minus the mean entropy at the mask's border.
        agreement: Dice between members.
        predicted_dice: what the three say together.
    """

    case: str
    structure: str
    volume: float
    low: float
    high: float
    mask_volume: float
    unit: str
    expected_dice: float
    certainty: float
    agreement: float
    predicted_dice: float

    @property
    def quality(self) -> float:
        """The predicted Dice or, where none was learned, the expected one."""
        return self.predicted_dice if self.predicted_dice == self.predicted_dice else self.expected_dice


def facts_of(maps: Maps, structure: Region, counted: Tensor | None = None) -> StructureFacts:
    """Facts on a structure of a calibrated case."""
    mask = structure.target(maps.mask, None).bool()
    return structure_facts(maps.probs_of(structure), mask, counted, maps.members_of(structure))


def structure_rows(
    case_id: str, maps: Maps, structures: Mapping[str, Region], decisions: Decisions
) -> list[StructureRow]:
    """All structures of a calibrated case."""
    return [_row(case_id, name, maps, facts_of(maps, region), decisions) for name, region in structures.items()]


def _row(case_id: str, name: str, maps: Maps, facts: StructureFacts, decisions: Decisions) -> StructureRow:
    voxel, unit = voxel_volume(maps.geometry)
    model, nan = decisions.volumes.get(name), float("nan")
    low, high = (nan, nan) if model is None else model.interval(facts, maps.mask.numel())
    predicted = nan if decisions.quality is None else float(decisions.quality.predict([facts])[0])
    return StructureRow(
        case_id,
        name,
        voxel * facts.expected,
        voxel * low,
        voxel * high,
        voxel * facts.mask,
        unit,
        facts.expected_dice,
        facts.certainty,
        facts.agreement,
        predicted,
    )


def write_queue(path: Path, rows: Iterable[StructureRow]) -> None:
    """Write rows in the order of a review: cases with the lowest quality of any structure first."""
    rows = list(rows)
    worst: dict[str, float] = {}
    for row in rows:
        quality = row.quality if row.quality == row.quality else 2.0  # nothing to look at
        worst[row.case] = min(quality, worst.get(row.case, 2.0))
    ordered = sorted(rows, key=lambda row: (worst[row.case], row.case))
    write_csv(path, [field.name for field in fields(StructureRow)], (_cells(row) for row in ordered))


def _cells(row: StructureRow) -> list[str | float]:
    """NaN leaves a field empty."""
    return ["" if value != value else value for value in asdict(row).values()]


def row_of(facts: Any) -> StructureRow:  # noqa: ANN401
    """A row as a record has it."""
    found: StructureRow = typed(facts, StructureRow)
    return found
