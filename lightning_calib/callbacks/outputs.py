"""The callback that brings predictions into an output store."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn

from lightning_calib.outputs.manifest import Manifest
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.tasks.prediction import EnsemblePrediction, Prediction


class StoreOutputs(Callback):
    """Write each case as soon as it is predicted; every process writes its own.

    Args:
        open_writer: opens the store; called once in each process, in the first one first.
        case_ids: the cases that the store must hold in the end.
        finish: write the manifest at the end; False where others write further cases.
    """

    def __init__(self, open_writer: Callable[[], OutputWriter], case_ids: Sequence[str], finish: bool = True) -> None:
        """Keep the arguments; the store is opened when prediction starts."""
        self.open_writer, self.case_ids, self.finish = open_writer, list(case_ids), finish
        self._announced = False

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the store and tell the module what is in it already."""
        assert isinstance(pl_module, EnsemblePrediction)
        if trainer.is_global_zero:
            self.writer = self.open_writer()
            say_outdated(self.writer)
        trainer.strategy.barrier("store is open")
        if not trainer.is_global_zero:
            self.writer = self.open_writer()
        pl_module.done = self.writer.done & set(self.case_ids)
        trainer.strategy.barrier("written cases are known")
        if pl_module.done:
            rank_zero_info(f"{len(pl_module.done)} of {len(self.case_ids)} cases are written already")
        self._remaining = len(self.case_ids) - len(pl_module.done)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Prediction | str,
        batch: Any,  # noqa: ANN401
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write a case; before the first one, say how much is to come."""
        if isinstance(outputs, str):
            return
        if not self._announced:
            self._announce(tuple(outputs.target.shape))
        self.writer.write(
            outputs.case_id, outputs.logits, outputs.target, outputs.valid, outputs.geometry, outputs.image
        )

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the manifest once every process has written its cases."""
        trainer.strategy.barrier("all cases are written")
        if trainer.is_global_zero and self.finish:
            whole = trainer.limit_predict_batches in (None, 1.0)
            say_finished(self.writer.path, self.writer.finish(self.case_ids if whole else None))
        trainer.strategy.barrier("the store is complete")

    def _announce(self, shape: tuple[int, ...]) -> None:
        self._announced = True
        size = self.writer.reserve(self._remaining, shape)
        sizes = "x".join(map(str, shape))
        rank_zero_info(f"{self._remaining} cases (the first has {sizes} voxels) take about {size / 1e6:,.1f} MB")


def say_outdated(writer: OutputWriter, most: int = 10) -> None:
    """Say what of a store is of another state of the data and will be made again."""
    if writer.outdated:
        more = [f"and {len(writer.outdated) - most} more"] if len(writer.outdated) > most else []
        told = "\n  ".join([f"{writer.path} is of an earlier state of the data:", *writer.outdated[:most], *more])
        rank_zero_warn(f"{told}\nwhat has changed is predicted again; calibrations of it are to be run again")


def say_finished(path: Path, manifest: Manifest) -> None:
    """Say how large a store has become, and what its precision has cost."""
    size = sum(case.size for case in manifest.cases)
    rank_zero_info(f"{path}: {len(manifest.cases)} cases, {size / 1e6:,.1f} MB")
    if manifest.dtype == "float16":
        shares = ", ".join(f"{name} {share:.4%}" for name, share in manifest.changed_argmax().items())
        rank_zero_info(f"voxels whose pooled argmax float16 changed: {shares}")
