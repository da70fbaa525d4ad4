"""Where sections find the files of a study."""

from pathlib import Path
from typing import Any

from lightning_calib.kit.files import read_json
from lightning_calib.report.inputs import Inputs
from lightning_calib.studies.base import FACTS, STUDIES


def study_folder(inputs: Inputs, name: str) -> Path:
    """Folder of a study."""
    return inputs.results.folder / STUDIES / name


def is_done(inputs: Inputs, name: str) -> bool:
    """Whether a study was made."""
    return (study_folder(inputs, name) / FACTS).is_file()


def read_facts(inputs: Inputs, name: str) -> dict[str, Any]:
    """``study.json``."""
    facts: dict[str, Any] = read_json(study_folder(inputs, name) / FACTS)
    return facts
