"""Tables, bars and the picture of benchmarks/regret.py, from its rows of (data set, division, method, case)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from _measure import markdown
from _regret_methods import SCORES

from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.recommend import eligible
from lightning_calib.experiment.statistics import Interval, clustered_bootstrap, intervals, point_estimate
from lightning_calib.kit.style import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, VERMILLION

PIPELINE, NOTHING, PAPER = "pipeline ", "nothing", "paper"
LOSES = 1e-4  # NLL that nobody would notice
BOUNDS = {"tail": 0.1, "kept": 0.9, "regret": 0.5}  # what the three bars ask for
KEYS = ["dataset", "division", "method"]
COLOURS = {
    NOTHING: INK,
    PAPER: VERMILLION,
    "ts": ORANGE,
    "ladder": PURPLE,
    "groups": BLUE,
    "stack(p)": GREEN,
    "stack(z)": SKY,
}


def with_selections(rows: pd.DataFrame, preserve: Preserve) -> pd.DataFrame:
    """Rows of pipelines and methods, those of doing nothing and of the paper's selection added."""
    fitted = rows[rows.method.str.startswith(PIPELINE)]
    allowed = fitted[fitted.pipeline.isin(eligible(tuple(fitted.pipeline.unique()), preserve))]
    best = allowed.loc[allowed.groupby(["dataset", "division"]).val_nll.idxmin(), ["dataset", "division", "pipeline"]]
    paper = allowed.merge(best, on=["dataset", "division", "pipeline"]).assign(method=PAPER)
    nothing = fitted[fitted.pipeline == "identity(p)"].assign(method=NOTHING)
    others = rows[~rows.method.str.startswith(PIPELINE)]
    return pd.concat([allowed, nothing, paper, others], ignore_index=True)


@dataclass(frozen=True)
class Figures:
    """Scores of one data set: mean over the cases of a group, by division, method and group."""

    dataset: str
    by_group: pd.DataFrame
    chosen: pd.DataFrame

    @classmethod
    def of(cls, rows: pd.DataFrame, dataset: str) -> "Figures":
        """Those of a data set."""
        own = rows[rows.dataset == dataset]
        means = own.groupby(["division", "method", "group"])[list(SCORES)].mean()
        return cls(dataset, means, own.groupby(["division", "method"]).pipeline.first().unstack())

    @property
    def methods(self) -> list[str]:
        """What is compared, in the order of the tables."""
        found = [m for m in self.by_group.index.unique("method") if not m.startswith(PIPELINE)]
        return [m for m in COLOURS if m in found] + sorted(m for m in found if m not in COLOURS)

    def by_division(self, score: str) -> pd.DataFrame:
        """Mean over groups: a row a division, a column a method or pipeline."""
        return self.by_group[score].groupby(["division", "method"]).mean().unstack("method")

    def difference(self, method: str, score: str) -> pd.Series:
        """To ``identity(p)``, by division."""
        table = self.by_division(score)
        return table[method] - table[NOTHING]

    def hindsight(self) -> pd.Series:
        """By division the pipeline with the lowest test NLL."""
        table = self.by_division("nll")
        return table[[m for m in table if m.startswith(PIPELINE)]].idxmin(axis=1)

    def best_pipeline(self) -> str:
        """The pipeline with the lowest test NLL over all divisions."""
        table = self.by_division("nll")
        return str(table[[m for m in table if m.startswith(PIPELINE)]].mean().idxmin())

    def regret(self, method: str) -> pd.Series:
        """NLL above that of the best pipeline in hindsight, by division."""
        table = self.by_division("nll")
        return table[method] - table[[m for m in table if m.startswith(PIPELINE)]].min(axis=1)

    def interval(self, method: str, score: str, reference: str | pd.Series = NOTHING) -> Interval:
        """A difference with its 95 % interval: groups are drawn as wholes with all their divisions, and divisions."""
        wide = self.by_group[score].unstack("method")
        tables, clusters = [], []
        for division, part in wide.groupby("division"):
            against = reference if isinstance(reference, str) else reference[division]
            tables.append((part[method] - part[against]).to_numpy()[:, None])
            clusters.append(list(part.index.get_level_values("group")))
        return intervals(point_estimate(tables), clustered_bootstrap(tables, clusters))[0]


def table(figures: Figures) -> str:
    """One data set's table."""
    head = ("method", "NLL - identity(p)", "worst division", "divisions that lose", "regret", "ECE", "BA-ECE", "Dice")
    rows = []
    for method in figures.methods:
        nll, regret = figures.difference(method, "nll"), figures.interval(method, "nll", figures.hindsight())
        others = (f"{figures.difference(method, score).mean():+.4f}" for score in SCORES[1:])
        lost = f"{int((nll > LOSES).sum())} of {len(nll)}"
        found = shown(figures.interval(method, "nll"))
        rows.append([method, found, f"{nll.max():+.4f}", lost, shown(regret), *others])
    return markdown(head, rows)


def choices(figures: Figures) -> str:
    """What each method chose, and how often."""
    rows = []
    for method in figures.methods:
        counts = figures.chosen[method].value_counts()
        rows.append([method, ", ".join(f"{name} {count}" for name, count in counts.items())])
    best = figures.hindsight().str.removeprefix(PIPELINE).value_counts()
    rows.append(["best in hindsight", ", ".join(f"{name} {count}" for name, count in best.items())])
    return markdown(("method", "pipelines"), rows)


def shown(interval: Interval) -> str:
    """An interval as text."""
    return f"{interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


def bars(all_figures: Sequence[Figures], method: str, gains: Sequence[str]) -> list[tuple[str, str, bool]]:
    """The three bars of a method: what is asked, the figure, whether it is met.

    Args:
        all_figures: of every data set.
        method: the method that is judged.
        gains: data sets on which there is a gain to have.
    """
    verdicts = []
    for figures in all_figures:
        found = figures.interval(method, "nll")
        verdicts.append(
            (f"1: {figures.dataset}, not significantly worse than identity(p)", shown(found), found.low <= 0)
        )
        worst, paper = (max(0.0, float(figures.difference(m, "nll").max())) for m in (method, PAPER))
        text = f"{worst:.4f}, the paper's selection {paper:.4f}"
        met = worst <= max(BOUNDS["tail"] * paper, LOSES)
        verdicts.append((f"1: {figures.dataset}, worst division loses a tenth of the paper's", text, met))
    for figures in all_figures:
        if figures.dataset in gains:
            best = figures.best_pipeline()
            gain, most = (-float(figures.difference(m, "nll").mean()) for m in (method, best))
            text = f"{gain:.4f} of {most:.4f} ({best.removeprefix(PIPELINE)})"
            verdicts.append((f"2: {figures.dataset}, keeps 90 % of the best gain", text, gain >= BOUNDS["kept"] * most))
    ours, paper = (float(np.mean([f.regret(m).mean() for f in all_figures])) for m in (method, PAPER))
    text = f"{ours:.4f}, the paper's selection {paper:.4f}"
    return [*verdicts, ("3: mean regret at most half of the paper's", text, ours <= BOUNDS["regret"] * paper)]


def draw(all_figures: Sequence[Figures], path: Path) -> None:
    """Difference to ``identity(p)`` of every division and method, a panel a data set; below 0 is a gain."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(all_figures), 3.4), layout="constrained")
    for axes, figures in zip(np.atleast_1d(figure.subplots(1, len(all_figures))), all_figures, strict=True):
        methods = [method for method in figures.methods if method != NOTHING]
        axes.axhline(0, color=INK, linewidth=0.8)
        for n, method in enumerate(methods):
            values = np.sort(figures.difference(method, "nll").to_numpy())
            places = n + np.linspace(-0.28, 0.28, len(values))
            axes.scatter(places, values, s=12, color=COLOURS.get(method, INK), alpha=0.8)
            axes.hlines(values.mean(), n - 0.35, n + 0.35, color=INK, linewidth=1.4)
        axes.set_xticks(range(len(methods)), methods, rotation=30, ha="right")
        axes.set_title(figures.dataset)
    figure.supylabel("NLL - NLL of identity(p)", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white")


def page(all_figures: Sequence[Figures], judged: Sequence[str], gains: Sequence[str], seconds: pd.DataFrame) -> str:
    """Everything that figures say, in Markdown."""
    parts = []
    for method in judged:
        rows = [[bar, text, "met" if met else "**not met**"] for bar, text, met in bars(all_figures, method, gains)]
        parts += [f"### Bars, `{method}`", markdown(("bar", "figure", "verdict"), rows)]
    for figures in all_figures:
        groups, divisions = figures.by_group.index.unique("group"), figures.by_group.index.unique("division")
        said = f"{len(divisions)} divisions of {len(groups)} groups."
        parts += [f"### {figures.dataset}", said, table(figures), choices(figures)]
    costs = [
        [name, *(f"{value:.1f}" for value in row)] for name, row in zip(seconds.index, seconds.to_numpy(), strict=True)
    ]
    parts += ["### Processor seconds a division", markdown(("step", *seconds.columns), costs)]
    return "\n\n".join(parts) + "\n"
