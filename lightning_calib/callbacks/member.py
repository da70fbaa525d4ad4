"""Callbacks of a member that trains as a process of its own: progress for its parent, an end with it."""

from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.plugins.io import TorchCheckpointIO

from lightning_calib.kit.child import orphaned
from lightning_calib.kit.files import atomic_path, write_json
from lightning_calib.segmenters.checkpoints import refuse_damaged


class ProgressFile(Callback):
    """Write epoch and scores to a small JSON file after each epoch.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        """Keep the path."""
        self.path = Path(path)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what is known now."""
        if not trainer.is_global_zero:
            return
        scores = {name: float(value) for name, value in trainer.callback_metrics.items()}
        facts = {"epoch": trainer.current_epoch + 1, "max_epochs": trainer.max_epochs, "scores": scores}
        write_json(self.path, facts)


class StopWithParent(Callback):
    """End the training when the process that started it is gone, so that nobody trains the member twice."""

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Look for the parent before each batch."""
        # Ranks of a distributed run are children of the first one, not of the ensemble.
        if trainer.is_global_zero and orphaned():
            raise SystemExit("the run that started this member has ended; the member stops with it")


class AtomicCheckpoints(TorchCheckpointIO):
    """Checkpoints that appear whole or not at all, wherever the temporary folder lies; damaged ones are refused."""

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Any | None = None,  # noqa: ANN401
    ) -> None:
        """Write aside, then rename (see :func:`lightning_calib.kit.files.atomic_path`)."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(Path(path)) as aside:
            super().save_checkpoint(checkpoint, aside, storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401  # as the parent's
        """Read a checkpoint if it is whole."""
        refuse_damaged(Path(path), "remove it: the training then begins anew")
        found: dict[str, Any] = super().load_checkpoint(path, *args, **options)
        return found
