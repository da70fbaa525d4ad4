"""What trackers get to see of a run: one tracked run a repeat and pipeline, and one for the summary."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import point_estimate
from lightning_calib.experiment.summary import SCORES

RELIABILITY_BINS = 15
SUMMARY_RUN = "summary"


@dataclass(frozen=True)
class Table:
    """A table with named columns."""

    columns: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class TrackedRun:
    """Everything that a tracker is told about one of its runs.

    Attributes:
        name: name of the run, such as ``cms_op(p) repeat 0``.
        kind: ``pipeline`` or ``summary``.
        config: settings and hyperparameters.
        curves: by quantity the values of each step.
        metrics: final figures.
        tables: tables by name.
        figures: PNG files by name.
    """

    name: str
    kind: str
    config: dict[str, Any]
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    figures: dict[str, Path] = field(default_factory=dict)


def tracked_runs(results: Results, figures: Mapping[str, Path] | None = None) -> Iterator[TrackedRun]:
    """All tracked runs of a finished calibration run, the summary last.

    Args:
        results: a finished run.
        figures: PNG files for the summary, by name.
    """
    for repeat in results.repeats:
        for pipeline in results.pipelines:
            yield pipeline_run(results, repeat, pipeline)
    yield summary_run(results, figures or {})


def pipeline_run(results: Results, repeat: int, pipeline: str) -> TrackedRun:
    """One pipeline in one repeat; a failed one has its status and no figures."""
    fit = results.fit(repeat, pipeline) or {"status": "missing"}
    config = {
        "dataset": results.dataset["name"],
        "pipeline": pipeline,
        "repeat": repeat,
        "status": fit["status"],
        "hyperparameters": fit.get("hyperparameters") or {},
        **{key: results.settings.get(key) for key in ("repeats", "trials", "seed", "solver", "outputs_sha256")},
    }
    rows = results.cases_of(repeat, pipeline)
    if not rows:
        return TrackedRun(f"{pipeline} repeat {repeat}", "pipeline", config)
    curves: dict[str, list[tuple[int, float]]] = {}
    for point in results.curve(repeat, pipeline):
        curves.setdefault(f"fit/{point.quantity}", []).append((point.step, point.value))
    return TrackedRun(
        f"{pipeline} repeat {repeat}",
        "pipeline",
        config,
        curves,
        _final(results, repeat, pipeline, fit),
        {"reliability": reliability_table(results, repeat, pipeline)},
    )


def _final(results: Results, repeat: int, pipeline: str, fit: dict[str, Any]) -> dict[str, float]:
    """Figures of one repeat: means over its test cases, the pooled ACE, NLL on ``val``."""
    rows = results.cases_of(repeat, pipeline)
    table = np.array([[getattr(row, metric) for metric in SCORES] for row in rows], dtype=np.float64)
    means = point_estimate([table])
    final = {f"test/{metric}": float(value) for metric, value in zip(SCORES, means, strict=True)}
    final["test/ace"] = results.average_calibration_error(repeat, pipeline)
    final |= {"val/nll": float(fit["val_nll"]), "val/identity_nll": float(fit["identity_val_nll"])}
    return final


def reliability_table(results: Results, repeat: int, pipeline: str) -> Table:
    """Mean confidence and accuracy of each bin that holds voxels."""
    bins = results.bin_table(repeat, pipeline, RELIABILITY_BINS)
    columns = zip(bins.voxels.tolist(), bins.mean_confidence().tolist(), bins.accuracy().tolist(), strict=True)
    rows = [[number, *values] for number, values in enumerate(columns) if values[0]]
    return Table(["bin", "voxels", "confidence", "accuracy"], rows)


def summary_run(results: Results, figures: Mapping[str, Path]) -> TrackedRun:
    """The main table, the comparisons, the recommendation and the figures."""
    summary = results.summary
    config = {key: value for key, value in results.settings.items() if key != "versions"}
    tables = {"main": main_table(summary), "comparisons": comparison_table(summary)}
    metrics = {
        f"{name}/{metric}": float(score["mean"])
        for name, entry in summary["pipelines"].items()
        for metric, score in entry["metrics"].items()
        if score["mean"] is not None
    }
    advice = {preserve: found and found["pipeline"] for preserve, found in summary["recommendation"].items()}
    config["recommendation"] = advice
    return TrackedRun(SUMMARY_RUN, "summary", config, {}, metrics, tables, dict(figures))


def main_table(summary: dict[str, Any]) -> Table:
    """One row a pipeline: facts, then mean and interval of each metric."""
    facts = ["block", "translation_invariant", "preserves", "num_optimized", "num_identifiable"]
    columns = ["pipeline", *facts]
    columns += [f"{metric}{part}" for metric in SCORES for part in ("", "_low", "_high")]
    columns += ["ace", "ace_min", "ace_max"]
    rows = []
    for name, entry in summary["pipelines"].items():
        scores = [entry["metrics"][metric][part] for metric in SCORES for part in ("mean", "low", "high")]
        ace = [entry["metrics"]["ace"][part] for part in ("mean", "min", "max")]
        rows.append([name, *(entry[fact] for fact in facts), *scores, *ace])
    return Table(columns, rows)


def comparison_table(summary: dict[str, Any]) -> Table:
    """One row a matched pair and metric."""
    plain = ["family", "reference", "candidate", "metric"]
    tail = ["improvement", "p_value", "p_holm", "verdict"]
    columns = [*plain, "difference", "low", "high", "clustered_low", "clustered_high", *tail]
    rows = []
    for found in summary["comparisons"]:
        difference, clustered = found["difference"], found["clustered"]
        middle = [difference["mean"], difference["low"], difference["high"], clustered["low"], clustered["high"]]
        rows.append([*(found[key] for key in plain), *middle, *(found[key] for key in tail)])
    return Table(columns, rows)
