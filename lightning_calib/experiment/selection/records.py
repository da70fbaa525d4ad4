"""What a selection by groups leaves on disk; ``selection.json`` is written last and says that the rest is whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.storage import save_calibrator
from lightning_calib.experiment import layout
from lightning_calib.experiment.records import REMEDY
from lightning_calib.experiment.rows import CaseRow, write_cases
from lightning_calib.kit.checksums import CHECKSUMS, changed_files, write_done
from lightning_calib.kit.files import sha256, write_json
from lightning_calib.kit.typed import read_typed


@dataclass(frozen=True)
class SelectionRecord:
    """A selection by groups under each constraint, apart from its calibrators.

    Attributes:
        repeat: number of the repeat whose ``cal`` and ``val`` it was made on; None for all cases.
        settings_hash: hash of everything that it depends on.
        level: level of the groups.
        num_cases: cases that it was made on.
        test_groups: group of each test case, at that level.
        unseen: whether no test case has a group that the selection has seen.
        choices: by constraint what was chosen and why, as ``Selection.to_dict`` gives it, the table aside, and the hash
            of the calibrator's file.
        held_out: held-out NLL of every candidate, strength and group; None where there were too few groups.
        status: ``ok`` or ``failed``.
        error: why it failed.
    """

    repeat: int | None = None
    settings_hash: str = ""
    level: str = ""
    num_cases: int = 0
    test_groups: dict[str, str] = field(default_factory=dict)
    unseen: bool = True
    choices: dict[str, dict[str, Any]] = field(default_factory=dict)
    held_out: dict[str, Any] | None = None
    status: str = "ok"
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a selection."""
        return self.status == "ok"


def calibrator_path(folder: Path, preserve: str) -> Path:
    """File of the calibrator that was chosen under a constraint."""
    return folder / f"{preserve}.safetensors"


def read_selection(folder: Path) -> SelectionRecord | None:
    """The selection in a folder; None where there is none."""
    path = folder / layout.SELECTION
    if not path.is_file():
        return None
    return read_typed(path, SelectionRecord, REMEDY)


def write_selection(
    folder: Path,
    record: SelectionRecord,
    calibrators: Mapping[str, Calibrator],
    rows: Sequence[CaseRow],
    class_names: list[str],
) -> None:
    """Write a selection.

    Args:
        folder: where to.
        record: what is known of it.
        calibrators: the chosen one of each constraint.
        rows: scores on test cases of all that were chosen, and of the reference.
        class_names: names of the classes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CHECKSUMS, layout.SELECTION):
        (folder / name).unlink(missing_ok=True)  # what is half written must not pass for what was there before
    choices = {}
    for preserve, choice in record.choices.items():
        path = calibrator_path(folder, preserve)
        described = {key: choice[key] for key in ("pipeline", "strength")}
        save_calibrator(path, calibrators[preserve], class_names, described)
        choices[preserve] = choice | {"calibrator_sha256": sha256(path)}
    write_cases(folder / layout.CASES, list(rows))
    files = [calibrator_path(folder, preserve).name for preserve in choices]
    write_done(folder, layout.SELECTION, vars(record) | {"choices": choices}, [layout.CASES, *files])


def write_failed_selection(folder: Path, repeat: int | None, settings_hash: str, error: str) -> None:
    """Record that a selection failed; files of an earlier one are taken away."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("*.safetensors"), folder / layout.CASES, folder / CHECKSUMS]:
        path.unlink(missing_ok=True)
    facts = {"repeat": repeat, "settings_hash": settings_hash, "status": "failed", "error": error}
    write_json(folder / layout.SELECTION, facts)


def selection_done(folder: Path, settings_hash: str) -> bool:
    """Whether a selection with these settings is there, its files as they were written."""
    if changed_files(folder):
        return False
    record = read_selection(folder)
    if record is None or not record.ok or record.settings_hash != settings_hash:
        return False
    files = {calibrator_path(folder, key): choice["calibrator_sha256"] for key, choice in record.choices.items()}
    return all(path.is_file() and sha256(path) == expected for path, expected in files.items())
