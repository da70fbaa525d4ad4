"""Settings, tables, pictures and files on their way to a tracker, each in the tracker's own way."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger

from lightning_calib.kit.files import plain
from lightning_calib.kit.tables import Table


def log_config(logger: Logger, config: Mapping[str, Any]) -> None:
    """Hand over settings; W&B keeps them nested, others take dotted keys."""
    kind = type(logger).__name__
    if kind == "WandbLogger":
        logger.experiment.config.update(plain(config), allow_val_change=True)  # type: ignore[attr-defined]
    elif kind == "MLFlowLogger":  # refuses other values of settings that a continued run has already
        settings = flat(plain(config))
        known = logger.experiment.get_run(logger.run_id).data.params  # type: ignore[attr-defined]
        logger.log_hyperparams({key: value for key, value in settings.items() if key not in known})
        for key in (key for key, value in settings.items() if known.get(key, str(value)[:250]) != str(value)[:250]):
            logger.experiment.set_tag(logger.run_id, key, settings[key])  # type: ignore[attr-defined]
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


def log_files(logger: Logger, name: str, kind: str, files: Mapping[str, Path]) -> None:
    """Hand over files as one artifact, for trackers that keep files: W&B and MLflow.

    Args:
        logger: the tracker's run.
        name: of the artifact, versions of which are told apart by their content.
        kind: such as ``report``.
        files: by their path in the artifact.
    """
    tracker = type(logger).__name__
    if tracker == "WandbLogger":
        import wandb

        artifact = wandb.Artifact(re.sub(r"[^\w.-]+", "-", name), type=kind)
        for place, path in files.items():
            artifact.add_file(str(path), name=place)
        logger.experiment.log_artifact(artifact)  # type: ignore[attr-defined]
    elif tracker == "MLFlowLogger":
        for place, path in files.items():
            folder = (Path(kind) / place).parent.as_posix()
            logger.experiment.log_artifact(logger.run_id, str(path), folder)  # type: ignore[attr-defined]


def close(logger: Logger, failed: bool = False) -> None:
    """End the tracker's run; one that was begun elsewhere is left open."""
    if type(logger).__name__ != "WandbLogger":
        logger.finalize("failed" if failed else "success")
        return
    import wandb

    run = logger.experiment  # type: ignore[attr-defined]
    if run is not wandb.run:
        run.finish(exit_code=int(failed))


def release() -> None:
    """Let W&B's service go, which still holds the end of the files; not where the program has a run of its own."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is None:
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
