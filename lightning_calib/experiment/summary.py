"""The summary of a run: the main table with intervals, comparisons, recommendation, failures."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np

from lightning_calib.calibrators.pipeline import PAPER_BLOCKS, PipelineName
from lightning_calib.calibrators.registry import build
from lightning_calib.experiment import layout
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.comparisons import MATCHED_PAIRS, Comparison, compare, compared
from lightning_calib.experiment.recommend import eligible, recommend
from lightning_calib.experiment.records import has_scores
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import BandRow, BinRow, PooledRow, read_cases, read_rows, write_cases, write_rows
from lightning_calib.experiment.selection_summary import selection_summary
from lightning_calib.experiment.statistics import Floats, Interval
from lightning_calib.functional.flips import FLIP_KINDS
from lightning_calib.kit.files import write_json

DIGITS = 10  # significant digits in summary.json: beyond them matrix products depend on the machine


def write_summary(folder: Path) -> dict[str, Any]:
    """Join the tables of all repeats and pipelines, and write ``summary.json``.

    Args:
        folder: a calibration folder, in which every repeat and pipeline is done or has failed.

    Returns:
        The summary.
    """
    join_tables(folder)
    results = Results(folder)
    summary = summarize(results)
    write_json(folder / layout.SUMMARY, summary, DIGITS)
    return summary


def join_tables(folder: Path) -> None:
    """Write the tables of the whole experiment from those of its parts."""
    results = Results(folder)
    folders = [results.job_folder(r, name) for r in results.repeats for name in results.pipelines]
    done = [part for part in folders if has_scores(part)]
    write_cases(folder / layout.CASES, [row for part in done for row in read_cases(part / layout.CASES)])
    for name, kind in ((layout.POOLED, PooledRow), (layout.BINS, BinRow), (layout.BANDS, BandRow)):
        held = [part / name for part in done if (part / name).is_file()]  # earlier versions had no pooled scores
        write_rows(folder / name, [row for path in held for row in read_rows(path, kind)], kind)


def summarize(results: Results) -> dict[str, Any]:
    """``summary.json`` as a dictionary, pipelines in the order of the run."""
    scored = results.scored
    scores = main_scores(results, scored)
    return {
        "format_version": layout.RESULTS_VERSION,
        "dataset": results.dataset,
        "repeats": len(results.repeats),
        "pipelines": {name: _entry(results, name, scores[name]) for name in scored},
        "comparisons": [asdict(comparison) for comparison in matched_comparisons(results)],
        "recommendation": _recommendations(results),
        "selection": selection_summary(results),
        "failures": [asdict(failure) for failure in results.failures],
        "missing": [{"repeat": r, "pipeline": name} for r, name in results.missing],
    }


def main_scores(results: Results, names: list[str]) -> dict[str, dict[str, Interval]]:
    """Means with two-level 95 % intervals of every pipeline and case-wise metric; groups are drawn as wholes.

    Pipelines with the same repeats share their draws. One with a missing repeat has what is left.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(results.scored_repeats(name)), []).append(name)
    found: dict[str, dict[str, Interval]] = {}
    for repeats, members in groups.items():
        tables = [_score_table(results, members, r) for r in repeats]
        columns = iter(results.intervals(tables, repeats))
        found |= {name: {score.key: next(columns) for score in results.case_scores} for name in members}
    return found


def _score_table(results: Results, names: list[str], repeat: int) -> Floats:
    """Scores of a repeat ``(cases, pipelines * scores)``."""
    return np.concatenate([score_array(results, repeat, name) for name in names], axis=1)


def score_array(results: Results, repeat: int, name: str) -> Floats:
    """Scores of a repeat ``(cases, scores)``, cases by id; NaN where the pipeline is missing."""
    rows = results.cases_of(repeat, name)
    if not rows:
        return np.full((len(results.test_cases(repeat)), len(results.case_scores)), np.nan)
    return np.array([[row.score(score.key) for score in results.case_scores] for row in rows], dtype=np.float64)


def pooled_scores(results: Results, name: str) -> dict[str, dict[str, float]]:
    """Mean, smallest and largest repeat of every score of all voxels together."""
    found = {}
    for score in results.pooled_scores:
        values = [results.pooled(r, name, score.key) for r in results.scored_repeats(name)]
        found[score.key] = {"mean": float(np.mean(values)), "min": min(values), "max": max(values)}
    return found


def _entry(results: Results, name: str, scores: dict[str, Interval]) -> dict[str, Any]:
    parsed = PipelineName.parse(name)
    data = results.dataset
    calibrator = build(parsed.calibrator, data["num_classes"], data["spatial_dims"])
    return {
        "block": next((block for block, names in PAPER_BLOCKS.items() if name in names), None),
        "translation_invariant": parsed.translation_invariant,
        "preserves": parsed.preserves,
        "num_optimized": calibrator.num_optimized,
        "num_identifiable": calibrator.num_identifiable,
        "repeats": results.scored_repeats(name),
        "metrics": {metric: asdict(score) for metric, score in scores.items()} | pooled_scores(results, name),
        "flips": flip_audit(results, name),
        "undefined_dice": sum(int(np.isnan(values).sum()) for values in results.scores(name, "dice")),
    }


def flip_audit(results: Results, name: str) -> dict[str, int]:
    """Flips over all repeats that were harmful, beneficial and neutral."""
    rows = [row for r in results.repeats for row in results.cases_of(r, name)]
    return {kind: sum(row.flips[kind] for row in rows) for kind in FLIP_KINDS}


def matched_comparisons(results: Results) -> list[Comparison]:
    """The paper's matched pairs, where both pipelines have results in the same repeats."""
    return paired_comparisons(
        results,
        [(family, *pair, metric) for family, pairs in MATCHED_PAIRS.items() for pair in pairs for metric in compared()],
    )


def paired_comparisons(results: Results, keys: Sequence[tuple[str, str, str, str]]) -> list[Comparison]:
    """Pairs of pipelines, case by case, with Holm's correction over all of them.

    Args:
        results: of a run.
        keys: ``(family, reference, candidate, metric)``; those without results in a common repeat are left out.
    """
    differences: dict[tuple[str, str, str, str], list[Floats]] = {}
    cases: dict[tuple[str, str, str, str], list[list[str]]] = {}
    for key in keys:
        _, reference, candidate, metric = key
        shared = [r for r in results.repeats if all(results.cases_of(r, n) for n in (reference, candidate))]
        if shared:
            before, after = results.scores(reference, metric), results.scores(candidate, metric)
            differences[key] = [after[r] - before[r] for r in shared]
            cases[key] = [results.clusters(r) for r in shared]
    return compare(differences, cases, seed=int(results.settings["seed"]))


def _recommendations(results: Results) -> dict[str, Any]:
    """The recommendation under each constraint; None where no pipeline qualifies."""
    missing = {name for _, name in results.missing}
    complete = tuple(name for name in results.pipelines if name not in missing)
    return {
        preserve: asdict(recommend(results, preserve)) if eligible(complete, preserve) else None
        for preserve in get_args(Preserve)
    }
