"""How many calibration cases it takes (Appendix F): fits on fewer or more, judged on the same test cases."""

from collections.abc import Sequence
from typing import Any

from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.results import Results
from lightning_calib.outputs.partition import PartitionError, Size
from lightning_calib.report.figures import series_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Picture, Section
from lightning_calib.studies.base import PAPER_SUBSET, Pipelines, StudyError
from lightning_calib.studies.rerun import RerunStudy
from lightning_calib.studies.scores import ScoreRow, panels

_FACTORS = (0.1, 0.5, 1.0, 1.5, 2.0)  # of the run's own number: 5, 25, 50, 75, 100 where that is 50
_NEAR = 0.2  # sizes that differ less from the run's own tell nothing
_LEFT_OUT = "n = {} was left out: some part would get no case, since groups stay whole."
_MOST = 2 / 3  # of the cases that are not for testing: the rest must do to choose hyperparameters


class CalibrationSize(RerunStudy):
    """Fits on ``n`` cases for several ``n``; what ``cal`` gains, ``val`` loses, and ``test`` stays."""

    name, title = "calibration_size", "Number of calibration cases"

    def run(
        self, sizes: list[int] | None = None, pipelines: Pipelines | None = None, trials: int | None = None
    ) -> dict[str, Any]:
        """Fit on fewer and on more calibration cases, and judge on the same test cases.

        Exits with 1 where a fit failed.

        Args:
            sizes: numbers of calibration cases; by default a tenth of the run's own up to twice as many.
            pipelines: which to fit; by default those of the paper.
            trials: trials of each search; by default as many as the run's, so that its fits are taken over.
        """
        names, results = self.names(pipelines, PAPER_SUBSET), self.results
        reference = len(results.split(0)["cal"])
        chosen = default_sizes(sizes, reference, reference + len(results.split(0)["val"]))
        test, found, left_out = self._test_size(), dict[int, Results](), []
        for size in sorted({*chosen, reference}):
            protocol = self.changed(names, trials, cal=size, val=None, test=test)
            try:
                self._check(protocol)
            except PartitionError as error:
                if sizes is not None or size == reference:
                    raise StudyError(str(error)) from error
                left_out.append(size)
                continue
            found[size] = self.rerun(f"n-{size}", protocol)
        return self.conclude(found, [size for size in chosen if size in found], reference, names, left_out=left_out)

    def _check(self, protocol: Experiment) -> None:
        """Refuse a size that would leave a part empty or change the test cases."""
        for repeat in self.results.repeats:
            split = protocol.split(repeat)
            if not split.val:
                raise PartitionError(f"no case is left for val of repeat {repeat} where cal has {len(split.cal)}")
            if list(split.test) != sorted(self.results.split(repeat)["test"]):
                raise StudyError(f"repeat {repeat} would get other test cases than the run; give test a number there")

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """The sizes that could not be tried."""
        return [_LEFT_OUT.format(size) for size in facts.get("left_out", [])]

    def _test_size(self) -> Size:
        """The size of ``test`` that leaves it as it is, whatever ``cal`` and ``val`` get."""
        settings = self.results.settings
        if settings["test"] is not None:
            size: Size = settings["test"]
            return size
        taken, total = 0, len(self.store)
        for part in ("cal", "val"):
            size = settings[part]
            if not isinstance(size, int | float):
                raise StudyError(
                    f"{part} of the run is a list of cases; its size can be varied where it is a number or share"
                )
            taken += round(size * total) if isinstance(size, float) else size
        return total - taken

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Differences to the run's own number of calibration cases."""
        names, ticks = facts["pipelines"], [str(size) for size in facts["settings"]]
        caption = (
            f"Change of each score against fits on n = {facts['reference']} cases, paired by test case, with 95 % "
            "intervals (ACE: smallest and largest repeat). Above zero is worse."
        )
        lines = panels(self.read("deltas.csv", ScoreRow), names, ticks, ("nll", "ece", "ba_ece", "ace"), "Δ ")
        figure = series_figure(lines, ticks, "calibration cases n", zero=True)
        lead = (
            "How many labelled cases does calibration take? The test cases stay the same; what the calibration set "
            "gains, the validation set loses."
        )
        table = self.differences(f"Differences to n = {facts['reference']}.", names, "n = ")
        notices = (*(f"Failed: {text}" for text in facts["failures"]), *self.tell(facts))
        picture = Picture("calibration-size", figure, caption, wide=True)
        return Section(self.key, self.title, lead, (picture,), (table,), notices)


def default_sizes(sizes: Sequence[int] | None, reference: int, available: int) -> list[int]:
    """Numbers of calibration cases that leave some of those available for ``val``."""
    if sizes is None:
        most = max(int(_MOST * available), reference)
        found = {min(max(round(factor * reference), 1), most) for factor in _FACTORS}
        return sorted({size for size in found if abs(size - reference) > _NEAR * reference} | {reference})
    if wrong := [size for size in sizes if not 1 <= size < available]:
        raise StudyError(
            f"sizes {wrong}: {available} cases are not for testing, of which cal can get 1 to {available - 1}; the "
            "rest is for val"
        )
    return sorted(set(sizes))
