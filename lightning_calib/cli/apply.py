"""``calibrate.py apply``: calibrated maps of new data."""

import json as json_format
import os
from pathlib import Path
from typing import Any

import torch

from lightning_calib.deployment.apply import INDEX, Application
from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.maps import Precision
from lightning_calib.deployment.regions import RegionEnsemble, is_region_folder
from lightning_calib.deployment.sources import Inputs
from lightning_calib.deployment.writers.base import AUTO
from lightning_calib.executors.base import make_executor
from lightning_calib.kit.noise import quiet

KEPT = "outputs"  # folder of the store that --keep_logits writes


def apply(
    deployed: Path,
    destination: Path,
    outputs: Path | None = None,
    images: Path | None = None,
    precision: Precision = "16bit",
    probabilities: bool = True,
    device: str = "cpu",
    trust: bool = False,
    guard: bool = False,
    format: str = AUTO,
    keep_logits: bool = False,
    workers: int = 0,
    executor: str | dict[str, Any] = "local",
    json: bool = False,
) -> int:
    """Write calibrated probabilities, mask and confidence of each case; goes on where an earlier run stopped.

    Maps are on the original grid, in the format of the images: NIfTI, DICOM, GeoTIFF, or safetensors and pictures.

    Args:
        deployed: folder that calibrate.py deploy wrote.
        destination: where to write.
        outputs: stored member outputs to calibrate.
        images: image file or folder of images to segment and calibrate.
        precision: of probabilities and confidence: float32; 16bit (error up to 2.5e-4, in NIfTI 7.7e-6); 8bit (2e-3).
        probabilities: write the probabilities of all classes, not only mask and confidence.
        device: where networks and calibrator run, such as cuda.
        trust: import readers and networks of other packages that the deployed folder names.
        guard: mix towards the uncalibrated probabilities, case by case, where a case lies outside what the calibrator
            was fitted on; what it keeps of the order of classes stays kept.
        format: of the maps: dicom, nifti, geotiff, arrays (safetensors and pictures), or the name of another writer;
            auto takes that of the image.
        keep_logits: also write the networks' scores of --images as a store, outputs in the destination, which monitor,
            apply and others take; it has no targets.
        workers: cases at a time, each in a process of its own; 0 takes one after the other in this one.
        executor: where cases are calibrated: local, ray, or the name of another executor.
        json: print what was written as JSON.
    """
    inputs = Inputs(deployed, outputs, images, device, trust, guard, destination / KEPT if keep_logits else None)
    here = executor == "local" and workers == 0
    threads = torch.get_num_threads() if here else int(os.environ.get("OMP_NUM_THREADS") or 1)
    chosen = make_executor(executor, workers if here else workers or None, threads, quiet)
    index = Application(inputs, destination, precision, probabilities, format).run(chosen, quiet=json)
    if json:
        print(json_format.dumps({"destination": str(destination)} | index))
    else:
        largest = max(case["stated_error"] for case in index["cases"].values())
        done = len(index["cases"]) - index["written_now"]
        print(
            f"{len(index['cases'])} cases ({done} were there already), probabilities exact to {largest:.1e}\n"
            f"{destination / INDEX}"
        )
        if guard:
            print(guard_summary(index["cases"], preserved(deployed)))
    return 0


def preserved(deployed: Path) -> str | None:
    """What a deployed folder leaves as it is: the order or the argmax, or the decisions on regions."""
    if is_region_folder(deployed):
        return "decisions" if RegionEnsemble.load(deployed).calibrator.preserves_decisions else None
    return CalibratedEnsemble.load(deployed, networks=False).pipeline.preserves


def guard_summary(cases: dict[str, dict[str, Any]], preserves: str | None, most: int = 10) -> str:
    """What the guard did, for a terminal; the cases farthest from the reference first."""
    weights = {name: case["identity_weight"] for name, case in cases.items()}
    outside = sorted((name for name in weights if weights[name] > 0), key=lambda name: -weights[name])
    if not outside:
        return f"guard: all {len(cases)} cases lie within what the calibrator was fitted on"
    named = ", ".join(f"{name} {weights[name]:.0%}" for name in outside[:most])
    more = f" and {len(outside) - most} more" if len(outside) > most else ""
    kept = f"; the mixture keeps the {preserves}, as the calibrator does" if preserves else ""
    return (
        f"guard: {len(outside)} of {len(cases)} cases lie outside what the calibrator was fitted on{kept}\n"
        f"weight of the uncalibrated probabilities: {named}{more}"
    )
