"""Sections of the studies that were made, and their tables as files."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_calib.kit.files import write_text
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Section
from lightning_calib.report.studies import (
    bins,
    claims,
    flips,
    offsets,
    properties,
    reliability,
    selection,
    shift,
    sizes,
    subsets,
)
from lightning_calib.report.studies.read import is_done

Entry = tuple[str, str, Callable[[Inputs], Section]]

# By the name of the study, in the order of the page; a study without files has no section.
STUDY_SECTIONS: dict[str, Entry] = {
    "claims": (claims.KEY, claims.TITLE, claims.claims),
    "reliability": (reliability.KEY, reliability.TITLE, reliability.reliability),
    "selection": (selection.KEY, selection.TITLE, selection.selection),
    "shift": (shift.KEY, shift.TITLE, shift.shift),
    "subsets": (subsets.KEY, subsets.TITLE, subsets.subsets),
    "properties": (properties.KEY, properties.TITLE, properties.properties),
    "offsets": (offsets.KEY, offsets.TITLE, offsets.offsets),
    "flips": (flips.KEY, flips.TITLE, flips.flips),
    "calibration_size": (sizes.CALIBRATION_KEY, sizes.CALIBRATION_TITLE, sizes.calibration_size),
    "ensemble_size": (sizes.ENSEMBLE_KEY, sizes.ENSEMBLE_TITLE, sizes.ensemble_size),
    "bins": (bins.KEY, bins.TITLE, bins.bins),
}

# Names of all figures that the sections above may have.
STUDY_FIGURES = (
    *("reliability-paper", "corruptions", "shift", "offsets", "offset-maps", "flip-bands", "flip-worst"),
    *("calibration-size", "ensemble-size", "bins-ece", "bins-ace", "selection"),
)


def study_sections(inputs: Inputs) -> list[Entry]:
    """Sections of the studies that were made."""
    return [entry for name, entry in STUDY_SECTIONS.items() if is_done(inputs, name)]


def write_tables(sections: Sequence[Section], folder: Path) -> None:
    """Every table of a study as Markdown and LaTeX."""
    tables = [table for section in sections for table in section.data.get("tables", ())]
    for table in tables:
        folder.mkdir(exist_ok=True)
        write_text(folder / f"{table.name}.md", table.to_markdown())
        write_text(folder / f"{table.name}.tex", table.to_latex())
