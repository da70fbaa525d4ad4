"""What `val` promised of each fit, and what `test` brought: how far choosing by `val` can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import CaseRow
from lightning_calib.studies.base import Pipelines, Study, StudyError

NAME = "selection"


@dataclass(frozen=True)
class SelectionRow:
    """A pipeline in one repeat (``selection.csv``); NLL over all voxels, against no calibration with the same pooling.

    Attributes:
        repeat: which partition.
        pipeline: its name.
        promised: change of NLL on ``val``, negative where calibration helps.
        brought: the same on ``test``.
        lam: penalty on weights that the search chose; NaN where there is none to choose, or the identity won.
        mu: penalty on biases.
    """

    repeat: int
    pipeline: str
    promised: float
    brought: float
    lam: float
    mu: float

    @property
    def lost(self) -> bool:
        """Whether ``test`` is worse than without calibration."""
        return self.brought > 0


def run_selection(study: Study, pipelines: Pipelines | None = None) -> dict[str, Any]:
    """Compare the gain that ``val`` promised with the one that ``test`` brought, fit by fit.

    Args:
        study: where to read and write.
        pipelines: which to look at; None for all of the run.

    Returns:
        ``study.json``: by pipeline the mean of both, and in how many repeats ``test`` was worse than no calibration.
    """
    names = [name for name in study.names(pipelines) if not name.startswith("identity")]
    rows = [row for name in names for row in selection_rows(study.results, name)]
    if not rows:
        raise StudyError(
            f"{study.calibration} has no calibrated pipeline beside the uncalibrated one of its pooling; "
            'run both, such as --pipelines "identity(z),ts(z)"'
        )
    study.save("selection.csv", rows, SelectionRow)
    return study.write({"pipelines": [_told(name, own) for name in names if (own := _of(rows, name))]})


def selection_rows(results: Results, name: str) -> list[SelectionRow]:
    """One row a repeat that has scores of the pipeline and of its uncalibrated ensemble."""
    plain, rows = f"identity({PipelineName.parse(name).pooling})", []
    for repeat in results.repeats:
        fit, after, before = results.fit(repeat, name), results.cases_of(repeat, name), results.cases_of(repeat, plain)
        if fit and after and before:
            promised = fit["val_nll"] - fit["identity_val_nll"]
            penalties = [fit["hyperparameters"].get(key, float("nan")) for key in ("lam", "mu")]
            rows.append(SelectionRow(repeat, name, promised, pooled_nll(after) - pooled_nll(before), *penalties))
    return rows


def pooled_nll(rows: Sequence[CaseRow]) -> float:
    """NLL over the voxels of all cases together, as selection sees it on ``val``."""
    voxels = np.array([row.voxels for row in rows], dtype=np.float64)
    return float(np.array([row.nll for row in rows]) @ voxels / voxels.sum())


def _of(rows: Sequence[SelectionRow], name: str) -> list[SelectionRow]:
    return [row for row in rows if row.pipeline == name]


def _told(name: str, rows: Sequence[SelectionRow]) -> dict[str, Any]:
    promised, brought = (float(np.mean([getattr(row, key) for row in rows])) for key in ("promised", "brought"))
    lost = sum(row.lost for row in rows)
    worst = max(row.brought for row in rows)
    return {
        "pipeline": name,
        "repeats": len(rows),
        "promised": promised,
        "brought": brought,
        "worst": worst,
        "lost": lost,
    }
