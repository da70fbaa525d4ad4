"""Search of a pipeline's hyperparameters by the NLL of ``val``."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState
from pytorch_lightning.loggers import Logger

from lightning_calib.calibrators import Calibrator, PipelineName
from lightning_calib.experiment.fitting import Fitted, PipelineFitter
from lightning_calib.experiment.rows import CurveRow
from lightning_calib.experiment.space import Space, Values
from lightning_calib.experiment.trials import PLACE, TrialQueue
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import ConvergenceError
from lightning_calib.solvers.fit import Solver
from lightning_calib.tasks.calibration import MAX_EPOCHS

TrialRow = dict[str, Any]


class SearchError(RuntimeError):
    """No trial of a search came to a result."""


@dataclass(frozen=True)
class SearchResult:
    """The best calibrator of a search.

    Attributes:
        calibrator: fitted; the identity where no trial was better on ``val``.
        hyperparameters: of the best trial; empty for the identity and where there is nothing to search.
        certificate: of the best trial; empty for the identity.
        trials: one row a trial: its place, state, values and NLL.
        val_nll: NLL of ``val``, all voxels pooled.
        identity_val_nll: the same without calibration.
        curve: course of the best trial.
    """

    calibrator: Calibrator
    hyperparameters: Values
    certificate: dict[str, Any]
    trials: list[TrialRow]
    val_nll: float
    identity_val_nll: float
    curve: list[CurveRow] = field(default_factory=list)

    @property
    def identity_won(self) -> bool:
        """Whether nothing was better than no calibration."""
        return self.val_nll == self.identity_val_nll


def search(
    name: PipelineName | str,
    data: StoredOutputsDataModule,
    trials: int = 20,
    seed: int = 0,
    solver: Solver = "auto",
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
        accelerator: where adam runs.
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
        return SearchResult(fitter.fresh(), {}, {}, [], identity, identity)
    space = Space.of(fitter.fresh(), fitter.solver)
    queue = TrialQueue(study_name(fitter), trials if space.names else 1, seed, storage)
    kept: dict[int, Fitted] = {}
    for place, trial in queue:
        values = space.suggest(trial)
        fitted = _attempt(fitter, values, warm=bool(space.names), queue=queue, trial=trial)
        if fitted is not None and fitted.val_nll < min((best.val_nll for best in kept.values()), default=float("inf")):
            kept = {place: fitted}
        _announce(_row(queue.study.get_trials(deepcopy=False)[trial.number]), logger, on_trial)
    rows = [_row(trial) for trial in queue.places()]
    return _result(fitter, rows, kept, identity, warm=bool(space.names))


def _attempt(fitter: PipelineFitter, values: Values, warm: bool, queue: TrialQueue, trial: Any) -> Fitted | None:  # noqa: ANN401
    """Fit and tell; a fit that did not converge is a failed trial."""
    try:
        fitted = fitter(values, warm)
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
        return SearchResult(fitter.fresh(), {}, {}, rows, identity, identity)
    place = best["trial"]
    fitted = kept[place] if place in kept else fitter(best["values"], warm)  # another process ran it
    calibrator = fitter.restored(fitted)
    return SearchResult(calibrator, best["values"], fitted.certificate, rows, fitted.val_nll, identity, fitted.curve)


def _row(trial: FrozenTrial) -> TrialRow:
    facts = {name: trial.user_attrs[name] for name in ("passes", "error") if name in trial.user_attrs}
    value = trial.value if trial.state == TrialState.COMPLETE else None
    return {
        "trial": trial.user_attrs.get(PLACE),
        "state": trial.state.name.lower(),
        "val_nll": value,
        "values": trial.user_attrs.get("values", {}),
        **facts,
    }


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
    facts = [asdict(data.split), hashes, data.cases.outside, fitter.solver, fitter.seed, fitter.trainer_options]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return f"{fitter.name}-repeat{data.repeat}-{digest}"
