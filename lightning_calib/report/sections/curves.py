"""Sections drawn from bin and band tables: reliability diagrams, calibration by distance to the boundary."""

import numpy as np
import torch

from lightning_calib.functional.binning import BinTable
from lightning_calib.report.columns import COLUMN, format_metric
from lightning_calib.report.figures import BandProfile, Reliability, band_figure, reliability_figure
from lightning_calib.report.inputs import Inputs, MissingInput
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.tables import Row

BINS = 15  # of the average calibration error, so that the diagram shows what that figure sums up


def contrasted(inputs: Inputs) -> dict[str, str]:
    """Pipelines that curves contrast, with their roles: those of the paper, then the recommended one."""
    pipeline = inputs.recommended
    roles = {
        "identity(p0)": "single model",
        inputs.uncalibrated(pipeline): "uncalibrated",
        inputs.best("ace", lambda row: row.calibrated): "lowest ACE",
        inputs.best("ace", _keeps_order): "lowest ACE, order preserving",
        str(pipeline): "recommended",
    }
    told: dict[str, str] = {}
    for name, role in roles.items():
        if name in inputs.scored and name not in told:
            told[name] = role
    if not told:
        raise MissingInput("No pipeline has scores in this run.")
    return told


def _keeps_order(row: Row) -> bool:
    return row.calibrated and row.pipeline.preserves == "order"


def reliability(inputs: Inputs) -> Section:
    """Reliability diagrams of the contrasted pipelines."""
    curves = []
    for name, role in contrasted(inputs).items():
        repeats = inputs.repeats_of(name)
        tables = [inputs.results.bin_table(r, name, BINS) for r in repeats]
        ace = float(np.mean([inputs.results.average_calibration_error(r, name) for r in repeats]))
        label = f"{name}, {role} (ACE {format_metric(COLUMN['ace'], ace)})"
        curves.append(pooled_curve(label, tables))
    caption = (
        "How often voxels of a given confidence are right. On the dashed line confidences can be taken at their "
        "word; below it the model is too confident. Underneath: the share of voxels at each confidence, "
        "on a logarithmic scale."
    )
    return Section(
        "reliability",
        "Reliability",
        "Does a confidence of 80 % mean that 80 % are right? All test voxels of all repeats, in 15 bins of confidence.",
        pictures=(Picture("reliability", reliability_figure(curves), caption),),
    )


def pooled_curve(label: str, tables: list[BinTable]) -> Reliability:
    """One curve from the tables of several repeats.

    Example:
        >>> table = BinTable(torch.tensor([0, 4]), torch.tensor([0, 3]), torch.tensor([0.0, 3.6]).double())
        >>> pooled_curve("toy", [table, table]).accuracy.tolist()
        [nan, 0.75]
    """
    pooled = BinTable(*(torch.stack(columns).sum(dim=0) for columns in zip(*tables, strict=True)))
    numbers = (pooled.mean_confidence(), pooled.accuracy(), pooled.voxels.double())
    confidence, accuracy, count = (column.numpy() for column in numbers)
    return Reliability(label, confidence, accuracy, count)


def bands(inputs: Inputs) -> Section:
    """Uncertainty against error in bands of distance to the true boundary."""
    edges = [np.inf if edge is None else float(edge) for edge in inputs.results.settings["bands"]]
    profiles = [_profile(inputs, name, role) for name, role in contrasted(inputs).items()]
    caption = (
        "Stated uncertainty (one minus the confidence) minus the share of errors, in bands of distance to the true "
        "boundary. Below zero the model is too confident there, above it too careful. BA-ECE weighs the sizes of "
        "these gaps, the band at the boundary most."
    )
    return Section(
        "bands",
        "Calibration near boundaries",
        "Errors gather where one class meets another: is the model honest about it there?",
        pictures=(Picture("bands", band_figure(profiles, edges), caption),),
    )


def _profile(inputs: Inputs, name: str, role: str) -> BandProfile:
    """Means over all voxels of a band, all repeats and cases together."""
    tables = [inputs.results.band_table(r, name) for r in inputs.repeats_of(name)]
    count = torch.stack([table.voxels.sum(dim=0) for table in tables]).sum(dim=0).double()
    errors = torch.stack([table.errors.sum(dim=0) for table in tables]).sum(dim=0)
    uncertainty = torch.stack([table.uncertainty.sum(dim=0) for table in tables]).sum(dim=0)
    return BandProfile(f"{name}, {role}", (uncertainty / count).numpy(), (errors / count).numpy())
