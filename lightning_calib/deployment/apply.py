"""A deployed pipeline on new data, case by case: streaming, and continued where it was interrupted."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_calib.deployment.maps import STATED_ERROR, Precision, write_maps
from lightning_calib.deployment.sources import Source
from lightning_calib.kit.files import read_json, write_json
from lightning_calib.kit.progress import Display

INDEX, RECORDS = "index.json", "records"
_LISTED = ("files", "stated_error", "identity_weight")  # facts of a case that the index repeats


@dataclass(frozen=True)
class Application:
    """Where and how calibrated maps are written.

    Args:
        destination: folder of the maps.
        calibrator_sha256: hash of the deployed calibrator; maps of another one are written again.
        precision: of probabilities and confidence.
        probabilities: write the probabilities of all classes, not only mask and confidence.
        quiet: show no progress.
        guarded: whether the sources stand under a guard; maps with and without one are told apart.
    """

    destination: Path
    calibrator_sha256: str
    precision: Precision = "16bit"
    probabilities: bool = True
    quiet: bool = False
    guarded: bool = False

    def __call__(self, sources: Sequence[Source]) -> dict[str, Any]:
        """Calibrate what is not there yet, and write ``index.json``.

        Returns:
            The index: precision with its stated error, and the files of each case.
        """
        names = [source.case_id for source in sources]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"several inputs are called {', '.join(sorted(repeated))}: rename them, maps go by name")
        waiting = [source for source in sources if not self.is_done(source)]
        (self.destination / RECORDS).mkdir(parents=True, exist_ok=True)
        with Display(["case"] * len(waiting), quiet=self.quiet) as display:
            for source in waiting:
                self.write(source)
                display.done("case", source.case_id)
        records = {name: read_json(self._record(name)) for name in names}
        index = {
            "precision": self.precision,
            "calibrator_sha256": self.calibrator_sha256,
            "written_now": len(waiting),
            "cases": {name: {key: record[key] for key in _LISTED if key in record} for name, record in records.items()},
        }
        write_json(self.destination / INDEX, index)
        return index

    def is_done(self, source: Source) -> bool:
        """Whether the maps of a case are there, made of the same inputs in the same way."""
        path = self._record(source.case_id)
        if not path.is_file():
            return False
        record = read_json(path)
        files = {self.destination / name: size for name, size in record["files"].items()}
        whole = all(file.is_file() and file.stat().st_size == size for file, size in files.items())
        return whole and record["made_of"] == self._made_of(source)

    def write(self, source: Source) -> None:
        """Calibrate one case; its record comes last and says that the maps are whole."""
        self._record(source.case_id).unlink(missing_ok=True)
        maps = source.calibrate()
        files = write_maps(self.destination, source.case_id, maps, self.precision, self.probabilities)
        record = {
            "made_of": self._made_of(source),
            "files": {file.name: file.stat().st_size for file in files},
            "stated_error": STATED_ERROR[self.precision, maps.is_nifti],
        }
        if maps.identity_weight is not None:
            record["identity_weight"] = maps.identity_weight
        write_json(self._record(source.case_id), record)

    def _record(self, case_id: str) -> Path:
        return self.destination / RECORDS / f"{case_id}.json"

    def _made_of(self, source: Source) -> str:
        facts = [source.inputs_sha256, self.calibrator_sha256, self.precision, self.probabilities]
        facts += ["guarded"] if self.guarded else []
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
