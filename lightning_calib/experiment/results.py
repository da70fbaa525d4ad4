"""Typed reading of what an experiment left on disk: rows, and DataFrames of them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.calibrators.storage import load_calibrator
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.rows import (
    BINS,
    CASE_BINS,
    BandRow,
    BinRow,
    CaseBinRow,
    CaseRow,
    ClassBinRow,
    ClassRow,
    CurveRow,
    PooledRow,
    read_cases,
    read_rows,
)
from lightning_calib.experiment.selection.records import SelectionRecord, read_selection
from lightning_calib.experiment.statistics import (
    REPLICATES,
    Interval,
    IntervalKind,
    clustered_bootstrap,
    intervals,
    point_estimate,
    two_level_bootstrap,
)
from lightning_calib.functional.binning import BinTable
from lightning_calib.functional.boundary import BandTable
from lightning_calib.kit.checksums import CHECKSUMS, refuse_changed
from lightning_calib.kit.files import FileError
from lightning_calib.kit.typed import WrongTypeError, read_typed, typed
from lightning_calib.metrics.score import CLASS_BINS, SCORES, Score
from lightning_calib.outputs.partition import PARTS

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Key = tuple[int, str]  # repeat and pipeline

_ANEW = "`calibrate.py run` makes it anew"
_SETTINGS = {
    "pipelines": list[str],
    "repeats": int,
    "seed": int,
    "dataset": dict[str, Any],
    "bands": list[float | None],
}


@dataclass(frozen=True)
class Failure:
    """A pipeline that could not be fitted or evaluated in a repeat, or a selection; None stands for all cases."""

    repeat: int | None
    pipeline: str
    error: str

    @property
    def place(self) -> str:
        """Where it failed."""
        return "all cases" if self.repeat is None else f"repeat {self.repeat}"


class Results:
    """Results of an experiment: what was asked for, the tables, and every fit.

    Pipelines that failed or are missing are named in :attr:`failures` and :attr:`missing`; asking for their
    rows gives empty lists, so that a report can be made of what is there.

    Args:
        folder: usually ``runs/<name>/calibration``; its parent will do.
        trust: import classes of other packages that the folder names by their paths.

    Example:
        >>> results = Results("runs/camvid")  # doctest: +SKIP
        >>> results.table()  # doctest: +SKIP
        >>> results.scores("cms_op(p)", "nll")  # doctest: +SKIP
        [array([0.31, 0.28, ...]), array([...]), array([...])]
    """

    def __init__(self, folder: str | Path, trust: bool = False) -> None:
        """Open a folder; its files are read when they are asked for."""
        self.folder = layout.experiment_folder(Path(folder))
        if not (self.folder / layout.SETTINGS).is_file() and (runs := layout.find_runs(self.folder)) is not None:
            raise layout.ResultsError(
                f"{runs} stands for several regions: name the experiment of one, such as "
                f"{runs.parent}/regions/<region>/{runs.name} ({layout.RUNS} lists them)"
            )
        if not (self.folder / layout.SETTINGS).is_file():
            raise layout.ResultsError(
                f"{self.folder / layout.SETTINGS} is missing: no results there; make them with `calibrate.py run`"
            )
        refuse_changed(self.folder, _ANEW)
        # until then jobs may be under way, also those of other calls that have joined
        self._finished = (self.folder / CHECKSUMS).is_file()
        self._whole: set[Path] = set()  # folders of jobs that were looked at
        self.settings = read_typed(self.folder / layout.SETTINGS, dict[str, Any], records.REMEDY)
        version = self.settings.get("format_version")
        if version != layout.RESULTS_VERSION:
            raise layout.ResultsError(
                f"{self.folder} has format version {version}, this release reads {layout.RESULTS_VERSION}: "
                "run again, or use the release that wrote it"
            )
        _check_settings(self.folder / layout.SETTINGS, self.settings)
        for name in self.pipelines:
            PipelineName.parse(name, self.folder / layout.SETTINGS, imports=trust)

    @property
    def files(self) -> list[str]:
        """Files of the folder itself, relative to it: what was asked for, the division of cases, tables, summary."""
        splits = [layout.split_path(self.folder, repeat).relative_to(self.folder) for repeat in self.repeats]
        return [layout.SETTINGS, layout.GROUPS, layout.SUMMARY, *layout.TABLES, *(split.as_posix() for split in splits)]

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
        return read_typed(path, dict[str, Any], records.REMEDY)

    def table(self) -> "pd.DataFrame":
        """The main table: a row a pipeline, of every score its mean and bounds (of pooled ones the extreme repeats)."""
        rows = []
        for name, entry in self.summary["pipelines"].items():
            facts = {key: value for key, value in entry.items() if not isinstance(value, dict | list)}
            scores: dict[str, float | None] = {}
            for key, score in entry["metrics"].items():
                low, high = score.get("low", score.get("min")), score.get("high", score.get("max"))
                scores |= {key: score["mean"], f"{key}_low": low, f"{key}_high": high}
            rows.append({"pipeline": name, **facts, **scores})
        return _frame(rows)

    def cases(self) -> "pd.DataFrame":
        """A row a repeat, pipeline and test case with every score and the flips."""
        rows = [row for rows in self._cases.values() for row in rows]
        return _frame([{**vars(row), **row.scores, **row.flips} for row in rows]).drop(
            columns=["scores", "flips"], errors="ignore"
        )

    def comparisons(self) -> "pd.DataFrame":
        """The matched comparisons of the summary: a row a pair and score."""
        plain = ("family", "reference", "candidate", "metric")
        tail = ("improvement", "p_value", "p_holm", "verdict")
        rows = []
        for found in self.summary["comparisons"]:
            bounds = {"difference": found["difference"]["mean"]}
            bounds |= {key: found["difference"][key] for key in ("low", "high")}
            bounds |= {f"two_level_{key}": found["two_level"][key] for key in ("low", "high")}
            rows.append({key: found[key] for key in plain} | bounds | {key: found[key] for key in tail})
        return _frame(rows)

    def all_trials(self) -> "pd.DataFrame":
        """A row a trial of every search."""
        found = ((r, name, trial) for r in self.repeats for name in self.pipelines for trial in self.trials(r, name))
        rows = [{"repeat": r, "pipeline": name, **trial, **trial["values"]} for r, name, trial in found]
        return _frame(rows).drop(columns="values", errors="ignore")

    def cases_of(self, repeat: int, pipeline: str) -> list[CaseRow]:
        """Scores of one pipeline in one repeat, by case id."""
        return self._cases[repeat, pipeline]

    def scores(self, pipeline: str, metric: str) -> list[Floats]:
        """One array a repeat with a score of every test case, by case id; empty where the pipeline is missing."""
        return [np.array([row.score(metric) for row in self.cases_of(r, pipeline)]) for r in self.repeats]

    def pooled(self, repeat: int, pipeline: str, score: str) -> float:
        """A score of all test voxels of a repeat together; NaN where the pipeline is missing or has none.

        Results of earlier versions hold the tables of confidences, from which those of the calibration errors follow.
        """
        if (repeat, pipeline, score) in self._pooled:
            return self._pooled[repeat, pipeline, score]
        table = self.bin_table(repeat, pipeline, 15)
        errors = {"ace": table.average_error, "mce": table.maximum_error}
        return float(errors[score]()) if score in errors else float("nan")

    @cached_property
    def case_scores(self) -> list[Score]:
        """Scores with a value a case, in the order of the registry, as far as these results have them."""
        held = {key for rows in self._cases.values() for row in rows for key in row.scores}
        return [score for score in SCORES.values() if not score.pooled and score.key in held]

    @cached_property
    def pooled_scores(self) -> list[Score]:
        """Scores of all voxels together, as far as these results have them."""
        held = {"ace", "mce", *(key for _, _, key in self._pooled)}
        return [score for score in SCORES.values() if score.pooled and score.key in held]

    def test_cases(self, repeat: int) -> tuple[str, ...]:
        """Ids of the test cases of a repeat, sorted."""
        return tuple(sorted(self.split(repeat)["test"]))

    @cached_property
    def groups(self) -> dict[str, str]:
        """Groups of cases in a group-aware run; empty in others."""
        path = self.folder / layout.GROUPS
        return read_typed(path, dict[str, str], records.REMEDY) if path.is_file() else {}

    def clusters(self, repeat: int) -> list[str]:
        """What each test case of a repeat is drawn with: its group in a group-aware run, else itself."""
        return [self.groups.get(case, case) for case in self.test_cases(repeat)]

    def draws(
        self,
        tables: Sequence[Floats],
        repeats: Sequence[int],
        replicates: int = REPLICATES,
        kind: IntervalKind = "clustered",
    ) -> Floats:
        """Bootstrap replicates ``(B, K)`` of means of scores; groups are drawn as wholes.

        Args:
            tables: for each of the repeats, scores ``(cases, K)`` of its test cases by id; NaN where a case has none.
            repeats: which repeats these are.
            replicates: how many.
            kind: ``clustered`` draws cases with their scores of all repeats; ``two_level`` is the paper's.
        """
        clusters, seed = [self.clusters(r) for r in repeats], int(self.settings["seed"])
        if kind == "two_level":
            return two_level_bootstrap(tables, replicates, seed, clusters)
        return clustered_bootstrap(tables, clusters, replicates, seed)

    def intervals(
        self,
        tables: Sequence[Floats],
        repeats: Sequence[int],
        replicates: int = REPLICATES,
        kind: IntervalKind = "clustered",
    ) -> list[Interval]:
        """Means of scores with 95 % intervals of a kind; the arguments are those of :meth:`draws`."""
        return intervals(point_estimate(tables), self.draws(tables, repeats, replicates, kind))

    def bin_table(self, repeat: int, pipeline: str, num_bins: int = BINS) -> BinTable:
        """Reliability table of a repeat's pooled test voxels; ``num_bins`` divides 600."""
        counts, confidence = torch.zeros(2, BINS).long(), torch.zeros(BINS).double()
        for row in self._bins[repeat, pipeline]:
            counts[0, row.bin], counts[1, row.bin], confidence[row.bin] = row.count, row.correct_sum, row.confidence_sum
        return BinTable(counts[0], counts[1], confidence).coarsen(num_bins)

    def average_calibration_error(self, repeat: int, pipeline: str, num_bins: int = 15) -> float:
        """ACE over the pooled test voxels of a repeat; NaN where the pipeline is missing."""
        return float(self.bin_table(repeat, pipeline, num_bins).average_error())

    def case_bins(self, repeat: int, pipeline: str) -> Floats | None:
        """Voxels, summed confidences and correct voxels ``(cases, 3, 15)`` by bin of confidence, cases by id.

        None where the results are of an earlier version, which kept sums over all cases only.
        """
        places = {row.case: n for n, row in enumerate(self.cases_of(repeat, pipeline))}
        rows = self._case_bins[repeat, pipeline]
        if not rows:
            return None
        sums = np.zeros((len(places), 3, CASE_BINS))
        for row in rows:
            sums[places[row.case], :, row.bin] = row.count, row.confidence_sum, row.correct_sum
        return sums

    def classes(self, repeat: int, pipeline: str) -> list[ClassRow]:
        """What a repeat says about each class; empty where the results are of an earlier version."""
        return self._classes[repeat, pipeline]

    def class_bins(self, pipeline: str, num_bins: int = CLASS_BINS) -> BinTable:
        """Tables of each class's probability over the test voxels of all repeats ``(C, K)``; empty as above."""
        shape = (self.dataset["num_classes"], CLASS_BINS)
        counts, confidence = torch.zeros(2, *shape).long(), torch.zeros(shape, dtype=torch.float64)
        for row in (row for repeat in self.repeats for row in self._class_bins[repeat, pipeline]):
            at = (row.label, row.bin)
            counts[0][at] += row.count
            counts[1][at] += row.correct_sum
            confidence[at] += row.confidence_sum
        return BinTable(counts[0], counts[1], confidence).coarsen(num_bins)

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
        path = layout.split_path(self.folder, repeat)
        parts = read_typed(path, dict[str, list[str]], records.REMEDY)
        if missing := [part for part in PARTS if part not in parts]:
            raise layout.ResultsError(f"{path} lacks {', '.join(missing)}; {records.REMEDY}")
        return parts

    def job_folder(self, repeat: int, pipeline: str) -> Path:
        """Folder of one pipeline in one repeat; in a finished run, its files as they were written."""
        folder = layout.job_folder(self.folder, repeat, pipeline)
        if self._finished and folder not in self._whole:
            refuse_changed(folder, _ANEW)
            self._whole.add(folder)
        return folder

    def fit(self, repeat: int, pipeline: str) -> records.FitRecord | None:
        """What is known of a fit: status, hyperparameters, NLL on ``val``, certificate; None where there is none."""
        return records.read_fit(self.job_folder(repeat, pipeline))

    def timing(self, repeat: int, pipeline: str) -> dict[str, float] | None:
        """Seconds of each step; None where there are none."""
        return records.read_timing(self.job_folder(repeat, pipeline)) or None

    def trials(self, repeat: int, pipeline: str) -> list[dict[str, Any]]:
        """Trials of the search; empty where there was none."""
        path = self.job_folder(repeat, pipeline) / layout.TRIALS
        return read_typed(path, list[dict[str, Any]], records.REMEDY) if path.is_file() else []

    def curve(self, repeat: int, pipeline: str) -> list[CurveRow]:
        """Course of the selected fit; empty where there was none."""
        path = self.job_folder(repeat, pipeline) / layout.CURVE
        return read_rows(path, CurveRow) if path.is_file() else []

    def calibrator(self, repeat: int, pipeline: str) -> Calibrator | None:
        """The fitted calibrator; None where the pipeline failed or is missing."""
        path = self.job_folder(repeat, pipeline) / layout.CALIBRATOR
        return load_calibrator(path) if path.is_file() else None

    @property
    def selects_by_groups(self) -> bool:
        """Whether the run selected by groups, not as the paper does."""
        return self.settings.get("selection") == "groups"

    def chosen(self, preserve: Preserve) -> str | None:
        """The recommended pipeline; None where none qualifies, or the selection by groups failed."""
        found = self.summary["selection" if self.selects_by_groups else "recommendation"].get(preserve)
        return None if found is None else str(found["pipeline"])

    def selection(self, repeat: int | None = None) -> SelectionRecord | None:
        """The selection by groups of a repeat, or of all cases; None where there is none."""
        if not self.selects_by_groups:
            return None
        folder = layout.selection_folder(self.folder, repeat)
        if self._finished:
            refuse_changed(folder, _ANEW)
        return read_selection(folder)

    def selection_scores(self, repeat: int) -> dict[str, list[CaseRow]]:
        """Scores of the reference and of what was chosen by groups in a repeat, by pipeline, cases by id."""
        rows = read_cases(layout.selection_folder(self.folder, repeat) / layout.CASES)
        found: dict[str, list[CaseRow]] = {}
        for row in sorted(rows, key=lambda row: row.case):
            found.setdefault(row.pipeline, []).append(row)
        return found

    def _failed_selections(self) -> list[Failure]:
        found = [(repeat, self.selection(repeat)) for repeat in (None, *self.repeats)]
        return [
            Failure(repeat, "selection by groups", record.error or "")
            for repeat, record in found
            if record is not None and not record.ok
        ]

    @cached_property
    def failures(self) -> list[Failure]:
        """Pipelines that could not be fitted or evaluated, or whose files have changed since, with their errors."""
        found = []
        for repeat in self.repeats:
            for name in self.pipelines:
                try:
                    fit = self.fit(repeat, name)
                    judged = records.read_evaluation(self.job_folder(repeat, name)) or {}
                    error = fit.error if fit is not None and not fit.ok else judged.get("error")
                except FileError as problem:  # its numbers are in the tables, which are whole
                    error = str(problem)
                if error is not None:
                    found.append(Failure(repeat, name, error))
        return [*found, *self._failed_selections()]

    @cached_property
    def missing(self) -> list[Key]:
        """Repeats and pipelines without scores, failed or not."""
        return [(r, name) for r in self.repeats for name in self.pipelines if not self.cases_of(r, name)]

    @cached_property
    def scored(self) -> list[str]:
        """Pipelines with scores in at least one repeat."""
        return [name for name in self.pipelines if self.scored_repeats(name)]

    def scored_repeats(self, pipeline: str) -> list[int]:
        """Repeats in which a pipeline has scores."""
        return [r for r in self.repeats if self.cases_of(r, pipeline)]

    @cached_property
    def _cases(self) -> defaultdict[Key, list[CaseRow]]:
        path = self.folder / layout.CASES
        rows = read_cases(path) if path.is_file() else []
        grouped: defaultdict[Key, list[CaseRow]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row.case):
            grouped[row.repeat, row.pipeline].append(row)
        return grouped

    @cached_property
    def _pooled(self) -> dict[tuple[int, str, str], float]:
        return {(row.repeat, row.pipeline, row.score): row.value for row in self._table(layout.POOLED, PooledRow)}

    @cached_property
    def _bins(self) -> defaultdict[Key, list[BinRow]]:
        return _by_fit(self._table(layout.BINS, BinRow))

    @cached_property
    def _bands(self) -> defaultdict[Key, list[BandRow]]:
        return _by_fit(self._table(layout.BANDS, BandRow))

    @cached_property
    def _case_bins(self) -> defaultdict[Key, list[CaseBinRow]]:
        return _by_fit(self._table(layout.CASE_BINS, CaseBinRow))

    @cached_property
    def _classes(self) -> defaultdict[Key, list[ClassRow]]:
        return _by_fit(self._table(layout.CLASSES, ClassRow))

    @cached_property
    def _class_bins(self) -> defaultdict[Key, list[ClassBinRow]]:
        return _by_fit(self._table(layout.CLASS_BINS, ClassBinRow))

    def _table(self, name: str, kind: Any) -> list[Any]:  # noqa: ANN401
        path = self.folder / name
        return read_rows(path, kind) if path.is_file() else []


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Refuse settings without what results are read by."""
    for name, kind in _SETTINGS.items():
        try:
            typed(settings[name], kind, name)
        except KeyError:
            raise layout.ResultsError(f"{path} lacks {name}; {records.REMEDY}") from None
        except WrongTypeError as problem:
            raise layout.ResultsError(f"{path}: {problem}; {records.REMEDY}") from problem


def _by_fit(rows: list[Any]) -> defaultdict[Key, list[Any]]:
    grouped: defaultdict[Key, list[Any]] = defaultdict(list)
    for row in rows:
        grouped[row.repeat, row.pipeline].append(row)
    return grouped


def _frame(rows: Sequence[dict[str, Any]]) -> "pd.DataFrame":
    import pandas as pd  # half a second that most commands do without

    return pd.DataFrame(list(rows))
