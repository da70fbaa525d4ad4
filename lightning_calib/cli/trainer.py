"""Lightning's parts as train.py uses them: the Trainer, its loggers, the config file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace, lazy_instance  # type: ignore[attr-defined]  # public, but not listed
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.cli import SaveConfigCallback
from pytorch_lightning.loggers import WandbLogger

from lightning_calib.cli.run_folder import Checkpoint, MemberFolder, RunError
from lightning_calib.datasets.corruptions import Severity
from lightning_calib.experiment.tracking.handover import log_config
from lightning_calib.experiment.tracking.trackers import known_mlflow_run, named_wandb_run
from lightning_calib.kit.files import digest, sha256, write_text
from lightning_calib.outputs.manifest import Keep, StoreDtype

LOGGERS = [
    {"class_path": f"pytorch_lightning.loggers.{logger}", "init_args": {"save_dir": "logs", "name": name}}
    for logger, name in (("CSVLogger", "csv"), ("TensorBoardLogger", "tensorboard"))
]


class TrainerOptions:
    """Options of Lightning's Trainer, for Trainers that are made where jobs run.

    Args:
        **options: see Trainer.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def build(self) -> Trainer:
        """The Trainer itself; the signature of the options is read from this line."""
        return Trainer(**self.options)


ONE_DEVICE: TrainerOptions = lazy_instance(TrainerOptions, devices=1)


@dataclass
class OutputOptions:
    """What ``predict`` stores.

    Args:
        members: seeds that name the members; None for all.
        checkpoint: ``last`` epoch, or the ``best`` by validation Dice.
        keep: ``members``, or ``pooled`` for their pooled logits alone.
        dtype: precision of the stored logits.
        folder: where to write; a relative path begins in the folder of the run.
    """

    members: list[int] | None = None
    checkpoint: Checkpoint = "last"
    keep: Keep = "members"
    dtype: StoreDtype = "float32"
    folder: str | None = None


class MemberTrainer(Trainer):
    """Lightning's Trainer, with one more command and one more option."""

    def predict(
        self,
        *args: Any,
        images: Path | None = None,
        corruption: Severity | None = None,
        corruption_seed: int = 0,
        out_of_fold: bool = False,
        executor: str | dict[str, Any] | None = None,
        parallel: int | None = None,
        **options: Any,
    ) -> Any:  # noqa: ANN401  # as the parent has it
        """Predict.

        Args:
            *args: those of Lightning's Trainer.
            images: image file or folder of new images without masks, in place of the pool set; the outputs go to a
                folder outputs-<name of the images>, or outputs.folder, and have no targets.
            corruption: change every image of the pool set first, mildly or strongly, for the study of shifts; the
                outputs go to a folder named outputs-mild or outputs-strong.
            corruption_seed: seed of which image is changed how.
            out_of_fold: predict the cases of the training side in place of the pool set, each by the one network that
                was not trained on it (members trained with data.init_args.folds); the outputs go to the folder
                out_of_fold.
            executor: predict shards of the cases as jobs: local, ray, or the name of another executor; by default all
                cases are predicted in this process.
            parallel: jobs at a time; by default one a core.
            **options: those of Lightning's Trainer.
        """
        if corruption is not None or executor is not None or out_of_fold or images is not None:
            raise RunError(
                "images, corruption, out_of_fold and executor are options of the command line: train.py predict"
            )
        return super().predict(*args, **options)

    def ensemble(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        members: int = 5,
        parallel: int | None = None,
        executor: str | dict[str, Any] = "local",
    ) -> None:
        """Train all members, each as a process of its own; goes on where an earlier run stopped.

        Args:
            model: set by the command line.
            datamodule: set by the command line.
            members: number of members; their seeds count up from ``seed_everything``.
            parallel: members that train at a time; by default one a GPU, or one.
            executor: where they train: local for processes of this machine, or one that another package brings.
        """
        raise RunError("ensembles are trained from the command line: train.py ensemble")

    def check(
        self, model: LightningModule | None, datamodule: LightningDataModule, cases: int = 300, sheet: bool = True
    ) -> None:
        """Say what the data look like before anything is trained: sizes, values, classes, groups, near copies.

        Args:
            model: none.
            datamodule: set by the command line.
            cases: cases that values and near copies are looked for in, evenly spread.
            sheet: also write a contact sheet, check.png in the folder of the run.
        """
        raise RunError("data are checked from the command line: train.py check")


class SaveConfig(SaveConfigCallback):
    """Keep the config in the member's folder and in the tracker."""

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write once, in the first process, when the training starts."""
        if stage != "fit":
            return
        text = self.parser.dump(self.config, skip_none=False)
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", text)
        for logger in trainer.loggers:
            logger.log_hyperparams(yaml.safe_load(text))


def place_loggers(loggers: Any, folder: Path) -> None:  # noqa: ANN401
    """Let relative folders of loggers begin in the member's folder."""
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        arguments = logger.get("init_args") if isinstance(logger, Namespace) else None
        if arguments is not None and "save_dir" in arguments:
            arguments.save_dir = str(folder / (arguments.save_dir or "."))


def name_loggers(loggers: Any, member: MemberFolder, run: str) -> None:  # noqa: ANN401
    """Say of loggers without a name which member they log, so that the same line again continues the same runs.

    Args:
        loggers: as the command line has parsed them.
        member: what is trained; its place makes the id of its W&B run, unless a sweep or ``WANDB_RUN_ID`` names one.
        run: name of the run that the member belongs to.
    """
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if isinstance(logger, Namespace) and logger.get("init_args") is not None:
            _name_logger(logger, f"member-{member.name}", run, digest([str(member.path.resolve())]))


def _name_logger(logger: Namespace, title: str, run: str, run_id: str) -> None:
    given, kind = logger.init_args, str(logger.class_path).rpartition(".")[2]
    if kind == "WandbLogger":
        given.name = given.name or title
        given.id = given.id or (None if named_wandb_run() else run_id)
        group = {} if os.environ.get("WANDB_RUN_GROUP") else {"group": run}
        logger.dict_kwargs = {"job_type": "training", **group, **(logger.get("dict_kwargs") or {})}
    elif kind == "TensorBoardLogger":
        given.version = 0 if given.version is None else given.version
    elif kind == "MLFlowLogger":
        if given.experiment_name == "lightning_logs":  # the default
            given.experiment_name = run
        given.run_name = given.run_name or title
        given.tags = {"run_id": run_id, "group": run, "job_type": "training", **(given.tags or {})}
        uri = given.tracking_uri or f"file:{given.save_dir}"
        given.run_id = given.run_id or known_mlflow_run(uri, given.experiment_name, run_id)


def precision_note(precision: str) -> str | None:
    """What outputs lose where networks compute in half precision; None where they do not.

    Example:
        >>> precision_note("bf16-mixed")
        'precision bf16-mixed: stored logits keep 2 to 3 digits, and classes may tie; predict with 32-true to calibrate'
        >>> precision_note("32-true") is None
        True
    """
    if not precision.startswith(("16", "bf16", "transformer-engine")):
        return None
    digits = "3 digits" if precision.startswith("16") else "2 to 3 digits"
    return f"precision {precision}: stored logits keep {digits}, and classes may tie; predict with 32-true to calibrate"


def finish_loggers(trainer: Trainer, checkpoints: Mapping[str, Path]) -> None:
    """Tell trackers which networks came out, and close W&B runs, which Lightning leaves open.

    Args:
        trainer: whose loggers they are.
        checkpoints: files by their names; the config of the tracked run gets their hashes.
    """
    if not trainer.is_global_zero:
        return
    hashes = {name: sha256(path) for name, path in checkpoints.items() if path.is_file()}
    for logger in trainer.loggers:
        log_config(logger, {"checkpoints": hashes})
        logger.save()
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()
