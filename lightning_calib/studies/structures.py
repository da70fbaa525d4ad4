"""Facts on every structure of cases under fitted pipelines, beside what is true: one pass for triage and volumes."""

import math
from dataclasses import dataclass

import torch

from lightning_calib.decisions.quality import StructureFacts, structure_facts, true_dice
from lightning_calib.functional.experts import winning_class
from lightning_calib.studies.base import Pass, Study
from lightning_calib.tasks.features import calibrate_case


@dataclass(frozen=True)
class StructureRow:
    """One structure of a case under a pipeline (``structures.csv``): label-free facts, true volume and Dice."""

    repeat: int
    pipeline: str
    case: str
    structure: str
    mask: int
    hits: float
    expected: float
    variance: float
    certainty: float
    agreement: float
    volume: int
    dice: float

    @property
    def facts(self) -> StructureFacts:
        """The label-free facts."""
        return StructureFacts(self.mask, self.hits, self.expected, self.variance, self.certainty, self.agreement)

    @property
    def is_there(self) -> bool:
        """Whether the mask or the truth has a voxel."""
        return not math.isnan(self.dice)


@torch.inference_mode()
def structure_rows(study: Study, job: Pass) -> list[StructureRow]:
    """All structures, the background aside, of the cases and pipelines of a pass."""
    cases, manifest, rows = study.cases(job.pooling), study.store.manifest, []
    calibrators = {name: study.calibrator(job.repeat, name) for name in job.pipelines}
    labels = [label for label in range(manifest.num_classes) if label != manifest.background]
    for case_id in job.case_ids:
        logits, target = cases.read(case_id)
        counted, members = target != cases.ignore_index, study.store[case_id].logits
        votes = None if members is None else winning_class(members.float())
        for name, calibrator in calibrators.items():
            log_probs = calibrate_case(calibrator, cases, case_id)
            mask = winning_class(log_probs if calibrator.preserves is None else logits[None])[0]
            for label in labels:
                own, truth, probs = mask == label, target == label, log_probs[0, label].exp()
                facts = structure_facts(probs, own, counted, None if votes is None else votes == label)
                known = {**vars(facts), "volume": int((truth & counted).sum())}
                dice = true_dice(own, truth, counted)
                rows.append(StructureRow(job.repeat, name, case_id, manifest.class_names[label], dice=dice, **known))
    return rows
