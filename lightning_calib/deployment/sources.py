"""New data for a deployed pipeline: stored outputs, or image files."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch

from lightning_calib.datasets.cases import Case, files_of
from lightning_calib.datasets.content import contents
from lightning_calib.datasets.readers import list_files, stem, suffix
from lightning_calib.deployment.ensemble import Calibrated, CalibratedEnsemble
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.deployment.guard import Guard, Guarded, RegionGuard
from lightning_calib.deployment.maps import (
    CalibratedMaps,
    Legend,
    Maps,
    RegionMaps,
    as_maps,
    legend_of,
    region_map,
    votes,
)
from lightning_calib.deployment.regions import RegionEnsemble, is_region_folder
from lightning_calib.functional.devices import named_device
from lightning_calib.functional.regions import log_odds
from lightning_calib.kit.files import FILE_NAMES, names_file, sha256
from lightning_calib.outputs.manifest import CaseRecord, Keep, StoreDtype, case_path
from lightning_calib.outputs.regions import Region, painted
from lightning_calib.outputs.store import OutputStore, StoredCase
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.outputs.writer import OutputWriter

_CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")  # nnU-Net's names of files with one channel each


@dataclass(frozen=True)
class Source:
    """One case that waits to be calibrated.

    Attributes:
        case_id: its name.
        inputs_sha256: takes the hash of what it is made of.
        calibrate: reads and calibrates it.
        kept: store that its member scores go to, where they are kept.
    """

    case_id: str
    inputs_sha256: Callable[[], str]
    calibrate: Callable[[], Maps]
    kept: OutputWriter | None = None


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
        keep: folder of a store that member scores of images go to; None keeps none.
    """

    deployed: Path
    outputs: Path | None = None
    images: Path | None = None
    device: str = "cpu"
    trust: bool = False
    guard: bool = False
    keep: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        if (self.outputs is None) == (self.images is None):
            raise ValueError("give either --outputs or --images")
        if self.keep is not None and self.images is None:
            raise ValueError("--keep_logits is for --images: those of --outputs are kept already")


@cache
def find_sources(inputs: Inputs) -> tuple[str, dict[str, Source]]:
    """Hash of the deployed calibrator, and all cases by name; loaded once in a process."""
    if is_region_folder(inputs.deployed):
        return region_sources(inputs)
    ensemble = CalibratedEnsemble.load(inputs.deployed, networks=inputs.images is not None, trust=inputs.trust)
    ensemble.to(named_device(inputs.device))
    guard = Guard.load(inputs.deployed) if inputs.guard else None
    found = stored_sources(inputs.outputs, ensemble, guard) if inputs.outputs is not None else []
    found += image_sources(inputs.images, ensemble, guard, inputs.keep) if inputs.images is not None else []
    names = [source.case_id for source in found]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"several inputs are called {', '.join(sorted(repeated))}: rename them, maps go by name")
    return ensemble.deployment.calibrator_sha256, dict(zip(names, found, strict=True))


def stored_sources(outputs: Path, ensemble: CalibratedEnsemble, guard: Guard | None = None) -> list[Source]:
    """Cases of an output store, perhaps under a guard; nothing is written beside it."""
    store = OutputStore(outputs)
    ensemble.deployment.refuse_others(store.manifest, outputs)
    cases = StoredCases(store, ensemble.pipeline.pooling, cache=False)
    legend = legend_of(ensemble.deployment)

    def calibrate(case_id: str) -> CalibratedMaps:
        case = store[case_id]
        if guard is None:
            features = cases.feature_batch(case_id, ensemble.pipeline.calibrator.feature_names)
            pooled = cases.pooled(case_id)[None]
            result: Calibrated | Guarded = ensemble.calibrate_pooled(pooled, features=features)
        else:
            result = guard.stored(ensemble, cases, case_id)
        geometry = None if case.geometry is None else dict(case.geometry)
        found = as_maps(result, case.valid, replace(legend, background=store.manifest.background), geometry)
        return replace(found, votes=votes(case.logits))

    return [
        Source(case.case_id, partial(_made_of, case.sha256, legend.values), partial(calibrate, case.case_id))
        for case in store.manifest.cases
    ]


def region_sources(inputs: Inputs) -> tuple[str, dict[str, Source]]:
    """Hash of the deployed calibrators of regions, and the cases of a store of regions by name."""
    if inputs.outputs is None:
        raise DeploymentError(f"{inputs.deployed} holds a model of regions, which takes a store of regions (--outputs)")
    root, ensemble = inputs.outputs, RegionEnsemble.load(inputs.deployed).to(named_device(inputs.device))
    manifest = ensemble.refuse_others(root)
    guard = RegionGuard(inputs.deployed, [region.slug for region in manifest.regions]) if inputs.guard else None

    def calibrate(record: CaseRecord) -> RegionMaps:
        cases = [
            StoredCase(case_path(root, record.case_id), record, manifest.of_region(channel), region, channel)
            for channel, region in enumerate(manifest.regions)
        ]
        pooled = [case.pooled(each) for case, each in zip(cases, ensemble.poolings, strict=True)]
        weight = None if guard is None else guard.weight(cases)
        scores = torch.stack([log_odds(each, dim=0) for each in pooled])[None]
        result = ensemble.calibrate_pooled(scores, weight or 0.0)
        probs, mask, valid = result.probs[0].float().cpu(), result.mask[0].cpu(), cases[0].valid
        if valid is not None:
            probs, mask = probs.where(valid, 0.0), mask.where(valid, 0)
        names = tuple(map(region_map, manifest.regions))
        legend = Legend(_painted_names(manifest.regions), 0, made_by="regions")
        members = StoredCase(case_path(root, record.case_id), record, manifest).logits
        inside = None if members is None else members > 0
        return RegionMaps(probs, mask, record.geometry, weight, legend=legend, names=names, votes=inside)

    return ensemble.sha256, {
        record.case_id: Source(record.case_id, partial(str, record.sha256), partial(calibrate, record))
        for record in manifest.cases
    }


def _painted_names(regions: Sequence[Region]) -> tuple[str, ...]:
    """Name of each label of a painted mask."""
    named = {0: "background"} | {label: name for name, label in painted(regions).items()}
    return tuple(named.get(label, f"label {label}") for label in range(max(named) + 1))


def image_sources(
    images: Path, ensemble: CalibratedEnsemble, guard: Guard | None = None, keep: Path | None = None
) -> list[Source]:
    """Image files: a folder of them, or one; perhaps under a guard, perhaps with their member scores kept."""
    legend, cases = legend_of(ensemble.deployment), image_cases(images, ensemble)
    kept = None if keep is None else scores_writer(keep, ensemble.deployment, cases)

    def calibrate(case_id: str, files: list[Path]) -> CalibratedMaps:
        scores, loaded = ensemble.scores_of(files)
        if kept is not None:
            kept.write(case_id, scores[0], None, loaded.valid, loaded.geometry)
        if guard is None:
            result: Calibrated | Guarded = ensemble.calibrate(scores)
        else:
            result = guard.calibrate(ensemble, scores, [loaded.valid])
        return replace(as_maps(result, loaded.valid, legend, loaded.geometry), votes=votes(scores[0]))

    return [
        Source(case_id, partial(_files_made_of, files, legend.values), partial(calibrate, case_id, files), kept)
        for case_id, files in cases.items()
    ]


def image_cases(images: Path, ensemble: CalibratedEnsemble) -> dict[str, list[Path]]:
    """Files of each case that the networks take, by its name."""
    endings, preprocessing = ensemble.require_loader().endings, ensemble.deployment.preprocessing
    channels = preprocessing.in_channels if preprocessing is not None and preprocessing.kind == "volume" else 1
    return dict(find_cases(images, endings, channels))


def scores_writer(
    folder: Path,
    deployment: Deployment,
    cases: Mapping[str, Sequence[Path]],
    keep: Keep = "members",
    dtype: StoreDtype = "float32",
) -> OutputWriter:
    """A store of networks' scores of new images, which has no targets."""
    return OutputWriter(
        folder,
        dataset=deployment.dataset,
        class_names=deployment.class_names,
        spatial_dims=deployment.spatial_dims,
        members=[replace(member, checkpoint="") for member in deployment.members],
        background=deployment.background,
        ignore_index=deployment.ignore_index,
        representation=deployment.representation,
        preprocessing=deployment.preprocessing,
        keep=keep,
        dtype=dtype,
        made_of=contents([Case(case_id, tuple(files)) for case_id, files in cases.items()]),
        labelled=False,
    )


def find_cases(images: Path, endings: tuple[str, ...], channels: int = 1) -> Iterator[tuple[str, list[Path]]]:
    """Cases of a folder or a file, in order of name; files ``<case>_0000``, ``<case>_0001``, ... are one case.

    Args:
        images: folder or file.
        endings: of files that can be read.
        channels: of a case, which may come in one file each; with one, every file is a case.
    """
    if not images.exists():
        raise DeploymentError(f"{images} does not exist: name a folder of images or one image")
    files = list_files(images, endings) if images.is_dir() and not suffix(images, endings) else [images]
    if not files or not suffix(files[0], endings):
        raise DeploymentError(f"{images} holds no image that the networks take ({', '.join(endings)})")
    cases: dict[str, list[Path]] = {}
    for path in files:
        match = _CHANNEL.fullmatch(stem(path)) if channels > 1 else None
        cases.setdefault(match["case"] if match else stem(path), []).append(path)
    for case_id, parts in cases.items():
        if not names_file(case_id):
            raise DeploymentError(f"{case_id!r} in {images} cannot name maps: {FILE_NAMES}; rename the image")
        if len(parts) not in (1, channels):
            names = ", ".join(path.name for path in parts)
            raise DeploymentError(f"case {case_id} in {images} has {len(parts)} files ({names}), not {channels}")
    yield from cases.items()


def files_hash(files: list[Path]) -> str:
    """Hash of several files' contents."""
    return hashlib.sha256("".join(sha256(file) for path in files for file in files_of(path)).encode()).hexdigest()


def _files_made_of(files: list[Path], values: tuple[int, ...] | None) -> str:
    return _made_of(files_hash(files), values)


def _made_of(content: str, values: tuple[int, ...] | None) -> str:
    return content if values is None else f"{content} {values}"
