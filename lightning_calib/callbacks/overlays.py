"""The callback that shows sample segmentations in the tracker."""

from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import Tensor

Picture = NDArray[np.uint8]

_PALETTE = (255 * np.asarray(mpl.colormaps["tab20"].colors)).astype(np.uint8)  # type: ignore[attr-defined]
_OPACITY = 0.5


class SampleOverlays(Callback):
    """Log validation images with target and prediction drawn over them, side by side.

    Goes to W&B, TensorBoard and MLflow; other trackers take no images and get none. Of volumes, the slice
    with most foreground is shown.

    Args:
        every_n_epochs: how often.
        num_samples: images of the first validation batch.
    """

    def __init__(self, every_n_epochs: int = 5, num_samples: int = 4) -> None:
        """Check the numbers."""
        if every_n_epochs < 1 or num_samples < 1:
            raise ValueError(f"every_n_epochs {every_n_epochs} and num_samples {num_samples} must be positive")
        self.every_n_epochs, self.num_samples = every_n_epochs, num_samples

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: dict[str, Any],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw the first batch of the epoch."""
        if batch_idx or dataloader_idx or trainer.sanity_checking or not trainer.is_global_zero:
            return
        if trainer.current_epoch % self.every_n_epochs:
            return
        prediction = outputs.argmax(dim=1)
        count = min(self.num_samples, len(prediction))
        ignore_index = getattr(pl_module, "ignore_index", None)
        pictures = [overlay(batch["image"][i], batch["target"][i], prediction[i], ignore_index) for i in range(count)]
        for logger in trainer.loggers:
            log_pictures(logger, "val/overlays", pictures, batch["case_id"][:count], trainer.global_step)


def overlay(image: Tensor, target: Tensor, prediction: Tensor, ignore_index: int | None = None) -> Picture:
    """Image, target and prediction side by side.

    Args:
        image: ``(channels, *S)``, any range.
        target: labels ``(*S)``; ignored voxels stay uncoloured.
        prediction: labels ``(*S)``.
        ignore_index: label of voxels that count nowhere.

    Returns:
        RGB ``(H, 3 W, 3)``.

    Example:
        >>> import torch
        >>> overlay(torch.rand(1, 4, 8, 9), torch.zeros(4, 8, 9).long(), torch.ones(4, 8, 9).long()).shape
        (8, 27, 3)
    """
    image, target, prediction = image.float().cpu(), target.cpu(), prediction.cpu()
    if target.ndim == 3:
        middle = int((target > 0).sum(dim=(1, 2)).argmax())
        image, target, prediction = image[:, middle], target[middle], prediction[middle]
    channels = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    low, high = channels.amin(), channels.amax()
    grey = (255 * (channels - low) / (high - low).clamp(min=1e-6)).byte().permute(1, 2, 0).numpy()
    return np.concatenate([grey, _colour(grey, target, ignore_index), _colour(grey, prediction, None)], axis=1)


def log_pictures(logger: Logger, key: str, pictures: list[Picture], captions: list[str], step: int) -> None:
    """Hand pictures to a tracker in its own way; one that takes none gets none."""
    if isinstance(logger, WandbLogger):
        logger.log_image(key, pictures, step=step, caption=captions)
    elif isinstance(logger, TensorBoardLogger):
        for picture, caption in zip(pictures, captions, strict=True):
            logger.experiment.add_image(f"{key}/{caption}", picture, step, dataformats="HWC")
    elif isinstance(logger, MLFlowLogger):
        for picture, caption in zip(pictures, captions, strict=True):
            name = f"{key}/{caption}/{step:07d}.png"
            logger.experiment.log_image(logger.run_id, picture, name)


def _colour(grey: Picture, labels: Tensor, ignore_index: int | None) -> Picture:
    colours = _PALETTE[labels.clamp(min=0).numpy() % len(_PALETTE)]
    mixed = ((1 - _OPACITY) * grey + _OPACITY * colours).astype(np.uint8)
    return mixed if ignore_index is None else np.where((labels == ignore_index).numpy()[..., None], grey, mixed)
