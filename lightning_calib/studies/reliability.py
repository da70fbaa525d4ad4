"""The paper's reliability curves: single model, ensemble, best calibrated, best order preserving (Appendix J)."""

from dataclasses import dataclass
from typing import Any

from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Section
from lightning_calib.report.sections.curves import BINS, contrasted, curve_of, mean_ace, reliability
from lightning_calib.studies.base import Study


@dataclass(frozen=True)
class CurveBin:
    """One bin of one curve (``curves.csv``): all test voxels of all repeats; empty bins are left out."""

    role: str
    pipeline: str
    bin: int
    voxels: int
    confidence: float
    accuracy: float


class Reliability(Study):
    """The curves of the report's section as numbers, in any number of bins."""

    name, title = "reliability", "Reliability"

    def run(self, bins: int = BINS) -> dict[str, Any]:
        """Write the reliability curves as numbers, and draw those of the report in other bins.

        Args:
            bins: bins of confidence, a divisor of 600.

        Returns:
            ``study.json``: roles, pipelines and their mean ACE over repeats.
        """
        roles = contrasted(Inputs(self.results, None), bins)
        self.save("curves.csv", [row for name in roles for row in self._bins(name, roles[name], bins)], CurveBin)
        aces = {name: mean_ace(self.results, name, bins) for name in roles}
        told = [{"role": role, "pipeline": name, "ace": aces[name]} for name, role in roles.items()]
        return self.write({"bins": bins, "curves": told})

    def _bins(self, pipeline: str, role: str, bins: int) -> list[CurveBin]:
        curve = curve_of(self.results, pipeline, role, bins)
        columns = (curve.count.astype(int), curve.confidence, curve.accuracy)
        found = enumerate(zip(*(column.tolist() for column in columns), strict=True))
        return [CurveBin(role, pipeline, number, *values) for number, values in found if values[0]]

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """The report's own section, in the bins of the study."""
        return reliability(inputs, facts["bins"])
