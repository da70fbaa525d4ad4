"""Labelled cases as a deployed folder calibrates them, those apart that its calibrator was fitted on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_calib.decisions.tables import threshold_table
from lightning_calib.deployment.folder import REFERENCE, DeploymentError
from lightning_calib.deployment.maps import Maps
from lightning_calib.deployment.regions import is_region_folder
from lightning_calib.deployment.sources import Inputs, find_sources
from lightning_calib.deployment.statistics import load_statistics
from lightning_calib.deployment.structures import structures_of
from lightning_calib.kit.progress import Display
from lightning_calib.outputs.manifest import MANIFEST, Manifest, case_path
from lightning_calib.outputs.regions import Region
from lightning_calib.outputs.store import OutputStore, StoredCase


@dataclass(frozen=True)
class LabelledCase:
    """A calibrated case with its labels.

    Attributes:
        stored: the case in its store.
        maps: its calibrated maps.
        labels: true labels ``(*S)``.
        counted: voxels that count ``(*S)``: predicted, and with a label.
    """

    stored: StoredCase
    maps: Maps
    labels: Tensor
    counted: Tensor

    def truth(self, structure: Region) -> Tensor:
        """True voxels of a structure, bool ``(*S)``."""
        return structure.target(self.labels, None).bool()


class Labelled:
    """Labelled cases of a store under a deployed folder.

    Args:
        deployed: folder that calibrate.py deploy wrote.
        outputs: stored outputs with labels.
        level: level of the groups; by default the one that the data set keeps whole.
    """

    def __init__(self, deployed: Path, outputs: Path, level: str | None = None) -> None:
        find_sources.cache_clear()  # the folders may have changed since an earlier call
        self.deployed, self.outputs = deployed, outputs
        self.calibrator_sha256, self._sources = find_sources(Inputs(deployed, outputs))
        regions = is_region_folder(deployed)
        self._store = None if regions else OutputStore(outputs)
        self.manifest = Manifest.load(outputs / MANIFEST) if self._store is None else self._store.manifest
        self._records = {record.case_id: record for record in self.manifest.cases}
        self.level = level or self.manifest.group_level
        self.groups = self.groups_at(self.level)

    def groups_at(self, level: str) -> dict[str, str]:
        """Group of each case at a level."""
        return {case_id: self.manifest.group_of(record, level) for case_id, record in self._records.items()}

    @property
    def fitted(self) -> tuple[str, ...]:
        """Cases of the store that the calibrator was fitted on."""
        return tuple(case_id for case_id in self._records if case_id in self._reference)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Cases of the store that the calibrator was not fitted on, and no other case of their group.

        Raises:
            DeploymentError: where there is none.
        """
        reference = self._reference
        taken = {self.groups[case_id] for case_id in self.fitted}
        if self.level == self.manifest.group_level:
            taken |= set(reference.values())  # groups that another store has other cases of
        found = tuple(c for c in self._records if c not in reference and self.groups[c] not in taken)
        if not found:
            raise DeploymentError(self._why_none(sum(case_id not in reference for case_id in self._records)))
        return found

    def _why_none(self, unknown: int) -> str:
        """Why no case may speak, and what to do; so many cases are new but for their groups."""
        if unknown:
            return (
                f"{self.deployed} does not know {unknown} cases of {self.outputs}, but others of their {self.level}: "
                f"run again with --group_level {self.level}, which keeps them together, or take each case by itself "
                "here (--group_level case)"
            )
        return (
            f"{self.deployed} was fitted on all cases of {self.outputs}: nothing can be promised on cases that a "
            "calibrator knows. Deploy with --cases cal_val --repeat 0, which leaves the test cases of that repeat "
            "unseen, or give --outputs with other labelled cases"
        )

    @cached_property
    def _reference(self) -> dict[str, str]:
        """Groups of the cases that the calibrators were fitted on, by case."""
        regional = is_region_folder(self.deployed)
        slugs = [region.slug for region in structures_of(self.deployed).values()] if regional else ["."]
        known = [case for slug in slugs for case in load_statistics(self.deployed / slug / REFERENCE)]
        return {case.case_id: case.group for case in known}

    def stored(self, case_id: str) -> StoredCase:
        """A case as it is stored."""
        if self._store is not None:
            return self._store[case_id]
        return StoredCase(case_path(self.outputs, case_id), self._records[case_id], self.manifest)

    def read(self, case_id: str) -> LabelledCase:
        """Calibrate a case."""
        stored, ignore = self.stored(case_id), self.manifest.ignore_index
        labels, valid = stored.target, stored.valid
        counted = torch.ones_like(labels, dtype=torch.bool) if valid is None else valid
        counted = counted if ignore is None else counted & (labels != ignore)
        return LabelledCase(stored, self._sources[case_id].calibrate(), labels, counted)

    def each(self, case_ids: Sequence[str], quiet: bool = False) -> Iterator[LabelledCase]:
        """Calibrate cases, one in memory at a time, with a display of progress."""
        with Display(["case"] * len(case_ids), quiet=quiet) as shown:
            for case_id in case_ids:
                yield self.read(case_id)
                shown.done("case", case_id)

    def tables(self, case_ids: Sequence[str], structure: Region, quiet: bool = False) -> NDArray[np.int64]:
        """Voxels of each case by threshold and truth ``(n, 2, K)``, see :mod:`lightning_calib.decisions.tables`."""
        found = [
            threshold_table(case.maps.probs_of(structure), case.truth(structure), case.counted)
            for case in self.each(case_ids, quiet)
        ]
        return torch.stack(found).numpy()
