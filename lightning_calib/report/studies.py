"""Studies as the report finds them: by the folders that they left, in the order of the registry."""

from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lightning_calib.kit.checksums import refuse_changed
from lightning_calib.kit.registry import Registry
from lightning_calib.kit.typed import read_typed
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Section, attempt

FOLDER, FACTS = "studies", "study.json"


class Reported(Protocol):
    """What the report asks of a study, beside a constructor that takes the folder of the run."""

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section | None:
        """The study's section; None where it has nothing to show."""


def _check(name: str, thing: Any) -> None:  # noqa: ANN401
    if not (isinstance(thing, type) and hasattr(thing, "run") and hasattr(thing, "section")):
        raise ValueError(f"{name} is no Study, but {thing!r}")
    if getattr(thing, "name", None) != name:
        raise ValueError(f"the study {thing.__qualname__} has the name {getattr(thing, 'name', None)!r}, not {name!r}")


_HERE = "lightning_calib.studies"
# Quick ones first: an interrupted reproduction has most of the paper.
STUDIES: Registry[Any] = Registry(
    "study",
    "lightning_calib.studies",
    {
        "claims": f"{_HERE}.claims:Claims",
        "selection": f"{_HERE}.selection:Selection",
        "reliability": f"{_HERE}.reliability:Reliability",
        "properties": f"{_HERE}.properties:Properties",
        "flips": f"{_HERE}.flips:Flips",
        "triage": f"{_HERE}.triage:Triage",
        "bins": f"{_HERE}.bins:Bins",
        "offsets": f"{_HERE}.offsets:Offsets",
        "shift": f"{_HERE}.shift:Shift",
        "subsets": f"{_HERE}.subsets:Subsets",
        "cross_validation": f"{_HERE}.cross_validation:CrossValidation",
        "calibration_size": f"{_HERE}.calibration_size:CalibrationSize",
        "ensemble_size": f"{_HERE}.ensemble_size:EnsembleSize",
    },
    _check,
)


def study_folder(calibration: Path, name: str) -> Path:
    """Where a study keeps its files."""
    return calibration / FOLDER / name


def study_sections(inputs: Inputs) -> list[Section]:
    """Sections of the studies that were made."""
    made = [name for name in STUDIES if (study_folder(inputs.results.folder, name) / FACTS).is_file()]
    found = (attempt(f"study-{name}", name, partial(_section, name), inputs) for name in made)
    return [section for section in found if section is not None]


def _section(name: str, inputs: Inputs) -> Section | None:
    study: Reported = STUDIES[name](inputs.results.folder)
    folder = study_folder(inputs.results.folder, name)
    refuse_changed(folder, f"`calibrate.py study {name}` makes it anew")
    return study.section(inputs, read_typed(folder / FACTS, dict[str, Any]))
