"""``calibrate.py doctor`` and ``verify``: are frozen outputs what they are taken for, and unchanged?"""

import json as json_format
import sys
from pathlib import Path

from lightning_calib.kit.program import named
from lightning_calib.outputs.doctor import QUICK_CASES, VOXELS, Finding, examine, has_errors
from lightning_calib.outputs.doctor.images import hash_folder
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.store import OutputStore


def doctor(
    outputs: Path,
    pool_images: Path | None = None,
    training_images: Path | None = None,
    voxels: int | None = VOXELS,
    cases: int | None = None,
    seed: int = 0,
    hashes: bool = False,
    json: bool = False,
) -> int:
    """Examine frozen outputs for the mistakes that make calibration meaningless.

    Each finding comes with its evidence, its likely cause and the remedy. Nothing is changed.

    Args:
        outputs: folder of the store, such as runs/camvid/outputs.
        pool_images: folder of the images behind the store, to look for images that are also in training.
        training_images: folder of the images that the networks were trained on.
        voxels: voxels to look at in each case, about; null for all.
        cases: cases to look at; null for all.
        seed: seed of the draw of voxels and cases.
        hashes: also read every file whole, and compare its hash with that of the manifest.
        json: print the findings as JSON.

    Returns:
        0 without errors (there may be warnings), 1 with errors.
    """
    if (pool_images is None) != (training_images is None):
        raise ValueError("name both --pool_images and --training_images, or none of them")
    pool = None if pool_images is None else hash_folder(pool_images)
    training = None if training_images is None else hash_folder(training_images)
    store = OutputStore(outputs)
    findings = _changed(store) if hashes else []
    findings = findings or examine(store, voxels, cases, seed, pool, training)  # changed files are not read further
    if json:
        facts = {"outputs": str(outputs), "cases": len(store), "ok": not has_errors(findings)}
        print(json_format.dumps(facts | {"findings": [finding.describe() for finding in findings]}, indent=1))
    else:
        print(table(findings) if findings else f"{outputs}: {len(store)} cases, nothing found")
    return 1 if has_errors(findings) else 0


def verify(outputs: Path, json: bool = False) -> int:
    """Check presence, sizes, headers and hashes of every file of an output store.

    Args:
        outputs: folder of the store, such as runs/camvid/outputs.
        json: print the finding as JSON.

    Returns:
        0 where everything is as the manifest records it, 1 otherwise.
    """
    problem, cases = "", 0
    try:
        store = OutputStore(outputs)
        cases = len(store)
        store.verify()
    except StoreError as error:
        problem = named(str(error))
    if json:
        print(json_format.dumps({"outputs": str(outputs), "ok": not problem, "cases": cases, "problem": problem}))
    else:
        print(problem or f"{outputs}: {cases} cases, all as the manifest records them")
    return 1 if problem else 0


def _changed(store: OutputStore) -> list[Finding]:
    """Files whose content is not what the manifest records."""
    try:
        store.verify()
    except StoreError as error:
        cause = "a file was copied in part, edited, or written by another run"
        return [Finding("changed_files", "error", named(str(error)), cause, "predict or import these cases again")]
    return []


def table(findings: list[Finding]) -> str:
    """Findings for a terminal."""
    return "\n\n".join(str(finding) for finding in findings)


def require_healthy(outputs: Path | str, enabled: bool = True) -> None:
    """Examine a store quickly before a fit: warnings are printed, errors stop it.

    Args:
        outputs: folder of the store.
        enabled: whether to look at all.

    Raises:
        StoreError: with all findings, where one of them is an error.
    """
    if not enabled:
        return
    findings = examine(outputs, cases=QUICK_CASES)
    if has_errors(findings):
        raise StoreError(
            f"{outputs} is not fit for calibration:\n{table(findings)}\n"
            "(`calibrate.py doctor` says it again; --doctor false fits all the same)"
        )
    if findings:
        print(table(findings), file=sys.stderr)
