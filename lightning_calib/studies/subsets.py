"""Scores on parts of the test cases that users name: other sequences, another scanner, small lesions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.statistics import Floats, clustered_bootstrap, intervals, point_estimate
from lightning_calib.experiment.summary import SCORES
from lightning_calib.studies.base import Pipelines, Study, StudyError
from lightning_calib.studies.scores import ScoreRow, score_array

NAME = "subsets"


def run_subsets(study: Study, subsets: Mapping[str, str], pipelines: Pipelines | None = None) -> dict[str, Any]:
    """Scores of fitted pipelines on subsets of the test cases, and what they gain over no calibration there.

    Args:
        study: where to read and write.
        subsets: names of subsets with patterns of case ids, such as ``Seq05VD*``; several are parted by commas.
        pipelines: which to look at; None for all of the run.

    Returns:
        ``study.json``: subsets with their number of test cases by repeat.
    """
    if not subsets:
        raise StudyError("""name subsets and patterns of their case ids: --subsets '{"night": "*_night"}'""")
    names = study.names(pipelines)
    chosen = {name: select(study, pattern) for name, pattern in subsets.items()}
    scores = [row for subset, places in chosen.items() for row in _scores(study, subset, places, names)]
    gains = [row for subset, places in chosen.items() for row in _gains(study, subset, places, names)]
    study.save("scores.csv", scores, ScoreRow)
    study.save("gains.csv", gains, ScoreRow)
    counts = {subset: [len(own) for own in places.values()] for subset, places in chosen.items()}
    return study.write({"subsets": dict(subsets), "cases": counts, "pipelines": list(names)})


def select(study: Study, pattern: str) -> dict[int, list[int]]:
    """By repeat, the places of matching cases in its sorted list of test cases."""
    patterns = [part.strip() for part in pattern.split(",")]
    found = {
        r: [n for n, case in enumerate(study.results.test_cases(r)) if any(fnmatchcase(case, p) for p in patterns)]
        for r in study.results.repeats
    }
    if not any(found.values()):
        some = ", ".join(study.results.test_cases(0)[:3])
        raise StudyError(f"no test case matches {pattern!r}; case ids look like {some}")
    return found


def _scores(study: Study, subset: str, places: Mapping[int, list[int]], names: Sequence[str]) -> list[ScoreRow]:
    return [
        row
        for name in names
        for row in _rows(study, subset, name, places, {r: score_array(study.results, r, name) for r in places})
    ]


def _gains(study: Study, subset: str, places: Mapping[int, list[int]], names: Sequence[str]) -> list[ScoreRow]:
    """Calibrated minus uncalibrated, pooled alike."""
    rows = []
    for name in names:
        plain = f"identity({PipelineName.parse(name).pooling})"
        if name != plain and plain in study.results.pipelines:
            tables = {r: score_array(study.results, r, name) - score_array(study.results, r, plain) for r in places}
            rows += _rows(study, subset, name, places, tables)
    return rows


def _rows(
    study: Study, subset: str, name: str, places: Mapping[int, list[int]], tables: Mapping[int, Floats]
) -> list[ScoreRow]:
    """Means with intervals from cases (or groups) drawn as wholes; repeats without a case are left out."""
    held = [r for r, own in places.items() if own]
    parts = [tables[r][places[r]] for r in held]
    clusters = [[study.results.clusters(r)[n] for n in places[r]] for r in held]
    seed = int(study.results.settings["seed"])
    found = intervals(point_estimate(parts), clustered_bootstrap(parts, clusters, seed=seed))
    return [ScoreRow(subset, name, metric, *asdict(v).values()) for metric, v in zip(SCORES, found, strict=True)]
