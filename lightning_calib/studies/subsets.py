"""Scores on parts of the test cases that users name: other sequences, another scanner, small lesions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.statistics import Floats, clustered_bootstrap, intervals, point_estimate
from lightning_calib.experiment.summary import score_array
from lightning_calib.kit.tables import Column, Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Section
from lightning_calib.studies.base import Pipelines, Study, StudyError
from lightning_calib.studies.scores import ScoreRow, interval_text, score_table

_GAINS = ("nll", "ece", "ba_ece", "dice")
Places = Mapping[int, list[int]]  # by repeat, the places of cases in its sorted list of test cases


class Subsets(Study):
    """Scores of fitted pipelines on subsets of the test cases, and what they gain over no calibration there."""

    name, title, reproduced = "subsets", "Subsets of the test cases", False

    def run(self, subsets: dict[str, str] | None = None, pipelines: Pipelines | None = None) -> dict[str, Any]:
        """Score fitted pipelines on parts of the test cases, such as one sequence or scanner.

        Args:
            subsets: names of subsets with patterns of case ids, such as Seq05VD*; several with commas in between.
            pipelines: which to look at; by default all of the run.

        Returns:
            ``study.json``: subsets with their number of test cases by repeat.
        """
        if not subsets:
            raise StudyError("""name subsets and patterns of their case ids: --subsets '{"night": "*_night"}'""")
        names = self.names(pipelines)
        chosen = {name: self.select(pattern) for name, pattern in subsets.items()}
        for file, rows in (("scores.csv", self._scores), ("gains.csv", self._gains)):
            found = [row for subset, places in chosen.items() for row in rows(subset, places, names)]
            self.save(file, found, ScoreRow)
        counts = {subset: [len(own) for own in places.values()] for subset, places in chosen.items()}
        return self.write({"subsets": subsets, "cases": counts, "pipelines": list(names)})

    def select(self, pattern: str) -> Places:
        """The test cases that match."""
        patterns = [part.strip() for part in pattern.split(",")]
        found = {
            r: [n for n, case in enumerate(self.results.test_cases(r)) if any(fnmatchcase(case, p) for p in patterns)]
            for r in self.results.repeats
        }
        if not any(found.values()):
            some = ", ".join(self.results.test_cases(0)[:3])
            raise StudyError(f"no test case matches {pattern!r}; case ids look like {some}")
        return found

    def _scores(self, subset: str, places: Places, names: Sequence[str]) -> list[ScoreRow]:
        tables = {name: {r: score_array(self.results, r, name) for r in places} for name in names}
        return [row for name in names for row in self._rows(subset, name, places, tables[name])]

    def _gains(self, subset: str, places: Places, names: Sequence[str]) -> list[ScoreRow]:
        """Calibrated minus uncalibrated, pooled alike."""
        rows = []
        for name in names:
            plain = f"identity({PipelineName.parse(name).pooling})"
            if name != plain and plain in self.results.pipelines:
                tables = {r: score_array(self.results, r, name) - score_array(self.results, r, plain) for r in places}
                rows += self._rows(subset, name, places, tables)
        return rows

    def _rows(self, subset: str, name: str, places: Places, tables: Mapping[int, Floats]) -> list[ScoreRow]:
        """Means with intervals from cases (or groups) drawn as wholes; repeats without a case are left out."""
        held = [r for r, own in places.items() if own]
        parts = [tables[r][places[r]] for r in held]
        clusters = [[self.results.clusters(r)[n] for n in places[r]] for r in held]
        seed = int(self.results.settings["seed"])
        found = intervals(point_estimate(parts), clustered_bootstrap(parts, clusters, seed=seed))
        values = zip(self.results.case_scores, found, strict=True)
        return [ScoreRow(subset, name, score.key, *asdict(value).values()) for score, value in values]

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Scores and gains, subset by subset."""
        rows, gains = (self.read(f"{name}.csv", ScoreRow) for name in ("scores", "gains"))
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
        return Section(self.key, self.title, lead, tables=tuple(tables))


def _gain_table(gains: list[ScoreRow], names: list[str], subset: str) -> Table:
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
    head = [Column(SCORES[metric].label, arrow=SCORES[metric].arrow) for metric in _GAINS]
    return Table.of(f"subset-{subset}-gains", caption, [Column("pipeline", left=True), *head], body)
