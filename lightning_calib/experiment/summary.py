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
from lightning_calib.experiment.reliability import ace_draws
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import (
    BandRow,
    BinRow,
    CaseBinRow,
    ClassBinRow,
    ClassRow,
    PooledRow,
    read_cases,
    read_rows,
    write_cases,
    write_rows,
)
from lightning_calib.experiment.selection.summary import selection_summary
from lightning_calib.experiment.statistics import (
    Floats,
    Interval,
    IntervalKind,
    percentile_interval,
    point_estimate,
)
from lightning_calib.functional.flips import FLIP_KINDS
from lightning_calib.kit.files import plain as plain_data
from lightning_calib.kit.files import write_json
from lightning_calib.metrics.score import SCORES, Score

_ROWS: dict[str, type[Any]] = {
    layout.POOLED: PooledRow,
    layout.BINS: BinRow,
    layout.BANDS: BandRow,
    layout.CASE_BINS: CaseBinRow,
    layout.CLASSES: ClassRow,
    layout.CLASS_BINS: ClassBinRow,
}
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
    for name, kind in _ROWS.items():
        held = [part / name for part in done if (part / name).is_file()]  # earlier versions had fewer tables
        write_rows(folder / name, [row for path in held for row in read_rows(path, kind)], kind)


def summarize(results: Results) -> dict[str, Any]:
    """``summary.json`` as a dictionary, pipelines in the order of the run."""
    scored = results.scored
    scores, paper = (main_scores(results, scored, kind) for kind in get_args(IntervalKind))
    plain = uncalibrated(results)
    return {
        "format_version": layout.RESULTS_VERSION,
        "dataset": results.dataset,
        "repeats": len(results.repeats),
        "intervals": "clustered",
        "uncalibrated": plain,
        "pipelines": {name: _entry(results, name, scores[name], paper[name]) for name in scored},
        "leading": leading(results, plain),
        "comparisons": [asdict(comparison) for comparison in matched_comparisons(results)],
        "recommendation": _recommendations(results),
        "selection": selection_summary(results),
        "failures": [asdict(failure) for failure in results.failures],
        "missing": [{"repeat": r, "pipeline": name} for r, name in results.missing],
    }


def open_results(folder: Path) -> Results:
    """Results with a summary as this version writes it: that of an earlier one is computed anew, not written.

    Earlier summaries hold the paper's intervals where this one has those from cases drawn as wholes.
    """
    results = Results(folder)
    path = results.folder / layout.SUMMARY
    if path.is_file() and "intervals" not in results.summary:
        results.summary = plain_data(summarize(results), DIGITS)
    return results


def uncalibrated(results: Results) -> str | None:
    """The better of the pooled ensembles as they are: what calibration has to beat; None where the run has none.

    By mean test NLL over the repeats, so that no gain comes from a bad choice of pooling; ``identity(p)`` in a tie.
    """
    complete = [name for name in ("identity(p)", "identity(z)") if name in results.scored]
    complete = [name for name in complete if results.scored_repeats(name) == list(results.repeats)] or complete
    nll = {
        name: float(point_estimate([s[:, None] for s in results.scores(name, "nll") if len(s)])[0]) for name in complete
    }
    return min(nll, key=lambda name: nll[name], default=None)


def leading(results: Results, plain: str | None) -> dict[str, list[str]]:
    """By score the pipelines worth printing in bold: better than the uncalibrated ensemble, and as good as the best.

    Better beyond noise, and not to be told from the best: both by 95 % intervals of paired differences, cases drawn as
    wholes. Pipelines that lack a repeat do not compete.

    Args:
        results: of a run.
        plain: the uncalibrated ensemble.
    """
    names = [name for name in results.scored if results.scored_repeats(name) == list(results.repeats)]
    if plain not in names:
        return {}
    columns = len(results.case_scores)
    tables = [_score_table(results, names, r) for r in results.repeats]
    drawn = results.draws(tables, results.repeats).reshape(-1, len(names), columns)
    estimate = point_estimate(tables).reshape(len(names), columns)
    found = {
        s.key: _leading(s, names, plain, estimate[:, n], drawn[:, :, n]) for n, s in enumerate(results.case_scores)
    }
    if (ace := ace_draws(results, names)) is not None:
        found["ace"] = _leading(SCORES["ace"], names, plain, *ace)
    return {key: best for key, best in found.items() if best}


def _leading(score: Score, names: Sequence[str], plain: str, estimate: Floats, drawn: Floats) -> list[str]:
    if score.better is None or np.isnan(estimate).any():
        return []
    sign = 1 if score.better == "lower" else -1
    low = percentile_interval(sign * (drawn - drawn[:, [int(np.argmin(sign * estimate))]]))[0]
    gained = percentile_interval(sign * (drawn - drawn[:, [names.index(plain)]]))[1] < 0
    return [name for name, known, lowest in zip(names, gained, low, strict=True) if known and lowest <= 0]


def main_scores(results: Results, names: list[str], kind: IntervalKind = "clustered") -> dict[str, dict[str, Interval]]:
    """Means with 95 % intervals of every pipeline and case-wise metric; groups are drawn as wholes.

    Pipelines with the same repeats share their draws. One with a missing repeat has what is left.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        groups.setdefault(tuple(results.scored_repeats(name)), []).append(name)
    found: dict[str, dict[str, Interval]] = {}
    for repeats, members in groups.items():
        tables = [_score_table(results, members, r) for r in repeats]
        columns = iter(results.intervals(tables, repeats, kind=kind))
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
    """Mean, smallest and largest repeat of every score of all voxels together; ACE with its interval, too."""
    found = {}
    for score in results.pooled_scores:
        values = [results.pooled(r, name, score.key) for r in results.scored_repeats(name)]
        found[score.key] = {"mean": float(np.mean(values)), "min": min(values), "max": max(values)}
    if "ace" in found and (ace := ace_draws(results, [name])) is not None:
        low, high = percentile_interval(ace[1])
        found["ace"] |= {"low": float(low[0]), "high": float(high[0])}
    return found


def _entry(results: Results, name: str, scores: dict[str, Interval], paper: dict[str, Interval]) -> dict[str, Any]:
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
        "two_level": {metric: asdict(score) for metric, score in paper.items()},
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
