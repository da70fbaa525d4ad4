"""A calibrated case with all that follows from it: masks that hold a risk, volumes with intervals, expected quality."""

import html
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_calib.deployment.decisions import Decisions
from lightning_calib.deployment.maps import Maps
from lightning_calib.deployment.structures import StructureRow, single_structures, structure_rows

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Decided:
    """A case with its maps, masks and structures.

    Attributes:
        case: its name.
        maps: calibrated maps: ``probs (C, *S)``, ``mask (*S)``, ``confidence (*S)``.
        structures: volume, interval and expected quality of each structure.
    """

    case: str
    maps: Maps
    structures: tuple[StructureRow, ...]

    @property
    def masks(self) -> dict[str, Tensor]:
        """``mask (*S)`` with the predicted classes, and those that were learned, bool, such as ``tumour_outer``."""
        return self.maps.labels()

    def table(self) -> "pd.DataFrame":
        """A row a structure; what was not learned is NaN."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.structures]).drop(columns="case").set_index("structure")

    def __repr__(self) -> str:
        """Masks and structures by name."""
        named = ", ".join(row.structure for row in self.structures)
        return f"Decided({self.case}: masks {', '.join(self.masks)}; structures {named})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        told = html.escape(f"{self.case}: masks {', '.join(self.masks)}")
        return f"<p>{told}</p>{self.table().to_html(float_format='%.3g')}"


def decide(case_id: str, maps: Maps, deployed: Path, decisions: Decisions) -> Decided:
    """What follows from the maps of a case.

    Args:
        case_id: its name.
        maps: its calibrated maps.
        deployed: the folder of what calibrated it.
        decisions: what was learned on such maps.
    """
    whole = replace(maps, decided=decisions.masks_of(maps))
    return Decided(case_id, whole, tuple(structure_rows(case_id, whole, single_structures(deployed), decisions)))
