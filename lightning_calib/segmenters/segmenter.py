"""The form in which every segmentation network is used: scores for images of any size."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from lightning_calib.functional.regions import two_classes


class Segmenter(nn.Module):
    """A network whose outputs are one main map and, while it trains, maps of lower resolution.

    Architectures disagree on what they return (a tensor, a list while deep supervision is on) and on the
    sizes they take; here both are settled once. Images of other sizes are padded with zeros, the mean of a
    normalised image, and the scores cropped back. One output channel is the logit of the second of two classes, whose
    scores are then ``(0, z)``.

    Args:
        body: the network; returns ``(B, C, *S)`` or a list that starts with it.
        divisor: what each spatial size must be a multiple of.
        deep_supervision: whether ``body.decoder.deep_supervision`` is to be on while the network trains.

    Example:
        >>> import torch
        >>> network = Segmenter(nn.Conv2d(3, 4, 1), divisor=(8, 8))
        >>> network.logits(torch.zeros(1, 3, 13, 9)).shape
        torch.Size([1, 4, 13, 9])
    """

    def __init__(self, body: nn.Module, divisor: Sequence[int], deep_supervision: bool = False) -> None:
        super().__init__()
        self.body = body
        self.divisor = tuple(divisor)
        self.deep_supervision = deep_supervision

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Score images ``(B, channels, *S)``.

        Returns:
            Logits ``(B, C, *S)``, and those of the lower resolutions while the network trains with deep
            supervision.
        """
        sizes = images.shape[2:]
        missing = [-size % divisor for size, divisor in zip(sizes, self.divisor, strict=True)]
        if any(missing):
            images = F.pad(images, [amount for pad in reversed(missing) for amount in (0, pad)])
        outputs = self._run(images)
        if any(missing) and outputs[1:]:
            raise ValueError(
                f"deep supervision needs patches of sizes divisible by {self.divisor}, got {tuple(sizes)}: "
                "change the patch size of the data or the strides of the network"
            )
        main = outputs[0]
        for axis, size in enumerate(sizes, start=2):
            main = main.narrow(axis, 0, size)
        return main, outputs[1:]

    def logits(self, images: Tensor) -> Tensor:
        """The main map alone, ``(B, C, *S)``."""
        return self(images)[0]  # type: ignore[no-any-return]

    def _run(self, images: Tensor) -> list[Tensor]:
        if self.deep_supervision:
            self.body.decoder.deep_supervision = self.training  # type: ignore[union-attr]
        outputs = self.body(images)
        maps = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        return [two_classes(each[:, 0], dim=1) if each.shape[1] == 1 else each for each in maps]
