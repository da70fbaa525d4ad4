"""One calibrator of two classes for each region of a sigmoid network."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.registry import build
from lightning_calib.functional.regions import log_odds, nest, strict_sigmoid, supersets, two_classes


class RegionCalibrator(nn.Module):
    r"""Log-odds of regions, calibrated each by itself; regions that lie within each other stay so.

    Any calibrator of two classes serves. With ``cms_op``, which keeps every decision, it is

    .. math:: z' = a_+ [z]_+ + b_+ \text{ inside}, \qquad z' = -a_- [-z]_+ - b_- \text{ outside}, \qquad a, b \ge 0

    with four parameters a region, whose fit is convex; with ``ts`` it is ``z / T``.

    Args:
        calibrators: one a region, each of two classes.
        labels: labels of the target that make each region; they say which lies within which.

    Example:
        >>> calibrator = RegionCalibrator.build("cms_op", {"whole": [1, 2, 3], "core": [2, 3]})
        >>> calibrator(torch.tensor([[2.0, 3.0], [-2.0, -3.0]])).detach()
        tensor([[ 2.,  2.],
                [-2., -3.]])
    """

    feature_names: tuple[str, ...] = ()  # regions hand out no features

    def __init__(self, calibrators: Sequence[Calibrator], labels: Sequence[Sequence[int]]) -> None:
        super().__init__()
        if len(calibrators) != len(labels):
            raise ValueError(f"{len(calibrators)} calibrators for {len(labels)} regions: give one a region")
        if looking := [each.name for each in calibrators if each.looks_at == "features"]:
            raise ValueError(
                f"{looking[0]} looks at features, which regions do not hand out: choose another calibrator"
            )
        self.calibrators = nn.ModuleList(calibrators)
        self.num_classes, self.spatial_dims = len(calibrators), calibrators[0].spatial_dims
        self.within = supersets(labels)

    @classmethod
    def build(cls, name: str, regions: Mapping[str, Sequence[int]], spatial_dims: int = 2) -> Self:
        """The same calibrator for each region, at the identity.

        Args:
            name: name such as ``cms_op``.
            regions: labels of each region, by its name.
            spatial_dims: 2 or 3.
        """
        return cls([build(name, 2, spatial_dims) for _ in regions], list(regions.values()))

    @property
    def preserves_decisions(self) -> bool:
        """Whether no voxel changes its side of any region."""
        return all(each.preserves is not None for each in self.calibrators)

    def each(self, logits: Tensor) -> Tensor:
        """Calibrated log-odds ``(B, R, *S)`` of log-odds ``(B, R, *S)``, before they are nested."""
        if logits.ndim < 2 or logits.shape[1] != len(self.calibrators):
            raise ValueError(f"expected log-odds (B, {len(self.calibrators)}, *S), got {tuple(logits.shape)}")
        pairs = zip(self.calibrators, logits.unbind(dim=1), strict=True)
        return torch.stack([log_odds(calibrator(two_classes(z, dim=1))) for calibrator, z in pairs], dim=1)

    def forward(self, logits: Tensor) -> Tensor:
        """Calibrated log-odds ``(B, R, *S)`` of pooled log-odds ``(B, R, *S)``; see :func:`nest`."""
        return nest(self.each(logits), self.within)

    def probs(self, calibrated: Tensor) -> Tensor:
        """Probabilities ``(B, R, *S)`` of calibrated log-odds, above 1/2 exactly where these are above 0.

        They are nested once more: vector instructions give equal numbers sigmoids that differ in the last bit.
        """
        return nest(strict_sigmoid(calibrated), self.within, boundary=0.5)
