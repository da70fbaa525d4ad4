"""How far calibrators fitted out of fold are from those fitted on the pool, and whether a temperature helps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lightning_calib.calibrators import Calibrator, PipelineName
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.fitting import fit_again, fresh
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.selection.stacking import is_stack
from lightning_calib.experiment.summary import join_tables
from lightning_calib.functional.features import NEED_MEMBERS
from lightning_calib.kit.files import digest, read_json, sha256, write_json
from lightning_calib.kit.tables import Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.report.figures import series_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.solvers import choose_solver
from lightning_calib.solvers.fit import takes_epochs
from lightning_calib.studies.base import Pipelines, Study, StudyError
from lightning_calib.studies.judged import judge, prepare
from lightning_calib.studies.member_pool import MemberPool
from lightning_calib.studies.scores import ScoreRow, change_rows, interval_text, panels, score_rows

HELD_OUT, START, CORRECTED, BEST = "held out", "out of fold", "corrected", "best temperature"
_TICKS = ("held out", "folds", "corrected", "best T")
_METRICS = ("nll", "ece", "ba_ece", "ace")
_STORE = "out_of_fold"  # beside the run's outputs, as `train.py predict --out_of_fold` writes it
_TEMPERATURES = "temperatures.json"


@dataclass(frozen=True)
class FoldJob:
    """One pipeline in one repeat, to be fitted on the out-of-fold store and judged on the run's test cases."""

    repeat: int
    pipeline: str

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"{self.pipeline}, repeat {self.repeat}"


class CrossValidation(Study):
    """The run's pipelines, fitted on the out-of-fold scores of the same networks."""

    name, title, reproduced = "cross_validation", "Calibrators fitted out of fold", False

    def run(self, out_of_fold: Path | None = None, pipelines: Pipelines | None = None) -> dict[str, Any]:
        """Fit the run's pipelines on out-of-fold scores, and judge them on the pooled ensemble's test cases.

        Args:
            out_of_fold: store of the same networks on their training cases, each scored by the one that was not
                trained on it; by default the folder out_of_fold beside the run's outputs.
            pipelines: which to fit; by default all of the run that single networks suffice for, without lbfgs and
                adam.
        """
        path = out_of_fold or self.store.path.resolve().parent / _STORE
        self._refuse(path)
        names = self._names(pipelines)
        for setting in (START, CORRECTED, BEST):
            prepare(self.results, self.place(setting), self.store.path, names)
        jobs = [FoldJob(r, name) for name in names for r in self.fitted_repeats(name)]
        self.do([job for job in jobs if not self._done(job, path)], partial(fold_job, self, path))
        return self._conclude(path, names)

    def _refuse(self, path: Path) -> None:
        """Refuse stores that cannot be compared."""
        if not (path / MANIFEST).is_file():
            raise StudyError(
                f"there is no out-of-fold store at {path}: write it with `train.py predict --out_of_fold true` or "
                "`calibrate.py import nnunet --cross_validation true`, and name it with --out_of_fold"
            )
        other, own = OutputStore(path).manifest, self.store.manifest
        if not other.out_of_fold or own.out_of_fold:
            wrong = self.store.path if own.out_of_fold else path
            raise StudyError(f"{wrong} is {'' if own.out_of_fold else 'not '}out of fold: the run is to be on the pool")
        if own.keep != "members" or self.results.settings.get("outside", "exclude") != "exclude":
            raise StudyError(
                f"the study needs the members' scores in {self.store.path}, and a run with outside: exclude"
            )
        if own.class_names != other.class_names:
            raise StudyError(f"{path} has the classes {other.class_names}, the run {own.class_names}")
        if shared := sorted({case.case_id for case in other.cases} & set(self.store.case_ids)):
            raise StudyError(f"{path} shares {len(shared)} cases with the run's outputs: {', '.join(shared[:5])}")
        known = {m.sha256 for m in own.members if m.sha256}
        if strange := [fold.name for fold in other.folds if known and fold.sha256 and fold.sha256 not in known]:
            raise StudyError(
                f"{path} was scored by networks that {self.store.path} does not have: {', '.join(strange)}"
            )

    def _names(self, pipelines: Pipelines | None) -> tuple[str, ...]:
        """Pipelines with something to fit, on the scores of single networks, by a solver that needs no validation."""
        names = self.names(pipelines)
        kept = tuple(name for name in names if _fits(PipelineName.parse(name)))
        if pipelines is not None and len(kept) < len(names):
            raise StudyError(
                f"{', '.join(name for name in names if name not in kept)} cannot be fitted out of fold here: identity "
                "has nothing to fit, stacks, lbfgs and adam need further cases, single networks have no disagreement"
            )
        if not kept:
            raise StudyError(
                f"no pipeline of {self.calibration} can be fitted out of fold: run ts(z) or cms_op(z) first"
            )
        return kept

    def place(self, setting: str) -> Path:
        """Folder with the results under a setting."""
        return self.folder / setting.replace(" ", "_")

    def hash_of(self, job: FoldJob, path: Path) -> str:
        """Hash of everything that the scores depend on."""
        record = self.results.fit(job.repeat, job.pipeline)
        assert record is not None
        stores = [sha256(folder / MANIFEST) for folder in (self.store.path, path)]
        facts = {"stores": stores, "split": self.results.split(job.repeat), "values": record.hyperparameters}
        return digest(facts)

    def _done(self, job: FoldJob, path: Path) -> bool:
        folders = (layout.job_folder(self.place(s), job.repeat, job.pipeline) for s in (START, CORRECTED, BEST))
        return all(records.evaluation_done(folder, self.hash_of(job, path)) for folder in folders)

    def fitted_out_of_fold(self, job: FoldJob, path: Path) -> Calibrator:
        """The pipeline's calibrator on all out-of-fold cases, with the strengths that the run chose in the repeat."""
        name, settings = PipelineName.parse(job.pipeline), self.results.settings
        record = self.results.fit(job.repeat, job.pipeline)
        assert record is not None
        store = OutputStore(path)
        data = StoredOutputsDataModule(store, name.pooling, cal=list(store.case_ids), val=0, test=0)
        calibrator = fresh(name, data, int(settings["seed"]))
        data.feature_names = calibrator.feature_names
        fit_again(calibrator, data, choose_solver(calibrator), dict(record.hyperparameters))
        return calibrator.eval().requires_grad_(False)

    def write_scores(self, job: FoldJob, path: Path, setting: str, cases: StoredCases, scores: "Scores") -> None:
        """Judge maps on the test cases of the job, and write their tables."""
        evaluated = judge(cases, self.results.test_cases(job.repeat), scores)
        folder = layout.job_folder(self.place(setting), job.repeat, job.pipeline)
        folder.mkdir(parents=True, exist_ok=True)
        dataset = self.store.manifest.dataset
        records.write_evaluation(folder, dataset, job.repeat, job.pipeline, evaluated, self.hash_of(job, path))

    def _conclude(self, path: Path, names: Sequence[str]) -> dict[str, Any]:
        held = self.results
        rows, changes = score_rows(HELD_OUT, held, names), list[ScoreRow]()
        for setting in (START, CORRECTED, BEST):
            join_tables(self.place(setting))
            found = Results(self.place(setting))
            rows += score_rows(setting, found, names)
            changes += change_rows(setting, held, found, names)
        self.save("scores.csv", rows, ScoreRow)
        self.save("changes.csv", changes, ScoreRow)
        folds = OutputStore(path).manifest
        temperatures = {name: self._temperatures(name) for name in names}
        facts = {"out_of_fold": str(path), "cases": len(folds.cases), "folds": len(folds.folds)}
        return self.write(facts | {"pipelines": list(names), "temperatures": temperatures})

    def _temperatures(self, name: str) -> dict[str, float]:
        """Means over the repeats of the temperatures of the pool: without labels, and with them."""
        folders = [layout.job_folder(self.place(START), r, name) for r in self.fitted_repeats(name)]
        found = [read_json(folder / _TEMPERATURES) for folder in folders]
        return {setting: float(np.mean([each[setting] for each in found])) for setting in (CORRECTED, BEST)}

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """Changes of the NLL, a line a pipeline."""
        found = {(row.setting, row.pipeline, row.metric): row for row in self.read("changes.csv", ScoreRow)}
        lines = [f"NLL against calibrators fitted on the pool's held-out cases ({facts['folds']} folds):"]
        for name in facts["pipelines"]:
            told = (f"{s} {interval_text(found.get((s, name, 'nll')))}" for s in (START, CORRECTED, BEST))
            lines.append(f"  {name}: {'; '.join(told)}")
        return lines

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Scores by where calibrators were fitted, with the temperatures."""
        names, rows = facts["pipelines"], self.read("scores.csv", ScoreRow)
        settings = [HELD_OUT, START, CORRECTED, BEST]
        caption = (
            "Scores on the run's test cases of calibrators fitted on held-out cases of the pooled ensemble, fitted on "
            "the out-of-fold scores of single networks, with the pool's temperature taken from the networks' "
            "disagreement, and with the best temperature of that pool; 95 % intervals."
        )
        picture = Picture(
            "cross-validation", series_figure(panels(rows, names, settings, _METRICS), _TICKS, ""), caption, wide=True
        )
        lead = (
            "Users of cross-validation have no cases that none of their networks has seen. Calibrators fitted on "
            f"{facts['cases']} cases, each scored by the one of {facts['folds']} networks that was not trained on it, "
            "meet the pooled ensemble: how far are they from calibrators fitted on it?"
        )
        return Section(self.key, self.title, lead, (picture,), (_changes(self.read("changes.csv", ScoreRow), facts),))


Scores = Callable[[str], Tensor]


def fold_job(study: CrossValidation, path: Path, job: FoldJob) -> None:
    """Fit a pipeline out of fold, find the pool's temperatures on ``cal``, and score all on ``test``."""
    calibrator = study.fitted_out_of_fold(job, path)
    folder = layout.job_folder(study.place(START), job.repeat, job.pipeline)
    folder.mkdir(parents=True, exist_ok=True)
    pooling = PipelineName.parse(job.pipeline).pooling
    cases, cal = study.cases(pooling), study.results.split(job.repeat)["cal"]
    pool = MemberPool(cases, calibrator, first=pooling == "p0")
    temperatures = {CORRECTED: pool.implied(cal), BEST: pool.fitted(cal)}
    write_json(folder / _TEMPERATURES, temperatures)
    study.write_scores(job, path, START, cases, lambda case_id: pool.calibrated(cases.pooled(case_id)[None])[0])
    for setting in (CORRECTED, BEST):
        study.write_scores(job, path, setting, cases, partial(pool.scores, temperature=temperatures[setting]))


def _fits(name: PipelineName) -> bool:
    """Whether a pipeline can be fitted on the scores of single networks alone."""
    if name.calibrator == "identity" or is_stack(str(name)):
        return False
    return not takes_epochs(name.cls.solver) and not NEED_MEMBERS.intersection(name.cls.feature_names)


def _changes(rows: Sequence[ScoreRow], facts: dict[str, Any]) -> Table:
    """NLL and ECE against calibrators fitted on held-out cases, and the temperatures of the pool."""
    found = {(row.setting, row.pipeline, row.metric): row for row in rows}
    body = []
    for name in facts["pipelines"]:
        temperatures = [format_number(facts["temperatures"][name][setting], 3) for setting in (CORRECTED, BEST)]
        for metric in ("nll", "ece"):
            told = (interval_text(found.get((setting, name, metric))) for setting in (START, CORRECTED, BEST))
            body.append([f"{name}, {SCORES[metric].label}", *told, *(temperatures if metric == "nll" else ("", ""))])
    head = ("pipeline", START, CORRECTED, BEST, "T of the pool, without labels", "with labels")
    caption = (
        "Change against the same pipeline fitted on held-out cases of the pool, paired by test case; 95 % intervals in "
        "brackets. Above zero is worse."
    )
    return Table.of("cross-validation", caption, head, body)
