"""Scores of a batch as plain functions: each one figure from log-probabilities and labels."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lightning_calib.functional.averages import Average, check_average, mean_over_images
from lightning_calib.functional.binning import BinTable, table_size
from lightning_calib.functional.boundary import BANDS, boundary_distance
from lightning_calib.functional.flips import flip_table
from lightning_calib.functional.smoothed import SIGMA, check_sigma
from lightning_calib.functional.statistics import ImageStatistics
from lightning_calib.functional.sweep import image_statistics


def _figure(
    score: Callable[..., Tensor],
    log_probs: Tensor,
    target: Tensor,
    ignore_index: int | None,
    average: Average,
    *options: int,
    num_bins: int = 1,
    **measured: Any,
) -> Tensor:
    """One figure: the mean of the images' scores, or the score of all their voxels together."""
    check_average(average)
    statistics = image_statistics(log_probs, target, ignore_index=ignore_index, num_bins=num_bins, **measured)
    return mean_over_images(score(statistics.pooled() if average == "pool" else statistics, *options))


def negative_log_likelihood(
    log_probs: Tensor, target: Tensor, ignore_index: int | None = None, average: Average = "image"
) -> Tensor:
    r"""Mean of ``-log q_y`` over the voxels of an image, then over images.

    .. math:: -\frac1N \sum_v \log q_{y_v}(v)

    with ``q`` the predicted distribution, ``y`` the label and ``N`` the voxels that count.

    Args:
        log_probs: normalised log-probabilities ``(B, C, *S)``; ``(N, C)`` is one image of ``N`` voxels.
        target: integer labels ``(B, *S)``.
        ignore_index: label of voxels that count nowhere.
        average: ``"image"`` for the mean over images, ``"pool"`` for all voxels together.

    Returns:
        float64 scalar; NaN, with a warning, where no voxel counts.

    Example:
        >>> import torch
        >>> round(negative_log_likelihood(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0])).item(), 4)
        0.6931
    """
    return _figure(ImageStatistics.negative_log_likelihood, log_probs, target, ignore_index, average)


def brier_score(
    log_probs: Tensor, target: Tensor, ignore_index: int | None = None, average: Average = "image"
) -> Tensor:
    r"""Mean squared distance of the predicted distribution to the label.

    .. math:: \frac1N \sum_v \sum_c \bigl(q_c(v) - [y_v = c]\bigr)^2

    Between 0 and 2 (Brier 1950, summed over classes). Arguments and result as in
    :func:`negative_log_likelihood`.

    Example:
        >>> import torch
        >>> brier_score(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([0]))
        tensor(0.5000, dtype=torch.float64)
    """
    return _figure(ImageStatistics.brier_score, log_probs, target, ignore_index, average)


def dice_score(
    log_probs: Tensor,
    target: Tensor,
    ignore_index: int | None = None,
    average: Average = "image",
    include_background: bool = True,
    background: int = 0,
) -> Tensor:
    """Dice score of the argmax, averaged over the classes that occur in an image, then over images.

    The formula and the arguments about the background stand at :func:`~lightning_calib.functional.overlap.dice`,
    the other arguments and the result at :func:`negative_log_likelihood`. An image without a class to score is
    left out.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]).log()
        >>> round(dice_score(log_probs, torch.tensor([0, 1, 1])).item(), 4)
        0.6667
    """
    return _figure(ImageStatistics.dice_score, log_probs, target, ignore_index, average, include_background, background)


def mean_iou(
    log_probs: Tensor,
    target: Tensor,
    ignore_index: int | None = None,
    average: Average = "pool",
    include_background: bool = True,
    background: int = 0,
) -> Tensor:
    """Intersection over union of the argmax, over all voxels together, averaged over classes.

    What CamVid and Cityscapes rank by. The formula stands at :func:`~lightning_calib.functional.overlap.mean_iou`,
    the arguments at :func:`dice_score`.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]).log()
        >>> mean_iou(log_probs, torch.tensor([0, 1, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    return _figure(ImageStatistics.mean_iou, log_probs, target, ignore_index, average, include_background, background)


def expected_calibration_error(
    log_probs: Tensor, target: Tensor, num_bins: int = 50, ignore_index: int | None = None, average: Average = "image"
) -> Tensor:
    r"""Gap between confidence and accuracy, weighted by how many voxels have that confidence.

    .. math:: \sum_k \frac{n_k}{N} \lvert \mathrm{acc}_k - \mathrm{conf}_k \rvert

    over equal bins ``k`` of the top-label confidence ``max_c q_c``, with ``n_k`` voxels in the bin, their
    accuracy and mean confidence (Guo et al. 2017). The last bin is closed; see
    :func:`~lightning_calib.functional.binning.bin_index`. Arguments and result as in
    :func:`negative_log_likelihood`.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> expected_calibration_error(log_probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """
    figure = ImageStatistics.expected_calibration_error
    return _figure(figure, log_probs, target, ignore_index, average, num_bins, num_bins=num_bins)


def average_calibration_error(
    log_probs: Tensor, target: Tensor, num_bins: int = 15, ignore_index: int | None = None, average: Average = "pool"
) -> Tensor:
    r"""Gaps between confidence and accuracy, every non-empty bin counting the same.

    .. math:: \frac{1}{|\{k : n_k > 0\}|} \sum_{k : n_k > 0} \lvert \mathrm{acc}_k - \mathrm{conf}_k \rvert

    with the bins of :func:`expected_calibration_error`. Not the *adaptive* error of equal-mass bins, which
    some libraries shorten to ACE too. All voxels are pooled by default: bins with few voxels are noisy.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> average_calibration_error(log_probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """
    figure = ImageStatistics.average_calibration_error
    return _figure(figure, log_probs, target, ignore_index, average, num_bins, num_bins=num_bins)


def maximum_calibration_error(
    log_probs: Tensor, target: Tensor, num_bins: int = 15, ignore_index: int | None = None, average: Average = "pool"
) -> Tensor:
    """The largest gap between confidence and accuracy among the bins that hold voxels.

    Bins, arguments and result as in :func:`average_calibration_error`.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> maximum_calibration_error(log_probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """
    figure = ImageStatistics.maximum_calibration_error
    return _figure(figure, log_probs, target, ignore_index, average, num_bins, num_bins=num_bins)


def classwise_calibration_error(
    log_probs: Tensor, target: Tensor, num_bins: int = 50, ignore_index: int | None = None, average: Average = "image"
) -> Tensor:
    r"""Expected calibration error of each class's probability, averaged over all classes.

    .. math:: \frac1C \sum_c \sum_k \frac{n_{ck}}{N}
        \Bigl\lvert \frac{\#\{y = c\}_{ck}}{n_{ck}} - \bar q_{ck} \Bigr\rvert

    with bins ``k`` of ``q_c`` over all voxels (Kull et al. 2019). Arguments and result as in
    :func:`negative_log_likelihood`.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> classwise_calibration_error(log_probs, torch.tensor([0, 0, 1, 1]))
        tensor(0.2500, dtype=torch.float64)
    """
    figure = ImageStatistics.classwise_calibration_error
    return _figure(figure, log_probs, target, ignore_index, average, num_bins, num_bins=num_bins, classwise=True)


def boundary_aware_calibration_error(
    log_probs: Tensor,
    target: Tensor,
    ignore_index: int | None = None,
    bands: Sequence[float] = BANDS,
    distance: Tensor | None = None,
) -> Tensor:
    """Gaps between uncertainty and error in bands of distance to the target's boundary, mean over images.

    The formula stands at :meth:`~lightning_calib.functional.boundary.BandTable.error`: bands near the boundary
    weigh more, empty bands do not count (Zeevi et al. 2025, weighted by inverse mean distance). Arguments as in
    :func:`~lightning_calib.functional.image_statistics`, result as in :func:`negative_log_likelihood`; ignored
    voxels make no boundary, and the distance is computed where it is not given.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([0.75, 0.25]).log().view(1, 2, 1).expand(1, 2, 4)
        >>> boundary_aware_calibration_error(log_probs, torch.tensor([[0, 0, 1, 1]]))
        tensor(0.2500, dtype=torch.float64)
    """
    distance = boundary_distance(target, ignore_index) if distance is None else distance
    figure = ImageStatistics.boundary_aware_calibration_error
    return _figure(figure, log_probs, target, ignore_index, "image", distance=distance, bands=bands)


def space_error(log_probs: Tensor, target: Tensor, sigma: float = SIGMA, ignore_index: int | None = None) -> Tensor:
    r"""Local disagreement of uncertainty and error, mean over images (Zeevi et al. 2025).

    .. math:: \frac1N \sum_v \bigl\lvert (G_\sigma * U)(v) - (G_\sigma * E)(v) \bigr\rvert

    with ``U = 1 - max_c q_c``, ``E`` the error of the prediction and ``G`` a Gaussian of ``sigma`` voxels. The
    Gaussian is normalised over the voxels that count: neither the image's border nor ignored voxels leak in.

    Args:
        log_probs: ``(B, C, *S)`` with at least one spatial axis.
        target: ``(B, *S)``.
        sigma: width of the Gaussian in voxels; it is cut off at four times that.
        ignore_index: label of voxels that count nowhere.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([0.75, 0.25]).log().view(1, 2, 1).expand(1, 2, 4)
        >>> round(space_error(log_probs, torch.zeros(1, 4, dtype=torch.int64)).item(), 4)
        0.25
    """
    check_sigma(sigma, log_probs)
    return _figure(ImageStatistics.space_error, log_probs, target, ignore_index, "image", sigma=sigma)


def flip_rate(log_probs: Tensor, target: Tensor, reference: Tensor, ignore_index: int | None = None) -> Tensor:
    """Share of voxels whose predicted class differs from the reference's, mean over images.

    Arguments as in :func:`flip_table`.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> flip_rate(log_probs, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]))
        tensor(0.7500, dtype=torch.float64)
    """
    return mean_over_images(flip_table(log_probs, target, reference, ignore_index).rate())


def reliability_table(
    log_probs: Tensor, target: Tensor, num_bins: int = 15, ignore_index: int | None = None
) -> BinTable:
    """Voxels, correct voxels and summed confidence of each bin ``(num_bins,)``, all images together.

    Example:
        >>> import torch
        >>> log_probs = torch.tensor([[0.75, 0.25]] * 4).log()
        >>> reliability_table(log_probs, torch.tensor([0, 0, 1, 1]), num_bins=2).accuracy()
        tensor([   nan, 0.5000], dtype=torch.float64)
    """
    size = table_size(num_bins)
    pooled = image_statistics(log_probs, target, ignore_index=ignore_index, num_bins=size).pooled()
    return BinTable(*(column[0] for column in pooled.bins.coarsen(num_bins)))
