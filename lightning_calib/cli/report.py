"""``calibrate.py report``: the page, tables and figures of a calibration run."""

from pathlib import Path

from lightning_calib.experiment.advice import Preserve
from lightning_calib.report.build import build_report


def report(
    calibration: Path, outputs: Path | None = None, destination: Path | None = None, preserve: Preserve = "order"
) -> None:
    """Write a report that opens in any browser, offline: index.html, table.{md,tex,csv} and figures.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        outputs: the frozen outputs behind it, for the maps; by default the folder that the run recorded.
        destination: where to write; by default a folder named report beside the calibration folder.
        preserve: what the recommended pipeline must keep: the order of all classes, the predicted class, or nothing.
    """
    page = build_report(calibration, outputs, destination or calibration.resolve().parent / "report", preserve)
    print(f"report: {page}")
