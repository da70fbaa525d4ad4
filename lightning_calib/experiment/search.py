"""Search of a pipeline's hyperparameters by the NLL of ``val``."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optuna import Trial
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import Logger
from torch import Tensor

from lightning_calib.calibrators import Calibrator, PipelineName
from lightning_calib.experiment.fitting import Fitted, PipelineFitter
from lightning_calib.experiment.rows import CurveRow
from lightning_calib.experiment.space import Space, Values
from lightning_calib.experiment.trials import TrialQueue, TrialRow
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import ConvergenceError, SolverName
from lightning_calib.solvers.adam import MAX_EPOCHS
from lightning_calib.tasks.calibration import CalibrationTask


class SearchError(RuntimeError):
    """No trial of a search came to a result."""


@dataclass(frozen=True)
class SearchResult:
    """The best calibrator of a search.

    Attributes:
        fitter: what made the trials.
        calibrator: fitted; the identity where no trial was better on ``val``.
        identity_val_nll: NLL of ``val`` without calibration.
        val_nll: the same of the calibrator, all voxels pooled.
        trials: one row a trial: its place, state, values and NLL.
        hyperparameters: of the best trial; empty for the identity and where there is nothing to search.
        certificate: of the best trial; empty for the identity.
        curve: course of the best trial.
    """

    fitter: PipelineFitter
    calibrator: Calibrator
    identity_val_nll: float
    val_nll: float
    trials: list[TrialRow] = field(default_factory=list)
    hyperparameters: Values = field(default_factory=dict)
    certificate: dict[str, Any] = field(default_factory=dict)
    curve: list[CurveRow] = field(default_factory=list)

    @property
    def identity_won(self) -> bool:
        """Whether nothing was better than no calibration."""
        return self.val_nll == self.identity_val_nll

    @property
    def start(self) -> dict[str, Tensor] | None:
        """Parameters that the trials started from; None for the identity."""
        return self.fitter.start

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
) -> SearchResult:
    """Find the hyperparameters with the lowest NLL on ``val``, and the calibrator that belongs to them.

    Points are drawn by the tree-structured Parzen estimator from the paper's space; with a full-batch solver only
    the penalties are searched, and where there is nothing to search one fit is made. The identity takes part. A
    search that was interrupted goes on with the same ``storage``; several processes may share one.

    Args:
        name: the pipeline.
        data: its cases.
        trials: how many points to try, over all processes.
        seed: seed of samplers and of adam.
        solver: ``newton``, ``slsqp``, ``adam`` or ``auto``.
        storage: a journal file, ``sqlite:///file.db`` or another database URL; None keeps trials in memory.
        accelerator: where fits run.
        max_epochs: most epochs of adam.
        logger: tracker that gets the trials.
        on_trial: called with the row of each trial that this process has run.

    Raises:
        SearchError: if no trial came to a result.
    """
    name = PipelineName.parse(name) if isinstance(name, str) else name
    if trials < 1:
        raise ValueError(f"trials = {trials}: give at least 1")
    fitter = PipelineFitter(name, data, solver, seed, accelerator, max_epochs)
    identity = fitter.identity_nll()
    if not list(fitter.fresh().parameters()):
        return SearchResult(fitter, fitter.fresh(), identity, identity)
    space = Space.of(fitter.fresh(), fitter.solver)
    queue = TrialQueue(study_name(fitter), trials if space.names else 1, seed, storage)
    kept: dict[int, Fitted] = {}
    for place, trial in queue:
        fitted = _attempt(fitter, space, queue, trial)
        if fitted is not None and fitted.val_nll < min((best.val_nll for best in kept.values()), default=float("inf")):
            kept = {place: fitted}
        _announce(queue.row(trial.number), logger, on_trial)
    return _result(fitter, queue.rows(), kept, identity, warm=bool(space.names))


def _attempt(fitter: PipelineFitter, space: Space, queue: TrialQueue, trial: Trial) -> Fitted | None:
    """Fit and tell; a fit that did not converge is a failed trial."""
    values = space.suggest(trial)
    try:
        fitted = fitter(values, bool(space.names))
    except ConvergenceError as problem:
        queue.tell(trial, None, {"values": values, "error": str(problem)})
        return None
    queue.tell(trial, fitted.val_nll, {"values": values, "passes": fitted.certificate["passes"]})
    return fitted


def _result(
    fitter: PipelineFitter, rows: list[TrialRow], kept: dict[int, Fitted], identity: float, warm: bool
) -> SearchResult:
    done = [row for row in rows if row["state"] == "complete"]
    if not done:
        raise SearchError(f"no trial of {fitter.name} came to a result; the first error: {rows[0].get('error')}")
    best = min(done, key=lambda row: (row["val_nll"], row["trial"]))
    if not best["val_nll"] < identity:
        return SearchResult(fitter, fitter.fresh(), identity, identity, rows)
    place, values = best["trial"], best["values"]
    fitted = kept[place] if place in kept else fitter(values, warm)  # another process ran it
    found = (rows, values, fitted.certificate, fitted.curve)
    return SearchResult(fitter, fitter.restored(fitted), identity, fitted.val_nll, *found)


def _announce(row: TrialRow, logger: Logger | None, on_trial: Callable[[TrialRow], None] | None) -> None:
    if logger is not None:
        numbers = {"val_nll": row["val_nll"], **row["values"]}
        metrics = {f"search/{name}": float(value) for name, value in numbers.items() if value is not None}
        logger.log_metrics(metrics, step=row["trial"])
        logger.save()
    if on_trial is not None:
        on_trial(row)


def study_name(fitter: PipelineFitter) -> str:
    """Name of the study: the pipeline, and a digest of everything else that trials depend on."""
    data = fitter.data
    hashes = [(case.case_id, case.sha256) for case in data.store.manifest.cases]
    where = {"accelerator": fitter.accelerator, "max_epochs": fitter.max_epochs}
    facts = [asdict(data.split), hashes, data.cases.outside, fitter.solver, fitter.seed, where]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{fitter.name}-repeat{data.repeat}-{digest}"
