"""The page over all regions of a store: what to deploy for each, its scores, and what nesting does."""

import os
from collections.abc import Sequence
from pathlib import Path

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.regions import Nesting, RegionRun, nesting
from lightning_calib.kit.files import write_text
from lightning_calib.kit.tables import MISSING, Cell, Column, Row, Table
from lightning_calib.metrics.score import main_scores
from lightning_calib.outputs.regions import within
from lightning_calib.report.html import render
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import choose_decimals, format_score
from lightning_calib.report.section import Section

REGIONS = "regions"


def build_overview(runs: Sequence[RegionRun], destination: Path, preserve: Preserve = "order") -> Path:
    """Write the page of all regions, and its tables as Markdown and CSV.

    Args:
        runs: the experiments on the regions.
        destination: folder for ``index.html``, ``regions.{md,csv}`` and ``nesting.{md,csv}``.
        preserve: what the pipelines must keep.

    Returns:
        Path of ``index.html``.
    """
    chosen = [run.chosen(preserve) or MISSING for run in runs]
    nested = nesting(runs, chosen) if MISSING not in chosen else []
    tables = [score_table(runs, chosen), *([nesting_table(runs, chosen, nested)] if nested else [])]
    places = [run.results.folder.resolve().parent / "report" / "index.html" for run in runs]
    relative = [os.path.relpath(place, destination.resolve()) for place in places]
    links = list(zip([run.region.name for run in runs], relative, strict=True))
    lead = "Each region is a problem of two classes, outside and inside, with scores and a report of its own."
    overview = Section(REGIONS, "Regions", lead, (), tuple(tables), template="regions.html", data={"links": links})
    destination.mkdir(parents=True, exist_ok=True)
    for table in tables:
        write_text(destination / f"{table.name}.md", table.to_markdown())
        write_text(destination / f"{table.name}.csv", table.to_csv())
    name = runs[0].results.dataset["name"].removesuffix(f": {runs[0].region.name}")
    page = destination / "index.html"
    write_text(page, render(f"Calibration of {name}", [overview, *(_section(run, preserve) for run in runs)]))
    return page


def _section(run: RegionRun, preserve: Preserve) -> Section:
    """All pipelines of a region."""
    table = Inputs.open(run.results.folder, None, preserve).table
    labels = ", ".join(map(str, run.region.labels))
    return Section(run.region.slug, run.region.name, f"Made of the labels {labels}.", tables=(table,))


def score_table(runs: Sequence[RegionRun], chosen: Sequence[str]) -> Table:
    """Scores of what is recommended, beside those of the same pooling without a calibrator."""
    scores, rows = main_scores(), []
    larger = within([run.region for run in runs])
    for run, pipeline in zip(runs, chosen, strict=True):
        known = run.results.summary["pipelines"]
        names = [pipeline]
        if pipeline != MISSING:
            names.insert(0, str(PipelineName("identity", PipelineName.parse(pipeline).pooling)))
        for name in dict.fromkeys(each for each in names if each in known):
            words = (run.region.name, ", ".join(larger[run.region.name]) or MISSING)
            cells = [*(Cell(word, word) for word in words), Cell(name, name, style="code")]
            for score in scores:
                mean = (known[name]["metrics"].get(score.key) or {}).get("mean")
                cells.append(Cell(format_score(score, mean, choose_decimals(score, [mean or 0.0])), mean))
            rows.append(Row(tuple(cells)))
    heads = (Column("region", left=True), Column("within", left=True), Column("pipeline", left=True))
    caption = "What is recommended for each region, and the same pooling without a calibrator, on test cases."
    return Table(REGIONS, caption, (*heads, *(Column(s.heading, s.key, s.arrow) for s in scores)), tuple(rows))


def nesting_table(runs: Sequence[RegionRun], chosen: Sequence[str], nested: Sequence[Nesting]) -> Table:
    """What nesting does to each region."""
    rows = []
    for run, name, each in zip(runs, chosen, nested, strict=True):
        figures = [Cell(f"{value:.4f}", value) for value in (each.nll, each.nested_nll)]
        shares = [Cell(f"{value:.2%}", value) for value in (each.lowered, each.contradicting)]
        rows.append([Cell(run.region.name, run.region.name), Cell(name, name, style="code"), *figures, *shares])
    caption = (
        "Nested: no region keeps a higher probability than one that it lies within, and no decision changes. Where "
        "the networks contradict themselves (inside the smaller region, outside the larger), they are left as they are."
    )
    heads = ("region", "pipeline", "NLL", "NLL nested", "voxels lowered", "voxels that contradict")
    return Table.of("nesting", caption, heads, rows)
