"""The final fit of a chosen pipeline: its chosen hyperparameters, on all the cases there are."""

import statistics
from typing import Any, Literal

from lightning_calib.calibrators import Calibrator, Identity, PipelineName, load_calibrator
from lightning_calib.experiment import layout
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.fitting import fit_again, fresh
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.search.space import Values
from lightning_calib.experiment.selection.records import calibrator_path
from lightning_calib.experiment.selection.stack_jobs import fit_stack
from lightning_calib.experiment.selection.stacking import is_stack
from lightning_calib.kit.files import sha256
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import SolverName, choose_solver, mean_nll
from lightning_calib.solvers.fit import takes_epochs

Cases = Literal["all", "cal_val"]


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


def selected_fit(
    results: Results, preserve: Preserve, cases: Cases = "all", repeat: int = 0
) -> tuple[PipelineName, Calibrator, dict[str, Any]]:
    """What the run selected by groups, as it was fitted then.

    Args:
        results: a run that selected by groups.
        preserve: what the pipeline must keep of the pooled ranking.
        cases: the selection on ``all`` cases, or on ``cal_val`` of one repeat.
        repeat: which repeat, for ``cal_val``.

    Returns:
        The pipeline, its calibrator, and an account of its fit as :func:`refit` gives it.
    """
    chosen = None if cases == "all" else repeat
    record, folder = results.selection(chosen), layout.selection_folder(results.folder, chosen)
    if record is None or not record.ok:
        raise ValueError(
            f"{folder} holds no selection by groups: run `calibrate.py run --selection groups` again, or name a "
            "pipeline yourself"
        )
    choice, path = record.choices[preserve], calibrator_path(folder, preserve)
    if not path.is_file() or sha256(path) != choice["calibrator_sha256"]:
        raise ValueError(f"{path} is not the file that was written (its hash differs): run `calibrate.py run` again")
    name = PipelineName.parse(choice["pipeline"])
    facts = {
        "cases": cases,
        "repeat": chosen,
        "num_cases": record.num_cases,
        "outside": results.settings.get("outside", "exclude"),
        "hyperparameters": {} if name.calibrator == "identity" else {"strength": choice["strength"]},
        "certificate": choice["certificate"],
        "selection": {"preserve": preserve, "level": record.level} | {k: choice[k] for k in ("groups", "reason")},
    }
    return name, load_calibrator(path), facts


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
    how: dict[str, Any] = {"seed": int(settings["seed"]), "outside": settings.get("outside", "exclude")}
    data = StoredOutputsDataModule(store, name.pooling, cal=ids, val=0, test=0, **how)
    calibrator = fresh(name, data, data.seed)
    data.feature_names = calibrator.feature_names
    facts: dict[str, Any] = {"cases": cases, "repeat": repeat if cases == "cal_val" else None, "num_cases": len(ids)}
    facts |= {"outside": data.cases.outside, "hyperparameters": {}, "certificate": {}}
    if not list(calibrator.parameters()):
        return calibrator, facts
    values = chosen_values(results, str(name))
    if values is None:
        return calibrator, facts | {"note": "no calibration was as good on val in at least half of the repeats"}
    if is_stack(str(name)):
        stacked = fit_stack(store, ids, name.pooling, settings.get("group_level"), **how)
        return stacked.calibrator, facts | {"certificate": stacked.certificate} | _gain(stacked.calibrator, data)
    solver: SolverName = settings.get("solver", "auto")
    if solver == "auto":  # runs of earlier releases took adam for lts
        solver = "adam" if "lr" in values else choose_solver(calibrator)
    epochs = {"epochs": best_epochs(results, str(name))} if takes_epochs(solver) else {}
    facts |= {"hyperparameters": values, "certificate": fit_again(calibrator, data, solver, dict(values) | epochs)}
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
