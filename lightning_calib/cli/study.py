"""``calibrate.py study``: the paper's further tables and figures, from the files of a run."""

import json as json_format
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_calib.cli.run import quiet
from lightning_calib.executors.local import available_cores
from lightning_calib.experiment.recommend import Preserve
from lightning_calib.report.build import build_report
from lightning_calib.studies.base import Pipelines, Study
from lightning_calib.studies.bins import ACE_BINS, ECE_BINS, run_bins
from lightning_calib.studies.calibration_size import run_calibration_size
from lightning_calib.studies.claims import run_claims
from lightning_calib.studies.ensemble_size import run_ensemble_size
from lightning_calib.studies.flips import run_flips
from lightning_calib.studies.offsets import run_offsets
from lightning_calib.studies.properties import CASES, run_properties
from lightning_calib.studies.reliability import BINS, run_reliability
from lightning_calib.studies.selection import run_selection
from lightning_calib.studies.shift import run_shift
from lightning_calib.studies.subsets import run_subsets

Facts = dict[str, Any]


@dataclass(frozen=True)
class StudyOptions:
    """What all studies have in common.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        outputs: the frozen outputs behind it; by default the folder that the run recorded.
        workers: processes at a time; by default one a core. Results do not depend on it.
        report: also write the report anew, with a section on the study.
        preserve: what the pipeline in the report's headline must keep of the ensemble's ranking of the classes.
        json: print what came out as JSON.
    """

    calibration: Path
    outputs: Path | None = None
    workers: int | None = None
    report: bool = True
    preserve: Preserve = "order"
    json: bool = False

    def make(self, name: str, work: Callable[[Study], Facts], tell: Callable[[Facts], str] | None = None) -> Facts:
        """Make a study, and say what came out."""
        quiet()
        workers = available_cores() if self.workers is None else self.workers
        study = Study(name, self.calibration, self.outputs, workers, display=not self.json, start=quiet)
        facts = work(study)
        page = self.calibration.resolve().parent / "report" / "index.html"
        if self.report:
            build_report(self.calibration, self.outputs, page.parent, self.preserve)
        if self.json:
            print(json_format.dumps(facts))
            return facts
        lines = [tell(facts)] if tell else []
        print("\n".join([*lines, f"study:  {study.folder}", *([f"report: {page}"] if self.report else [])]))
        return facts


def offsets(members: list[int] | None = None, cases: int | None = None, **common: Any) -> int:
    """Measure how much the free energy of the logits varies within images, for every ensemble size.

    Args:
        members: ensemble sizes; the first so many members count. By default 1 up to all.
        cases: cases of the pool set, evenly spread; by default all.
        **common: see StudyOptions.
    """
    options = StudyOptions(**common)
    options.make("offsets", lambda study: run_offsets(study, members, cases), _offsets_told)
    return 0


def bins(
    pipelines: Pipelines | None = None,
    ece_bins: list[int] = list(ECE_BINS),  # noqa: B006  # never changed
    ace_bins: list[int] = list(ACE_BINS),  # noqa: B006
    **common: Any,
) -> int:
    """Recompute ECE and ACE at other numbers of bins, and see whether rankings stay.

    Args:
        pipelines: which to rank, as a list or parted by commas; by default those of the paper.
        ece_bins: numbers of bins for ECE.
        ace_bins: numbers of bins for ACE.
        **common: see StudyOptions.
    """
    options = StudyOptions(**common)
    options.make("bins", lambda study: run_bins(study, pipelines, ece_bins, ace_bins), _bins_told)
    return 0


def shift(stores: dict[str, Path] | None = None, pipelines: Pipelines | None = None, **common: Any) -> int:
    """Judge calibrators fitted on clean images on changed images of the same cases, without refitting.

    Args:
        stores: output stores by a name for their images; by default all folders outputs-* beside the run's outputs,
            as train.py predict --corruption writes them.
        pipelines: which to evaluate; by default all of the run.
        **common: see StudyOptions.
    """
    options = StudyOptions(**common)
    options.make("shift", lambda study: run_shift(study, stores, pipelines))
    return 0


def selection(pipelines: Pipelines | None = None, **common: Any) -> int:
    """Compare what val promised of each fit with what test brought.

    Args:
        pipelines: which to look at; by default all of the run.
        **common: see StudyOptions.
    """
    StudyOptions(**common).make("selection", lambda study: run_selection(study, pipelines), _selection_told)
    return 0


def subsets(subsets: dict[str, str], pipelines: Pipelines | None = None, **common: Any) -> int:
    """Score the same fits on parts of the test cases, such as a sequence that training never saw.

    Args:
        subsets: names with patterns of case ids, such as '{"unseen": "Seq05VD*"}'; commas part several patterns.
        pipelines: which to look at; by default all of the run.
        **common: see StudyOptions.
    """
    StudyOptions(**common).make("subsets", lambda study: run_subsets(study, subsets, pipelines))
    return 0


def flips(pipelines: Pipelines | None = None, **common: Any) -> int:
    """Count the decisions that calibrators change: harmful or not, and how far from a boundary.

    Args:
        pipelines: which to look at; by default all that changed a voxel in the run.
        **common: see StudyOptions.
    """
    options = StudyOptions(**common)
    options.make("flips", lambda study: run_flips(study, pipelines))
    return 0


def properties(pipelines: Pipelines | None = None, cases: int = CASES, **common: Any) -> int:
    """Measure translation invariance and preservation of all fitted calibrators on real outputs.

    Args:
        pipelines: which to measure; by default all of the run.
        cases: test cases a repeat.
        **common: see StudyOptions.

    Returns:
        0, or 1 where a declared property does not hold.
    """
    options = StudyOptions(**common)
    facts = options.make("properties", lambda study: run_properties(study, pipelines, cases), _properties_told)
    return 1 if facts["broken"] else 0


def reliability(bins: int = BINS, **common: Any) -> int:
    """Draw the paper's four reliability curves.

    Args:
        bins: bins of confidence.
        **common: see StudyOptions.
    """
    options = StudyOptions(**common)
    options.make("reliability", lambda study: run_reliability(study, bins))
    return 0


def claims(**common: Any) -> int:
    """Put the paper's claims to the test: seen, not seen, or opposite on these cases.

    Args:
        **common: see StudyOptions.
    """
    StudyOptions(**common).make("claims", run_claims, _claims_told)
    return 0


def calibration_size(
    sizes: list[int] | None = None, pipelines: Pipelines | None = None, trials: int | None = None, **common: Any
) -> int:
    """Fit on fewer and on more calibration cases, and judge on the same test cases.

    Args:
        sizes: numbers of calibration cases; by default a tenth of the run's own up to twice as many.
        pipelines: which to fit; by default those of the paper.
        trials: trials of each search; by default as many as the run's, so that its fits are taken over.
        **common: see StudyOptions.

    Returns:
        0, or 1 where a fit failed.
    """
    options = StudyOptions(**common)
    facts = options.make("calibration_size", lambda study: run_calibration_size(study, sizes, pipelines, trials))
    return 1 if facts["failures"] else 0


def ensemble_size(
    members: list[int] | None = None, pipelines: Pipelines | None = None, trials: int | None = None, **common: Any
) -> int:
    """Fit and evaluate pipelines on smaller ensembles.

    Args:
        members: ensemble sizes; the first so many members count. By default 1 up to all.
        pipelines: which to fit; by default the uncalibrated ensemble and the paper's contrasts.
        trials: trials of each search; by default as many as the run's, so that its fits are taken over.
        **common: see StudyOptions.

    Returns:
        0, or 1 where a fit failed.
    """
    options = StudyOptions(**common)
    facts = options.make("ensemble_size", lambda study: run_ensemble_size(study, members, pipelines, trials))
    return 1 if facts["failures"] else 0


def _offsets_told(facts: Facts) -> str:
    rows = (
        f"M = {r['members']}: {r['mean']:.2f} [{r['p25']:.2f}, {r['p50']:.2f}, {r['p75']:.2f}]"
        for r in facts["summary"]
    )
    return "\n".join(["spread of the free energy within images, mean [quartiles]:", *rows])


def _claims_told(facts: Facts) -> str:
    return "\n".join(
        f"{entry['outcome']:<9} {entry['text']} ({entry['counts']['seen']} of {entry['tested']} comparisons)"
        for entry in facts["claims"]
    )


def _selection_told(facts: Facts) -> str:
    rows = (
        f"{e['pipeline']:<12} promised {e['promised']:+.4f}, brought {e['brought']:+.4f}, "
        f"worse than none in {e['lost']} of {e['repeats']} repeats"
        for e in facts["pipelines"]
    )
    return "\n".join(["change of NLL against no calibration, on val and on test:", *rows])


def _bins_told(facts: Facts) -> str:
    return "\n".join(
        f"{m.upper()} ranking: {facts[m]['verdict']} (smallest tau {facts[m]['smallest_tau']:.2f})"
        for m in ("ece", "ace")
    )


def _properties_told(facts: Facts) -> str:
    broken = [f"BROKEN {e['pipeline']}, repeat {e['repeat']}: {e['broken']}" for e in facts["broken"]]
    return "\n".join(broken) or f"every declared property of {len(facts['pipelines'])} pipelines holds"


STUDIES: dict[str, Any] = {
    "_help": "The paper's further tables and figures.",
    "claims": claims,
    "offsets": offsets,
    "ensemble_size": ensemble_size,
    "calibration_size": calibration_size,
    "bins": bins,
    "selection": selection,
    "shift": shift,
    "subsets": subsets,
    "flips": flips,
    "properties": properties,
    "reliability": reliability,
}
