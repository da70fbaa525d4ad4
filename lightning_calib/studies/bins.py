"""Do ECE and ACE rank pipelines alike whatever the number of bins (Appendix G)?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import BINS
from lightning_calib.functional.sweep import image_statistics
from lightning_calib.kit.tables import Cell, Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.report.figures import MOST, Series, series_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import format_score
from lightning_calib.report.section import Picture, Section
from lightning_calib.studies.base import PAPER_SUBSET, Pass, Pipelines, Study, StudyError
from lightning_calib.tasks.features import calibrate_case

MAIN = {"ece": 50, "ace": 15}  # of the main results
NEARLY = 0.8  # Kendall's tau from which on a ranking counts as nearly stable


@dataclass(frozen=True)
class EceRow:
    """ECE of one case at one number of bins (``cases.csv``)."""

    repeat: int
    pipeline: str
    case: str
    bins: int
    ece: float


@dataclass(frozen=True)
class BinningRow:
    """ECE or ACE of a pipeline at one number of bins (``bins.csv``); bounds of ACE are its extremes over repeats."""

    metric: str
    bins: int
    pipeline: str
    mean: float
    low: float
    high: float


class Bins(Study):
    """ECE and ACE at other numbers of bins, and how far the rankings agree."""

    name, title = "bins", "Number of bins"

    def run(
        self,
        pipelines: Pipelines | None = None,
        ece_bins: Sequence[int] = (20, 30, 40, 50),
        ace_bins: Sequence[int] = (15, 20, 30, 40),
    ) -> dict[str, Any]:
        """Recompute ECE and ACE at other numbers of bins, and see whether rankings stay.

        Args:
            pipelines: which to rank, as a list or with commas in between; by default those of the paper.
            ece_bins: numbers of bins for ECE, divisors of 600.
            ace_bins: numbers of bins for ACE, divisors of 600.

        Returns:
            ``study.json``, with Kendall's tau and a verdict for both metrics.
        """
        names = self.names(pipelines, PAPER_SUBSET)
        if wrong := [bins for bins in (*ece_bins, *ace_bins) if bins < 1 or BINS % bins]:
            raise StudyError(f"{wrong} bins cannot be made of {BINS} fine ones exactly: choose divisors of {BINS}")
        rows = self.tabulate(self.passes(names, sorted(ece_bins)), partial(ece_rows, self, tuple(ece_bins)), EceRow)
        self.save("cases.csv", rows, EceRow)
        summary = [summarize_ece(self.results, rows, name, bins) for bins in ece_bins for name in names]
        summary += [summarize_ace(self.results, name, bins) for bins in ace_bins for name in names]
        self.save("bins.csv", summary, BinningRow)
        return self.write({"pipelines": list(names), **{m: asdict(rank_stability(summary, m)) for m in MAIN}})

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """Both verdicts."""
        return [
            f"{m.upper()} ranking: {facts[m]['verdict']} (smallest tau {_tau_text(facts[m]['smallest_tau'])})"
            for m in MAIN
        ]

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Whether rankings depend on how confidences are binned."""
        rows = self.read("bins.csv", BinningRow)
        lead = "Calibration errors depend on how confidences are binned: does the choice decide which pipeline wins? "
        lead += f"ECE is {facts['ece']['verdict']}. ACE is {facts['ace']['verdict']}."
        pictures = tuple(_picture(rows, facts["pipelines"], metric) for metric in MAIN)
        return Section(self.key, self.title, lead, pictures, tuple(_table(rows, facts, metric) for metric in MAIN))


@torch.inference_mode()
def ece_rows(study: Study, num_bins: Sequence[int], job: Pass) -> list[EceRow]:
    """ECE of every case and pipeline of a pass; all numbers of bins come from one table."""
    cases, rows = study.cases(job.pooling), []
    calibrators = {name: study.calibrator(job.repeat, name) for name in job.pipelines}
    for case_id in job.case_ids:
        target = cases.target(case_id)
        for name, calibrator in calibrators.items():
            found = image_statistics(
                calibrate_case(calibrator, cases, case_id), target[None], ignore_index=cases.ignore_index
            )
            errors = {bins: float(found.expected_calibration_error(bins)) for bins in num_bins}
            rows += [EceRow(job.repeat, name, case_id, bins, error) for bins, error in errors.items()]
    return rows


def summarize_ece(results: Results, rows: Sequence[EceRow], pipeline: str, bins: int) -> BinningRow:
    """Mean over cases and repeats with its interval."""
    mine = {(row.repeat, row.case): row.ece for row in rows if row.pipeline == pipeline and row.bins == bins}
    repeats = sorted({repeat for repeat, _ in mine})
    tables = [np.array([[mine[r, case]] for case in results.test_cases(r)]) for r in repeats]
    (found,) = results.intervals(tables, repeats)
    return BinningRow("ece", bins, pipeline, found.mean, found.low, found.high)


def summarize_ace(results: Results, pipeline: str, bins: int) -> BinningRow:
    """Mean and extremes over repeats."""
    held = [r for r in results.repeats if results.cases_of(r, pipeline)]
    values = [results.average_calibration_error(r, pipeline, bins) for r in held]
    return BinningRow("ace", bins, pipeline, float(np.mean(values)), min(values), max(values))


@dataclass(frozen=True)
class Stability:
    """How much the ranking of pipelines depends on the number of bins.

    Attributes:
        reference: number of bins that the others are compared with.
        tau: Kendall's tau of each number's ranking with the reference's.
        smallest_tau: over all pairs of numbers.
        swapped: pairs of pipelines that change places somewhere.
        separated: those of them whose intervals do not overlap at the reference: swaps that matter.
        verdict: in words.
    """

    reference: int
    tau: dict[int, float]
    smallest_tau: float
    swapped: list[tuple[str, str]]
    separated: list[tuple[str, str]]
    verdict: str


def rank_stability(rows: Sequence[BinningRow], metric: str) -> Stability:
    """Compare the rankings of pipelines at all numbers of bins.

    Args:
        rows: one a number of bins and pipeline.
        metric: ``ece`` or ``ace``.
    """
    values: dict[int, dict[str, BinningRow]] = {}
    for row in rows:
        if row.metric == metric:
            values.setdefault(row.bins, {})[row.pipeline] = row
    reference = MAIN[metric] if MAIN[metric] in values else max(values)
    names = list(values[reference])
    means = {bins: [own[name].mean for name in names] for bins, own in values.items()}
    taus = {(a, b): _tau(means[a], means[b]) for a, b in combinations(values, 2)}
    swapped = [(a, b) for a, b in combinations(names, 2) if len({_sign(own[a], own[b]) for own in values.values()}) > 1]
    separated = [pair for pair in swapped if _apart(*(values[reference][name] for name in pair))]
    smallest = min(taus.values(), default=1.0)
    tau = {bins: taus.get((bins, reference), taus.get((reference, bins), 1.0)) for bins in values}
    return Stability(reference, tau, smallest, swapped, separated, _verdict(smallest, swapped, separated))


def _tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b; 1 for fewer than two pipelines, which cannot change places."""
    return 1.0 if len(first) < 2 else float(kendalltau(first, second).statistic)


def _sign(first: BinningRow, second: BinningRow) -> float:
    return float(np.sign(first.mean - second.mean))


def _apart(first: BinningRow, second: BinningRow) -> bool:
    return first.high < second.low or second.high < first.low


def _verdict(smallest: float, swapped: Sequence[Any], separated: Sequence[Any]) -> str:
    if not swapped:
        return "stable: no two pipelines change places"
    told = f"{len(swapped)} pair{'s' if len(swapped) > 1 else ''} of pipelines change places"
    if not separated:
        return f"stable within noise: {told}, none of them with separate intervals"
    return (
        "nearly stable" if smallest >= NEARLY else "not stable"
    ) + f": {told}, {len(separated)} with separate intervals"


def _picture(rows: list[BinningRow], names: list[str], metric: str) -> Picture:
    score = SCORES[metric]
    counts = sorted({row.bins for row in rows if row.metric == metric})
    found = {(row.pipeline, row.bins): row for row in rows if row.metric == metric}
    lines = [Series.of(name, [found[name, count] for count in counts]) for name in names[:MOST]]
    figure = series_figure([(f"{score.heading} {score.arrow}", lines)], [str(count) for count in counts], "bins")
    caption = f"{score.title.capitalize()} against the number of bins; bars: {score.interval}."
    return Picture(f"bins-{metric}", figure, caption)


def _tau_text(tau: float | None) -> str:
    """Kendall's tau; it is undefined where all pipelines tie."""
    return "undefined" if tau is None else f"{tau:.2f}"


def _table(rows: list[BinningRow], facts: dict[str, Any], metric: str) -> Table:
    score, own, names = SCORES[metric], facts[metric], facts["pipelines"]
    counts = sorted({row.bins for row in rows if row.metric == metric})
    found = {(row.pipeline, row.bins): row.mean for row in rows if row.metric == metric}
    best = {count: min(names, key=lambda name: found[name, count]) for count in counts}
    body: list[list[str | Cell]] = [
        [name, *(Cell(format_score(score, found[name, n], 4), best=best[n] == name) for n in counts)] for name in names
    ]
    body.append(["Kendall's tau", *(_tau_text(own["tau"][str(n)]) for n in counts)])
    swapped = "; ".join(" and ".join(pair) for pair in own["swapped"]) or "none"
    caption = (
        f"{score.label} by number of bins. Kendall's tau compares each ranking with that at {own['reference']} bins. "
        f"Pairs that change places: {swapped}."
    )
    return Table.of(f"bins-{metric}", caption, (score.label, *(f"B = {n}" for n in counts)), body)
