"""The section that puts the paper's claims beside what this run shows."""

from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.columns import COLUMN, choose_decimals, format_metric
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import format_number
from lightning_calib.report.section import Section
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.report.studies.table import StudyTable
from lightning_calib.studies.claims import NAME, ClaimRow

KEY, TITLE = "study-claims", "The paper's claims"
_HEAD = ("claim", "outcome", "seen", "not seen", "opposite")
_ROW_HEAD = ("comparison", "metric", "difference", "95 % interval", "p (Holm)", "verdict", "expected", "outcome")


def claims(inputs: Inputs) -> Section:
    """Each claim with the number of comparisons that show it, then all of them."""
    facts = read_facts(inputs, NAME)
    rows = read_rows(study_folder(inputs, NAME) / "claims.csv", ClaimRow)
    body = [
        [entry["text"], entry["outcome"], *(str(entry["counts"][o]) for o in ("seen", "not seen", "opposite"))]
        for entry in facts["claims"]
    ]
    best = ", ".join(f"{COLUMN[metric].label} {name}" for metric, name in facts["best"].items())
    caption = (
        "Number of comparisons that show a claim, that noise leaves open, and that show the opposite. "
        f"Lowest means among calibrated pipelines: {best}."
    )
    pairs = (
        "Candidate minus reference, case by case, with intervals from cases drawn as wholes; p-values after Holm's "
        'correction over the whole table. "No worse" is contradicted by "worse" alone.'
    )
    tables = [
        StudyTable("claims", caption, _HEAD, body),
        StudyTable("claims-comparisons", pairs, _ROW_HEAD, [_row(row) for row in rows]),
    ]
    lead = "What the paper reports on its three data sets, put to the test on the cases of this run."
    return Section(KEY, TITLE, lead, "study.html", data={"tables": tables})


def _row(row: ClaimRow) -> list[str]:
    column = COLUMN[row.metric]
    decimals = choose_decimals(column, [row.difference, row.high - row.low]) + column.percent
    value, low, high = (
        format_metric(column, number, decimals, signed=True) for number in (row.difference, row.low, row.high)
    )
    told = [row.verdict, row.expected, row.outcome]
    pair = f"{row.reference} \N{RIGHTWARDS ARROW} {row.candidate}"
    return [pair, column.label, value, f"[{low}, {high}]", format_number(row.p_holm, 3), *told]
