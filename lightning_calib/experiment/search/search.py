"""Search of a pipeline's hyperparameters by the NLL of ``val``."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.loggers import Logger
from torch import Tensor

from lightning_calib.calibrators import Calibrator, PipelineName
from lightning_calib.experiment.fitting import Fitted, PipelineFitter
from lightning_calib.experiment.rows import CurveRow
from lightning_calib.experiment.search.draws import TrialRow
from lightning_calib.experiment.search.sampled import SearchOn
from lightning_calib.experiment.search.shared_trials import TrialQueue
from lightning_calib.experiment.search.space import Values
from lightning_calib.experiment.search.trials import KeptTrials, Trials
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import ConvergenceError, SolverName
from lightning_calib.solvers.epochs import MAX_EPOCHS
from lightning_calib.tasks.calibration import CalibrationTask

CANDIDATES = 5  # trials on a coreset that are judged on all voxels, at most


class SearchError(RuntimeError):
    """No trial of a search came to a result."""


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        fitter: what made the trials.
        identity_val_nll: NLL of ``val`` without calibration.
        val_nll: the same of the best trial, all voxels pooled; that of the identity where no trial was better.
        trials: one row a trial: its place, state, values and NLL.
        hyperparameters: of the best trial; empty for the identity and where there is nothing to search.
        best: the best fit, where this process made it.
    """

    fitter: PipelineFitter
    identity_val_nll: float
    val_nll: float
    trials: list[TrialRow] = field(default_factory=list)
    hyperparameters: Values = field(default_factory=dict)
    best: Fitted | None = None

    @property
    def identity_won(self) -> bool:
        """Whether nothing was better than no calibration."""
        return self.val_nll == self.identity_val_nll

    @property
    def start(self) -> dict[str, Tensor] | None:
        """Parameters that the trials started from; None for the identity."""
        return self.fitter.start

    @cached_property
    def fitted(self) -> Fitted:
        """The best fit; made again where another process made it. The identity where no trial was better."""
        if self.identity_won:
            return Fitted(self.fitter.fresh().state_dict(), self.identity_val_nll, {}, [])
        return self.best or self.fitter(self.hyperparameters)

    @property
    def calibrator(self) -> Calibrator:
        """The fitted calibrator; the identity where no trial was better on ``val``."""
        return self.fitter.restored(self.fitted)

    @property
    def certificate(self) -> dict[str, Any]:
        """What the solver says about the best fit; empty for the identity."""
        return self.fitted.certificate

    @property
    def curve(self) -> list[CurveRow]:
        """Course of the best fit."""
        return self.fitted.curve

    def final_fit(self, trainer: Trainer) -> CalibrationTask | None:
        """Make the selected fit once more under a Trainer, for its loggers and devices: on one device the same bits.

        Args:
            trainer: a new one, with room for the epochs of the fit.

        Returns:
            The task, with the fitted calibrator; None where nothing is fitted, because the identity won.
        """
        return None if self.identity_won else self.fitter.under(trainer, self.hyperparameters)


def search(
    name: PipelineName | str,
    data: StoredOutputsDataModule,
    trials: int = 20,
    seed: int = 0,
    solver: SolverName = "auto",
    storage: str | Path | None = None,
    accelerator: str = "auto",
    max_epochs: int = MAX_EPOCHS,
    logger: Logger | None = None,
    on_trial: Callable[[TrialRow], None] | None = None,
    folder: Path | None = None,
    search: SearchOn = "coreset",
) -> SearchResult:
    """Find the hyperparameters with the lowest NLL on ``val``, and the calibrator that belongs to them.

    Points are drawn by the tree-structured Parzen estimator from the paper's space; with a full-batch solver only
    the penalties are searched, and where there is nothing to search one fit is made. The identity takes part. A
    search that was interrupted goes on with the same ``storage``, which several processes may share, or with the
    same ``folder``. All of it has one result, however many processes took part.

    Args:
        name: the pipeline.
        data: its cases.
        trials: how many points to try, over all processes.
        seed: seed of the draws and of adam.
        solver: ``newton``, ``slsqp``, ``lbfgs``, ``adam`` or ``auto``.
        storage: a journal file, ``sqlite:///file.db`` or another database URL.
        accelerator: where fits run.
        max_epochs: most epochs of lbfgs and adam.
        logger: tracker that gets the trials.
        on_trial: called with the row of each trial that this process has run.
        folder: keep each trial as a file there; for this search alone.
        search: ``coreset`` for trials on a sample of large data, ``exact`` for trials on all voxels.

    Raises:
        SearchError: if no trial came to a result.
    """
    fitter = PipelineFitter(name, data, solver, seed, accelerator, max_epochs, folder, search)
    return run_trials(fitter, trials, storage, logger, on_trial)


def run_trials(
    fitter: PipelineFitter,
    trials: int,
    storage: str | Path | None = None,
    logger: Logger | None = None,
    on_trial: Callable[[TrialRow], None] | None = None,
) -> SearchResult:
    """Run the trials that are not done yet, and select; see :func:`search`."""
    if trials < 1:
        raise ValueError(f"trials = {trials}: give at least 1")
    identity = fitter.identity_nll()
    if not fitter.has_parameters:
        return SearchResult(fitter, identity, identity)
    kept = trials_of(fitter, trials, storage)
    best: Fitted | None = None
    for place, values in kept:
        row, fitted = attempt_trial(fitter, kept, place, values, logger)
        if fitted is not None and (best is None or fitted.val_nll < best.val_nll):
            best = fitted
        if on_trial is not None:
            on_trial(row)
    return select(fitter, judged(fitter, kept.rows()), identity, None if fitter.sampled else best)


def judged(fitter: PipelineFitter, rows: list[TrialRow]) -> list[TrialRow]:
    """Trials whose best is judged on all voxels of ``val``; of trials on a coreset, up to so many that seemed best.

    Those rows say ``exact``: other ones hold the estimate that the trial saw.
    """
    if not fitter.sampled:
        return rows
    rows = [dict(row) for row in rows]
    for _ in range(CANDIDATES):
        best = min((row for row in rows if row["state"] == "complete"), key=_rank, default=None)
        if best is None or best.get("exact"):
            break
        best |= {"val_nll": fitter.exact_nll(fitter.trial(best["values"])), "exact": True}
    return rows


def trials_of(fitter: PipelineFitter, trials: int, storage: str | Path | None = None) -> Trials:
    """The trials of a search, where they are kept; one where there is nothing to search."""
    places = trials if fitter.space.names else 1
    if storage is None:
        return KeptTrials(places, fitter.seed, fitter.space, fitter.folder)
    return TrialQueue(study_name(fitter), places, fitter.seed, fitter.space, storage)


def attempt_trial(
    fitter: PipelineFitter, kept: Trials, place: int, values: Values, logger: Logger | None = None
) -> tuple[TrialRow, Fitted | None]:
    """Fit a point and tell; a fit that did not converge is a failed trial."""
    fitted: Fitted | None = None
    try:
        fitted = fitter.trial(values)
        if not math.isfinite(fitted.val_nll):
            raise ConvergenceError(f"the NLL on val is {fitted.val_nll}")
        row = kept.tell(place, fitted.val_nll, values, passes=fitted.certificate["passes"])
    except ConvergenceError as problem:
        fitted, row = None, kept.tell(place, None, values, error=str(problem))
    if logger is not None:
        numbers = {"val_nll": row["val_nll"], **values}
        metrics = {f"search/{name}": float(value) for name, value in numbers.items() if value is not None}
        logger.log_metrics(metrics, step=place)
        logger.save()
    return row, fitted


def select(fitter: PipelineFitter, rows: list[TrialRow], identity: float, best: Fitted | None = None) -> SearchResult:
    """The trial with the lowest NLL, the first of equals; the identity where none is better.

    Args:
        fitter: what makes fits.
        rows: all trials.
        identity: NLL without calibration.
        best: the best fit of this process.
    """
    done = [row for row in rows if row["state"] == "complete"]
    if not done:
        raise SearchError(f"no trial of {fitter.name} came to a result; the first error: {rows[0].get('error')}")
    chosen = min(done, key=_rank)
    if not chosen["val_nll"] < identity:
        return SearchResult(fitter, identity, identity, rows)
    here = best if best is not None and best.values == chosen["values"] else None
    return SearchResult(fitter, identity, chosen["val_nll"], rows, chosen["values"], here)


def _rank(row: TrialRow) -> tuple[float, int]:
    """The lowest NLL is best, the first of equals."""
    return row["val_nll"], row["trial"]


def study_name(fitter: PipelineFitter) -> str:
    """Name of the study: the pipeline, and a digest of everything else that trials depend on."""
    data = fitter.data
    hashes = [(case.case_id, case.sha256) for case in data.store.manifest.cases]
    where = {"accelerator": fitter.accelerator, "max_epochs": fitter.max_epochs}
    facts = [asdict(data.split), hashes, data.cases.outside, fitter.solver, fitter.seed, where]
    facts += ["coreset"] if fitter.sampled else []
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{fitter.name}-repeat{data.repeat}-{digest}"
