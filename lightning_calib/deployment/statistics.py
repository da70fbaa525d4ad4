"""What can be said about a case without its labels: confidences, free energy, classes, votes of the members."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_calib.deployment.ensemble import Calibrated, CalibratedEnsemble
from lightning_calib.functional.binning import bin_index
from lightning_calib.functional.energy import free_energy
from lightning_calib.functional.experts import winning_class
from lightning_calib.functional.pooling import pool
from lightning_calib.kit.checksums import refuse_changed
from lightning_calib.kit.files import write_text
from lightning_calib.kit.typed import WrongTypeError, read_typed, typed
from lightning_calib.outputs.store import StoredCase
from lightning_calib.outputs.stored_cases import StoredCases

FORMAT_VERSION = 1
CONFIDENCE_BINS = 20
ENERGY_POINTS = 32  # equally likely values that stand for the free energies of a case
Shares = tuple[float, ...]


@dataclass(frozen=True)
class CaseStatistics:
    """Label-free facts on one case, over the voxels that the networks predicted.

    Attributes:
        case_id: the case.
        group: patient, sequence or tile that it belongs to.
        mean_confidence: mean calibrated confidence.
        confidence: shares of voxels in 20 equal bins of calibrated confidence.
        classes: shares of the predicted classes.
        energy: 32 equally likely values of the free energy of the members' mean logits.
        votes: shares of voxels at which 0, 1, ... members disagree with the mask; None where members are not kept.
    """

    case_id: str
    group: str
    mean_confidence: float
    confidence: Shares
    classes: Shares
    energy: Shares
    votes: Shares | None = None

    @property
    def mean_energy(self) -> float:
        """Mean free energy."""
        return sum(self.energy) / len(self.energy)

    @property
    def dissent(self) -> float | None:
        """Mean number of members that disagree with the mask."""
        return None if self.votes is None else sum(number * share for number, share in enumerate(self.votes))


def shares(index: Tensor, size: int) -> Shares:
    """Share of each of ``size`` values among the indices.

    Example:
        >>> shares(torch.tensor([0, 2, 2, 2]), 3)
        (0.25, 0.0, 0.75)
    """
    counts = torch.bincount(index.flatten(), minlength=size).double()
    return tuple((counts / counts.sum()).tolist())


def case_statistics(cases: StoredCases, case_id: str, ensemble: CalibratedEnsemble) -> CaseStatistics:
    """Statistics of one stored case under a deployed pipeline."""
    case = cases.store[case_id]
    pooled, mean = cases.pooled(case_id, ensemble.pipeline.pooling), cases.pooled(case_id, "z")
    if case.valid is not None and not case.valid.any():
        raise ValueError(f"{case.path}: no voxel of the case was predicted")
    features = cases.feature_batch(case_id, ensemble.pipeline.calibrator.feature_names)
    result = ensemble.calibrate_pooled(pooled[None], features=features)
    return _describe(case.case_id, case.group, result, mean, case.logits, case.valid)


def stored_statistics(case: StoredCase, ensemble: CalibratedEnsemble) -> CaseStatistics:
    """Statistics of one stored case under a deployed pipeline that looks at no features; nothing is kept of it."""
    result = ensemble.calibrate_pooled(case.pooled(ensemble.pipeline.pooling)[None])
    return _describe(case.case_id, case.group, result, case.pooled("z"), case.logits, case.valid)


def scores_statistics(
    case_id: str, group: str, scores: Tensor, ensemble: CalibratedEnsemble, valid: Tensor | None = None
) -> CaseStatistics:
    """Statistics of member scores ``(M, C, *S)`` that are in memory, over the voxels that are ``valid (*S)``.

    Example:
        >>> from lightning_calib.calibrators import Pipeline
        >>> ensemble = CalibratedEnsemble(Pipeline.parse("ts(p)", num_classes=3))
        >>> scores_statistics("a", "a", torch.zeros(2, 3, 4, 4), ensemble).classes
        (1.0, 0.0, 0.0)
    """
    result, mean = ensemble.calibrate(scores[None]), pool(scores[None], "z")[0]
    return _describe(case_id, group, result, mean, scores, valid)


def _describe(
    case_id: str,
    group: str,
    result: Calibrated,
    mean: Tensor,
    members: Tensor | None,
    valid: Tensor | None,
) -> CaseStatistics:
    """Statistics from the calibrated case, mean logits ``(C, *S)`` and the members' ``(M, C, *S)``."""
    inside = torch.ones(mean.shape[1:], dtype=torch.bool) if valid is None else valid
    confidence, mask = result.confidence[0].cpu()[inside], result.mask[0].cpu()[inside]
    votes = None
    if members is not None:
        dissenting = (winning_class(members.float())[:, inside] != mask).sum(dim=0)
        votes = shares(dissenting, len(members) + 1)
    return CaseStatistics(
        case_id=case_id,
        group=group,
        mean_confidence=float(confidence.double().mean()),
        confidence=shares(bin_index(confidence, CONFIDENCE_BINS), CONFIDENCE_BINS),
        classes=shares(mask, len(mean)),
        energy=likely_values(free_energy(mean[None])[0][inside]),
        votes=votes,
    )


def likely_values(values: Tensor, number: int = ENERGY_POINTS) -> Shares:
    """Values at the middle of ``number`` equally likely parts.

    Example:
        >>> likely_values(torch.arange(8.0), 4)
        (1.0, 3.0, 5.0, 7.0)
    """
    ordered = values.double().sort().values
    places = (torch.arange(number, dtype=torch.float64) + 0.5) / number * len(ordered)
    return tuple(ordered[places.long().clamp(max=len(ordered) - 1)].tolist())


def save_statistics(path: Path, cases: Iterable[CaseStatistics]) -> None:
    """Write statistics as JSON."""
    facts = {"format_version": FORMAT_VERSION, "cases": [asdict(case) for case in cases]}
    write_text(path, json.dumps(facts) + "\n")


def load_statistics(path: Path) -> list[CaseStatistics]:
    """Read statistics; anything else is refused with the reason."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: deploy again, the reference of the deployment is gone")
    refuse_changed(path.parent, "deploy again")
    facts = read_typed(path, dict[str, Any], "deploy again")
    if facts.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {facts.get('format_version')}, this release reads {FORMAT_VERSION}"
        )
    try:
        return list(typed(facts.get("cases"), list[CaseStatistics], "cases"))
    except WrongTypeError as problem:
        raise ValueError(f"{path} does not hold reference statistics: {problem}; deploy again") from problem
