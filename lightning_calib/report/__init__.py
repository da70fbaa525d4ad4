"""Tables, figures and the HTML report."""

from lightning_calib.report.build import build_report

__all__ = ["build_report"]
