"""Any modules as one ensemble: the batch is taken apart, each module scores it, the scores are put into one shape."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_calib.functional.regions import two_classes
from lightning_calib.segmenters.inference import Inference
from lightning_calib.tasks.base import Task

_IMAGES, _TARGETS, _IDS = ("image", "images"), ("target", "mask", "label"), ("case_id", "id", "name")
_SCORES = ("logits", "out")  # what mappings call them: ours and most, torchvision


@dataclass(frozen=True)
class Labelled:
    """Images ``(B, channels, *S)`` with their labels ``(B, *S)`` and, where they have any, their case ids."""

    images: Tensor
    target: Tensor
    case_ids: tuple[str, ...] | None = None


Unpack = Callable[[Any], Labelled]


def unpack(batch: Any) -> Labelled:  # noqa: ANN401
    """Take a usual batch apart: ``(images, target)``, ``(images, target, ids)``, or a mapping.

    A mapping holds ``image``, one of ``target``, ``mask`` and ``label``, and perhaps ``case_id``, ``id`` or ``name``.

    Example:
        >>> unpack({"image": torch.zeros(1, 3, 4, 4), "mask": torch.zeros(1, 1, 4, 4), "id": ["a"]}).case_ids
        ('a',)
    """
    ids: Iterable[Any] | None
    if isinstance(batch, Mapping):
        images, target, ids = (_first(batch, names) for names in (_IMAGES, _TARGETS, _IDS))
    elif isinstance(batch, Sequence) and len(batch) in (2, 3):
        images, target, ids = (*batch, None)[:3]
    else:
        images = target = ids = None
    if not isinstance(images, Tensor) or not isinstance(target, Tensor):
        held = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
        raise ValueError(
            f"no images and labels found in a batch that holds {held}: give (images, target), a mapping with 'image' "
            "and 'target', or say how with unpack="
        )
    return Labelled(images, target, None if ids is None else tuple(_name(each) for each in ids))


def score_tensor(found: Any) -> Tensor:  # noqa: ANN401
    """The tensor of what a module returned: itself, or ``logits`` or ``out`` of a mapping or an object."""
    for name in _SCORES:
        if isinstance(found, Mapping) and name in found:
            return score_tensor(found[name])
        if not isinstance(found, Tensor) and isinstance(getattr(found, name, None), Tensor):
            return score_tensor(getattr(found, name))
    if not isinstance(found, Tensor):
        raise ValueError(
            f"the module returned {type(found).__name__} where a tensor of scores is expected: say with scores= how "
            "they are taken from the module, such as scores=lambda module, images: module(images)[0]"
        )
    return found


def class_scores(found: Tensor, target: Tensor, spatial_dims: int) -> Tensor:
    """Member scores ``(B, M, C, *S)``.

    Args:
        found: ``(B, C, *S)`` or ``(B, M, C, *S)``; one channel is the logit of the second of two classes.
        target: labels ``(B, *S)``.
        spatial_dims: number of spatial axes.
    """
    members = found if found.ndim == spatial_dims + 3 else found[:, None]
    if members.ndim != spatial_dims + 3 or members.shape[3:] != target.shape[1:]:
        raise ValueError(
            f"scores of shape {tuple(found.shape)} do not fit labels of shape {tuple(target.shape)}: expected are "
            "(batch, classes, *size) or (batch, members, classes, *size) on the grid of the labels; bring them there "
            "with scores="
        )
    return two_classes(members[:, :, 0], dim=2) if members.shape[2] == 1 else members


def labels(target: Tensor, spatial_dims: int) -> Tensor:
    """Labels ``(B, *S)``, also where they come with an axis of one channel."""
    if target.ndim == spatial_dims + 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.is_floating_point() and not torch.equal(target, target.round()):
        raise ValueError("labels are not whole numbers: give class numbers (batch, *size), not soft labels")
    return target.long()


def weights_sha256(module: nn.Module) -> str:
    """Hash of names and values of all weights."""
    found = hashlib.sha256()
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor):
            found.update(name.encode())
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class ModuleEnsemble(Task):
    """Score each batch by every module, be it a LightningModule or a plain one.

    Args:
        modules: the trained members, in the order of the member axis.
        unpack: takes a batch apart.
        scores: gives what a module says about images; by default ``module(images)``, by way of ``inference``.
        inference: windows and mirrored views; images in one piece by default.
        spatial_dims: 2 or 3.

    Attributes:
        done: ids of cases that need no scores any more.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        unpack: Unpack = unpack,
        scores: Callable[[nn.Module, Tensor], Any] | None = None,
        inference: Inference | None = None,
        spatial_dims: int = 2,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.unpack, self.scores, self.spatial_dims = unpack, scores, spatial_dims
        self.inference = inference or Inference()
        self.done: Set[str] = frozenset()

    def hashes(self) -> list[str]:
        """Hash of each member's weights."""
        return [weights_sha256(member) for member in self.members]

    def member_scores(self, member: nn.Module, images: Tensor) -> Tensor:
        """Scores ``(B, C, *S)`` of one member."""
        told = self.scores or (lambda module, inputs: module(inputs))
        return self.inference(lambda inputs: score_tensor(told(member, inputs)), images)

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Tensor | str:  # noqa: ANN401
        """Scores ``(B, M, C, *S)`` on the CPU; a word where all cases are done already."""
        found = self.unpack(batch)
        if found.case_ids is not None and self.done >= set(found.case_ids):
            return "done"
        target = labels(found.target, self.spatial_dims)
        each = (self.member_scores(member, found.images).cpu() for member in self.members)
        return torch.cat([class_scores(one, target, self.spatial_dims) for one in each], dim=1)


def _first(batch: Mapping[str, Any], names: Sequence[str]) -> Any:  # noqa: ANN401
    return next((batch[name] for name in names if name in batch), None)


def _name(value: Any) -> str:  # noqa: ANN401
    return str(value.item() if isinstance(value, Tensor) else value)
