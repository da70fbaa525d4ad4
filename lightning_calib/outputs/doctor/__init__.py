"""Examination of frozen outputs for the mistakes that make calibration meaningless."""

import random
from pathlib import Path

from lightning_calib.outputs.doctor.finding import Finding, Severity, has_errors
from lightning_calib.outputs.doctor.folds import out_of_fold
from lightning_calib.outputs.doctor.images import (
    Hashes,
    duplicates,
    leak,
    record_images,
    recorded_images,
    trained_beside,
)
from lightning_calib.outputs.doctor.labels import Agreement, Twins, label_range
from lightning_calib.outputs.doctor.lookalikes import Lookalikes
from lightning_calib.outputs.doctor.sample import take_sample
from lightning_calib.outputs.doctor.scores import CHECKS, Check
from lightning_calib.outputs.store import OutputStore

__all__ = ["Finding", "Severity", "examine", "has_errors", "record_images"]

VOXELS = 1024
QUICK_CASES = 32

_LABELS = Check(
    "labels_out_of_range",
    "error",
    label_range,
    "voids, instances or another numbering of labels; 255 is often void",
    "name the label of voxels that do not count as ignore_index, or renumber the labels from 0",
)


def examine(
    outputs: str | Path | OutputStore,
    voxels: int | None = VOXELS,
    cases: int | None = None,
    seed: int = 0,
    pool_images: Hashes | None = None,
    training_images: Hashes | None = None,
) -> list[Finding]:
    """Examine an output store.

    Looks at a fixed random sample of voxels of each case, so that it is cheap enough to run before every fit. The
    store is never changed, and logits and probabilities are never told apart silently: what looks wrong is said.

    Args:
        outputs: folder of the store, or the opened store.
        voxels: voxels a case, about; None for all.
        cases: cases to look at, drawn at random; None for all.
        seed: seed of both draws.
        pool_images: hashes of the images of the store; None for what is recorded beside it.
        training_images: hashes of the images that networks were trained on; None for what is recorded.

    Returns:
        Findings, errors first; empty for a healthy store.

    Example:
        >>> import tempfile, torch
        >>> from lightning_calib.outputs.manifest import Member
        >>> from lightning_calib.outputs.writer import OutputWriter
        >>> folder = Path(tempfile.mkdtemp()) / "outputs"
        >>> writer = OutputWriter(folder, "toy", ["sky", "road"], 2, [Member("0")])
        >>> logits = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> _ = writer.write("a", logits=logits.softmax(1), target=logits[0].argmax(0))
        >>> _ = writer.finish()
        >>> [finding.name for finding in examine(folder)]
        ['softmax_as_logits']
    """
    store = outputs if isinstance(outputs, OutputStore) else OutputStore(outputs)
    if (voxels is not None and voxels < 1) or (cases is not None and cases < 1):
        raise ValueError(f"voxels = {voxels}, cases = {cases}: give at least 1, or null for all")
    found = [*_examine_cases(store, _drawn(store.case_ids, cases, seed), voxels, seed)]
    recorded = recorded_images(store.root)
    hashes = (
        recorded[0] if pool_images is None else pool_images,
        recorded[1] if training_images is None else training_images,
    )
    whole = leak(*hashes) or trained_beside(store), duplicates(store), out_of_fold(store.manifest)
    found += [finding for finding in whole if finding is not None]
    return sorted(found, key=lambda finding: finding.severity != "error")


def _examine_cases(store: OutputStore, case_ids: list[str], voxels: int | None, seed: int) -> list[Finding]:
    checks = (*CHECKS, _LABELS)
    seen: dict[str, dict[str, str]] = {check.name: {} for check in checks}
    agreement, twins, alike = Agreement(store.manifest), Twins(store.manifest), Lookalikes(store)
    for case_id in case_ids:
        sample = take_sample(store[case_id], voxels, seed)
        for check in checks:
            if (evidence := check.look(sample)) is not None:
                seen[check.name][case_id] = evidence
        agreement.add(sample)
        twins.add(sample)
        alike.add(sample.case)
    found = [check.finding(seen[check.name]) for check in checks if seen[check.name]]
    whole = [finding for finding in (twins.finding(), alike.finding()) if finding is not None]
    broken = has_errors(found)  # scores that are wrong predict nothing worth telling
    together = [each for each in agreement.findings() if not (broken and each.name == "never_predicted")]
    return [*found, *together, *whole]


def _drawn(case_ids: tuple[str, ...], count: int | None, seed: int) -> list[str]:
    """Some of the cases, in their order."""
    if count is None or count >= len(case_ids):
        return list(case_ids)
    return sorted(random.Random(seed).sample(case_ids, count))
