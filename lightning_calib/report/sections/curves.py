"""Sections drawn from bin and band tables: reliability diagrams, calibration by distance to the boundary."""

from collections.abc import Sequence

import numpy as np
import torch

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.results import Results
from lightning_calib.functional.binning import BinTable
from lightning_calib.metrics.score import SCORES
from lightning_calib.report.curves import Risk, risk_figure
from lightning_calib.report.figures import BandProfile, Reliability, band_figure, reliability_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import format_score
from lightning_calib.report.section import Picture, Section

BINS = 15  # of the average calibration error, so that the diagram shows what that figure sums up


def contrasted(inputs: Inputs, bins: int = BINS) -> dict[str, str]:
    """Pipelines that curves contrast, with their roles.

    First the uncalibrated ensemble and the recommended pipeline. Then those of the paper: the single model, the
    pipeline with the lowest ACE, the ensemble pooled as that one is but not calibrated, and the one with the lowest ACE
    among those that preserve the order. Pipelines that lack a repeat are passed over where others have all.
    """
    parsed = {name: PipelineName.parse(name) for name in inputs.scored}
    rivals = [name for name in parsed if parsed[name].calibrator != "identity"]
    rivals = [name for name in rivals if name not in inputs.notes] or rivals
    aces = {name: mean_ace(inputs.results, name, bins) for name in rivals}
    best = min(aces, key=lambda name: aces[name], default=None)
    keeping = min((n for n in aces if parsed[n].preserves == "order"), key=lambda name: aces[name], default=None)
    plain, chosen = inputs.results.summary["uncalibrated"], str(inputs.recommended)
    wanted = (
        ("identity(p0)", "single model"),
        (best and inputs.uncalibrated(parsed[best]), "uncalibrated ensemble"),
        (best, "lowest ACE"),
        (keeping, "lowest ACE, order preserving"),
        (plain, "uncalibrated ensemble of lower NLL"),
        (chosen, "recommended"),
    )
    told: dict[str, str] = {}
    for name, role in wanted:
        if name in parsed:
            told.setdefault(name, role)
    first = [name for name in (plain, chosen) if name in told]  # they have the first styles of lines
    return {name: told[name] for name in dict.fromkeys([*first, *told])}


def mean_ace(results: Results, pipeline: str, bins: int = BINS) -> float:
    """ACE, averaged over the repeats that have scores."""
    held = [r for r in results.repeats if results.cases_of(r, pipeline)]
    return float(np.mean([results.average_calibration_error(r, pipeline, bins) for r in held]))


def curve_of(results: Results, pipeline: str, label: str, bins: int = BINS) -> Reliability:
    """The curve of a pipeline over all test voxels of all repeats."""
    held = [r for r in results.repeats if results.cases_of(r, pipeline)]
    return pooled_curve(label, [results.bin_table(r, pipeline, bins) for r in held])


def reliability(inputs: Inputs, bins: int = BINS) -> Section:
    """Reliability diagrams of the contrasted pipelines."""
    curves = []
    for name, role in contrasted(inputs, bins).items():
        ace = format_score(SCORES["ace"], mean_ace(inputs.results, name, bins))
        curves.append(curve_of(inputs.results, name, f"{name}, {role} (ACE {ace})", bins))
    caption = (
        "How often voxels of a given confidence are right. On the dashed line confidences can be taken at their "
        "word; below it the model is too confident. Underneath: the share of voxels at each confidence, "
        "on a logarithmic scale."
    )
    return Section(
        "reliability",
        "Reliability",
        "Does a confidence of 80 % mean that 80 % are right? All test voxels of all repeats, in "
        f"{bins} bins of confidence.",
        (Picture("reliability", reliability_figure(curves), caption),),
    )


def risk(inputs: Inputs) -> Section:
    """What is left of the errors where only the surest voxels are kept."""
    names = dict.fromkeys([inputs.results.summary["uncalibrated"], str(inputs.recommended)])
    curves = {
        name: risk_curve([inputs.results.bin_table(r, name) for r in inputs.repeats_of(name)]) for name in names if name
    }
    caption = (
        "Voxels in the order of their confidence: keep the surest 80 %, say, and look at the rest by eye. The lower "
        "the curve, the better confidence tells right from wrong. All test voxels of all repeats."
    )
    lead = "How many errors are left among the voxels that the model is sure of?"
    return Section("risk", "Risk and coverage", lead, (Picture("risk", risk_figure(curves), caption),))


def risk_curve(tables: Sequence[BinTable]) -> Risk:
    """Error rate among the surest voxels, from tables of confidences of several repeats.

    Example:
        >>> table = BinTable(torch.tensor([2, 6]), torch.tensor([1, 6]), torch.tensor([1.0, 5.4]).double())
        >>> curve = risk_curve([table])
        >>> curve.coverage.tolist(), curve.risk.tolist()
        ([0.75, 1.0], [0.0, 0.125])
    """
    voxels, correct = (sum(getattr(t, key).double().numpy() for t in tables)[::-1] for key in ("voxels", "correct"))
    kept = voxels > 0
    total = np.cumsum(voxels)[kept]
    return Risk(total / total[-1], 1 - np.cumsum(correct)[kept] / total)


def pooled_curve(label: str, tables: Sequence[BinTable]) -> Reliability:
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
        (Picture("bands", band_figure(profiles, edges), caption),),
    )


def _profile(inputs: Inputs, name: str, role: str) -> BandProfile:
    """Means over all voxels of a band, all repeats and cases together."""
    tables = [inputs.results.band_table(r, name) for r in inputs.repeats_of(name)]
    count, errors, uncertainty = (
        torch.stack([getattr(table, key).sum(dim=0) for table in tables]).sum(dim=0).double()
        for key in ("voxels", "errors", "uncertainty")
    )
    return BandProfile(f"{name}, {role}", (uncertainty / count).numpy(), (errors / count).numpy())
