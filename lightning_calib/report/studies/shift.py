"""The section on shifted images: tables, degradation, and what the corruptions look like."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lightning_calib.datasets.corruptions import EXAMPLE
from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.columns import COLUMN
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.studies.figures import corruption_sheet, series_figure
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.report.studies.sizes import interval_text, panels
from lightning_calib.report.studies.table import StudyTable, score_table
from lightning_calib.studies.scores import ScoreRow
from lightning_calib.studies.shift import CLEAN, NAME

KEY, TITLE = "study-shift", "Shifted images"
_LINES = ("identity(z)", "ms(z)", "ms_c(z)", "lts_ti(z)", "cdc(p)", "cms_op(p)", "ts(p)")  # the paper's contrasts
_METRICS = ("nll", "ece", "ba_ece", "ace", "dice", "flip")


def shift(inputs: Inputs) -> Section:
    """Scores of the same calibrators on changed images, without refitting."""
    folder, facts = study_folder(inputs, NAME), read_facts(inputs, NAME)
    rows = read_rows(folder / "scores.csv", ScoreRow)
    changes = read_rows(folder / "degradation.csv", ScoreRow)
    images = list(dict.fromkeys(row.setting for row in rows))
    pictures = [_degradation(rows, facts["pipelines"], images)]
    if (sheet := _sheet(facts)) is not None:
        pictures.insert(0, sheet)
    data = inputs.results.dataset["name"]
    tables = [
        score_table(data, rows, facts["pipelines"], name, f"shift-{name}", f"{name} images")
        for name in images
        if name != CLEAN
    ]
    tables.append(_changes(changes, facts["pipelines"], [name for name in images if name != CLEAN]))
    lead = (
        "Calibrators were fitted on clean images and meet changed ones: nothing is fitted again. "
        f"{_told(facts)} Labels are untouched."
    )
    return Section(KEY, TITLE, lead, "study.html", tuple(pictures), data={"tables": tables})


def _told(facts: dict[str, Any]) -> str:
    """How many images got which corruption."""
    known = next((entry for entry in facts["corruptions"].values() if entry), None)
    if known is None:
        return "The stores do not say what was done to their images."
    kinds = list(known["kinds"].values())
    counts = ", ".join(f"{kind} {kinds.count(kind)}" for kind in known["parameters"])
    return f"Each image was corrupted once, the kind drawn by a hash of its name ({counts})."


def _degradation(rows: list[ScoreRow], names: list[str], images: list[str]) -> Picture:
    shown = [name for name in _LINES if name in names] or names
    lines = panels(rows, shown, images, "", _METRICS)
    caption = (
        "Scores on clean and on changed images of the same test cases, with 95 % intervals (ACE: smallest and largest "
        "repeat). The flatter a line, the less the shift matters to the pipeline."
    )
    return Picture("shift", series_figure(lines, images, "images"), caption, wide=True)


def _changes(changes: list[ScoreRow], names: list[str], images: list[str]) -> StudyTable:
    """NLL and ECE: how much worse than on clean images."""
    found = {(row.setting, row.pipeline, row.metric): row for row in changes}
    shown = [(kind, metric) for kind in images for metric in ("nll", "ece", "ba_ece")]
    rows = []
    for name in names:
        cells = [found.get((kind, name, metric)) for kind, metric in shown]
        rows.append([name, *(interval_text(cell) for cell in cells)])
    head = ("pipeline", *(f"{COLUMN[metric].label}, {kind}" for kind, metric in shown))
    caption = "Changed minus clean images, case by case, with 95 % intervals: what the shift costs each pipeline."
    return StudyTable("shift-degradation", caption, head, rows)


def _sheet(facts: dict[str, Any]) -> Picture | None:
    """The corruptions on an image of the pool set, where a store has kept one."""
    for store in facts["images"].values():
        path = Path(store) / EXAMPLE
        if path.is_file():
            with Image.open(path) as image:
                figure = corruption_sheet(np.array(image.convert("RGB")))
            caption = (
                "All corruptions on one image, mild above and strong below, with the peak signal-to-noise ratio. "
                "None of them moves a pixel, so that labels stay right."
            )
            return Picture("corruptions", figure, caption, wide=True)
    return None
