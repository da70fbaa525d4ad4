"""What a report is made of: the results of a run and, where it is at hand, its output store."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.advice import GroupAdvice, Preserve, selected_advice
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import IntervalKind
from lightning_calib.experiment.summary import open_results
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import sha256
from lightning_calib.kit.tables import Table
from lightning_calib.outputs.manifest import MANIFEST, StoreError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.report.main_table import bounded, main_table

Item = TypeVar("Item")


def first_line(text: str) -> str:
    r"""An error without its traceback.

    Example:
        >>> first_line("ValueError: no\nTraceback (most recent call last):")
        'ValueError: no'
    """
    return text.strip().partition("\n")[0]


def spread(items: Sequence[Item], count: int | None) -> tuple[Item, ...]:
    """Some items of a list, evenly spread from the first to the last; all for None.

    Example:
        >>> spread("abcdefghi", 3)
        ('a', 'e', 'i')
    """
    if count is None or count >= len(items):
        return tuple(items)
    if count < 1:
        raise ValueError(f"{count} cases; give at least 1")
    step = (len(items) - 1) / max(count - 1, 1)
    return tuple(items[round(step * n)] for n in range(count))


class MissingInput(ValueError):
    """A section cannot be made; the message says what is missing and why."""


@dataclass
class Inputs:
    """Results and outputs of one run, with the choices that all sections share.

    Attributes:
        results: what ``calibrate.py run`` wrote.
        store: the frozen outputs; None where they could not be opened.
        store_problem: why not.
        preserve: what the deployed pipeline must keep.
        intervals: which kind the main table shows.
    """

    results: Results
    store: OutputStore | None
    store_problem: str = ""
    preserve: Preserve = "order"
    intervals: IntervalKind = "clustered"

    @classmethod
    def open(
        cls,
        calibration: Path,
        outputs: Path | None,
        preserve: Preserve = "order",
        intervals: IntervalKind = "clustered",
    ) -> "Inputs":
        """Open a run; without ``outputs`` the folder that its settings name is tried."""
        results = open_results(calibration)
        recorded = results.settings.get("outputs")
        folder = outputs or (Path(recorded) if recorded else None)
        if folder is None:
            return cls(results, None, "no output store was given", preserve, intervals)
        try:
            store = OutputStore(folder, results.settings.get("members"))
            if results.settings.get("outputs_sha256") not in (None, sha256(store.path / MANIFEST)):
                told = f"{folder} is another store than the one that the run was made on, or has changed since"
                return cls(results, None, told, preserve, intervals)
            return cls(results, store, preserve=preserve, intervals=intervals)
        except (StoreError, OSError) as problem:
            return cls(results, None, str(problem), preserve, intervals)

    @property
    def outputs(self) -> OutputStore:
        """The output store, for sections that cannot do without."""
        if self.store is None:
            raise MissingInput(
                f"These pictures are drawn from the ensemble's stored outputs, which could not be read: "
                f"{self.store_problem}. Name the folder with --outputs."
            )
        return self.store

    def cases(self, pooling: Pooling) -> StoredCases:
        """Pooled cases as the run saw them."""
        return StoredCases(self.outputs, pooling, self.results.settings.get("outside", "exclude"))

    @cached_property
    def table(self) -> Table:
        """The main table."""
        return self.table_of(self.intervals)

    def table_of(self, kind: IntervalKind) -> Table:
        """The main table with one kind of intervals."""
        scores, leading = self.scores_of(kind), self.results.summary["leading"]
        name = self.results.dataset["name"]
        return main_table(name, self.results.pipelines, scores, self.notes, self.deployed, leading)

    def scores_of(self, kind: IntervalKind) -> dict[str, dict[str, dict[str, float | None]]]:
        """Scores of every pipeline with one kind of intervals."""
        return {name: bounded(entry, kind) for name, entry in self.results.summary["pipelines"].items()}

    @cached_property
    def notes(self) -> dict[str, str]:
        """Which repeats a pipeline has no scores in, with the first line of the first error."""
        errors = {(f.repeat, f.pipeline): first_line(f.error) for f in self.results.failures}
        absent: dict[str, list[int]] = {}
        for repeat, name in self.results.missing:
            absent.setdefault(name, []).append(repeat)
        return {
            name: f"no scores in repeat {' and '.join(map(str, repeats))}: "
            + errors.get((repeats[0], name), "none were written")
            for name, repeats in absent.items()
        }

    @property
    def scored(self) -> list[str]:
        """Pipelines with scores in at least one repeat."""
        return [name for name in self.results.pipelines if self.repeats_of(name)]

    def repeats_of(self, pipeline: str) -> list[int]:
        """Repeats in which a pipeline has scores."""
        return [r for r in self.results.repeats if self.results.cases_of(r, pipeline)]

    @property
    def recommendation(self) -> dict[str, Any]:
        """The recommendation under the user's constraint."""
        found: dict[str, Any] | None = self.results.summary["recommendation"].get(self.preserve)
        if found is None:
            raise MissingInput(
                f"No pipeline that preserves {self.preserve!r} has scores in all repeats, so none is recommended."
            )
        return found

    @property
    def selected(self) -> GroupAdvice | None:
        """What selection by groups advises; None where the run chose otherwise."""
        if not self.results.selects_by_groups:
            return None
        try:
            return selected_advice(self.results.summary, self.preserve)
        except ValueError as problem:
            raise MissingInput(str(problem)) from problem

    @property
    def deployed(self) -> str | None:
        """The recommended pipeline; None where none qualifies."""
        return self.results.chosen(self.preserve)

    @property
    def recommended(self) -> PipelineName:
        """The pipeline to show: the recommended one or, where none qualifies, the last one with scores."""
        name = self.deployed or next(reversed(self.scored), None)
        if name is None:
            raise MissingInput("No pipeline has scores in this run.")
        return PipelineName.parse(name)

    def uncalibrated(self, pipeline: PipelineName) -> str:
        """The baseline of a pipeline: the same pooling without a calibrator."""
        return str(PipelineName("identity", pipeline.pooling))

    def fitted(self, pipeline: str) -> tuple[int, Calibrator] | None:
        """The first repeat with a fitted calibrator of a pipeline, and that calibrator."""
        for repeat in self.results.repeats:
            calibrator = self.results.calibrator(repeat, pipeline)
            if calibrator is not None:
                return repeat, calibrator.eval()
        return None
