"""New data for a deployed pipeline: stored outputs, or image files."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from lightning_calib.datasets.readers import list_files, stem, suffix
from lightning_calib.deployment.ensemble import Calibrated, CalibratedEnsemble
from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.guard import Guard, Guarded
from lightning_calib.deployment.maps import CalibratedMaps, Maps, RegionMaps
from lightning_calib.deployment.regions import RegionEnsemble, is_region_folder
from lightning_calib.functional.regions import log_odds
from lightning_calib.kit.files import sha256
from lightning_calib.outputs.manifest import CaseRecord, case_path
from lightning_calib.outputs.store import OutputStore, StoredCase
from lightning_calib.outputs.stored_cases import StoredCases

_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")  # nnU-Net's names of files with one channel each


@dataclass(frozen=True)
class Source:
    """One case that waits to be calibrated.

    Attributes:
        case_id: its name.
        inputs_sha256: takes the hash of what it is made of.
        calibrate: reads and calibrates it.
    """

    case_id: str
    inputs_sha256: Callable[[], str]
    calibrate: Callable[[], Maps]


@dataclass(frozen=True)
class Inputs:
    """Where cases come from and what calibrates them; goes to every process that does some of them.

    Attributes:
        deployed: folder of the deployment.
        outputs: stored member outputs, or None.
        images: image file or folder of images, or None.
        device: where networks and calibrator run.
        trust: import readers and networks of other packages that the deployed folder names.
        guard: mix cases unlike the reference towards the uncalibrated probabilities; such maps are told apart.
    """

    deployed: Path
    outputs: Path | None = None
    images: Path | None = None
    device: str = "cpu"
    trust: bool = False
    guard: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        if (self.outputs is None) == (self.images is None):
            raise ValueError("give either --outputs or --images")


@cache
def find_sources(inputs: Inputs) -> tuple[str, dict[str, Source]]:
    """Hash of the deployed calibrator, and all cases by name; loaded once in a process."""
    if is_region_folder(inputs.deployed):
        return region_sources(inputs)
    ensemble = CalibratedEnsemble.load(inputs.deployed, networks=inputs.images is not None, trust=inputs.trust)
    ensemble.to(torch.device(inputs.device))
    guard = Guard.load(inputs.deployed) if inputs.guard else None
    found = stored_sources(inputs.outputs, ensemble, guard) if inputs.outputs is not None else []
    found += image_sources(inputs.images, ensemble, guard) if inputs.images is not None else []
    names = [source.case_id for source in found]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"several inputs are called {', '.join(sorted(repeated))}: rename them, maps go by name")
    return ensemble.deployment.calibrator_sha256, dict(zip(names, found, strict=True))


def stored_sources(outputs: Path, ensemble: CalibratedEnsemble, guard: Guard | None = None) -> list[Source]:
    """Cases of an output store, perhaps under a guard; nothing is written beside it."""
    store = OutputStore(outputs)
    ensemble.deployment.refuse_others(store.manifest, outputs)
    cases = StoredCases(store, ensemble.pipeline.pooling, cache=False)
    values = mask_values(ensemble)

    def calibrate(case_id: str) -> CalibratedMaps:
        case = store[case_id]
        if guard is None:
            features = cases.feature_batch(case_id, ensemble.pipeline.calibrator.feature_names)
            pooled = cases.pooled(case_id)[None]
            result: Calibrated | Guarded = ensemble.calibrate_pooled(pooled, features=features)
        else:
            result = guard.stored(ensemble, cases, case_id)
        geometry = None if case.geometry is None else dict(case.geometry)
        return replace(as_maps(result, case.valid, store.manifest.background, geometry), mask_values=values)

    return [
        Source(case.case_id, partial(_made_of, case.sha256, values), partial(calibrate, case.case_id))
        for case in store.manifest.cases
    ]


def region_sources(inputs: Inputs) -> tuple[str, dict[str, Source]]:
    """Hash of the deployed calibrators of regions, and the cases of a store of regions by name."""
    if inputs.outputs is None or inputs.guard:
        raise DeploymentError(
            f"{inputs.deployed} holds a model of regions, which takes a store of regions (--outputs) and no guard; a "
            f"folder of one region, such as {inputs.deployed}/<region>, takes a guard"
        )
    root, ensemble = inputs.outputs, RegionEnsemble.load(inputs.deployed).to(torch.device(inputs.device))
    manifest = ensemble.refuse_others(root)

    def calibrate(record: CaseRecord) -> RegionMaps:
        cases = [
            StoredCase(case_path(root, record.case_id), record, manifest.of_region(channel), region, channel)
            for channel, region in enumerate(manifest.regions)
        ]
        pooled = [case.pooled(each) for case, each in zip(cases, ensemble.poolings, strict=True)]
        result = ensemble.calibrate_pooled(torch.stack([log_odds(each, dim=0) for each in pooled])[None])
        probs, mask, valid = result.probs[0].float().cpu(), result.mask[0].cpu(), cases[0].valid
        if valid is not None:
            probs, mask = probs.where(valid, 0.0), mask.where(valid, 0)
        names = tuple(f"probs_{region.slug}" for region in manifest.regions)
        return RegionMaps(probs, mask, record.geometry, names=names)

    return ensemble.sha256, {
        record.case_id: Source(record.case_id, partial(str, record.sha256), partial(calibrate, record))
        for record in manifest.cases
    }


def image_sources(images: Path, ensemble: CalibratedEnsemble, guard: Guard | None = None) -> list[Source]:
    """Image files: a folder of them, or one; perhaps under a guard."""
    deployment = ensemble.deployment
    endings, values = ensemble.require_loader().endings, mask_values(ensemble)

    def calibrate(files: list[Path]) -> CalibratedMaps:
        scores, loaded = ensemble.scores_of(files)
        if guard is None:
            result: Calibrated | Guarded = ensemble.calibrate(scores)
        else:
            result = guard.calibrate(ensemble, scores, [loaded.valid])
        found = as_maps(result, loaded.valid, deployment.background, loaded.geometry)
        return replace(found, mask_values=values)

    preprocessing = deployment.preprocessing
    channels = preprocessing.in_channels if preprocessing is not None and preprocessing.kind == "volume" else 1
    return [
        Source(case_id, partial(_files_made_of, files, values), partial(calibrate, files))
        for case_id, files in find_cases(images, endings, channels)
    ]


def find_cases(images: Path, endings: tuple[str, ...], channels: int = 1) -> Iterator[tuple[str, list[Path]]]:
    """Cases of a folder or a file, in order of name; files ``<case>_0000``, ``<case>_0001``, ... are one case.

    Args:
        images: folder or file.
        endings: of files that can be read.
        channels: of a case, which may come in one file each; with one, every file is a case.
    """
    if not images.exists():
        raise DeploymentError(f"{images} does not exist: name a folder of images or one image")
    files = list_files(images, endings) if images.is_dir() else [images]
    if not files or not suffix(files[0], endings):
        raise DeploymentError(f"{images} holds no image that the networks take ({', '.join(endings)})")
    cases: dict[str, list[Path]] = {}
    for path in files:
        match = _CHANNEL.fullmatch(stem(path)) if channels > 1 else None
        cases.setdefault(match["case"] if match else stem(path), []).append(path)
    for case_id, parts in cases.items():
        if len(parts) not in (1, channels):
            names = ", ".join(path.name for path in parts)
            raise DeploymentError(f"case {case_id} in {images} has {len(parts)} files ({names}), not {channels}")
    yield from cases.items()


def files_hash(files: list[Path]) -> str:
    """Hash of several files' contents."""
    return hashlib.sha256("".join(sha256(path) for path in files).encode()).hexdigest()


def mask_values(ensemble: CalibratedEnsemble) -> tuple[int, ...] | None:
    """What masks of the training data hold for class 0, 1, ...: written masks hold the same."""
    preprocessing = ensemble.deployment.preprocessing
    return None if preprocessing is None else preprocessing.mask_values


def _files_made_of(files: list[Path], values: tuple[int, ...] | None) -> str:
    return _made_of(files_hash(files), values)


def _made_of(content: str, values: tuple[int, ...] | None) -> str:
    return content if values is None else f"{content} {values}"


def as_maps(
    result: Calibrated | Guarded,
    valid: Tensor | None,
    background: int | None,
    geometry: dict[str, object] | None,
) -> CalibratedMaps:
    """Maps of a batch of one; where the networks saw nothing, the background is certain if there is one."""
    probs, mask, confidence = result.log_probs[0].exp().float().cpu(), result.mask[0].cpu(), result.confidence[0].cpu()
    if valid is not None and background is not None:
        certain = torch.zeros(len(probs)).index_fill(0, torch.tensor([background]), 1.0)
        probs = torch.where(valid, probs, certain.view(-1, *(1 for _ in mask.shape)))
        mask, confidence = mask.where(valid, background), confidence.where(valid, 1.0)
    weight = float(result.weight) if isinstance(result, Guarded) else None
    return CalibratedMaps(probs, mask, geometry, weight, confidence=confidence.float())
