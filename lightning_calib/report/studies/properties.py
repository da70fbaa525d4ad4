"""The section on properties: what calibrators declare beside what was measured."""

from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import format_count, format_scientific
from lightning_calib.report.section import Section
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.report.studies.table import StudyTable
from lightning_calib.studies.parameters import CountRow
from lightning_calib.studies.properties import NAME, PropertyRow

KEY, TITLE = "study-properties", "Properties, measured"
_HEAD = ("pipeline", "parameters", "identifiable", "TI declared", "change", "keeps (declared)", "argmax", "inversions")


def properties(inputs: Inputs) -> Section:
    """The paper's table of properties and parameters, measured on fitted calibrators and real outputs."""
    facts = read_facts(inputs, NAME)
    rows = read_rows(study_folder(inputs, NAME) / "properties.csv", PropertyRow)
    voxels = sum(row.voxels for row in rows if row.pipeline == rows[0].pipeline)
    lead = (
        f"Every fitted calibrator was run on stored outputs ({format_count(voxels)} voxels a pipeline), as they are "
        f"and with a random shift added to each voxel (standard deviation {facts['shift']:g}). "
    )
    lead += "Every declared property holds." if not facts["broken"] else "Some declared properties do not hold."
    notices = tuple(f"{e['pipeline']}, repeat {e['repeat']}: {e['broken']}" for e in facts["broken"])
    caption = (
        f"C = {facts['num_classes']}. Parameters: fitted, and identifiable ones. Change: largest change of a "
        "log-probability under shifts of the pooled logits, over all repeats; 0 means equal in every bit. Argmax: "
        "voxels whose class changed. Inversions: neighbours in the ranking that changed places."
    )
    body = [_row([row for row in rows if row.pipeline == name]) for name in facts["pipelines"]]
    tables = [StudyTable("properties", caption, _HEAD, body), _parameters(inputs)]
    return Section(KEY, TITLE, lead, "study.html", notices=notices, data={"tables": tables})


def _parameters(inputs: Inputs) -> StudyTable:
    """Parameters of all calibrators for other numbers of classes."""
    rows = read_rows(study_folder(inputs, NAME) / "parameters.csv", CountRow)
    classes = sorted({row.classes for row in rows})
    found = {(row.calibrator, row.classes): row for row in rows}
    names = dict.fromkeys(row.calibrator for row in rows)
    counts = ((found[name, c] for c in classes) for name in names)
    cells = ([f"{format_count(row.optimized)} / {format_count(row.identifiable)}" for row in own] for own in counts)
    body = [[name, *own] for name, own in zip(names, cells, strict=True)]
    caption = "Fitted / identifiable parameters of every calibrator by the number of classes C."
    return StudyTable("parameters", caption, ("calibrator", *(f"C = {c}" for c in classes)), body)


def _row(rows: list[PropertyRow]) -> list[str]:
    """All repeats of a pipeline together."""
    first = rows[0]
    return [
        first.pipeline,
        format_count(first.optimized),
        format_count(first.identifiable),
        first.declared_invariant,
        format_scientific(max(row.shift_change for row in rows)),
        first.declared_preserves,
        format_count(sum(row.argmax_changes for row in rows)),
        format_count(sum(row.inversions for row in rows)),
    ]
