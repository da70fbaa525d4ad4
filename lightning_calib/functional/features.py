r"""Features of voxels and cases that a temperature can depend on: doubt, disagreement, nearness of a border.

With ``q`` the pooled probabilities, ``p_m`` those of member ``m``, ``w`` the class that wins in the pooled map, ``H``
the entropy over log C, and the mean over a box of ``r`` voxels a side (as far as it lies in the image):

=====================  ==================================================================================
``entropy``            :math:`\sqrt{H(q)}`
``entropy_r``          :math:`\sqrt{\text{mean of } H(q) \text{ over the box}}`, r = 3, 7, 15
``gap``                :math:`g / (4 + g)`, :math:`g = z_w - z_r`, r the class that comes second
``winner_r``           mean over the box of the probability of the class ``w`` of the voxel in its middle, r = 3, 7, 15
``rival_r``            the same of the class that comes second there
``boundary``           share of the radii 0, 1, 2, 4, 8, 16 that reach the predicted boundary from the voxel
``disagreement``       :math:`s / (1 + s)`, s the standard deviation over members of :math:`z_w - \max_{k \ne w} z_k`
``votes``              share of the members that do not vote for ``w``
``mutual_information`` :math:`\sqrt{I + a} - \sqrt a, \; I = H(\frac1M \sum_m p_m) - \frac1M \sum_m H(p_m), \; a = .001`
``case_entropy``       :math:`\sqrt{\text{mean of } H(q) \text{ over the case}}`
``case_classes``       ``H`` of the shares of the predicted classes
``case_size``          logarithm to base 2 of the number of voxels, over 32
``case_disagreement``  mean of ``disagreement`` over the case
=====================  ==================================================================================

All lie in [0, 1] and see differences of logits only: an exact shift of a voxel's logits changes no bit. Square roots
spread out what is small almost everywhere. Distances are chessboard distances in voxels. Every operation is one that
exported graphs and GPUs have.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as nn_functional

from lightning_calib.functional.experts import winning_class

VERSION = 2  # of the formulas: maps that were kept under another one are made anew

BOXES = (3, 7, 15)
RADII = (0, 1, 2, 4, 8, 16)

# Keeps the root of a small difference from making rounding of 1e-7 one of 3e-4.
FLAT = 1e-3


@dataclass(frozen=True)
class Scores:
    """What features are made of.

    Args:
        pooled: logits ``(B, C, *S)``, with spatial axes.
        members: logits ``(B, M, C, *S)``; None where they are not known.
    """

    pooled: Tensor
    members: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """``C``."""
        return self.pooled.shape[1]

    @cached_property
    def winner(self) -> Tensor:
        """Predicted class ``(B, *S)``."""
        return winning_class(self.pooled)

    @cached_property
    def rival(self) -> Tensor:
        """Class that comes second in the pooled map ``(B, *S)``."""
        return winning_class(self.pooled.scatter(1, self.winner.unsqueeze(1), -torch.inf))

    @cached_property
    def boxes(self) -> dict[int, Tensor]:
        """Mean probabilities of all classes ``(B, C, *S)`` by the size of the box."""
        probs = self.pooled.log_softmax(dim=1).exp()
        flat = probs.flatten(0, 1)
        return {size: box_mean(flat, size).view(probs.shape) for size in BOXES}

    @cached_property
    def entropy(self) -> Tensor:
        """``H(q)`` of the pooled map ``(B, *S)``."""
        return entropy(self.pooled.log_softmax(dim=1).exp())

    @cached_property
    def disagreement(self) -> Tensor:
        """``s / (1 + s)`` with the members' deviation ``s`` of the winner's lead over the next class ``(B, *S)``."""
        winner, leads = self.winner.unsqueeze(1), []
        for logits in self.each_member():
            others = logits.scatter(1, winner, -torch.inf).amax(dim=1)
            leads.append(logits.gather(1, winner).squeeze(1) - others)
        deviation = torch.stack(leads).std(dim=0, correction=0)
        return deviation / (1 + deviation)

    def each_member(self) -> list[Tensor]:
        """Logits ``(B, C, *S)`` of each member; one at a time is worked on, so that memory stays that of a few maps."""
        assert self.members is not None  # make_features has made sure
        return [member.to(self.pooled.dtype) for member in self.members.unbind(1)]


def entropy(probs: Tensor) -> Tensor:
    """Entropy over ``log C`` of probabilities ``(B, C, ...)``, in [0, 1].

    Example:
        >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([1., 0.])
    """
    smallest = torch.finfo(probs.dtype).tiny  # 0 log 0 = 0
    terms = probs * probs.clamp(min=smallest).log()
    return ((0 - terms.sum(dim=1)) / math.log(probs.shape[1])).clamp(0, 1)


def box_mean(values: Tensor, size: int) -> Tensor:
    """Mean over a box of ``size`` voxels a side, as far as it lies in the image: ``(B, *S)`` to ``(B, *S)``.

    Example:
        >>> box_mean(torch.tensor([[[0.0, 3.0, 6.0, 0.0]]]), 3)
        tensor([[[1.5000, 3.0000, 3.0000, 3.0000]]])
    """
    for axis in range(1, values.ndim):  # the part of a box that lies in the image is a box: axis by axis
        rows = _rows(values, axis)
        means = nn_functional.avg_pool2d(rows, (size, 1), 1, (size // 2, 0), count_include_pad=False)
        values = means.reshape(values.shape)
    return values


def dilated(mask: Tensor, radius: int) -> Tensor:
    """Largest value within a chessboard distance: ``(B, *S)`` to ``(B, *S)``.

    Example:
        >>> dilated(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]), 2)
        tensor([[[1., 1., 1., 0.]]])
    """
    for axis in range(1, mask.ndim):
        largest = nn_functional.max_pool2d(_rows(mask, axis), (2 * radius + 1, 1), 1, (radius, 0))
        mask = largest.reshape(mask.shape)
    return mask


def _rows(values: Tensor, axis: int) -> Tensor:
    """``(B, *S)`` as ``(B, before, size, after)``: one axis, those before it and those behind it."""
    before, after = (math.prod(sizes) for sizes in (values.shape[1:axis], values.shape[axis + 1 :]))
    return values.reshape(values.shape[0], before, values.shape[axis], after)


def predicted_boundary(winner: Tensor) -> Tensor:
    """1 where a face neighbour has another label, on both sides, else 0: ``(B, *S)`` to float32 ``(B, *S)``.

    Example:
        >>> predicted_boundary(torch.tensor([[[0, 0, 1, 1]]]))
        tensor([[[0., 1., 1., 0.]]])
    """
    labels = winner.float()
    edge = torch.zeros_like(labels, dtype=torch.bool)
    for axis in range(1, winner.ndim):
        rows = _rows(labels, axis)
        for sign in (1, -1):  # the largest and the smallest label of the three
            largest = nn_functional.max_pool2d(sign * rows, (3, 1), 1, (1, 0))
            edge = edge | (largest != sign * rows).reshape(labels.shape)
    return edge.float()


def _boundary(scores: Scores) -> Tensor:
    reached = predicted_boundary(scores.winner)
    total = reached
    for smaller, radius in pairwise(RADII):
        reached = dilated(reached, radius - smaller)
        total = total + reached
    return total / len(RADII)


def _votes(scores: Scores) -> Tensor:
    against = [(winning_class(logits) != scores.winner).to(scores.pooled.dtype) for logits in scores.each_member()]
    return torch.stack(against).mean(dim=0)


def _mutual_information(scores: Scores) -> Tensor:
    mean, own = torch.zeros_like(scores.pooled), torch.zeros_like(scores.entropy)
    members = scores.each_member()
    for logits in members:
        probs = logits.log_softmax(dim=1).exp()
        mean, own = mean + probs / len(members), own + entropy(probs) / len(members)
    information = (entropy(mean) - own).clamp(min=0)
    return information / ((information + FLAT).sqrt() + math.sqrt(FLAT))  # the difference of the roots; 0 stays 0


def _case_mean(values: Tensor) -> Tensor:
    """Mean over each case ``(B, *S)``, the same at all of its voxels."""
    return values.flatten(1).mean(dim=1).view(-1, *(1 for _ in values.shape[1:])).expand(values.shape)


def _case_classes(scores: Scores) -> Tensor:
    shares = [_case_mean((scores.winner == label).to(scores.pooled.dtype)) for label in range(scores.num_classes)]
    return entropy(torch.stack(shares, dim=1))


def _case_size(scores: Scores) -> Tensor:
    voxels = torch.ones_like(scores.entropy).flatten(1).sum(dim=1).log2() / 32
    return voxels.view(-1, *(1 for _ in scores.entropy.shape[1:])).expand(scores.entropy.shape)


def _box_entropy(scores: Scores, size: int) -> Tensor:
    return box_mean(scores.entropy, size).clamp(0, 1).sqrt()


def _box_prob(scores: Scores, size: int, rival: bool) -> Tensor:
    label = scores.rival if rival else scores.winner
    return scores.boxes[size].gather(1, label.unsqueeze(1)).squeeze(1).clamp(0, 1)


def _gap(scores: Scores) -> Tensor:
    winner, rival = (scores.pooled.gather(1, label.unsqueeze(1)) for label in (scores.winner, scores.rival))
    gap = (winner - rival).squeeze(1)
    return gap / (4 + gap)


Formula = Callable[[Scores], Tensor]
OF_POOLED: dict[str, Formula] = {
    "entropy": lambda scores: scores.entropy.sqrt(),
    **{f"entropy_{size}": partial(_box_entropy, size=size) for size in BOXES},
    "boundary": _boundary,
}
OF_CLASSES: dict[str, Formula] = {
    "gap": _gap,
    **{f"winner_{size}": partial(_box_prob, size=size, rival=False) for size in BOXES},
    **{f"rival_{size}": partial(_box_prob, size=size, rival=True) for size in BOXES},
}
OF_MEMBERS: dict[str, Formula] = {
    "disagreement": lambda scores: scores.disagreement,
    "votes": _votes,
    "mutual_information": _mutual_information,
}
OF_CASE: dict[str, Formula] = {
    "case_entropy": lambda scores: _case_mean(scores.entropy).sqrt(),
    "case_classes": _case_classes,
    "case_size": _case_size,
    "case_disagreement": lambda scores: _case_mean(scores.disagreement),
}
FEATURES = OF_POOLED | OF_CLASSES | OF_MEMBERS | OF_CASE
NEED_MEMBERS = frozenset([*OF_MEMBERS, "case_disagreement"])


def check_features(names: Sequence[str]) -> tuple[str, ...]:
    """Names of features, refused where one is unknown or comes twice."""
    if unknown := [name for name in names if name not in FEATURES]:
        raise ValueError(f"unknown features {', '.join(unknown)}; there are {', '.join(FEATURES)}")
    if len(set(names)) < len(names):
        raise ValueError(f"a feature is named twice: {', '.join(names)}")
    return tuple(names)


def pick(features: Tensor | None, have: Sequence[str], want: Sequence[str]) -> Tensor | None:
    """The features ``want`` out of maps ``(B, F, ...)`` of the features ``have``; None where none are wanted.

    Example:
        >>> pick(torch.tensor([[1.0, 2.0]]), ["votes", "entropy"], ["entropy"])
        tensor([[2.]])
    """
    if features is None or not want:
        return None
    if lacking := [name for name in want if name not in have]:
        raise ValueError(f"the features {', '.join(lacking)} are not there; there are {', '.join(have)}")
    return features if tuple(have) == tuple(want) else features[:, [list(have).index(name) for name in want]]


def make_features(names: Sequence[str], pooled: Tensor, members: Tensor | None = None) -> Tensor:
    """Maps of features, as the module's table defines them.

    Args:
        names: keys of ``FEATURES``.
        pooled: pooled logits ``(B, C, *S)`` of whole images, not of a list of voxels.
        members: members' logits ``(B, M, C, *S)``; only some features need them.

    Returns:
        ``(B, F, *S)`` in float32, or wider where the pooled logits are wider.

    Example:
        >>> members = torch.tensor([[0.0, 9.0], [9.0, 0.0]]).view(1, 2, 2, 1, 1)
        >>> make_features(["votes", "entropy"], members.mean(1), members).flatten()
        tensor([0.5000, 1.0000])
    """
    lacking = [name for name in check_features(names) if members is None and name in NEED_MEMBERS]
    if lacking:
        raise ValueError(f"{', '.join(lacking)} cannot be made of pooled logits: give the members' (B, M, C, *S)")
    if pooled.ndim < 3:
        raise ValueError(f"features need images (B, C, *S), got the shape {tuple(pooled.shape)}")
    wide = pooled.to(torch.promote_types(pooled.dtype, torch.float32))
    scores = Scores(wide, members)
    return torch.stack([FEATURES[name](scores) for name in names], dim=1)
