"""The sections of the report, in the order of the page."""

from collections.abc import Callable

from lightning_calib.report.inputs import Inputs
from lightning_calib.report.section import Section
from lightning_calib.report.sections.comparisons import comparisons
from lightning_calib.report.sections.curves import bands, reliability
from lightning_calib.report.sections.fits import certificates
from lightning_calib.report.sections.learned import learned
from lightning_calib.report.sections.pictures import confidences, flips, free_energies
from lightning_calib.report.sections.provenance import provenance
from lightning_calib.report.sections.scores import headline, scores
from lightning_calib.report.sections.selection import TITLE, selection

SECTIONS: tuple[tuple[str, str, Callable[[Inputs], Section | None]], ...] = (
    ("answer", "The answer", headline),
    ("selection", TITLE, selection),
    ("scores", "All pipelines", scores),
    ("comparisons", "Matched comparisons", comparisons),
    ("reliability", "Reliability", reliability),
    ("bands", "Calibration near boundaries", bands),
    ("confidence-maps", "Confidence maps", confidences),
    ("flip-maps", "Flips", flips),
    ("free-energy", "Free energy", free_energies),
    ("learned", "What was learned", learned),
    ("fits", "Fits and timings", certificates),
    ("provenance", "How it was made", provenance),
)
