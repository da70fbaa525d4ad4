"""The final fit of a chosen pipeline: its chosen hyperparameters, on all the cases there are."""

import statistics
import warnings
from typing import Any, Literal

import torch
from pytorch_lightning import Callback

from lightning_calib.calibrators import Calibrator, Identity, PipelineName, build
from lightning_calib.experiment.fitting import quiet_trainer
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.space import Values
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers.adam import mean_nll
from lightning_calib.solvers.fit import Solver, choose_solver, fit
from lightning_calib.tasks.calibration import CalibrationTask

Cases = Literal["all", "cal_val"]


class FixedEpochs(CalibrationTask):
    """A fit by adam for a known number of epochs: every case is for fitting, none is left to stop by."""

    def configure_callbacks(self) -> list[Callback]:
        """No early stopping."""
        return []


def chosen_values(results: Results, pipeline: str) -> Values | None:
    """Hyperparameters to deploy: of each, the median of what the repeats chose (a value that one of them chose).

    None where at least half of the repeats found nothing better than no calibration.
    """
    fits = [results.fit(repeat, pipeline) for repeat in results.repeats]
    if any(record is None or not record.ok for record in fits):
        raise ValueError(f"{pipeline} has no fit in some repeats of {results.folder}: run it again, or choose another")
    kept = [record for record in fits if record is not None and record.val_nll < record.identity_val_nll]
    if 2 * len(kept) <= len(fits):
        return None
    names = kept[0].hyperparameters
    return {name: statistics.median_low(record.hyperparameters[name] for record in kept) for name in names}


def best_epochs(results: Results, pipeline: str) -> int:
    """Median over the repeats of the epoch with the lowest NLL on ``val``; 1 where no curve was kept."""
    curves = [[row for row in results.curve(r, pipeline) if row.quantity == "val_nll"] for r in results.repeats]
    best = [min(curve, key=lambda row: row.value).step for curve in curves if curve]
    return max(1, statistics.median_low(best)) if best else 1


def fitting_cases(results: Results, store: OutputStore, cases: Cases, repeat: int) -> list[str]:
    """Ids of the cases to fit on."""
    if cases == "all":
        return list(store.case_ids)
    split = results.split(repeat)
    return sorted([*split["cal"], *split["val"]])


def refit(
    results: Results, store: OutputStore, name: PipelineName, cases: Cases = "all", repeat: int = 0
) -> tuple[Calibrator, dict[str, Any]]:
    """Fit a pipeline for deployment.

    Args:
        results: the run that chose it.
        store: the outputs that it was run on.
        name: the pipeline.
        cases: ``all`` pool cases, or ``cal_val`` of one repeat, which leaves that repeat's test cases unseen.
        repeat: which repeat, for ``cal_val``.

    Returns:
        The calibrator, and an account of the fit: cases, hyperparameters, certificate.
    """
    settings = results.settings
    ids = fitting_cases(results, store, cases, repeat)
    data = StoredOutputsDataModule(
        store, name.pooling, cal=ids, val=0, test=0, outside=settings.get("outside", "exclude")
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(settings["seed"]))  # the gates of local temperature scaling start at random
        calibrator = build(name.calibrator, data.num_classes, data.spatial_dims)
    facts: dict[str, Any] = {"cases": cases, "repeat": repeat if cases == "cal_val" else None, "num_cases": len(ids)}
    facts |= {"outside": data.cases.outside, "hyperparameters": {}, "certificate": {}}
    if not list(calibrator.parameters()):
        return calibrator, facts
    values = chosen_values(results, str(name))
    if values is None:
        return calibrator, facts | {"note": "no calibration was as good on val in at least half of the repeats"}
    solver: Solver = settings.get("solver", "auto")
    if solver == "auto":
        solver = choose_solver(calibrator)
    if solver == "adam":
        certificate = _descend(calibrator, data, values, best_epochs(results, str(name)), int(settings["seed"]))
    else:
        certificate = _solve(calibrator, data, values, solver)
    facts |= {"hyperparameters": values, "certificate": certificate}
    return calibrator, facts | _gain(calibrator, data)


def _gain(calibrator: Calibrator, data: StoredOutputsDataModule) -> dict[str, float]:
    """NLL of the fitted cases with and without calibration; a fit that made it worse is refused."""
    identity = Identity(data.num_classes, data.spatial_dims)
    nll, without = (mean_nll(each, data.batches("cal"), data.ignore_index)[0] for each in (calibrator, identity))
    if not nll <= without * (1 + 1e-6):
        raise ValueError(
            f"the last fit of {calibrator.name} has an NLL of {nll:.4f} on its own cases, {without:.4f} without "
            "calibration: search longer (calibrate.py run --trials), or deploy another pipeline"
        )
    return {"nll": nll, "identity_nll": without}


def _solve(calibrator: Calibrator, data: StoredOutputsDataModule, values: Values, solver: Solver) -> dict[str, Any]:
    """Fit to the optimum, in place."""
    options: dict[str, Any] = dict(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the certificate holds them; they are told from there
        return fit(calibrator, data.batches("cal"), ignore_index=data.ignore_index, solver=solver, **options).to_dict()


def _descend(
    calibrator: Calibrator, data: StoredOutputsDataModule, values: Values, epochs: int, seed: int
) -> dict[str, Any]:
    """Adam for a fixed number of epochs, in place."""
    options: dict[str, Any] = dict(values)
    task = FixedEpochs(calibrator, data.num_classes, data.spatial_dims, data.ignore_index, solver="adam", **options)
    data.train_batches, data.seed = task.batches, seed
    quiet_trainer(accelerator="auto", max_epochs=epochs, limit_val_batches=0).fit(task, data)
    calibrator.cpu()
    return {"solver": "adam", "passes": epochs}
