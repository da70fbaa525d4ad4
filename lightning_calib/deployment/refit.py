"""The final fit of a chosen pipeline: its chosen hyperparameters, on all the cases there are."""

import statistics
import warnings
from typing import Any, Literal

import torch
from pytorch_lightning import Callback

from lightning_calib.calibrators import Calibrator, PipelineName, build
from lightning_calib.data.store import OutputStore
from lightning_calib.data.stored import StoredOutputsDataModule
from lightning_calib.protocol.fitting import quiet_trainer
from lightning_calib.protocol.results import Results
from lightning_calib.protocol.space import Values
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
    if any(record is None or record["status"] != "ok" for record in fits):
        raise ValueError(f"{pipeline} has no fit in some repeats of {results.folder}: run it again, or choose another")
    kept = [record for record in fits if record is not None and record["val_nll"] < record["identity_val_nll"]]
    if 2 * len(kept) <= len(fits):
        return None
    names = kept[0]["hyperparameters"]
    return {name: statistics.median_low(record["hyperparameters"][name] for record in kept) for name in names}


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
    seed = int(settings["seed"])
    torch.manual_seed(seed)  # the gates of local temperature scaling start at random
    calibrator = build(name.calibrator, data.num_classes, data.spatial_dims)
    facts: dict[str, Any] = {"cases": cases, "repeat": repeat if cases == "cal_val" else None, "num_cases": len(ids)}
    facts |= {"outside": data.cases.outside, "hyperparameters": {}, "certificate": {}}
    if not list(calibrator.parameters()):
        return calibrator, facts
    values = chosen_values(results, str(name))
    if values is None:
        return calibrator, facts | {"note": "no calibration was as good on val in at least half of the repeats"}
    solver: Solver = settings.get("solver", "auto")
    solver = choose_solver(calibrator) if solver == "auto" else solver
    if solver == "adam":
        epochs = best_epochs(results, str(name))
        calibrator, certificate = _descend(calibrator, data, values, epochs)
        return calibrator, facts | {"hyperparameters": values, "epochs": epochs, "certificate": certificate}
    batches = data.batches("cal")
    options: dict[str, Any] = dict(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the certificate holds them; they are told from there
        certificate = fit(calibrator, batches, ignore_index=data.ignore_index, solver=solver, **options).to_dict()
    return calibrator, facts | {"hyperparameters": values, "certificate": certificate}


def _descend(
    calibrator: Calibrator, data: StoredOutputsDataModule, values: Values, epochs: int
) -> tuple[Calibrator, dict[str, Any]]:
    """Adam for a fixed number of epochs."""
    options: dict[str, Any] = dict(values)
    task = FixedEpochs(calibrator, data.num_classes, data.spatial_dims, data.ignore_index, solver="adam", **options)
    data.train_batches = task.batches
    quiet_trainer(accelerator="auto", max_epochs=epochs, limit_val_batches=0).fit(task, data)
    return task.calibrator.cpu(), {"solver": "adam", "passes": epochs}
