"""The LightningModule that trains one member of a segmentation ensemble."""

from typing import Any

import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics import MetricCollection

from lightning_calib.metrics import DiceScore, ExpectedCalibrationError, MeanIoU
from lightning_calib.segmenters import (
    AdamWCosine,
    Inference,
    LossName,
    Network,
    Recipe,
    deep_supervision_loss,
    get_loss,
)
from lightning_calib.tasks.base import Task

Batch = dict[str, Any]

_UNCOUNTED = -100  # label of voxels without prediction where the data ignore none; torch's own default


class SegmentationTask(Task):
    """Train and apply one segmentation network.

    Batches are dictionaries with ``image (B, channels, *S)``, normalised, ``target (B, *S)`` and
    ``case_id``. Logs ``train/loss``, ``val/loss``, ``val/dice``, ``val/miou`` and ``val/ece``, and the same under
    ``test/``.

    Args:
        network: the architecture.
        num_classes: number of classes; taken from the data on the command line, as are the next four.
        in_channels: channels of an image.
        spatial_dims: 2 or 3.
        ignore_index: label of voxels that count nowhere.
        background: class that Dice leaves out, in loss and score.
        loss: ``dice_ce`` (nnU-Net's), ``ce``, ``dice``, ``focal``, ``balanced_ce`` or ``dice_balanced_ce``.
        recipe: optimiser, schedule and clipping; AdamW with cosine decay by default.
        inference: how whole images are scored; in one piece by default.
        compile: compile the network (torch.compile).

    Example:
        >>> from lightning_calib.segmenters import ResidualEncoderUNet
        >>> task = SegmentationTask(ResidualEncoderUNet([4, 8], [1, 1]), num_classes=3, in_channels=1)
        >>> task.score(torch.zeros(1, 1, 8, 8)).shape
        torch.Size([1, 3, 8, 8])
    """

    def __init__(
        self,
        network: Network,
        num_classes: int,
        in_channels: int,
        spatial_dims: int = 2,
        ignore_index: int | None = None,
        background: int | None = None,
        loss: LossName = "dice_ce",
        recipe: Recipe | None = None,
        inference: Inference | None = None,
        compile: bool = False,
    ) -> None:
        """Build network, loss and metrics."""
        super().__init__()
        self.num_classes, self.in_channels, self.spatial_dims = num_classes, in_channels, spatial_dims
        self.ignore_index, self.background = ignore_index, background
        self.uncounted = _UNCOUNTED if ignore_index is None else ignore_index
        self.recipe, self.inference = recipe or AdamWCosine(), inference or Inference()
        self.configure_models(network, compile)
        self.configure_losses(loss)
        self.configure_metrics()

    def configure_models(self, network: Network, compile: bool) -> None:
        """Build the network."""
        self.network = network.build(self.in_channels, self.num_classes, self.spatial_dims)
        if compile:
            self.network.compile()

    def configure_losses(self, loss: LossName) -> None:
        """Look up the loss."""
        self.loss = get_loss(loss)

    def configure_metrics(self) -> None:
        """Make the scores of validation and test."""
        classes = (self.background is None, self.background or 0)
        scores = MetricCollection(
            {
                "dice": DiceScore(*classes, ignore_index=self.uncounted),
                "miou": MeanIoU(*classes, ignore_index=self.uncounted),
                "ece": ExpectedCalibrationError(ignore_index=self.uncounted),
            },
            compute_groups=False,
        )
        self.metrics = nn.ModuleDict({stage: scores.clone(prefix=f"{stage}/") for stage in ("val", "test")})

    def score(self, images: Tensor) -> Tensor:
        """Logits ``(B, C, *S)`` of whole images ``(B, channels, *S)``, float32."""
        return self.inference(self.network.logits, images)

    def forward(self, images: Tensor) -> Tensor:
        """The same as :meth:`score`."""
        return self.score(images)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of a batch, over all resolutions of the network."""
        logits, lower = self.network(batch["image"])
        outputs = [logits, *lower]
        loss = deep_supervision_loss(self.loss, outputs, batch["target"], self.ignore_index, self.background)
        self.log("train/loss", loss, on_epoch=True, on_step=False, sync_dist=True, batch_size=len(logits))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Score a batch; returns its logits."""
        return self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Score a batch of the pool set; returns its logits."""
        return self._evaluate(batch, "test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Logits ``(B, C, *S)`` on the grid of the targets."""
        return self._restored(batch)

    def _evaluate(self, batch: Batch, stage: str) -> Tensor:
        logits = self._restored(batch) if stage == "test" else self.score(batch["image"]).to(self.device)
        target = batch["target"]
        if "valid" in batch:
            target = target.where(batch["valid"], self.uncounted)
        loss = self.loss(logits, target, self.uncounted, self.background)
        metrics = self.metrics[stage]
        assert isinstance(metrics, MetricCollection)
        metrics.update(logits.log_softmax(dim=1), target, case_ids=batch["case_id"])
        self.log(f"{stage}/loss", loss, prog_bar=True, sync_dist=True, batch_size=len(logits))
        self.log_dict(dict(metrics.items()), prog_bar=True, batch_size=len(logits))
        return logits

    def _restored(self, batch: Batch) -> Tensor:
        """Logits of a batch, brought back to the grid of the targets by the DataModule."""
        logits = self.score(batch["image"])
        restore = getattr(self.trainer.datamodule, "restore", None)  # type: ignore[attr-defined]
        if restore is None:
            return logits.to(self.device)
        cases = zip(logits, batch["case_id"], strict=True)
        return torch.stack([restore(scores, case_id) for scores, case_id in cases]).to(self.device)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Optimiser and schedule of the recipe, stepped with every batch."""
        optimizer = self.recipe.optimizer(self.parameters())
        steps = self.trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise ValueError("the learning rate falls over the training: give trainer.max_epochs or max_steps")
        scheduler = self.recipe.scheduler(optimizer, int(steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by the Trainer's flag where it is given, by the recipe otherwise."""
        value = self.recipe.clip if gradient_clip_val is None else gradient_clip_val
        self.clip_gradients(optimizer, value, gradient_clip_algorithm or "norm")
