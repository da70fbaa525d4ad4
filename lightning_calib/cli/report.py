"""``calibrate.py report``: the page, tables and figures of a calibration run."""

import sys
from pathlib import Path

from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.layout import experiment_folder, find_runs
from lightning_calib.experiment.regions import read_runs
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.statistics import IntervalKind
from lightning_calib.report.build import build_report
from lightning_calib.report.regions import build_overview


def report(
    calibration: Path,
    outputs: Path | None = None,
    destination: Path | None = None,
    preserve: Preserve = "order",
    intervals: IntervalKind = "clustered",
    trust: bool = False,
) -> None:
    """Write a report that opens in any browser, offline: index.html, table.{md,tex,csv} and figures.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        outputs: the frozen outputs behind it, for the maps; by default the folder that the run recorded.
        destination: where to write; by default a folder named report beside the calibration folder.
        preserve: what the recommended pipeline must keep: the order of all classes, the predicted class, or nothing.
        intervals: of the main table: clustered (cases drawn as wholes), or two_level, the paper's.
        trust: import classes of other packages that the run's folder names.
    """
    runs, calibration = find_runs(calibration), experiment_folder(calibration)
    folder = destination or (runs or calibration).resolve().parent / "report"
    if runs is None:
        for failure in Results(calibration, trust).failures:  # what it imports, the report needs
            problem = failure.error.partition("\n")[0]
            print(f"warning: {failure.pipeline}, {failure.place}: {problem}", file=sys.stderr)
        page = build_report(calibration, outputs, folder, preserve, intervals)
    else:
        page = _regions(runs, folder, preserve, intervals, trust)
    print(f"report: {page}")


def _regions(runs: Path, folder: Path, preserve: Preserve, intervals: IntervalKind, trust: bool) -> Path:
    """The report of every region, and the page over all of them."""
    found = read_runs(runs, trust)
    for run in found:
        build_report(run.results.folder, None, run.results.folder.resolve().parent / "report", preserve, intervals)
    return build_overview(found, folder, preserve)
