"""The section on flips: harm, distance to the boundary, and maps of the worst cases."""

from itertools import pairwise
from typing import Any

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.rows import read_rows
from lightning_calib.functional.boundary import BANDS
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.map_figures import flip_figure
from lightning_calib.report.maps import case_maps
from lightning_calib.report.numbers import MINUS, MISSING, format_count, format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.studies.figures import MOST, Series, series_figure
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.report.studies.table import StudyTable
from lightning_calib.studies.flips import NAME, BandFlips

KEY, TITLE = "study-flips", "Where flips happen"
_PAPER = "ms(z)"  # whose flips the paper shows


def flips(inputs: Inputs) -> Section:
    """Flips by distance to the true boundary, and whether they help."""
    facts = read_facts(inputs, NAME)
    names = facts["pipelines"]
    if not names:
        return Section(KEY, TITLE, "No pipeline of this run changed the predicted class of a single test voxel.")
    rows = read_rows(study_folder(inputs, NAME) / "bands.csv", BandFlips)
    lead = (
        "Calibrators without a guarantee may change the segmentation. If flips gather at boundaries, they change "
        "outlines rather than random voxels."
    )
    pictures = [_bands(rows, names)]
    if inputs.store is not None:
        pictures += _maps(inputs, facts)
    tables = [_audit(facts), _concentration(rows, names)]
    return Section(KEY, TITLE, lead, "study.html", tuple(pictures), data={"tables": tables})


def band_names() -> list[str]:
    """Bands of distance in voxels."""
    return [f"{low:g} to {high:g}" for low, high in pairwise(BANDS[:-1])] + [f"{BANDS[-2]:g} and more"]


def _bands(rows: list[BandFlips], names: list[str]) -> Picture:
    lines = []
    for name in names[:MOST]:
        own = {row.band: row for row in rows if row.pipeline == name}
        rates = [own.get(band) for band in range(len(BANDS) - 1)]
        values = (
            [float("nan") if r is None else 100 * getattr(r, key) for r in rates] for key in ("rate", "low", "high")
        )
        lines.append(Series(name, *values))
    figure = series_figure(
        [("flips (% of the band's voxels)", lines)], band_names(), "distance to the boundary (voxels)"
    )
    caption = "Share of voxels that change their class, by distance to the true boundary, with 95 % intervals."
    return Picture("flip-bands", figure, caption)


def _audit(facts: dict[str, Any]) -> StudyTable:
    body = []
    for name in facts["pipelines"]:
        own = facts["audit"][name]
        total = own["harmful"] + own["beneficial"] + own["neutral"]
        shares = [
            format_number(100 * own[k] / total, 1) if total else MISSING for k in ("harmful", "beneficial", "neutral")
        ]
        rate = format_number(100 * total / own["voxels"], 3)
        body.append(
            [
                name,
                format_count(total),
                rate,
                *shares,
                format_count(own["beneficial"] - own["harmful"]).replace("-", MINUS),
            ]
        )
    head = (
        "pipeline",
        "flips",
        "% of voxels",
        "harmful (%)",
        "beneficial (%)",
        "wrong both times (%)",
        "net gain (voxels)",
    )
    caption = "All test voxels of all repeats. Net gain: beneficial minus harmful flips."
    return StudyTable("flips-audit", caption, head, body)


def _concentration(rows: list[BandFlips], names: list[str]) -> StudyTable:
    body = []
    for name in names:
        own = {row.band: row for row in rows if row.pipeline == name}
        cells = [
            f"{format_number(100 * own[b].share_of_flips, 1)} / {format_number(100 * own[b].share_of_voxels, 1)}"
            if b in own
            else MISSING
            for b in range(len(BANDS) - 1)
        ]
        body.append([name, *cells])
    caption = (
        "Share of all flips / share of all voxels (%) in each band of distance: equal where flips are spread evenly."
    )
    return StudyTable("flips-bands", caption, ("pipeline", *band_names()), body)


def _maps(inputs: Inputs, facts: dict[str, Any]) -> list[Picture]:
    """The worst cases of the paper's example, or of the pipeline with most flips."""
    names = [name for name in facts["pipelines"] if facts["audit"][name]["worst"]]
    if not names:
        return []
    most = max(names, key=lambda name: sum(facts["audit"][name][k] for k in ("harmful", "beneficial", "neutral")))
    name = _PAPER if _PAPER in names else most
    maps = []
    for entry in facts["audit"][name]["worst"]:
        calibrator = inputs.results.calibrator(entry["repeat"], name)
        if calibrator is not None:
            maps.append(case_maps(inputs.outputs[entry["case"]], PipelineName.parse(name).pooling, calibrator.eval()))
    if not maps:
        return []
    manifest = inputs.outputs.manifest
    caption = f"The test cases in which {name} changes most voxels."
    return [Picture("flip-worst", flip_figure(maps, manifest.class_names, manifest.background), caption, wide=True)]
