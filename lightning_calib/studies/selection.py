"""What `val` promised of each fit, and what `test` brought: how far choosing by `val` can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import CaseRow
from lightning_calib.kit.style import INK, STYLES, look, new_figure
from lightning_calib.kit.tables import Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.numbers import choose_decimals, format_number, format_score
from lightning_calib.report.section import Picture, Section
from lightning_calib.studies.base import Pipelines, Study, StudyError


@dataclass(frozen=True)
class SelectionRow:
    """A pipeline in one repeat (``selection.csv``); NLL over all voxels, against no calibration with the same pooling.

    Attributes:
        repeat: which partition.
        pipeline: its name.
        promised: change of NLL on ``val``, negative where calibration helps.
        brought: the same on ``test``.
        lam: penalty on weights that the search chose; NaN where there is none to choose, or the identity won.
        mu: penalty on biases.
    """

    repeat: int
    pipeline: str
    promised: float
    brought: float
    lam: float
    mu: float

    @property
    def lost(self) -> bool:
        """Whether ``test`` is worse than without calibration."""
        return self.brought > 0


class Selection(Study):
    """The gain that ``val`` promised against the one that ``test`` brought, fit by fit."""

    name, title = "selection", "What val promised, and test brought"

    def run(self, pipelines: Pipelines | None = None) -> dict[str, Any]:
        """Compare what val promised of each fit with what test brought.

        Args:
            pipelines: which to look at; by default all of the run.

        Returns:
            ``study.json``: by pipeline the mean of both, and in how many repeats ``test`` was worse than no
            calibration.
        """
        names = [name for name in self.names(pipelines) if PipelineName.parse(name).calibrator != "identity"]
        rows = {name: selection_rows(self.results, name) for name in names}
        if not any(rows.values()):
            raise StudyError(
                f"{self.calibration} has no calibrated pipeline beside the uncalibrated one of its pooling; "
                'run both, such as --pipelines "identity(z),ts(z)"'
            )
        self.save("selection.csv", [row for own in rows.values() for row in own], SelectionRow)
        return self.write({"pipelines": [_means(name, own) for name, own in rows.items() if own]})

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """Promised and brought, by pipeline."""
        rows = (
            f"{e['pipeline']:<12} promised {e['promised']:+.4f}, brought {e['brought']:+.4f}, "
            f"worse than none in {e['lost']} of {e['repeats']} repeats"
            for e in facts["pipelines"]
        )
        return ["change of NLL against no calibration, on val and on test:", *rows]

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Promises and what came of them, by pipeline and by fit."""
        rows = self.read("selection.csv", SelectionRow)
        lead = (
            "Fits are chosen by their NLL on val. Where val resembles test, test brings what val promised; where it "
            "does not, search and selection protect against nothing."
        )
        caption = (
            "Every fit: the change of NLL on val by which it was chosen, and its change on test, against no "
            "calibration. On the line the promise was kept; above 0 calibration did harm. Named: of each repeat the "
            "fit that fell furthest behind."
        )
        picture = Picture("selection", selection_figure(rows), caption)
        return Section(self.key, self.title, lead, (picture,), (_mean_table(facts["pipelines"]), _fit_table(rows)))


def selection_rows(results: Results, name: str) -> list[SelectionRow]:
    """One row a repeat that has scores of the pipeline and of its uncalibrated ensemble."""
    plain, rows = f"identity({PipelineName.parse(name).pooling})", []
    for repeat in results.repeats:
        fit, after, before = results.fit(repeat, name), results.cases_of(repeat, name), results.cases_of(repeat, plain)
        if fit and after and before:
            promised = fit.val_nll - fit.identity_val_nll
            penalties = [fit.hyperparameters.get(key, float("nan")) for key in ("lam", "mu")]
            rows.append(SelectionRow(repeat, name, promised, pooled_nll(after) - pooled_nll(before), *penalties))
    return rows


def pooled_nll(rows: Sequence[CaseRow]) -> float:
    """NLL over the voxels of all cases together, as selection sees it on ``val``."""
    voxels = np.array([row.voxels for row in rows], dtype=np.float64)
    return float(np.array([row.score("nll") for row in rows]) @ voxels / voxels.sum())


def _means(name: str, rows: Sequence[SelectionRow]) -> dict[str, Any]:
    promised, brought = (float(np.mean([getattr(row, key) for row in rows])) for key in ("promised", "brought"))
    return {
        "pipeline": name,
        "repeats": len(rows),
        "promised": promised,
        "brought": brought,
        "worst": max(row.brought for row in rows),
        "lost": sum(row.lost for row in rows),
    }


def selection_figure(rows: Sequence[SelectionRow]) -> Figure:
    """Brought against promised, one style a repeat.

    Example:
        >>> len(selection_figure([SelectionRow(0, "ts(z)", -0.1, -0.05, 0.0, 0.0)]).axes)
        1
    """
    with look():
        figure = new_figure(5.2, 4.2)
        axes = figure.subplots()
        for repeat in sorted({row.repeat for row in rows}):
            own = [row for row in rows if row.repeat == repeat]
            style = STYLES[repeat % len(STYLES)] | {"linestyle": "none"}
            places = [row.promised for row in own], [row.brought for row in own]
            axes.plot(*places, label=f"repeat {repeat}", **style)
            _name(axes, max(own, key=lambda row: row.brought - row.promised))
        axes.axline((0, 0), slope=1, color=INK, linewidth=0.9)
        axes.axhline(0, color=INK, linewidth=0.9, linestyle=":")
        axes.set_xlabel("change of NLL on val: promised")
        axes.set_ylabel("change of NLL on test: brought")
        figure.legend(loc="outside upper left", ncols=4)
    return figure


def _name(axes: Axes, row: SelectionRow) -> None:
    """Write the pipeline beside a fit that fell behind its promise."""
    if row.brought > row.promised:
        place = (row.promised, row.brought)
        axes.annotate(row.pipeline, place, (5, 4), textcoords="offset points", fontsize=7.5, color=INK)


def _mean_table(entries: Sequence[dict[str, Any]]) -> Table:
    """Means over repeats."""
    keys = ("promised", "brought", "worst")
    changes = _changes([[entry[key] for key in keys] for entry in entries], counted=2)
    body = [
        [entry["pipeline"], *own, f"{entry['lost']} of {entry['repeats']}"]
        for entry, own in zip(entries, changes, strict=True)
    ]
    head = ("pipeline", "promised by val", "brought by test", "worst repeat", "repeats that lost")
    caption = "Change of NLL against no calibration with the same pooling, over all voxels; means over repeats."
    return Table.of("selection", caption, head, body)


def _fit_table(rows: Sequence[SelectionRow]) -> Table:
    """Every fit with the penalties that were chosen."""
    changes = _changes([[row.promised, row.brought] for row in rows], counted=2)
    body = [
        [f"{row.pipeline}, repeat {row.repeat}", *own, *(format_number(value, 4) for value in (row.lam, row.mu))]
        for row, own in zip(rows, changes, strict=True)
    ]
    caption = "Every fit, with the penalties on weights (lam) and biases (mu) that the search chose."
    return Table.of("selection-fits", caption, ("fit", "promised by val", "brought by test", "lam", "mu"), body)


def _changes(rows: Sequence[Sequence[float]], counted: int) -> list[list[str]]:
    """Changes of NLL in the precision that the first columns need."""
    nll = SCORES["nll"]
    decimals = choose_decimals(nll, [value for row in rows for value in row[:counted]])
    return [[format_score(nll, value, decimals, signed=True) for value in row] for row in rows]
