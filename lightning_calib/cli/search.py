"""``calibrate.py search``: one pipeline on one repeat, hyperparameters chosen on ``val``."""

from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import Logger

from lightning_calib.calibrators import PipelineName
from lightning_calib.cli.doctor import require_healthy
from lightning_calib.cli.fitted import fit_folder, save_fit, say
from lightning_calib.experiment.search.draws import TrialRow
from lightning_calib.experiment.search.sampled import SearchOn
from lightning_calib.experiment.search.search import search as run_search
from lightning_calib.kit.progress import Display
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import SolverName
from lightning_calib.solvers.epochs import MAX_EPOCHS


def search(
    outputs: Path,
    pipeline: str,
    destination: Path | None = None,
    trials: int = 20,
    solver: SolverName = "auto",
    storage: str | None = None,
    search: SearchOn = "coreset",
    accelerator: str = "auto",
    max_epochs: int = MAX_EPOCHS,
    logger: Logger | None = None,
    doctor: bool = True,
    **data: Any,
) -> int:
    """Search the hyperparameters of one pipeline on one repeat by the NLL on val.

    Writes what fit writes, and trials.json. With --storage an interrupted search goes on where it stopped, and
    processes that name the same storage share the trials.

    Args:
        outputs: folder of the frozen outputs, such as runs/camvid/outputs.
        pipeline: calibrator and pooling, such as "cms_op(p)".
        destination: where to write; by default fits/<calibrator>-<pooling>-<repeat> beside the outputs.
        trials: how many points to try, over all processes; pipelines with nothing to search take one.
        solver: newton, slsqp, lbfgs, adam, or auto for the one that suits the calibrator.
        storage: a journal file, sqlite:///file.db or the URL of a database server; trials are in memory without it.
        search: coreset for trials on a sample of large data, exact for trials on all voxels.
        accelerator: where fits run.
        max_epochs: most epochs of lbfgs and adam.
        logger: Lightning logger that gets the trials, such as CSVLogger with --logger.save_dir.
        doctor: examine the outputs first; an error stops the search.
        **data: options of StoredOutputsDataModule.
    """
    name = PipelineName.parse(pipeline, imports=True)
    require_healthy(outputs, doctor)
    stored = StoredOutputsDataModule(outputs, pooling=name.pooling, train_batches="cases", **data)
    with Display([name.calibrator] * trials) as shown:

        def tell(row: TrialRow) -> None:
            result = "failed" if row["val_nll"] is None else f"NLL {row['val_nll']:.6f}"
            shown.done(name.calibrator, f"trial {row['trial']}: {result}")

        found = run_search(
            name,
            stored,
            trials,
            stored.seed,
            solver,
            storage,
            accelerator,
            max_epochs,
            logger,
            on_trial=tell,
            search=search,
        )
    folder = destination or fit_folder(outputs, name, stored.repeat)
    facts = vars(found) | {"certificate": found.certificate, "curve": found.curve}
    save_fit(folder, name, stored, found.calibrator, facts)
    say(name, facts, folder)
    return 0
