"""What the map figures show of a case: one plane of labels, predictions, confidences and free energies."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_calib.calibrators.base import Calibrator, seen_by
from lightning_calib.functional.boundary import boundary
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.flips import flip_kinds
from lightning_calib.outputs.previews import IGNORED, busiest_plane, foreground
from lightning_calib.outputs.store import StoredCase
from lightning_calib.outputs.stored_cases import StoredCases

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Pixels = NDArray[np.uint8]

MAX_SIDE = 256  # pixels of a map's longer side; larger planes are thinned out
CLOSE_UP = 96  # pixels of a close-up's side
UNCHANGED, HARMFUL, BENEFICIAL, NEUTRAL = range(4)  # nothing, then the kinds of flips in their order


@dataclass(frozen=True)
class CasePlane:
    """One plane of a case before and after calibration; arrays ``(H, W)``, labels ``IGNORED`` where nothing counts.

    Attributes:
        case_id: name of the case.
        plane: index along the first axis of a volume; None for images.
        target: true labels.
        before: labels predicted by the pooled ensemble.
        after: labels predicted by the pipeline.
        confidence_before: probability of the predicted label before calibration.
        confidence_after: the same after calibration.
        flips: ``UNCHANGED``, ``HARMFUL``, ``BENEFICIAL`` or ``NEUTRAL``, the worst of each pixel's voxels.
        temperature: temperature of each voxel, where the calibrator predicts one.
        image: pixels ``(H', W', 3)`` of the same place, where the store has a picture of it; perhaps of another size.
    """

    case_id: str
    plane: int | None
    target: Labels
    before: Labels
    after: Labels
    confidence_before: Floats
    confidence_after: Floats
    flips: Labels
    temperature: Floats | None = None
    image: Pixels | None = None

    @property
    def title(self) -> str:
        """The case, with the plane of a volume."""
        return self.case_id if self.plane is None else f"{self.case_id}, slice {self.plane}"

    @property
    def has_border(self) -> bool:
        """Whether two true labels meet here."""
        return len(np.unique(self.target[self.target != IGNORED])) > 1

    @property
    def errors(self) -> Labels:
        """1 where the ensemble is wrong."""
        wrong: Labels = np.where(self.target == IGNORED, IGNORED, (self.before != self.target).astype(np.int64))
        return wrong


def busiest_window(border: Tensor, side: int) -> tuple[slice, slice]:
    """The window of ``side x side`` pixels, or less where the plane is smaller, with most of a border ``(H, W)``.

    Example:
        >>> busiest_window(torch.tensor([[1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.bool), 2)
        (slice(1, 3, None), slice(2, 4, None))
    """
    height, width = (min(side, length) for length in border.shape)
    share = torch.nn.functional.avg_pool2d(border.double()[None], (height, width), stride=1)[0]
    top, left = divmod(int(share.argmax()), share.shape[1])
    return slice(top, top + height), slice(left, left + width)


@torch.no_grad()
def case_plane(cases: StoredCases, case_id: str, calibrator: Calibrator, close_up: int | None = None) -> CasePlane:
    """Maps of one stored case under a pipeline; of a volume, the plane with most foreground.

    Args:
        cases: cases with the pooling of the pipeline.
        case_id: which of them.
        calibrator: the fitted calibrator.
        close_up: show only the window of so many pixels a side that holds most of the true borders.
    """
    logits, labels = cases.read(case_id)
    plane, target = _plane_and_target(cases, labels)
    pooled = logits[None]
    whole = calibrator.looks_at != "voxel"
    seen = pooled if whole or plane is None else pooled[:, :, plane : plane + 1]
    at = plane if whole else 0
    features = seen_by(calibrator, cases.feature_batch(case_id, calibrator.feature_names))
    log_probs, raw = _cut(calibrator(seen, *features), plane, at), _cut(seen, plane, at)
    temperatures = calibrator.temperature_map(seen, *features)
    temperature = None if temperatures is None else _cut(temperatures, plane, at)[0]
    image = _picture(cases.store[case_id], plane)
    if close_up is not None:
        rows, columns = busiest_window(boundary(target, IGNORED), close_up)
        image = None if image is None else _window(image, target.shape, rows, columns)
        target, raw, log_probs = (values[..., rows, columns] for values in (target, raw, log_probs))
        temperature = None if temperature is None else temperature[rows, columns]
    before, after = winning_class(raw[None])[0], winning_class(log_probs[None])[0]
    ignored = target == IGNORED
    return CasePlane(
        case_id=case_id,
        plane=plane,
        target=_thin(target),
        before=_thin(before.masked_fill(ignored, IGNORED)),
        after=_thin(after.masked_fill(ignored, IGNORED)),
        confidence_before=_mean(raw.log_softmax(dim=0).amax(dim=0).exp(), ignored),
        confidence_after=_mean(log_probs.amax(dim=0).exp(), ignored),
        flips=_worst(_kinds(target, before, after).masked_fill(ignored, UNCHANGED)),
        temperature=None if temperature is None else _mean(temperature, ignored),
        image=None if image is None else image[_every(*image.shape[:2])],
    )


def _picture(case: StoredCase, plane: int | None) -> Pixels | None:
    """The picture of an image, or of the plane of a volume; None where there is none of it."""
    found = case.preview
    return None if found is None or found.plane != plane else found.pixels


def _window(image: Pixels, shape: torch.Size, rows: slice, columns: slice) -> Pixels:
    """The part of a picture that a window of the map ``(H, W)`` shows; the picture may have been thinned out."""
    places = (
        slice(int(cut.start * size / length), max(int(cut.stop * size / length), int(cut.start * size / length) + 1))
        for cut, size, length in zip((rows, columns), image.shape[:2], shape, strict=True)
    )
    return image[tuple(places)]


def _every(height: int, width: int) -> tuple[slice, slice]:
    """Every n-th pixel, so that there are at most ``MAX_SIDE`` a side."""
    step = _step(height, width)
    return slice(step // 2, None, step), slice(step // 2, None, step)


@torch.no_grad()
def free_energy(cases: StoredCases, case_id: str) -> tuple[Floats, float]:
    r"""Map of the pooled logits' free energy, and its standard deviation over the counted voxels of the case.

    .. math:: F(v) = \log \sum_c \exp z_c(v)

    Softmax does not see it: where it varies, a calibrator that is not translation invariant may be misled.
    """
    logits, labels = cases.read(case_id)
    energy = logits.logsumexp(dim=0)
    plane, target = _plane_and_target(cases, labels)
    shown = energy if plane is None else energy[plane]
    spread = energy[labels != cases.ignore_index].double().std(correction=0)
    return _mean(shown, target == IGNORED), float(spread)


def _plane_and_target(cases: StoredCases, labels: Tensor) -> tuple[int | None, Tensor]:
    """The plane to show, and its labels with everything that does not count as ``IGNORED``."""
    labels = labels.masked_fill(labels == cases.ignore_index, IGNORED)
    if labels.ndim == 2:
        return None, labels
    plane = busiest_plane(foreground(labels, cases.store.manifest.background))
    return plane, labels[plane]


def _cut(volume: Tensor, plane: int | None, at: int | None) -> Tensor:
    """``(1, K, *S)`` as a plane ``(K, H, W)``."""
    return volume[0] if plane is None else volume[0, :, at]


def _kinds(target: Tensor, before: Tensor, after: Tensor) -> Tensor:
    masks = flip_kinds(after, before, target)
    return torch.stack([mask * (1 + n) for n, mask in enumerate(masks)]).sum(dim=0)


def _step(height: int, width: int) -> int:
    return math.ceil(max(height, width) / MAX_SIDE)


def _thin(labels: Tensor) -> Labels:
    """Every n-th voxel, so that the map has at most ``MAX_SIDE`` pixels a side."""
    thinned: Labels = labels[_every(*labels.shape)].numpy().astype(np.int64)
    return thinned


def _blocks(values: Tensor, fill: float) -> Tensor:
    """Blocks ``(h, w, n)`` of voxels that share a pixel, filled up at the far edges."""
    step = _step(*values.shape)
    height, width = (math.ceil((side - step // 2) / step) for side in values.shape)
    padded = torch.nn.functional.pad(values, (0, step, 0, step), value=fill)[: height * step, : width * step]
    return padded.reshape(height, step, width, step).movedim(2, 1).flatten(2)


def _mean(values: Tensor, ignored: Tensor) -> Floats:
    """Mean of the counted voxels of each pixel; NaN where there is none."""
    mean: Floats = _blocks(values.double().masked_fill(ignored, torch.nan), torch.nan).nanmean(dim=2).numpy()
    return mean


def _worst(kinds: Tensor) -> Labels:
    """The kind of flip to show of each pixel: harmful before neutral before beneficial before none."""
    severity = torch.tensor([0, 3, 1, 2])[kinds]
    worst: Labels = torch.tensor([UNCHANGED, BENEFICIAL, NEUTRAL, HARMFUL])[_blocks(severity, 0).amax(dim=2)].numpy()
    return worst
