"""What all jobs of an experiment share: its settings, where their files are, the Trainer that they make."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, Trainer
from pytorch_lightning.loggers.logger import Logger

from lightning_calib.experiment import layout
from lightning_calib.experiment.parts import SHARD_VOXELS, ShardJob, part_path, shards, trial_folder
from lightning_calib.experiment.plan import EvaluationJob, Experiment, FitJob
from lightning_calib.experiment.tracking.journal import Journal
from lightning_calib.experiment.tracking.tracking import JOURNALS
from lightning_calib.functional.devices import accelerator_of

_QUIET = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary")


@dataclass(frozen=True)
class Work:
    """Everything that jobs share; goes to every process that runs one.

    Attributes:
        experiment: what is to be done.
        root: where its results go.
        trainer: options of Lightning's Trainer, as the user gave them.
        journals: whether somebody follows the numbers.
        shard_voxels: voxels of the cases that are evaluated together.
    """

    experiment: Experiment
    root: Path
    trainer: Mapping[str, Any] = field(default_factory=dict)
    journals: bool = False
    shard_voxels: int = SHARD_VOXELS

    def folder(self, job: FitJob) -> Path:
        """Where a fit's files are."""
        return layout.job_folder(self.root, job.repeat, job.name)

    def trials(self, job: FitJob) -> Path:
        """Where the trials of a fit are until it is written."""
        return trial_folder(self.folder(job), self.experiment.fit_hash(job))

    def shards(self, job: EvaluationJob) -> list[ShardJob]:
        """The parts of an evaluation: one where the Trainer's devices share it already."""
        case_ids = self.experiment.split(job.repeat).test
        cases = (self.experiment.store[case_id].record for case_id in case_ids)
        alone = str(self.trainer.get("devices") or 1) == "1"
        groups = shards(cases, self.shard_voxels) if alone else [case_ids]
        return [ShardJob(job, number, tuple(group)) for number, group in enumerate(groups)]

    def part(self, shard: ShardJob) -> Path:
        """Where the scores of a shard are until its evaluation is written."""
        return part_path(self.root, shard, [self.experiment.evaluation_hash(fit) for fit in shard.whole.fits])

    def journal(self, file: str, place: str = "") -> Journal | None:
        """A journal for the numbers of a job."""
        return Journal(self.root / JOURNALS / f"{file}.jsonl", place) if self.journals else None


def make_trainer(options: Mapping[str, Any], journal: Logger | None, *callbacks: Callback, **defaults: Any) -> Trainer:
    """The Trainer of a job: the user's options, our defaults where there are none, the journal beside their loggers.

    A job may run in a process of an executor, which cannot start itself again as a script: ``ddp`` starts its
    processes by spawning.
    """
    given = {key: value for key, value in options.items() if value is not None}
    own = given.get("logger") or []
    loggers = [*(own if isinstance(own, list) else [own]), *([journal] if journal else [])]
    listed = given.get("callbacks") or []
    merged = {
        "devices": 1,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        **dict.fromkeys(_QUIET, False),
        **defaults,
        **given,
    }
    merged["logger"] = [logger for logger in loggers if isinstance(logger, Logger)] or False
    merged["callbacks"] = [*(listed if isinstance(listed, list) else [listed]), *callbacks]
    merged["accelerator"] = accelerator_of(merged.get("accelerator", "auto"))
    merged["strategy"] = {"ddp": "ddp_spawn"}.get(merged.get("strategy", "auto"), merged.get("strategy", "auto"))
    return Trainer(**merged)
