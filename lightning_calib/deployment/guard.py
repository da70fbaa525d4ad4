"""The guard: on cases unlike those that a calibrator was fitted on, its result is mixed with the uncalibrated one."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.folder import REFERENCE
from lightning_calib.deployment.monitor import (
    LEAST_REFERENCE,
    CaseValues,
    Floats,
    Quantity,
    energy_edges,
    quantities,
    stability_index,
)
from lightning_calib.deployment.statistics import (
    CaseStatistics,
    case_statistics,
    load_statistics,
    scores_statistics,
    stored_statistics,
)
from lightning_calib.outputs.store import StoredCase
from lightning_calib.outputs.stored_cases import StoredCases

# Least width of a range, in units of confidence, nats, members or stability: below that, differences are rounding.
LEAST_WIDTH = 1e-3


class Guarded(NamedTuple):
    """Calibrated output of a batch under a guard.

    Attributes:
        log_probs: ``(B, C, *S)``, normalised.
        mask: predicted class ``(B, *S)``; the calibrator's promise about it holds for the mixture, too.
        confidence: largest probability ``(B, *S)``.
        weight: of the uncalibrated probabilities in the mixture, ``(B,)``.
    """

    log_probs: Tensor
    mask: Tensor
    confidence: Tensor
    weight: Tensor


class Guard:
    r"""How far cases lie beyond those that a calibrator was fitted on, and what follows for their calibration.

    Each quantity that :func:`~lightning_calib.deployment.monitor.monitor` compares is one number a case: mean
    confidence, mean free energy and mean number of dissenting members as they are, and the stability index of the
    shares of confidences, free energies, classes and votes against their mean over the reference (for a case of the
    reference itself also over those of other groups; the larger one counts). With the range :math:`[l, h]` of the
    reference, the excess is

    .. math:: e = \max_j \frac{\max(l_j - x_j, \; x_j - h_j, \; 0)}{h_j - l_j}, \qquad
              q = (1 - g) \, q_{calibrated} + g \, q_{identity}, \quad g = \min(e, 1)

    so that within the range nothing changes, and one width of the range beyond it nothing is calibrated any more. A
    mixture with the uncalibrated probabilities keeps what the calibrator keeps of the order or the argmax.

    Args:
        reference: statistics of the cases that the calibrator was fitted on, at least 5.
    """

    def __init__(self, reference: Sequence[CaseStatistics]) -> None:
        if len(reference) < LEAST_REFERENCE:
            raise ValueError(f"the reference has {len(reference)} cases; a guard needs at least {LEAST_REFERENCE}")
        self.edges = energy_edges(reference)
        self.votes = all(case.votes is not None for case in reference)
        groups = np.array([case.group for case in reference])
        same = groups[:, None] == groups if len(set(groups)) > 1 else np.eye(len(groups), dtype=bool)
        others = ~same / (~same).sum(axis=1, keepdims=True)  # (N, N): whom each case is compared with
        self.known = {(each.name, each.kind): each for each in quantities(reference, self.edges, self.votes)}
        self.ranges = {key: _range(each, others) for key, each in self.known.items()}

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The guard of a folder that ``calibrate.py deploy`` wrote."""
        return cls(load_statistics(Path(folder) / REFERENCE))

    def excess(self, case: CaseStatistics) -> dict[tuple[str, str], float]:
        """How far each quantity lies beyond its range, in widths of the range; by its name and kind."""
        votes = self.votes and case.votes is not None
        found = {}
        for each in quantities([case], self.edges, votes):
            key = (each.name, each.kind)
            (value,) = _positions(each, self.known[key].values.mean(axis=0))
            low, high = self.ranges[key]
            found[key] = float(max(low - value, value - high, 0.0) / max(high - low, LEAST_WIDTH))
        return found

    def weight(self, case: CaseStatistics) -> float:
        """Weight ``g`` of the uncalibrated probabilities: 0 within the reference, 1 far from it."""
        return min(1.0, max(self.excess(case).values()))

    def stored(self, ensemble: CalibratedEnsemble, cases: StoredCases, case_id: str) -> Guarded:
        """Output of a stored case as a batch of one."""
        weight = self.weight(case_statistics(cases, case_id, ensemble))
        pooled = cases.pooled(case_id, ensemble.pipeline.pooling)[None]
        features = cases.feature_batch(case_id, ensemble.pipeline.calibrator.feature_names)
        return Guarded(*ensemble.calibrate_pooled(pooled, weight, features), torch.tensor([weight]))

    def calibrate(
        self, ensemble: CalibratedEnsemble, member_logits: Tensor, valid: Sequence[Tensor | None] | None = None
    ) -> Guarded:
        """Output of member scores ``(B, M, C, *S)``, each image by its own statistics.

        Args:
            ensemble: the deployed ensemble.
            member_logits: scores.
            valid: where the networks saw an image, for each; everywhere by default.
        """
        found = []
        for scores, inside in zip(member_logits, valid or [None] * len(member_logits), strict=True):
            weight = self.weight(scores_statistics("new", "new", scores.cpu(), ensemble, inside))
            found.append(Guarded(*ensemble.calibrate(scores[None], weight), torch.tensor([weight])))
        return Guarded(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def predict(self, ensemble: CalibratedEnsemble, images: Tensor) -> Guarded:
        """Output of normalised images ``(B, channels, *S)``, each by its own statistics."""
        return self.calibrate(ensemble, ensemble.member_logits(images))


class RegionGuard:
    """The guard of a model of regions: the farthest of its regions decides for all, so that they stay nested.

    Args:
        folder: folder that ``calibrate.py deploy`` wrote for a store of regions.
        slugs: folders of the regions in it.
    """

    def __init__(self, folder: Path, slugs: Sequence[str]) -> None:
        places = [folder / slug for slug in slugs]
        self.guards = [Guard.load(place) for place in places]
        self.ensembles = [CalibratedEnsemble.load(place, networks=False) for place in places]

    def weight(self, cases: Sequence[StoredCase]) -> float:
        """Weight of the uncalibrated probabilities of a case, given as one of two classes a region."""
        parts = zip(self.guards, self.ensembles, cases, strict=True)
        return max(guard.weight(stored_statistics(case, ensemble)) for guard, ensemble, case in parts)


def guard_weight(case: CaseStatistics, reference: Sequence[CaseStatistics]) -> float:
    """Weight of the uncalibrated probabilities of a case, in [0, 1]; :class:`Guard` for many cases.

    Example:
        >>> def case(confidence):
        ...     return CaseStatistics("a", "a", confidence, (0.5, 0.5), (1.0,), (2.0, 3.0))
        >>> reference = [case(0.8 + 0.01 * number) for number in range(11)]
        >>> [round(guard_weight(case(confidence), reference), 2) for confidence in (0.85, 0.75, 0.5)]
        [0.0, 0.5, 1.0]
    """
    return Guard(reference).weight(case)


def _positions(quantity: Quantity, means: Floats) -> Floats:
    """One number a case ``(N,)``: its value, or the stability index of its shares against ``means (..., K)``."""
    return quantity.values if isinstance(quantity, CaseValues) else stability_index(means, quantity.values)


def _range(quantity: Quantity, others: Floats) -> tuple[float, float]:
    """Lowest and highest number of the reference's cases; a stability index may always be lower."""
    if isinstance(quantity, CaseValues):
        return float(quantity.values.min()), float(quantity.values.max())
    means = (others @ quantity.values, quantity.values.mean(axis=0))
    return 0.0, max(float(_positions(quantity, mean).max()) for mean in means)
