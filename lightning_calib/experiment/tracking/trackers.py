"""Trackers of experiments: CSV, Weights & Biases, TensorBoard, MLflow, and others; all are Lightning loggers.

A tracker that is opened again for the same results continues its run.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from lightning_calib.kit.files import csv_lines, write_csv, write_json
from lightning_calib.kit.registry import Registry


@dataclass(frozen=True)
class Tracked:
    """What a tracker is opened for.

    Attributes:
        name: name of the experiment.
        folder: where the tracker keeps its files.
        run_id: the same for every call on the same folder and outputs, so that a run can be continued.
        parent: the experiment, where this is the run of one of its pipelines.
    """

    name: str
    folder: Path
    run_id: str
    parent: "Tracked | None" = None


OpenTracker = Callable[[Tracked], Logger]

_HERE = "lightning_calib.experiment.tracking.trackers"
TRACKERS: Registry[OpenTracker] = Registry(
    "tracker",
    "lightning_calib.trackers",
    {name: f"{_HERE}:open_{name}" for name in ("csv", "wandb", "tensorboard", "mlflow")},
)


def register_tracker(name: str, open_tracker: OpenTracker) -> OpenTracker:
    """Make a tracker known by name: a function from :class:`Tracked` to a Lightning logger.

    A logger that has ``log_table(key, columns, data)`` and ``log_image(key, images)``, as W&B's has, gets tables and
    figures, too.
    """
    return TRACKERS.register(name, open_tracker)


class CSVTracker(Logger):
    """All numbers in one file with the columns key, step and value; every table in a file of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "metrics.csv").is_file():
            write_csv(folder / "metrics.csv", ("key", "step", "value"), ())

    @property
    def name(self) -> str:
        """What Lightning calls the logger."""
        return "csv"

    @property
    def version(self) -> str:
        """Nothing to tell apart."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Write the settings."""
        write_json(self.folder / "config.json", params if isinstance(params, dict) else vars(params))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append numbers."""
        with (self.folder / "metrics.csv").open("a", encoding="utf-8", newline="") as file:
            file.write(csv_lines([key, step or 0, float(value)] for key, value in metrics.items()))

    @rank_zero_only
    def log_table(self, key: str, columns: list[str], data: list[list[Any]]) -> None:
        """Write a table."""
        write_csv(self.folder / f"{key}.csv", columns, data)


def open_csv(tracked: Tracked) -> Logger:
    """CSV files; the numbers of a later call come behind those of an earlier one."""
    return CSVTracker(tracked.folder / tracked.name if tracked.parent else tracked.folder)


def named_wandb_run() -> bool:
    """Whether somebody else has chosen the W&B run: a sweep, whoever set its id, or a program that has begun one."""
    begun = "wandb" in sys.modules and sys.modules["wandb"].run is not None
    return begun or any(os.environ.get(key) for key in ("WANDB_RUN_ID", "WANDB_SWEEP_ID"))


def wandb_mode() -> str:
    """What ``WANDB_MODE`` says; without it ``offline``, but ``online`` for a sweep, whose server waits for results."""
    return os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_SWEEP_ID") else "offline")


def open_wandb(tracked: Tracked) -> Logger:
    """Weights & Biases, offline unless ``WANDB_MODE=online`` or in a sweep; a run that is chosen already is taken."""
    import wandb  # takes seconds, and most runs do without
    from pytorch_lightning.loggers import WandbLogger

    named = named_wandb_run()
    group = (tracked.parent or tracked).name
    run = wandb.run or wandb.init(
        name=tracked.name,
        dir=tracked.folder,
        project=os.environ.get("WANDB_PROJECT", "lightning_calib"),
        mode=wandb_mode(),  # type: ignore[arg-type]  # W&B says what it does not know
        id=None if named else tracked.run_id,
        resume=None if os.environ.get("WANDB_SWEEP_ID") else "allow",  # a sweep's runs are never resumed
        group=None if os.environ.get("WANDB_RUN_GROUP") else group,
        job_type="pipeline" if tracked.parent else "calibration",
        reinit="create_new",  # several at a time, and none of them is the process's one run
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return WandbLogger(experiment=run)


def open_tensorboard(tracked: Tracked) -> Logger:
    """TensorBoard event files; pipelines are runs below their experiment."""
    from pytorch_lightning.loggers import TensorBoardLogger

    above = tracked.parent or tracked
    version = f"{above.run_id}/{tracked.name}" if tracked.parent else tracked.run_id
    return TensorBoardLogger(str(tracked.folder), name=above.name, version=version, default_hp_metric=False)


def open_mlflow(tracked: Tracked) -> Logger:
    """MLflow: the server of ``MLFLOW_TRACKING_URI``, or plain files; pipelines are child runs of their experiment."""
    from mlflow.tracking import MlflowClient
    from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID
    from pytorch_lightning.loggers import MLFlowLogger

    uri = os.environ.get("MLFLOW_TRACKING_URI", f"file:{tracked.folder.resolve()}")
    tags, experiment = {"run_id": tracked.run_id}, (tracked.parent or tracked).name
    if tracked.parent:
        tags[MLFLOW_PARENT_RUN_ID] = str(known_mlflow_run(uri, experiment, tracked.parent.run_id))
    known = known_mlflow_run(uri, experiment, tracked.run_id)
    if known:
        MlflowClient(uri).update_run(known, status="RUNNING")
    return MLFlowLogger(experiment, run_name=tracked.name, tracking_uri=uri, tags=tags, run_id=known)


def known_mlflow_run(uri: str, experiment: str, run_id: str) -> str | None:
    """MLflow's id of the run that carries ours as its tag ``run_id``; None where there is none yet."""
    from mlflow.tracking import MlflowClient

    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks before it writes plain files
    client = MlflowClient(uri)
    place = client.get_experiment_by_name(experiment)
    found = client.search_runs([place.experiment_id], f"tags.run_id = '{run_id}'") if place else []
    return str(found[0].info.run_id) if found else None
