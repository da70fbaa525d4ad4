"""``calibrate.py run``: the paper's protocol from frozen outputs to a report."""

import json as json_format
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lightning_calib.cli.doctor import require_healthy
from lightning_calib.cli.noise import silence
from lightning_calib.executors.local import available_cores
from lightning_calib.experiment.plan import Protocol
from lightning_calib.experiment.recommend import Preserve, describe, recommend
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.run import run_protocol
from lightning_calib.experiment.trackers import TrackerName, track
from lightning_calib.experiment.tracking import tracked_runs
from lightning_calib.report.build import build_report
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.main_table import NOT_INVARIANT


def run(
    calibration: Path | None = None,
    workers: int | None = None,
    report: bool = True,
    logger: TrackerName = "csv",
    experiment: str | None = None,
    preserve: Preserve = "order",
    doctor: bool = True,
    json: bool = False,
    **protocol: Any,
) -> int:
    """Fit every pipeline in every repeat on cal, select on val, evaluate on test, and report.

    Goes on where an earlier run stopped; what was computed with other settings is computed again.

    Args:
        calibration: where results go; by default a folder named calibration beside the outputs.
        workers: processes at a time; by default one a core. Results do not depend on it.
        report: also write the report, in a folder named report beside the results.
        logger: tracker that gets every pipeline, repeat and table; its files go to tracking beside the results.
        experiment: name that groups the tracked runs; by default that of the run's folder.
        preserve: what the recommended pipeline must keep of the pooled ranking.
        doctor: examine the outputs first; an error stops the run.
        json: print what came out as JSON.
        **protocol: see Protocol.

    Returns:
        0, or 1 where a pipeline failed.
    """
    quiet()
    settings = Protocol(**protocol)
    require_healthy(settings.outputs, doctor)
    home = Path(settings.outputs).resolve().parent
    folder = calibration or home / "calibration"
    count = available_cores() if workers is None else workers
    summary = run_protocol(settings, folder, count, display=not json, start=quiet)
    results = Results.open(folder)
    page = (
        build_report(folder, Path(settings.outputs), folder.resolve().parent / "report", preserve) if report else None
    )
    figures = {path.stem: path for path in sorted((page.parent / "figures").glob("*.png"))} if page else {}
    track(tracked_runs(results, figures), logger, experiment or home.name, folder.resolve().parent / "tracking")
    if json:
        facts = {"calibration": str(folder), "report": page and str(page)}
        print(json_format.dumps(facts | {key: summary[key] for key in ("recommendation", "failures")}))
    else:
        show(results, preserve, page)
    return 1 if summary["failures"] else 0


def quiet() -> None:
    """Keep libraries from talking into the progress display; also in worker processes."""
    silence()
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def show(results: Results, preserve: Preserve, page: Path | None = None) -> None:
    """Print the main table, the recommendation, failures, and where everything is."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(table_text(results), markup=False)
    if results.summary["recommendation"][preserve] is not None:
        console.print(describe(recommend(results, preserve), len(results.repeats)), markup=False)
    for failure in results.failures:
        reason = failure.error.splitlines()[0]
        console.print(f"FAILED {failure.pipeline} in repeat {failure.repeat}: {reason}", markup=False)
    console.print(f"results: {results.folder}", markup=False)
    if page is not None:
        console.print(f"report:  {page}", markup=False)


def table_text(results: Results) -> str:
    """The main table for a terminal, in the paper's blocks."""
    legend = f"*: best of its column; {NOT_INVARIANT}: not translation invariant"
    return replace(Inputs.open(results.folder, None).table, caption=legend).to_text()
