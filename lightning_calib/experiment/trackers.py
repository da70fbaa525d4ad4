"""Trackers of experiments: CSV, Weights & Biases, TensorBoard, MLflow, and others; all are Lightning loggers."""

import csv
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from lightning_calib.kit.files import plain, write_csv, write_json
from lightning_calib.kit.registry import Registry
from lightning_calib.kit.tables import Table


@dataclass(frozen=True)
class Tracked:
    """What a tracker is opened for.

    Attributes:
        name: name of the experiment.
        folder: where the tracker keeps its files.
        run_id: the same for every call on the same folder and outputs, so that a run can be continued.
    """

    name: str
    folder: Path
    run_id: str


OpenTracker = Callable[[Tracked], Logger]

_HERE = "lightning_calib.experiment.trackers"
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
            rows = ([key, step or 0, float(value)] for key, value in metrics.items())
            csv.writer(file, lineterminator="\n").writerows(rows)

    @rank_zero_only
    def log_table(self, key: str, columns: list[str], data: list[list[Any]]) -> None:
        """Write a table."""
        write_csv(self.folder / f"{key}.csv", columns, data)


def open_csv(tracked: Tracked) -> Logger:
    """CSV files."""
    return CSVTracker(tracked.folder)


def open_wandb(tracked: Tracked) -> Logger:
    """Weights & Biases, offline unless ``WANDB_MODE=online``; a sweep's or a given run id is respected."""
    import wandb  # takes seconds, and most runs do without
    from pytorch_lightning.loggers import WandbLogger

    named = any(os.environ.get(key) for key in ("WANDB_RUN_ID", "WANDB_SWEEP_ID"))
    return WandbLogger(
        name=tracked.name,
        save_dir=tracked.folder,
        project=os.environ.get("WANDB_PROJECT", "lightning_calib"),
        offline=os.environ.get("WANDB_MODE") != "online",
        id=None if named else tracked.run_id,
        resume=None if named else "allow",
        job_type="calibration",
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )


def open_tensorboard(tracked: Tracked) -> Logger:
    """TensorBoard event files."""
    from pytorch_lightning.loggers import TensorBoardLogger

    return TensorBoardLogger(str(tracked.folder), name=tracked.name, version=tracked.run_id, default_hp_metric=False)


def open_mlflow(tracked: Tracked) -> Logger:
    """MLflow: the server of ``MLFLOW_TRACKING_URI``, or plain files."""
    from pytorch_lightning.loggers import MLFlowLogger

    uri = os.environ.get("MLFLOW_TRACKING_URI", f"file:{tracked.folder.resolve()}")
    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks before it writes plain files
    return MLFlowLogger(tracked.name, run_name=tracked.name, tracking_uri=uri, tags={"run_id": tracked.run_id})


def log_config(logger: Logger, config: Mapping[str, Any]) -> None:
    """Hand over settings; W&B keeps them nested, others take dotted keys."""
    if type(logger).__name__ == "WandbLogger":
        logger.experiment.config.update(plain(config), allow_val_change=True)  # type: ignore[attr-defined]
    else:
        logger.log_hyperparams(flat(plain(config)))


def log_table(logger: Logger, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Hand over a table in the tracker's own way; one that takes none gets none."""
    kind, data = type(logger).__name__, [list(row) for row in rows]
    if kind == "TensorBoardLogger":
        texts = [[f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in row] for row in data]
        logger.experiment.add_text(key, Table.of(key, "", columns, texts).grid())  # type: ignore[attr-defined]
    elif kind == "MLFlowLogger":  # the form of MLflow's own tables
        content = {"columns": list(columns), "data": plain(data)}
        logger.experiment.log_dict(logger.run_id, content, f"{key}.json")  # type: ignore[attr-defined]
    elif hasattr(logger, "log_table"):
        logger.log_table(key, columns=list(columns), data=data)


def log_figure(logger: Logger, key: str, path: Path) -> None:
    """Hand over a PNG file in the tracker's own way; one that takes none gets none."""
    kind = type(logger).__name__
    if kind == "TensorBoardLogger":
        import numpy as np
        from PIL import Image

        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        logger.experiment.add_image(f"figures/{key}", pixels, dataformats="HWC")  # type: ignore[attr-defined]
    elif kind == "MLFlowLogger":
        logger.experiment.log_artifact(logger.run_id, str(path), "figures")  # type: ignore[attr-defined]
    elif hasattr(logger, "log_image"):
        logger.log_image(f"figures/{key}", [str(path)])


def close(logger: Logger) -> None:
    """End the tracker's run; W&B's service still holds the end of its files."""
    logger.finalize("success")
    if type(logger).__name__ == "WandbLogger":
        import wandb

        wandb.finish()
        wandb.teardown()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys; lists become text.

    Example:
        >>> flat({"a": {"b": 1}, "c": [1, 2]})
        {'a.b': 1, 'c': '[1, 2]'}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str | int | float | bool) else str(value)
    return found
