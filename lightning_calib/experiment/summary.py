"""The summary of a run: the main table with intervals, comparisons, recommendation, failures."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np

from lightning_calib.calibrators.pipeline import PAPER_BLOCKS, PipelineName
from lightning_calib.calibrators.registry import build
from lightning_calib.experiment import layout
from lightning_calib.experiment.comparisons import COMPARED, MATCHED_PAIRS, Comparison, compare
from lightning_calib.experiment.recommend import Preserve, eligible, recommend
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import BandRow, BinRow, CaseRow, read_rows, write_rows
from lightning_calib.experiment.statistics import Floats, Interval
from lightning_calib.kit.files import write_json

SCORES = ("nll", "dice", "ece", "ba_ece", "brier", "flip")
DIGITS = 10  # significant digits in summary.json: beyond them matrix products depend on the machine


def write_summary(folder: Path) -> dict[str, Any]:
    """Join the tables of all repeats and pipelines, and write ``summary.json``.

    Args:
        folder: a calibration folder, in which every repeat and pipeline is done or has failed.

    Returns:
        The summary.
    """
    join_tables(folder)
    results = Results.open(folder)
    summary = summarize(results)
    write_json(folder / layout.SUMMARY, summary, DIGITS)
    return summary


def join_tables(folder: Path) -> None:
    """Write ``cases.csv``, ``bins.csv`` and ``bands.csv`` of the whole run from those of its parts."""
    results = Results.open(folder)
    folders = [results.task_folder(r, name) for r in results.repeats for name in results.pipelines]
    done = [part for part in folders if (part / layout.EVALUATION).is_file()]
    for name, kind in ((layout.CASES, CaseRow), (layout.BINS, BinRow), (layout.BANDS, BandRow)):
        rows = [row for part in done for row in read_rows(part / name, kind)]
        write_rows(folder / name, rows, kind)


def summarize(results: Results) -> dict[str, Any]:
    """``summary.json`` as a dictionary, pipelines in the order of the run."""
    scored = [name for name in results.pipelines if any(results.cases_of(r, name) for r in results.repeats)]
    scores = main_scores(results, scored)
    return {
        "format_version": layout.RESULTS_VERSION,
        "dataset": results.dataset,
        "repeats": len(results.repeats),
        "pipelines": {name: _entry(results, name, scores[name]) for name in scored},
        "comparisons": [asdict(comparison) for comparison in matched_comparisons(results)],
        "recommendation": _recommendations(results),
        "failures": [asdict(failure) for failure in results.failures],
        "missing": [{"repeat": r, "pipeline": name} for r, name in results.missing],
    }


def main_scores(results: Results, names: list[str]) -> dict[str, dict[str, Interval]]:
    """Means with two-level 95 % intervals of every pipeline and case-wise metric; groups are drawn as wholes.

    Pipelines with the same repeats share their draws. One with a missing repeat has what is left.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        held = tuple(r for r in results.repeats if results.cases_of(r, name))
        groups.setdefault(held, []).append(name)
    found: dict[str, dict[str, Interval]] = {}
    for repeats, members in groups.items():
        tables = [_score_table(results, members, r) for r in repeats]
        columns = iter(results.intervals(tables, repeats))
        found |= {name: {metric: next(columns) for metric in SCORES} for name in members}
    return found


def _score_table(results: Results, names: list[str], repeat: int) -> Floats:
    """Scores of a repeat ``(cases, pipelines * metrics)``."""
    rows = [[[getattr(row, m) for m in SCORES] for row in results.cases_of(repeat, name)] for name in names]
    return np.concatenate(np.array(rows, dtype=np.float64), axis=1)


def _entry(results: Results, name: str, scores: dict[str, Interval]) -> dict[str, Any]:
    parsed = PipelineName.parse(name)
    data = results.dataset
    calibrator = build(parsed.calibrator, data["num_classes"], data["spatial_dims"])
    held = [r for r in results.repeats if results.cases_of(r, name)]
    aces = [results.average_calibration_error(r, name) for r in held]
    ace = {"mean": float(np.mean(aces)), "min": min(aces), "max": max(aces)}
    return {
        "block": next((block for block, names in PAPER_BLOCKS.items() if name in names), None),
        "translation_invariant": parsed.translation_invariant,
        "preserves": parsed.preserves,
        "num_optimized": calibrator.num_optimized,
        "num_identifiable": calibrator.num_identifiable,
        "repeats": held,
        "metrics": {metric: asdict(score) for metric, score in scores.items()} | {"ace": ace},
        "flips": flip_audit(results, name),
        "undefined_dice": sum(int(np.isnan(values).sum()) for values in results.scores(name, "dice")),
    }


def flip_audit(results: Results, name: str) -> dict[str, int]:
    """Flips over all repeats that were harmful, beneficial and neutral."""
    rows = [row for r in results.repeats for row in results.cases_of(r, name)]
    return {kind: sum(getattr(row, kind) for row in rows) for kind in ("harmful", "beneficial", "neutral")}


def matched_comparisons(results: Results) -> list[Comparison]:
    """The paper's matched pairs, where both pipelines have results in the same repeats."""
    return paired_comparisons(
        results,
        [(family, *pair, metric) for family, pairs in MATCHED_PAIRS.items() for pair in pairs for metric in COMPARED],
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
