"""The section on subsets of the test cases."""

from lightning_calib.experiment.rows import read_rows
from lightning_calib.report.columns import COLUMN
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Section
from lightning_calib.report.studies.read import read_facts, study_folder
from lightning_calib.report.studies.sizes import interval_text
from lightning_calib.report.studies.table import StudyTable, score_table
from lightning_calib.studies.scores import ScoreRow
from lightning_calib.studies.subsets import NAME

KEY, TITLE = "study-subsets", "Subsets of the test cases"
_GAINS = ("nll", "ece", "ba_ece", "dice")


def subsets(inputs: Inputs) -> Section:
    """Scores and gains, subset by subset."""
    folder, facts = study_folder(inputs, NAME), read_facts(inputs, NAME)
    rows, gains = (read_rows(folder / f"{name}.csv", ScoreRow) for name in ("scores", "gains"))
    names, data = facts["pipelines"], inputs.results.dataset["name"]
    tables = [
        score_table(data, rows, names, subset, f"subset-{subset}", f"test cases: {subset}")
        for subset in facts["subsets"]
    ]
    tables += [_gain_table(gains, names, subset) for subset in facts["subsets"]]
    told = "; ".join(
        f"{subset} ({facts['subsets'][subset]}): {', '.join(map(str, counts))} test cases by repeat"
        for subset, counts in facts["cases"].items()
    )
    lead = f"The same fits, scored on parts of the test cases. {told}."
    return Section(KEY, TITLE, lead, "study.html", data={"tables": tables})


def _gain_table(gains: list[ScoreRow], names: list[str], subset: str) -> StudyTable:
    """What calibration changes on a subset."""
    found = {(row.pipeline, row.metric): row for row in gains if row.setting == subset}
    body = [
        [name, *(interval_text(found.get((name, metric))) for metric in _GAINS)]
        for name in names
        if (name, _GAINS[0]) in found
    ]
    caption = (
        f"{subset}: calibrated minus uncalibrated with the same pooling, case by case, with 95 % intervals from cases "
        "or groups drawn as wholes."
    )
    head = ("pipeline", *(f"{COLUMN[metric].label} {COLUMN[metric].arrow}" for metric in _GAINS))
    return StudyTable(f"subset-{subset}-gains", caption, head, body)
