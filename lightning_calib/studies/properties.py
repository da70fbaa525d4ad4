"""What fitted calibrators really do to real outputs, beside what they declare, and their parameters (Table 1)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.registry import CALIBRATORS, build
from lightning_calib.kit.tables import Table
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import format_count, format_scientific
from lightning_calib.report.section import Section
from lightning_calib.studies.audit import SHIFT, Measured, measure_cases
from lightning_calib.studies.base import Pass, Pipelines, Study

CLASSES = (2, 5, 20)  # of the paper's data sets
_HEAD = ("pipeline", "parameters", "identifiable", "TI declared", "change", "keeps (declared)", "argmax", "inversions")


@dataclass(frozen=True)
class PropertyRow:
    """Declared and measured properties of one fitted calibrator (``properties.csv``)."""

    pipeline: str
    repeat: int
    optimized: int
    identifiable: int
    declared_invariant: str
    declared_preserves: str
    voxels: int
    shift_change: float
    argmax_changes: int
    inversions: int
    measured_invariant: str
    measured_preserves: str
    broken: str


def property_row(pipeline: str, repeat: int, calibrator: Calibrator, measured: Measured) -> PropertyRow:
    """Declared beside measured."""
    broken = measured.violations(calibrator.translation_invariant, calibrator.preserves)
    return PropertyRow(
        pipeline=pipeline,
        repeat=repeat,
        optimized=calibrator.num_optimized,
        identifiable=calibrator.num_identifiable,
        declared_invariant=_yes(calibrator.translation_invariant),
        declared_preserves=calibrator.preserves or "nothing",
        **asdict(measured),
        measured_invariant=_yes(measured.invariant),
        measured_preserves=measured.preserved or "nothing",
        broken="; ".join(broken),
    )


@dataclass(frozen=True)
class CountRow:
    """Parameters of a calibrator (``parameters.csv``)."""

    calibrator: str
    classes: int
    optimized: int
    identifiable: int


class Properties(Study):
    """Properties of every fitted calibrator, measured on test cases of its repeat."""

    name, title = "properties", "Properties, measured"

    def run(self, pipelines: Pipelines | None = None, cases: int = 8) -> dict[str, Any]:
        """Measure translation invariance and preservation of all fitted calibrators on real outputs.

        Exits with 1 where a declared property does not hold.

        Args:
            pipelines: which to measure; by default all of the run.
            cases: test cases a repeat, evenly spread.

        Returns:
            ``study.json``, with the declared properties that do not hold.
        """
        names, classes = self.names(pipelines), self.results.dataset["num_classes"]
        jobs = self.passes(names, [column.name for column in fields(PropertyRow)], cases)
        found = self.tabulate(jobs, partial(property_rows, self), PropertyRow)
        rows = sorted(found, key=lambda row: (names.index(row.pipeline), row.repeat))
        self.save("properties.csv", rows, PropertyRow)
        self.save("parameters.csv", parameter_counts([*CLASSES, classes]), CountRow)
        broken = [{"pipeline": row.pipeline, "repeat": row.repeat, "broken": row.broken} for row in rows if row.broken]
        return self.write(
            {"pipelines": list(names), "num_classes": classes, "cases": cases, "shift": SHIFT, "broken": broken}
        )

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """What is broken, or that nothing is."""
        broken = [f"BROKEN {e['pipeline']}, repeat {e['repeat']}: {e['broken']}" for e in facts["broken"]]
        return broken or [f"every declared property of {len(facts['pipelines'])} pipelines holds"]

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """The paper's table of properties and parameters, measured on fitted calibrators and real outputs."""
        rows = self.read("properties.csv", PropertyRow)
        voxels = sum(row.voxels for row in rows if row.pipeline == rows[0].pipeline)
        lead = (
            f"Every fitted calibrator was run on stored outputs ({format_count(voxels)} voxels a pipeline), as they "
            f"are and with a random shift added to each voxel (standard deviation {facts['shift']:g}). "
        )
        lead += "Every declared property holds." if not facts["broken"] else "Some declared properties do not hold."
        notices = tuple(f"{e['pipeline']}, repeat {e['repeat']}: {e['broken']}" for e in facts["broken"])
        caption = (
            f"C = {facts['num_classes']}. Parameters: fitted, and identifiable ones. Change: largest change of a "
            "log-probability under shifts of the pooled logits, over all repeats; 0 means equal in every bit. Argmax: "
            "voxels whose class changed. Inversions: neighbours in the ranking that changed places."
        )
        body = [_cells([row for row in rows if row.pipeline == name]) for name in facts["pipelines"]]
        tables = (Table.of("properties", caption, _HEAD, body), _parameters(self.read("parameters.csv", CountRow)))
        return Section(self.key, self.title, lead, tables=tables, notices=notices)


def property_rows(study: Study, job: Pass) -> list[PropertyRow]:
    """Declared and measured properties of the pipelines of a pass."""
    cases, rows = study.cases(job.pooling), []
    for name in job.pipelines:
        calibrator = study.calibrator(job.repeat, name)
        rows.append(property_row(name, job.repeat, calibrator, measure_cases(calibrator, cases, job.case_ids)))
    return rows


def parameter_counts(classes: Sequence[int]) -> list[CountRow]:
    """Counts of all calibrators that a solver fits, taken from calibrators that are built for it.

    Args:
        classes: numbers of classes.

    Example:
        >>> [(row.optimized, row.identifiable) for row in parameter_counts([2]) if row.calibrator == "ms"]
        [(6, 3)]
    """
    rows = []
    for name in (name for name in CALIBRATORS if CALIBRATORS[name].solver != "stacking"):
        for number in sorted(set(classes)):
            calibrator = build(name, number)
            rows.append(CountRow(name, number, calibrator.num_optimized, calibrator.num_identifiable))
    return rows


def _parameters(rows: Sequence[CountRow]) -> Table:
    """Parameters of all calibrators for other numbers of classes."""
    classes = sorted({row.classes for row in rows})
    counts: dict[str, dict[int, str]] = {}
    for row in rows:
        told = f"{format_count(row.optimized)} / {format_count(row.identifiable)}"
        counts.setdefault(row.calibrator, {})[row.classes] = told
    caption = "Fitted / identifiable parameters of every calibrator by the number of classes C."
    body = [[name, *(own[c] for c in classes)] for name, own in counts.items()]
    return Table.of("parameters", caption, ("calibrator", *(f"C = {c}" for c in classes)), body)


def _cells(rows: Sequence[PropertyRow]) -> list[str]:
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


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
