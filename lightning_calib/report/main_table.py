"""The main table: every pipeline in the blocks of the paper, its scores, and which of them are best."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_calib.calibrators.pipeline import PAPER_BLOCKS, PipelineName
from lightning_calib.experiment.statistics import IntervalKind
from lightning_calib.kit.tables import MISSING, Cell, Column, Row, Table, latex_escape, markdown_escape
from lightning_calib.metrics.score import Score, main_scores
from lightning_calib.report.glossary import TERMS, explain
from lightning_calib.report.numbers import choose_decimals, format_interval, format_score

KINDS: dict[IntervalKind, str] = {
    "clustered": "95 % interval, cases drawn as wholes",
    "two_level": "95 % interval of the paper's two-level bootstrap",
}
NOT_INVARIANT = "\N{MULTIPLICATION SIGN}"
BLOCKS = {
    "a": "Uncalibrated baselines",
    "b": "Translation invariance: matrix scaling against its invariant forms",
    "c": "Translation invariance: local temperatures from logits or from log-probabilities",
    "d": "Decision preservation: class-conditional calibrators, free and constrained",
    "e": "Standard temperature scaling, order preserving",
    "f": "Standard Dirichlet calibration, not preserving",
    "g": "Further pipelines",
}
# The paper lists this pipeline twice: beside matrix scaling, and beside its twin on mean probabilities.
_LISTED_AGAIN = {"f": ("dc(z)",)}
_LATEX_POOLINGS = {"p0": r"$p_0$", "p": r"$\bar{p}$", "z": r"$\bar{z}$"}
BOLD = "Bold: better than the uncalibrated ensemble beyond noise, and not to be told from the best of the column. "
_FACTS = (
    Column("Pipeline", "pipeline", left=True),
    Column("block", only=("csv",)),
    Column("TI", "translation_invariant", left=True, tip=TERMS["translation invariant"], only=("html", "csv")),
    Column(
        "keeps",
        "preserves",
        left=True,
        tip="What the calibrator keeps of the ensemble's ranking of the classes.",
        only=("html", "csv"),
    ),
)


def main_table(
    dataset: str,
    pipelines: Sequence[str],
    scores: Mapping[str, Mapping[str, Any]],
    notes: Mapping[str, str] | None = None,
    recommended: str | None = None,
    leading: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Arrange scores as the main table.

    Args:
        dataset: name for the heading.
        pipelines: names of all pipelines that were asked for.
        scores: by pipeline and score, ``{mean, low, high}`` (or ``{mean, min, max}``), as in ``summary.json``.
        notes: what to say about a pipeline whose scores are missing or incomplete.
        recommended: the pipeline whose row stands out.
        leading: by score the pipelines in bold; none by default.

    Example:
        >>> table = main_table("toy", ["identity(z)", "ts(z)"], {"ts(z)": {"nll": {"mean": 0.5}}})
        >>> [(row.cells[0].text, row.block[:3], row.cells[4].text) for row in table.rows]
        [('identity(z)', '(a)', '–'), ('ts(z)', '(e)', '0.500')]
    """
    known = {name for entry in scores.values() for name, value in entry.items() if _mean(value) is not None}
    columns = [score for score in main_scores() if score.key in known] or main_scores()
    placed = _layout(pipelines)
    notes = {name: "no scores in the results" for name in pipelines if name not in scores} | dict(notes or {})
    bold = dict(leading or {})
    names = [name for _, name in placed]
    filled = [_score_cells(score, names, scores, bold.get(score.key, ())) for score in columns]
    rows = []
    for n, (block, name) in enumerate(placed):
        note = notes.get(name, "")
        cells = (*_facts(PipelineName.parse(name), block), *(column[n] for column in filled), Cell(value=note))
        style = "recommended" if name == recommended else ""
        rows.append(Row(cells, f"({block}) {BLOCKS[block]}", note, block != block_of(name), style))
    caption = (
        f"Calibration of {dataset}. {BOLD if leading else ''}"
        f"{NOT_INVARIANT}: not translation invariant. {MISSING}: not applicable or not available."
    )
    name = f"calibration-{re.sub('[^a-z0-9]+', '-', dataset.lower())}"
    heads = (*_FACTS, *(_column(score) for score in columns), Column("note", only=("csv",)))
    return Table(name, caption, heads, tuple(rows), sortable=True)


def block_of(pipeline: str) -> str:
    """Letter of the block that a pipeline belongs to; ``g`` for those that the paper does not list.

    Example:
        >>> block_of("cms_op(p)"), block_of("vs(z)")
        ('d', 'g')
    """
    return next((letter for letter, names in PAPER_BLOCKS.items() if pipeline in names), "g")


def markdown_file(dataset: str, table: Table, legend: str) -> str:
    """``table.md``: point estimates with the best in bold, then the same with intervals, which the legend explains."""
    parts = [f"# Calibration of {markdown_escape(dataset)}", table.grid()]
    parts.append(
        f"Dice and flips in %. {BOLD}"
        f"{NOT_INVARIANT}: not translation invariant. {MISSING}: not applicable or not available."
    )
    notes = [
        f"- `{row.cells[0].text}`: {markdown_escape(row.note)}" for row in table.rows if row.note and not row.again
    ]
    parts += ["\n".join(["Incomplete:", "", *notes])] if notes else []
    parts += ["## With intervals", table.grid(intervals=True), legend]
    return "\n\n".join(parts) + "\n"


def bounded(entry: Mapping[str, Any], kind: IntervalKind) -> dict[str, dict[str, float | None]]:
    """Scores of a pipeline in ``summary.json`` with one kind of bounds; in the paper's, ACE has extremes only."""
    if kind == "clustered":
        return dict(entry["metrics"])
    pooled = {key: value for key, value in entry["metrics"].items() if "min" in value}
    extremes = {key: {end: value[end] for end in ("mean", "min", "max")} for key, value in pooled.items()}
    return {**entry["two_level"], **extremes}


def interval_legend(scores: Mapping[str, Mapping[str, Any]], kind: IntervalKind = "clustered") -> str:
    """What the brackets are, by column.

    Args:
        scores: those of :func:`main_table`.
        kind: which intervals they have.
    """
    held = {key: value for entry in scores.values() for key, value in entry.items() if _mean(value) is not None}
    kinds: dict[str, list[str]] = {}
    for score in main_scores():
        if score.key in held:
            told = KINDS[kind] if "low" in held[score.key] else "smallest and largest repeat"
            kinds.setdefault(told, []).append(score.label)
    return "; ".join(f"{', '.join(labels)}: {told}" for told, labels in kinds.items()) + "."


def latex_name(pipeline: PipelineName) -> str:
    r"""A pipeline in the notation of the paper: what follows ``_`` is an index, ``ti`` a canonical input.

    Example:
        >>> print(latex_name(PipelineName.parse("cms_op(p)")), latex_name(PipelineName.parse("lts_ti(z)")))
        CMS$_{op}$($\bar{p}$) LTS($\log S(\bar{z})$)
    """
    pooling = _LATEX_POOLINGS[pipeline.pooling]
    if pipeline.calibrator == "identity":
        return pooling
    stem, _, index = pipeline.calibrator.partition("_")
    if "." in pipeline.calibrator:
        return f"{latex_escape(pipeline.calibrator.rpartition('.')[2])}({pooling})"
    if index == "ti":
        return rf"{stem.upper()}($\log S({pooling.strip('$')})$)"
    below = f"$_{{{latex_escape(index)}}}$" if len(index) > 1 else f"$_{index}$" if index else ""
    return f"{stem.upper()}{below}({pooling})"


def _layout(pipelines: Sequence[str]) -> list[tuple[str, str]]:
    """Block and pipeline of each row, in the order of the paper, then as asked for."""
    placed = []
    for block in BLOCKS:
        ordered = PAPER_BLOCKS.get(block, pipelines)
        mine = [name for name in ordered if name in pipelines and block_of(name) == block]
        again = [name for name in _LISTED_AGAIN.get(block, ()) if mine and name in pipelines]
        placed += [(block, name) for name in mine + again]
    return placed


def _column(score: Score) -> Column:
    return Column(
        score.heading, score.key, score.arrow, tip=f"{score.title.capitalize()}. {score.explanation}", bounds=True
    )


def _facts(pipeline: PipelineName, block: str) -> tuple[Cell, ...]:
    """The cells before the scores: name, block, invariance, what is kept."""
    name, invariant = str(pipeline), pipeline.translation_invariant
    mark = "" if invariant else NOT_INVARIANT
    told = "translation invariant" if invariant else "not translation invariant"
    return (
        Cell(name, name, style="code", mark=mark, latex=latex_name(pipeline), tip=explain(pipeline)),
        Cell(value=block),
        Cell("✓" if invariant else NOT_INVARIANT, invariant, style="yes" if invariant else "no", tip=told),
        Cell(pipeline.preserves or MISSING, pipeline.preserves or "", style="mark"),
    )


def _score_cells(
    score: Score, names: Sequence[str], scores: Mapping[str, Mapping[str, Any]], leading: Sequence[str]
) -> list[Cell]:
    """A column with the leading pipelines in bold."""
    entries = {name: scores.get(name, {}).get(score.key) or {} for name in names}
    decimals = choose_decimals(score, [_mean(entry) or 0.0 for entry in entries.values()])
    cells = {name: _cell(score, PipelineName.parse(name), entry, decimals) for name, entry in entries.items()}
    return [replace(cells[name], best=name in leading) for name in names]


def _cell(score: Score, pipeline: PipelineName, entry: Mapping[str, float | None], decimals: int) -> Cell:
    """A score with its bounds; a pipeline without a calibrator has nothing to flip."""
    mean = _mean(entry)
    if score.key == "flip" and pipeline.calibrator == "identity":
        return Cell()
    low, high = entry.get("low", entry.get("min")), entry.get("high", entry.get("max"))
    interval = "" if low is None or high is None else format_interval(score, low, high, decimals)
    return Cell(format_score(score, mean, decimals), mean, (low, high), interval)


def _mean(entry: Mapping[str, float | None] | None) -> float | None:
    mean = (entry or {}).get("mean")
    return mean if mean is not None and math.isfinite(mean) else None
