"""How many calibration cases it takes (Appendix F): fits on fewer or more, judged on the same test cases."""

from collections.abc import Sequence
from typing import Any

from lightning_calib.experiment.results import Results
from lightning_calib.outputs.partition import Size
from lightning_calib.studies.base import PAPER_SUBSET, Pipelines, Study, StudyError
from lightning_calib.studies.rerun import changed_protocol, rerun, save_changes

NAME = "calibration_size"
_FACTORS = (0.1, 0.5, 1.0, 1.5, 2.0)  # of the run's own number: 5, 25, 50, 75, 100 where that is 50
_NEAR = 0.2  # sizes that differ less from the run's own tell nothing
_MOST = 2 / 3  # of the cases that are not for testing: the rest must do to choose hyperparameters


def run_calibration_size(
    study: Study, sizes: Sequence[int] | None = None, pipelines: Pipelines | None = None, trials: int | None = None
) -> dict[str, Any]:
    """Fit on ``n`` cases for several ``n``; what ``cal`` gains, ``val`` loses, and ``test`` stays.

    Args:
        study: where to read and write.
        sizes: numbers ``n`` of calibration cases; None for a tenth of the run's own up to twice as many.
        pipelines: which to fit; None for the paper's subset.
        trials: trials of each search; None for the run's. Other numbers leave no fit of the run to be taken over.

    Returns:
        ``study.json``.
    """
    names, results = study.names(pipelines, PAPER_SUBSET), study.results
    reference, available = (len(results.split(0)["cal"]), sum(len(results.split(0)[part]) for part in ("cal", "val")))
    chosen = _sizes(sizes, reference, available)
    changes: dict[str, Any] = {"val": None, "test": _test_size(study)} | ({} if trials is None else {"trials": trials})
    found: dict[int, Results] = {}
    for size in sorted({*chosen, reference}):
        protocol = changed_protocol(study, names, cal=size, **changes)
        for repeat in results.repeats:
            if list(protocol.split(repeat).test) != sorted(results.split(repeat)["test"]):
                raise StudyError(f"repeat {repeat} would get other test cases than the run; give test a number there")
        found[size] = rerun(study, f"n-{size}", protocol)
    failures = save_changes(study, found, chosen, reference, names)
    return study.write({"settings": chosen, "reference": reference, "pipelines": list(names), "failures": failures})


def _sizes(sizes: Sequence[int] | None, reference: int, available: int) -> list[int]:
    """Numbers of calibration cases that leave some for ``val``."""
    if sizes is None:
        most = max(int(_MOST * available), reference)
        found = {min(max(round(factor * reference), 1), most) for factor in _FACTORS}
        return sorted({size for size in found if abs(size - reference) > _NEAR * reference} | {reference})
    if wrong := [size for size in sizes if not 1 <= size < available]:
        raise StudyError(
            f"sizes {wrong}: {available} cases are not for testing, of which cal can get 1 to {available - 1}; the "
            "rest is for val"
        )
    return sorted(set(sizes))


def _test_size(study: Study) -> Size:
    """The size of ``test`` that leaves it as it is, whatever ``cal`` and ``val`` get."""
    settings = study.results.settings
    if settings["test"] is not None:
        size: Size = settings["test"]
        return size
    total = len(study.store)
    taken = 0
    for part in ("cal", "val"):
        size = settings[part]
        if not isinstance(size, int | float):
            raise StudyError(
                f"{part} of the run is a list of cases; its size can be varied where it is a number or share"
            )
        taken += round(size * total) if isinstance(size, float) else size
    return total - taken
