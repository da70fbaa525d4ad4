"""How each tracker takes a tracked run: CSV, Weights & Biases, TensorBoard, MLflow; all through Lightning's loggers."""

import csv
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lightning_calib.experiment.tracking import Table, TrackedRun

TrackerName = Literal["csv", "wandb", "tensorboard", "mlflow", "none"]
Track = Callable[[TrackedRun, str, Path], None]


def track(runs: Iterable[TrackedRun], tracker: TrackerName, experiment: str, folder: Path) -> int:
    """Hand runs to a tracker.

    Args:
        runs: what to track.
        tracker: ``csv``, ``wandb``, ``tensorboard``, ``mlflow`` or ``none``.
        experiment: name that groups the runs.
        folder: where the tracker keeps its files, in a folder of its own name.

    Returns:
        Number of runs tracked.
    """
    if tracker == "none":
        return 0
    place = folder / tracker
    place.mkdir(parents=True, exist_ok=True)
    count = 0
    for run in runs:
        TRACKERS[tracker](run, experiment, place)
        count += 1
    if tracker == "wandb":
        import wandb

        wandb.teardown()  # its service still holds the end of the last files
    return count


def _log_numbers(logger: Logger, run: TrackedRun) -> None:
    """Config, curves and final figures: what all loggers take alike."""
    logger.log_hyperparams(flat(run.config))
    for quantity, points in run.curves.items():
        for step, value in points:
            logger.log_metrics({quantity: value}, step=step)
    if run.metrics:
        logger.log_metrics({safe(key): value for key, value in run.metrics.items()}, step=_last_step(run) + 1)


def _csv(run: TrackedRun, experiment: str, folder: Path) -> None:
    logger = CSVLogger(str(folder), name=safe(experiment), version=safe(run.name))
    _log_numbers(logger, run)
    logger.finalize("success")
    for name, table in run.tables.items():
        with (Path(logger.log_dir) / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([table.columns, *table.rows])


def _wandb(run: TrackedRun, experiment: str, folder: Path) -> None:
    import wandb  # takes seconds, and most runs do without

    online = os.environ.get("WANDB_MODE") == "online"
    logger = WandbLogger(
        name=run.name,
        save_dir=folder,
        project=os.environ.get("WANDB_PROJECT", "lightning_calib"),
        offline=not online,
        group=experiment,
        job_type=run.kind,
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )
    active = logger.experiment
    active.config.update(run.config)
    for quantity, points in run.curves.items():
        active.define_metric(quantity, step_metric="step")
        for step, value in points:
            active.log({quantity: value, "step": step})
    tables = {name: wandb.Table(columns=table.columns, data=table.rows) for name, table in run.tables.items()}
    pictures = {f"figures/{name}": wandb.Image(str(path)) for name, path in run.figures.items()}
    if tables or pictures:
        active.log(tables | pictures)
    active.summary.update(run.metrics)
    wandb.finish()


def _tensorboard(run: TrackedRun, experiment: str, folder: Path) -> None:
    logger = TensorBoardLogger(str(folder), name=safe(experiment), version=safe(run.name), default_hp_metric=False)
    logger.log_hyperparams(flat(run.config), run.metrics)
    _log_numbers(logger, TrackedRun(run.name, run.kind, {}, run.curves, run.metrics))
    for name, table in run.tables.items():
        logger.experiment.add_text(name, markdown(table))
    for name, path in run.figures.items():
        with Image.open(path) as picture:
            logger.experiment.add_image(f"figures/{name}", np.asarray(picture.convert("RGB")), dataformats="HWC")
    logger.finalize("success")


def _mlflow(run: TrackedRun, experiment: str, folder: Path) -> None:
    uri = os.environ.get("MLFLOW_TRACKING_URI", f"file:{folder.resolve()}")
    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks before it writes plain files
    logger = MLFlowLogger(experiment, run_name=run.name, tracking_uri=uri, tags={"kind": run.kind})
    _log_numbers(logger, run)
    for name, table in run.tables.items():
        content = {"columns": table.columns, "data": table.rows}  # the form of MLflow's own tables
        logger.experiment.log_dict(logger.run_id, content, f"{name}.json")
    for path in run.figures.values():
        logger.experiment.log_artifact(logger.run_id, str(path), "figures")
    logger.finalize("success")


TRACKERS: dict[str, Track] = {"csv": _csv, "wandb": _wandb, "tensorboard": _tensorboard, "mlflow": _mlflow}


def safe(name: str) -> str:
    """A name that file systems and trackers take.

    Example:
        >>> safe("cms_op(p) repeat 0"), safe("test/nll")
        ('cms_op-p_repeat_0', 'test/nll')
    """
    return re.sub(r"[^\w./-]+", "_", name.replace("(", "-").replace(")", ""))


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys; lists become text.

    Example:
        >>> flat({"a": {"b": 1}, "c": [1, 2]})
        {'a.b': 1, 'c': '[1, 2]'}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str | int | float | bool) else str(value)
    return found


def markdown(table: Table) -> str:
    """A table as Markdown.

    Example:
        >>> print(markdown(Table(["a", "b"], [[1, 0.123456]])))
        | a | b |
        |---|---|
        | 1 | 0.12346 |
    """
    rows = [[f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in row] for row in table.rows]
    lines = [table.columns, ["---"] * len(table.columns), *rows]
    text = ["| " + " | ".join(line) + " |" for line in lines]
    text[1] = "|" + "---|" * len(table.columns)
    return "\n".join(text)


def _last_step(run: TrackedRun) -> int:
    return max((step for points in run.curves.values() for step, _ in points), default=-1)
