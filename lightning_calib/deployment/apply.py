"""A deployed pipeline on new data, case by case: streaming, and continued where it was interrupted."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_calib.deployment.decided import decide
from lightning_calib.deployment.decisions import Decisions, decisions_sha256
from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.maps import Precision
from lightning_calib.deployment.sources import Inputs, Source, find_sources
from lightning_calib.deployment.structures import row_of, write_queue
from lightning_calib.deployment.writers import writer_for
from lightning_calib.deployment.writers.base import AUTO
from lightning_calib.executors.base import Executor
from lightning_calib.kit.checksums import is_file_of
from lightning_calib.kit.files import locked, plain, sha256, write_json
from lightning_calib.kit.progress import Display
from lightning_calib.kit.typed import read_typed, typed

INDEX, RECORDS, QUEUE = "index.json", "records", "structures.csv"
_KIND = re.compile(r"^\w+Error: ")  # Python's type of an error, which says nothing to users
TOLD = 10  # cases that an error names
_LISTED = ("files", "stated_error", "identity_weight")  # facts of a case that the index repeats


@dataclass(frozen=True)
class Application:
    """What is calibrated, and where and how maps are written; goes to every process that does some of them.

    Args:
        inputs: the cases and the deployed pipeline.
        destination: folder of the maps.
        precision: of probabilities and confidence.
        probabilities: write the probabilities of all classes, not only mask and confidence.
        format: name of a writer of maps; ``auto`` chooses by what an image was read from.
    """

    inputs: Inputs
    destination: Path
    precision: Precision = "16bit"
    probabilities: bool = True
    format: str = AUTO

    def run(self, executor: Executor, quiet: bool = False) -> dict[str, Any]:
        """Calibrate what is not there yet, and write ``index.json``.

        Args:
            executor: where cases are calibrated.
            quiet: show no progress.

        Returns:
            The index: precision with its stated error, and the files of each case.

        Raises:
            DeploymentError: where cases failed, once all others are written.
        """
        with locked(self.destination, "the maps in"):
            for leftover in [*self.destination.glob(".*.part"), *(self.destination / RECORDS).glob(".*.part")]:
                leftover.unlink(missing_ok=True)  # of processes that were killed
            return self._run(executor, quiet)

    def _run(self, executor: Executor, quiet: bool) -> dict[str, Any]:
        find_sources.cache_clear()  # the folders may have changed since an earlier call
        calibrator, sources = find_sources(self.inputs)
        kept = next((source.kept for source in sources.values()), None)
        there = set(sources) if kept is None else kept.done
        waiting = [name for name, source in sources.items() if name not in there or not self.is_done(source)]
        (self.destination / RECORDS).mkdir(parents=True, exist_ok=True)
        failed = self._write_all(executor, waiting, quiet)
        if failed:
            lines = [f"  {name}: {error}" for name, error in failed.items()]
            told = "\n".join(lines[:TOLD] + ([f"  and {len(lines) - TOLD} more"] if len(lines) > TOLD else []))
            raise DeploymentError(f"{len(failed)} of {len(waiting)} cases failed, the others are written:\n{told}")
        if kept is not None:
            kept.finish(sources)
        records = {name: read_typed(self._record(name), dict[str, Any]) for name in sources}
        index = {
            "precision": self.precision,
            "calibrator_sha256": calibrator,
            "written_now": len(waiting),
            "cases": {name: {key: record[key] for key in _LISTED if key in record} for name, record in records.items()},
        }
        rows = [row_of(facts) for record in records.values() for facts in record["structures"]]
        write_queue(self.destination / QUEUE, rows)
        write_json(self.destination / INDEX, index)
        return index

    def _write_all(self, executor: Executor, names: list[str], quiet: bool) -> dict[str, str]:
        """Write the maps of some cases; the errors of those that failed."""
        failed = {}
        with executor, Display(["case"] * len(names), executor.slots, quiet=quiet, doing=executor.doing) as shown:
            executor.check([self.destination])
            for outcome in executor.run(names, self.write):
                shown.done("case", outcome.job if outcome.error is None else f"FAILED {outcome.job}")
                if outcome.error is not None:
                    failed[outcome.job] = _KIND.sub("", outcome.error.partition("\n")[0])
        return failed

    def is_done(self, source: Source) -> bool:
        """Whether the maps of a case are there, made of the same inputs in the same way."""
        try:
            record = read_typed(self._record(source.case_id), dict[str, Any])
            files = typed(record.get("files"), dict[str, str])
        except ValueError:  # none, a damaged one, or one of an earlier version
            return False
        whole = all(is_file_of(self.destination / name, expected) for name, expected in files.items())
        return bool(files) and "structures" in record and whole and record.get("made_of") == self._made_of(source)

    def write(self, case_id: str) -> None:
        """Calibrate one case; its record comes last and says that the maps are whole."""
        source = find_sources(self.inputs)[1][case_id]
        self._record(case_id).unlink(missing_ok=True)
        deployed = self.inputs.deployed
        # What was learned holds for maps without a guard.
        decisions = Decisions("") if self.inputs.guard else Decisions.load(deployed)
        found = decide(case_id, source.calibrate(), deployed, decisions)
        writer = writer_for(found.maps, self.format)
        files = writer.write(self.destination / case_id, found.maps, self.precision, self.probabilities)
        record = {
            "made_of": self._made_of(source),
            "files": {file.name: sha256(file) for file in files},
            "stated_error": writer.stated_error(self.precision),
            "structures": [asdict(row) for row in found.structures],
        }
        if found.maps.identity_weight is not None:
            record["identity_weight"] = found.maps.identity_weight
        write_json(self._record(case_id), plain(record))

    def _record(self, case_id: str) -> Path:
        return self.destination / RECORDS / f"{case_id}.json"

    def _made_of(self, source: Source) -> str:
        facts = [source.inputs_sha256(), find_sources(self.inputs)[0], self.precision, self.probabilities]
        facts += ["guarded"] if self.inputs.guard else []
        decided = decisions_sha256(self.inputs.deployed)
        facts += [] if decided is None else [decided]
        facts += [self.format] if self.format != AUTO else []
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
