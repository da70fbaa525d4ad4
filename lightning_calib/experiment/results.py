"""Typed reading of what a calibration run left on disk."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.storage import load_calibrator
from lightning_calib.experiment import layout
from lightning_calib.experiment.rows import BINS, BandRow, BinRow, CaseRow, CurveRow, read_rows
from lightning_calib.experiment.statistics import REPLICATES, Interval, intervals, point_estimate, two_level_bootstrap
from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.boundary import BandTable
from lightning_calib.kit.files import read_json

Floats = NDArray[np.float64]
Key = tuple[int, str]  # repeat and pipeline


@dataclass(frozen=True)
class Failure:
    """A pipeline that could not be fitted or evaluated in a repeat."""

    repeat: int
    pipeline: str
    error: str


class Results:
    """Results of ``calibrate.py run``: what was asked for, the tables, and every fit.

    Pipelines that failed or are missing are named in :attr:`failures` and :attr:`missing`; asking for their
    rows gives empty lists, so that a report can be made of what is there.

    Args:
        folder: usually ``runs/<name>/calibration``.

    Example:
        >>> results = Results.open("runs/camvid/calibration")  # doctest: +SKIP
        >>> results.scores("cms_op(p)", "nll")  # doctest: +SKIP
        [array([0.31, 0.28, ...]), array([...]), array([...])]
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a folder; its files are read when they are asked for."""
        self.folder = Path(folder)
        if not (self.folder / layout.SETTINGS).is_file():
            raise layout.ResultsError(
                f"{self.folder / layout.SETTINGS} is missing: no results there; make them with `calibrate.py run`"
            )
        self.settings: dict[str, Any] = read_json(self.folder / layout.SETTINGS)
        version = self.settings.get("format_version")
        if version != layout.RESULTS_VERSION:
            raise layout.ResultsError(
                f"{self.folder} has format version {version}, this release reads {layout.RESULTS_VERSION}: "
                "run again, or use the release that wrote it"
            )

    @classmethod
    def open(cls, folder: str | Path) -> "Results":
        """The results in a folder."""
        return cls(folder)

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Names of the pipelines that were asked for, in order."""
        return tuple(self.settings["pipelines"])

    @property
    def repeats(self) -> tuple[int, ...]:
        """Numbers of the repeats that were asked for."""
        return tuple(range(self.settings["repeats"]))

    @property
    def dataset(self) -> dict[str, Any]:
        """Facts on the data: name, class names, background and so on."""
        facts: dict[str, Any] = self.settings["dataset"]
        return facts

    @cached_property
    def summary(self) -> dict[str, Any]:
        """``summary.json``: scores with intervals, comparisons, recommendation, failures."""
        path = self.folder / layout.SUMMARY
        if not path.is_file():
            raise layout.ResultsError(f"{path} is missing: the run has not finished; start it again and it goes on")
        summary: dict[str, Any] = read_json(path)
        return summary

    @cached_property
    def cases(self) -> list[CaseRow]:
        """All rows of ``cases.csv``."""
        return self._table(layout.CASES, CaseRow)

    @cached_property
    def bins(self) -> list[BinRow]:
        """All rows of ``bins.csv``."""
        return self._table(layout.BINS, BinRow)

    @cached_property
    def bands(self) -> list[BandRow]:
        """All rows of ``bands.csv``."""
        return self._table(layout.BANDS, BandRow)

    def cases_of(self, repeat: int, pipeline: str) -> list[CaseRow]:
        """Scores of one pipeline in one repeat, by case id."""
        return self._cases[repeat, pipeline]

    def scores(self, pipeline: str, metric: str) -> list[Floats]:
        """One array a repeat with a score of every test case, by case id; empty where the pipeline is missing."""
        return [np.array([getattr(row, metric) for row in self.cases_of(r, pipeline)]) for r in self.repeats]

    def test_cases(self, repeat: int) -> tuple[str, ...]:
        """Ids of the test cases of a repeat, sorted."""
        return tuple(sorted(self.split(repeat)["test"]))

    @cached_property
    def groups(self) -> dict[str, str]:
        """Groups of cases in a group-aware run; empty in others."""
        path = self.folder / layout.GROUPS
        groups: dict[str, str] = read_json(path) if path.is_file() else {}
        return groups

    def clusters(self, repeat: int) -> list[str]:
        """What each test case of a repeat is drawn with: its group in a group-aware run, else itself."""
        return [self.groups.get(case, case) for case in self.test_cases(repeat)]

    def intervals(
        self, tables: Sequence[Floats], repeats: Sequence[int], replicates: int = REPLICATES
    ) -> list[Interval]:
        """Means of scores with two-level 95 % intervals; groups are drawn as wholes.

        Args:
            tables: for each of the repeats, scores ``(cases, K)`` of its test cases by id; NaN where a case has none.
            repeats: which repeats these are.
            replicates: bootstrap replicates.
        """
        clusters = [self.clusters(r) for r in repeats]
        return intervals(
            point_estimate(tables), two_level_bootstrap(tables, replicates, self.settings["seed"], clusters)
        )

    def bin_table(self, repeat: int, pipeline: str, num_bins: int = BINS) -> BinTable:
        """Reliability table of a repeat's pooled test voxels; ``num_bins`` divides 600."""
        counts, confidence = torch.zeros(2, BINS).long(), torch.zeros(BINS).double()
        for row in self._bins[repeat, pipeline]:
            counts[0, row.bin], counts[1, row.bin], confidence[row.bin] = row.count, row.correct_sum, row.confidence_sum
        return BinTable(counts[0], counts[1], confidence).coarsen(num_bins)

    def average_calibration_error(self, repeat: int, pipeline: str, num_bins: int = 15) -> float:
        """ACE over the pooled test voxels of a repeat; NaN where the pipeline is missing."""
        return float(self.bin_table(repeat, pipeline, num_bins).average_error())

    def band_table(self, repeat: int, pipeline: str) -> BandTable:
        """Sums in each distance band ``(cases, bands)``, cases as in :meth:`cases_of`."""
        cases = {row.case: n for n, row in enumerate(self.cases_of(repeat, pipeline))}
        shape = (len(cases), len(self.settings["bands"]) - 1)
        counts, sums = torch.zeros(2, *shape).long(), torch.zeros(2, *shape).double()
        for row in self._bands[repeat, pipeline]:
            at = (cases[row.case], row.band)
            counts[0][at], counts[1][at] = row.count, row.error_sum
            sums[0][at], sums[1][at] = row.uncertainty_sum, row.distance_sum
        return BandTable(counts[0], counts[1], sums[0], sums[1])

    def split(self, repeat: int) -> dict[str, list[str]]:
        """Case ids of the parts ``cal``, ``val`` and ``test`` of a repeat."""
        parts: dict[str, list[str]] = read_json(layout.split_path(self.folder, repeat))
        return parts

    def task_folder(self, repeat: int, pipeline: str) -> Path:
        """Folder of one pipeline in one repeat."""
        return layout.task_folder(self.folder, repeat, pipeline)

    def fit(self, repeat: int, pipeline: str) -> dict[str, Any] | None:
        """``fit.json``: status, hyperparameters, ``val_nll``, certificate; None where there is none."""
        fit: dict[str, Any] | None = self._optional(repeat, pipeline, layout.FIT)
        return fit

    def timing(self, repeat: int, pipeline: str) -> dict[str, float] | None:
        """Seconds of each step; None where there are none."""
        seconds: dict[str, float] | None = self._optional(repeat, pipeline, layout.TIMING)
        return seconds

    def trials(self, repeat: int, pipeline: str) -> list[dict[str, Any]]:
        """Trials of the search; empty where there was none."""
        return self._optional(repeat, pipeline, layout.TRIALS) or []

    def curve(self, repeat: int, pipeline: str) -> list[CurveRow]:
        """Course of the selected fit; empty where there was none."""
        path = self.task_folder(repeat, pipeline) / layout.CURVE
        return read_rows(path, CurveRow) if path.is_file() else []

    def calibrator(self, repeat: int, pipeline: str) -> Calibrator | None:
        """The fitted calibrator; None where the pipeline failed or is missing."""
        path = self.task_folder(repeat, pipeline) / layout.CALIBRATOR
        return load_calibrator(path) if path.is_file() else None

    @cached_property
    def failures(self) -> list[Failure]:
        """Pipelines that failed, with their errors."""
        fits = [(r, name, self.fit(r, name)) for r in self.repeats for name in self.pipelines]
        return [Failure(r, name, fit["error"]) for r, name, fit in fits if fit and fit["status"] == "failed"]

    @cached_property
    def missing(self) -> list[Key]:
        """Repeats and pipelines without scores, failed or not."""
        return [(r, name) for r in self.repeats for name in self.pipelines if not self.cases_of(r, name)]

    @cached_property
    def _cases(self) -> defaultdict[Key, list[CaseRow]]:
        grouped: defaultdict[Key, list[CaseRow]] = defaultdict(list)
        for row in sorted(self.cases, key=lambda row: row.case):
            grouped[row.repeat, row.pipeline].append(row)
        return grouped

    @cached_property
    def _bins(self) -> defaultdict[Key, list[BinRow]]:
        grouped: defaultdict[Key, list[BinRow]] = defaultdict(list)
        for row in self.bins:
            grouped[row.repeat, row.pipeline].append(row)
        return grouped

    @cached_property
    def _bands(self) -> defaultdict[Key, list[BandRow]]:
        grouped: defaultdict[Key, list[BandRow]] = defaultdict(list)
        for row in self.bands:
            grouped[row.repeat, row.pipeline].append(row)
        return grouped

    def _table(self, name: str, kind: Any) -> list[Any]:  # noqa: ANN401
        path = self.folder / name
        return read_rows(path, kind) if path.is_file() else []

    def _optional(self, repeat: int, pipeline: str, name: str) -> Any:  # noqa: ANN401
        path = self.task_folder(repeat, pipeline) / name
        return read_json(path) if path.is_file() else None
