"""What in the results of a run should make its readers careful, in plain sentences with the names of classes."""

from collections.abc import Sequence

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import CaseRow

_LISTED = 5


def concerns(results: Results, pipeline: str | None = None) -> list[str]:
    """Warnings that a run and its report give.

    Args:
        results: of a run.
        pipeline: the recommended one, of which experts without voxels are told.
    """
    found = [*_ignored(results), *_absent(results), *_predictions(results)]
    return [*found, *(_experts(results, pipeline) if pipeline else [])]


def _names(results: Results, labels: Sequence[int]) -> str:
    names = results.dataset["class_names"]
    return ", ".join(names[label] for label in labels)


def _ignored(results: Results) -> list[str]:
    """Test cases in which nothing counts."""
    empty = sorted({row.case for r in results.repeats for row in _rows(results, r) if row.voxels == 0})
    if not empty:
        return []
    more = f" and {len(empty) - _LISTED} more" if len(empty) > _LISTED else ""
    which = f"{', '.join(empty[:_LISTED])}{more}"
    return [f"No voxel of {which} has a label that counts, so that no score takes note of it: look at the mask."]


def _rows(results: Results, repeat: int) -> list[CaseRow]:
    return results.cases_of(repeat, results.scored[0]) if results.scored else []


def _absent(results: Results) -> list[str]:
    """Classes without a voxel in ``cal``, as far as solvers report them."""
    repeats: dict[tuple[int, ...], list[int]] = {}
    for repeat in results.repeats:
        for name in results.pipelines:
            fit = results.fit(repeat, name)
            if fit is not None and fit.ok and fit.certificate.get("missing_classes"):
                repeats.setdefault(tuple(fit.certificate["missing_classes"]), []).append(repeat)
    return [
        f"Cal of repeat {', '.join(map(str, sorted(set(where))))} has no voxel of {_names(results, labels)}: "
        "calibrators could not learn about it there. Give cal more cases, or cases that have the class."
        for labels, where in repeats.items()
    ]


def _predictions(results: Results) -> list[str]:
    """Classes that the ensemble never predicts on test, or one class only among the labels."""
    plain = results.summary["uncalibrated"]
    rows = [row for repeat in results.repeats for row in (results.classes(repeat, plain) if plain else [])]
    if not rows:
        return []
    voxels, predicted = ({label: 0 for label in range(results.dataset["num_classes"])} for _ in range(2))
    for row in rows:
        voxels[row.label] += row.voxels
        predicted[row.label] += row.predicted
    found = [
        f"The ensemble never predicts {_names(results, [label])}, to which {count:,} test voxels belong. Calibration "
        "that keeps the segmentation cannot bring it back: train longer, or with a loss that weighs rare classes."
        for label, count in voxels.items()
        if count and not predicted[label]
    ]
    present = [label for label, count in voxels.items() if count]
    if len(present) == 1:
        found.append(f"All test voxels are {_names(results, present)}: with one class there is nothing to calibrate.")
    return found


def _experts(results: Results, pipeline: str) -> list[str]:
    """Predicted classes that the recommended pipeline leaves as they are, since it saw too few voxels of them."""
    labels = set()
    for repeat in results.repeats:
        fit = results.fit(repeat, pipeline)
        if fit is not None and fit.ok and len(fit.certificate.get("expert_voxels", ())) > 1:
            labels |= {n for n, count in enumerate(fit.certificate["expert_voxels"]) if count == 0}
    if not labels:
        return []
    told = _names(results, sorted(labels))
    return [f"{pipeline} saw no voxel that is predicted as {told}, and leaves such voxels as they are."]
