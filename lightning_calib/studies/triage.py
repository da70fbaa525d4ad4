"""Which cases need a look: rankings by expected quality, the errors that a review catches, and volumes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.decisions.quality import QualityModel
from lightning_calib.decisions.review import aurc, caught, excess_aurc, risk_curve, spearman
from lightning_calib.decisions.volumes import excess
from lightning_calib.experiment.statistics import Floats, clustered_statistic
from lightning_calib.kit.tables import Cell, Table
from lightning_calib.report.figures import Series, series_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.map_figures import thumbnail_figure
from lightning_calib.report.maps import case_plane
from lightning_calib.report.numbers import format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.studies.base import Pipelines, Study, StudyError
from lightning_calib.studies.structures import StructureRow, structure_rows

SCORES = ("predicted_dice", "expected_dice", "certainty", "agreement")
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # of the cases that are reviewed
_KINDS = ("caught", "risk")
FIGURES = (
    "spearman",
    "mean_risk",
    "aurc",
    "excess_aurc",
    *(f"{kind}_{share:g}" for kind in _KINDS for share in SHARES),
)
REPLICATES = 500
SHOWN = 12  # cases with pictures


@dataclass(frozen=True)
class CaseScore:
    """Quality of a test case as it was predicted, and as it is (``queue.csv``, those that need a look first)."""

    repeat: int
    pipeline: str
    case: str
    predicted_dice: float
    expected_dice: float
    certainty: float
    agreement: float
    worst_structure: str
    dice: float


@dataclass(frozen=True)
class Ranking:
    """How well a score ranks the test cases, by one figure (``rankings.csv``)."""

    pipeline: str
    score: str
    figure: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Bias:
    """Excess of volumes over the true ones, in shares of them (``volumes.csv``)."""

    pipeline: str
    structure: str
    of: str
    mean: float
    low: float
    high: float


class Triage(Study):
    """Ranking of cases for review by the Dice that calibrated probabilities expect; bias of volumes."""

    name, title = "triage", "Which cases to review"

    def run(self, pipelines: Pipelines | None = None) -> dict[str, Any]:
        """Rank test cases by expected quality, and see how much error a review of the worst catches.

        The predicted Dice is learned on the structures of cal, all figures are of test.

        Args:
            pipelines: which to look at; by default all.

        Returns:
            ``study.json``, with the pipeline whose queue is written and its rankings.
        """
        names = self.names(pipelines)
        splits = {r: self.results.split(r) for r in self.results.repeats}
        jobs = self.passes(names, "structures", parts=("cal", "test"))
        rows = self.tabulate(jobs, partial(structure_rows, self), StructureRow)
        self.save("structures.csv", rows, StructureRow)
        queue = [
            score
            for name in names
            for r in self.fitted_repeats(name)
            for score in scored([x for x in rows if (x.repeat, x.pipeline) == (r, name)], splits[r])
        ]
        self.save("queue.csv", queue, CaseScore)
        rankings = [ranking for name in names for ranking in self._rankings(name, queue)]
        self.save("rankings.csv", rankings, Ranking)
        tested = {r: set(splits[r]["test"]) for r in splits}
        held = [row for row in rows if row.case in tested[row.repeat]]
        self.save("volumes.csv", [bias for name in names for bias in self._biases(name, held)], Bias)
        wanted = str(Inputs(self.results, None).recommended)
        shown = wanted if wanted in names else names[-1]
        return self.write({"pipelines": list(names), "shown": shown, "cases": len({score.case for score in queue})})

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """Rank correlations, and what a look at a fifth of the cases catches."""
        found = {(x.score, x.figure): x for x in self.read("rankings.csv", Ranking) if x.pipeline == facts["shown"]}
        return [
            f"{facts['shown']}, {score}: rank correlation with the true Dice {_told(found[score, 'spearman'], 2)}; "
            f"a look at 20 % of the cases finds {_told(found[score, 'caught_0.2'], 0, 100)} % of the lost Dice"
            for score in SCORES
            if (score, "spearman") in found
        ]

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Curves, tables and the first cases of the queue."""
        name = facts["shown"]
        rankings = [row for row in self.read("rankings.csv", Ranking) if row.pipeline == name]
        queue = [row for row in self.read("queue.csv", CaseScore) if row.pipeline == name]
        lead = (
            "Without labels, which segmentations are bad? Each structure's Dice is predicted from the calibrated "
            f"probabilities of {name}; the mean over the structures of a case ranks the cases. The whole queue is in "
            "studies/triage/queue.csv."
        )
        repeat = min(row.repeat for row in queue)
        first = [row for row in queue if row.repeat == repeat][:SHOWN]
        pictures = [_curves(rankings)]
        calibrator = inputs.results.calibrator(repeat, name)
        if calibrator is not None:
            pictures.append(self._worst(inputs, name, repeat, first))
        tables = (_ranking_table(rankings), _queue_table(first, repeat), _volume_table(self.read("volumes.csv", Bias)))
        return Section(self.key, self.title, lead, tuple(pictures), tables)

    def _worst(self, inputs: Inputs, name: str, repeat: int, rows: Sequence[CaseScore]) -> Picture:
        pooled, manifest = inputs.cases(PipelineName.parse(name).pooling), inputs.outputs.manifest
        planes = [case_plane(pooled, row.case, self.calibrator(repeat, name)) for row in rows]
        titles = [f"{row.case}\n{row.predicted_dice:.0%}, is {row.dice:.0%}" for row in rows]
        figure = thumbnail_figure(planes, titles, manifest.class_names, manifest.background)
        told = (
            f"The head of the queue (test cases of repeat {repeat}), with the predicted and the true mean Dice. "
            "Colours: the prediction, over the image where there is one."
        )
        return Picture("triage-queue", figure, told)

    def _rankings(self, name: str, queue: Sequence[CaseScore]) -> list[Ranking]:
        """All figures of all scores; a score that some case lacks is left out."""
        repeats = self.fitted_repeats(name)
        own = [[row for row in queue if (row.repeat, row.pipeline) == (r, name)] for r in repeats]
        found = []
        for score in SCORES:
            tables = [np.array([[getattr(row, score), 1 - row.dice] for row in rows]) for rows in own]
            if any(len(table) < 2 or np.isnan(table).any() for table in tables):
                continue
            bounds = clustered_statistic(figures, tables, self._clusters(own), REPLICATES, self._seed)
            pairs = zip(FIGURES, bounds, strict=True)
            found += [Ranking(name, score, figure, b.mean, b.low, b.high) for figure, b in pairs]
        return found

    def _biases(self, name: str, rows: Sequence[StructureRow]) -> list[Bias]:
        """Excess of the masks' and of the expected volumes, of each structure."""
        found = []
        for structure in dict.fromkeys(row.structure for row in rows):
            mine = [row for row in rows if (row.pipeline, row.structure) == (name, structure)]
            own = [[row for row in mine if row.repeat == r] for r in self.fitted_repeats(name)]
            tables = [np.array([[row.mask, row.expected, row.volume] for row in part]) for part in own]
            bounds = clustered_statistic(excess, tables, self._clusters(own), REPLICATES, self._seed)
            found += [Bias(name, structure, of, b.mean, b.low, b.high) for of, b in zip(_OF, bounds, strict=True)]
        return found

    def _clusters(self, parts: Sequence[Sequence[Any]]) -> list[list[str]]:
        return [[self.results.groups.get(row.case, row.case) for row in part] for part in parts]

    @property
    def _seed(self) -> int:
        return int(self.results.settings["seed"])


_OF = ("mask", "expected")


def scored(rows: Sequence[StructureRow], split: dict[str, list[str]]) -> list[CaseScore]:
    """Test cases of a pipeline in a repeat, the lowest predicted Dice first; learned on those of ``cal``.

    Cases without any structure, in the mask or in truth, are left out.
    """
    cal, test = set(split["cal"]), sorted(split["test"])
    known = [row for row in rows if row.case in cal and row.is_there]
    try:
        model = QualityModel.fit([row.facts for row in known], [row.dice for row in known])
    except ValueError as problem:
        raise StudyError(f"cal has too little to learn from: {problem}") from problem
    found = []
    for case in test:
        there = [row for row in rows if row.case == case and row.is_there]
        masks = [row for row in there if row.mask]
        if masks:
            found.append(_case_score(case, there, masks, model.predict([row.facts for row in masks])))
    return sorted(found, key=lambda row: (row.predicted_dice, row.case))


def _case_score(
    case: str, there: Sequence[StructureRow], masks: Sequence[StructureRow], predicted: Floats
) -> CaseScore:
    """Means over the structures that have a mask, and the true one over all that are there."""

    def mean(name: str) -> float:
        values = np.array([getattr(row.facts, name) for row in masks])
        return float("nan") if np.isnan(values).all() else float(np.nanmean(values))

    return CaseScore(
        repeat=there[0].repeat,
        pipeline=there[0].pipeline,
        case=case,
        predicted_dice=float(predicted.mean()),
        expected_dice=mean("expected_dice"),
        certainty=mean("certainty"),
        agreement=mean("agreement"),
        worst_structure=masks[int(np.argmin(predicted))].structure,
        dice=float(np.mean([row.dice for row in there])),
    )


def figures(table: Floats) -> Floats:
    """The :data:`FIGURES` of a score and risks ``(n, 2)``."""
    score, risk = table[:, 0], table[:, 1]
    curve = risk_curve(score, risk)
    return np.array(
        [
            spearman(score, -risk),
            risk.mean(),
            aurc(score, risk),
            excess_aurc(score, risk),
            *(caught(score, risk, share) for share in SHARES),
            *(curve[ceil(round((1 - share) * len(curve), 9)) - 1] for share in SHARES),
        ]
    )


def _told(row: Ranking, digits: int, scale: float = 1) -> str:
    mean, low, high = (format_number(scale * x, digits) for x in (row.mean, row.low, row.high))
    return f"{mean} [{low}, {high}]"


def _curves(rankings: Sequence[Ranking]) -> Picture:
    """What a review of a share of the cases finds, and what is left in the others."""
    names = list(dict.fromkeys(row.score for row in rankings))
    found = {(row.score, row.figure): row for row in rankings}

    def lines(kind: str, chance: Sequence[float]) -> list[Series]:
        rows = ((name, [found[name, f"{kind}_{share:g}"] for share in SHARES]) for name in names)
        told = [Series.of(name.replace("_", " ").replace("dice", "Dice"), row, lambda x: 100 * x) for name, row in rows]
        return [*told, Series("random order", chance, chance, chance)]

    everything = next(row.mean for row in rankings if row.figure == "mean_risk")
    panels = [
        ("lost Dice that is found (%)", lines("caught", [100 * share for share in SHARES])),
        ("lost Dice of the others (%)", lines("risk", [100 * everything] * len(SHARES))),
    ]
    figure = series_figure(panels, [f"{share:.0%}" for share in SHARES], "cases reviewed")
    told = (
        "Left: share of all lost Dice (1 minus the Dice, summed over test cases) in the cases that are reviewed, those "
        "with the lowest scores. Right: mean lost Dice of the cases that are not. Lines: 95 % intervals over groups "
        "and repeats."
    )
    return Picture("triage", figure, told)


def _ranking_table(rankings: Sequence[Ranking]) -> Table:
    found = {(row.score, row.figure): row for row in rankings}
    rows: list[list[str | Cell]] = [
        [
            Cell(name, style="code"),
            _told(found[name, "spearman"], 2),
            _told(found[name, "aurc"], 3),
            _told(found[name, "excess_aurc"], 3),
            _told(found[name, "caught_0.2"], 0, 100),
        ]
        for name in dict.fromkeys(row.score for row in rankings)
    ]
    caption = (
        "Ranking of test cases: correlation of ranks with the true mean Dice; area under the curve of risk (1 minus "
        "Dice) over coverage, and its excess over the best order; share of the lost Dice in the worst fifth of the "
        "ranking (20 without knowledge). 95 % intervals."
    )
    head = ("score", "rank correlation", "AURC", "excess AURC", "found by 20 % (%)")
    return Table.of("triage", caption, head, rows)


def _queue_table(rows: Sequence[CaseScore], repeat: int) -> Table:
    body: list[list[str | Cell]] = [
        [
            Cell(row.case, style="code"),
            row.worst_structure,
            *(format_number(100 * x, 1) for x in (row.predicted_dice, row.expected_dice, row.dice)),
        ]
        for row in rows
    ]
    head = ("case", "worst structure", "predicted Dice (%)", "expected Dice (%)", "true Dice (%)")
    return Table.of("triage-queue", f"The head of the queue of repeat {repeat}.", head, body)


def _volume_table(rows: Sequence[Bias]) -> Table:
    body: list[list[str | Cell]] = []
    for name, structure in dict.fromkeys((row.pipeline, row.structure) for row in rows):
        mine = {row.of: row for row in rows if (row.pipeline, row.structure) == (name, structure)}
        told = [
            " ".join(
                [
                    format_number(100 * mine[of].mean, 1, signed=True),
                    f"[{format_number(100 * mine[of].low, 1, signed=True)}, "
                    f"{format_number(100 * mine[of].high, 1, signed=True)}]",
                ]
            )
            for of in _OF
        ]
        body.append([Cell(name, style="code"), structure, *told])
    caption = "Excess of volumes over the true ones on test, in % of them: of the masks, and of sums of probabilities."
    return Table.of("triage-volumes", caption, ("pipeline", "structure", "mask (%)", "expected (%)"), body)
