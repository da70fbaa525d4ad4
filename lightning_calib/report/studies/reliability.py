"""The section with the paper's four reliability curves."""

import numpy as np

from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.columns import COLUMN, format_metric
from lightning_calib.report.figures import Reliability, reliability_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.studies.reliability import NAME, CurveBin

KEY, TITLE = "study-reliability", "The paper's reliability curves"


def reliability(inputs: Inputs) -> Section:
    """Single model, uncalibrated ensemble, lowest ACE, and lowest ACE among the order preserving."""
    facts = read_facts(inputs, NAME)
    rows = read_rows(study_folder(inputs, NAME) / "curves.csv", CurveBin)
    curves = []
    for entry in facts["curves"]:
        label = f"{entry['pipeline']}, {entry['role']} (ACE {format_metric(COLUMN['ace'], entry['ace'])})"
        curves.append(_curve(label, [row for row in rows if row.role == entry["role"]], facts["bins"]))
    caption = (
        f"Accuracy against confidence of all test voxels in {facts['bins']} bins; ACE is the mean over repeats. On the "
        "dashed line confidences can be taken at their word."
    )
    lead = "Calibrated curves are those with the lowest ACE, over all pipelines and over those that preserve the order."
    return Section(KEY, TITLE, lead, pictures=(Picture("reliability-paper", reliability_figure(curves), caption),))


def _curve(label: str, rows: list[CurveBin], bins: int) -> Reliability:
    confidence, accuracy, count = np.full(bins, np.nan), np.full(bins, np.nan), np.zeros(bins)
    for row in rows:
        confidence[row.bin], accuracy[row.bin], count[row.bin] = row.confidence, row.accuracy, row.voxels
    return Reliability(label, confidence, accuracy, count)
