"""The sections of the report, in the order of the page: first what everybody reads, then what researchers do."""

from collections.abc import Callable
from dataclasses import dataclass

from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Section
from lightning_calib.report.sections.answer import headline
from lightning_calib.report.sections.classes import by_class
from lightning_calib.report.sections.comparisons import comparisons
from lightning_calib.report.sections.curves import bands, reliability, risk
from lightning_calib.report.sections.fits import certificates
from lightning_calib.report.sections.learned import learned
from lightning_calib.report.sections.pictures import confidences, flips, free_energies, worst_cases
from lightning_calib.report.sections.provenance import provenance
from lightning_calib.report.sections.scores import scores
from lightning_calib.report.sections.selection import TITLE, selection


@dataclass(frozen=True)
class Entry:
    """A section of the page: its anchor and heading, what makes it, and whether it is folded away for researchers."""

    key: str
    title: str
    make: Callable[[Inputs], Section | None]
    folded: bool = False


SECTIONS = (
    Entry("answer", "The answer", headline),
    Entry("selection", TITLE, selection),
    Entry("by-class", "By class", by_class),
    Entry("confidence-maps", "Confidence maps", confidences),
    Entry("worst-cases", "Worst cases", worst_cases),
    Entry("reliability", "Reliability", reliability),
    Entry("risk", "Risk and coverage", risk),
    Entry("bands", "Calibration near boundaries", bands),
    Entry("flip-maps", "Flips", flips),
    Entry("scores", "All pipelines", scores),
    Entry("comparisons", "Matched comparisons", comparisons, folded=True),
    Entry("free-energy", "Free energy", free_energies, folded=True),
    Entry("learned", "What was learned", learned, folded=True),
    Entry("fits", "Fits and timings", certificates, folded=True),
    Entry("provenance", "How it was made", provenance, folded=True),
)
