"""The section on logit offsets: how the free energy varies, for every ensemble size."""

from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.map_figures import energy_figure
from lightning_calib.report.maps import free_energy
from lightning_calib.report.numbers import format_count, format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.studies.figures import Series, series_figure
from lightning_calib.report.studies.read import study_folder
from lightning_calib.report.studies.table import StudyTable
from lightning_calib.studies.offsets import DOUBT, NAME, OffsetRow, OffsetSummary

KEY, TITLE = "study-offsets", "Offsets by ensemble size"


def offsets(inputs: Inputs) -> Section:
    """Spatial standard deviation of the pooled free energy against the number of members."""
    folder = study_folder(inputs, NAME)
    summary, cases = read_rows(folder / "offsets.csv", OffsetSummary), read_rows(folder / "cases.csv", OffsetRow)
    line = Series("mean", [r.mean for r in summary], [r.p25 for r in summary], [r.p75 for r in summary])
    figure = series_figure([("spread of the free energy", [line])], [str(r.members) for r in summary], "members M")
    figure.axes[0].set_ylim(bottom=0)  # or small changes look large
    told = "Mean over cases of the standard deviation within an image; bars reach from the first to the third quartile."
    pictures = [Picture("offsets", figure, told)]
    if inputs.store is not None:
        pictures.append(_maps(inputs, [row for row in cases if row.members == summary[-1].members]))
    caption = (
        f"{format_count(summary[0].cases)} cases of {inputs.results.dataset['name']}; free energy of the mean logits. "
        f"In doubt: mean over cases of the spread among voxels with a confidence below {DOUBT:g}, those that "
        "calibration can change."
    )
    rows = [
        [f"M = {row.members}", *(format_number(x, 2) for x in (row.mean, row.p25, row.p50, row.p75, row.in_doubt))]
        for row in summary
    ]
    table = StudyTable("offsets", caption, ("members", "mean", "25 %", "median", "75 %", "in doubt"), rows)
    lead = (
        "Softmax does not see a constant added to all logits of a voxel, but calibrators that are not translation "
        "invariant do. If that constant varies within images, they can be misled: how much does it, and is it a matter "
        "of the ensemble's size?"
    )
    return Section(KEY, TITLE, lead, "study.html", tuple(pictures), data={"tables": [table]})


def _maps(inputs: Inputs, rows: list[OffsetRow]) -> Picture:
    """Cases at the quartiles of the spread."""
    ranked = sorted(rows, key=lambda row: row.spread)
    chosen = {ranked[round(share * (len(ranked) - 1))].case: share for share in (0.25, 0.5, 0.75)}
    maps = []
    for case, share in chosen.items():
        energy, deviation = free_energy(inputs.outputs[case])
        maps.append((f"{case}, {share:.0%} (spread {format_number(deviation, 2)})", energy))
    caption = "Free energy of the mean logits in cases at the quartiles of its spread, on one colour scale."
    return Picture("offset-maps", energy_figure(maps), caption, wide=True)
