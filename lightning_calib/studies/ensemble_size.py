"""What more members are worth, before and after calibration (Appendix E)."""

from collections.abc import Sequence
from typing import Any

from lightning_calib.experiment.results import Results
from lightning_calib.studies.base import Pipelines, Study, StudyError
from lightning_calib.studies.rerun import changed_protocol, rerun, save_changes

NAME = "ensemble_size"
PIPELINES = ("identity(p)", "identity(z)", "ms(z)", "ms_c(z)", "cdc(p)", "cms_op(p)", "ts(z)")


def run_ensemble_size(
    study: Study, members: Sequence[int] | None = None, pipelines: Pipelines | None = None, trials: int | None = None
) -> dict[str, Any]:
    """Fit and evaluate pipelines on ensembles of the first M members, with the run's splits.

    Args:
        study: where to read and write.
        members: ensemble sizes M; None for 1 up to all.
        pipelines: which to fit; None for the uncalibrated ensemble and the paper's contrasts.
        trials: trials of each search; None for the run's. Other numbers leave no fit of the run to be taken over.

    Returns:
        ``study.json``.
    """
    names, largest = study.names(pipelines, PIPELINES), study.store.manifest.num_members
    sizes = sorted(set(members or range(1, largest + 1)))
    if wrong := [size for size in sizes if not 1 <= size <= largest]:
        raise StudyError(f"members = {wrong}: the store {study.store.path} has {largest} members")
    changes = {} if trials is None else {"trials": trials}
    found: dict[int, Results] = {}
    for size in sorted({*sizes, largest}):
        fewer = size if size < largest else None
        found[size] = rerun(study, f"members-{size}", changed_protocol(study, names, members=fewer, **changes))
    failures = save_changes(study, found, sizes, largest, names)
    return study.write({"settings": sizes, "reference": largest, "pipelines": list(names), "failures": failures})
