"""What more members are worth, before and after calibration (Appendix E)."""

from typing import Any

from lightning_calib.experiment.results import Results
from lightning_calib.report.figures import series_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Picture, Section
from lightning_calib.studies.base import Pipelines, StudyError
from lightning_calib.studies.rerun import RerunStudy
from lightning_calib.studies.scores import ScoreRow, panels

PIPELINES = ("identity(p)", "identity(z)", "ms(z)", "ms_c(z)", "cdc(p)", "cms_op(p)", "ts(z)")


class EnsembleSize(RerunStudy):
    """Pipelines on ensembles of the first M members, with the run's splits."""

    name, title = "ensemble_size", "Number of members"

    def run(
        self, members: list[int] | None = None, pipelines: Pipelines | None = None, trials: int | None = None
    ) -> dict[str, Any]:
        """Fit and evaluate pipelines on smaller ensembles.

        Exits with 1 where a fit failed.

        Args:
            members: ensemble sizes; of each, the first members count. By default 1 up to all.
            pipelines: which to fit; by default the uncalibrated ensemble and the paper's contrasts.
            trials: trials of each search; by default as many as the run's, so that its fits are taken over.
        """
        names, largest = self.names(pipelines, PIPELINES), self.store.manifest.num_members
        sizes = sorted(set(members or range(1, largest + 1)))
        if wrong := [size for size in sizes if not 1 <= size <= largest]:
            raise StudyError(f"members = {wrong}: the store {self.store.path} has {largest} members")
        found: dict[int, Results] = {}
        for size in sorted({*sizes, largest}):
            fewer = size if size < self.store.stored_members else None
            found[size] = self.rerun(f"members-{size}", self.changed(names, trials, members=fewer))
        return self.conclude(found, sizes, largest, names)

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Scores against the number of members."""
        names, ticks = facts["pipelines"], [str(size) for size in facts["settings"]]
        caption = (
            "Scores of pipelines on ensembles of the first M members, fitted anew for each M, with 95 % intervals "
            "(ACE: smallest and largest repeat)."
        )
        lines = panels(self.read("scores.csv", ScoreRow), names, ticks, ("nll", "ece", "ba_ece", "ace", "dice"))
        lead = "What are more members worth, before and after calibration? All ensembles share their cases and splits."
        told = f"Differences to all {facts['reference']} members, paired by test case."
        picture = Picture("ensemble-size", series_figure(lines, ticks, "members M"), caption, wide=True)
        notices = tuple(f"Failed: {text}" for text in facts["failures"])
        return Section(self.key, self.title, lead, (picture,), (self.differences(told, names, "M = "),), notices)
