"""``train.py predict --images``: a store of the members' scores of images that have no masks."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from lightning_calib.calibrators import Pipeline
from lightning_calib.cli.run_folder import MemberFolder, RunError, RunFolder
from lightning_calib.cli.trainer import OutputOptions
from lightning_calib.datasets.base import SegmentationDataModule
from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.folder import Deployment
from lightning_calib.deployment.sources import image_cases, scores_writer
from lightning_calib.kit.progress import Display
from lightning_calib.outputs.manifest import MANIFEST, Manifest


def predict_images(
    run: RunFolder,
    images: Path,
    options: OutputOptions,
    model: dict[str, Any],
    read_data: Callable[[], SegmentationDataModule],
    device: torch.device,
) -> tuple[Path, Manifest]:
    """Write the members' scores of new images; goes on where an earlier call stopped.

    What the images are and how they are read is taken from the outputs of the run, where there are any: the training
    data need not be there then.

    Args:
        run: the run of the members.
        images: image file, or folder of images.
        options: what is stored, by which members, and where.
        model: the options of the members' task: their network and how it is applied.
        read_data: gives the training data, asked where the run has no outputs.
        device: where the networks run.

    Returns:
        The store and its manifest.
    """
    members = run.members(options.members)
    facts = replace(_facts(run, read_data, model), members=tuple(run.records(members, options.checkpoint)))
    ensemble = _ensemble(facts, model, members, options).to(device)
    cases = image_cases(images, ensemble)
    place = run.path / (options.folder or f"outputs-{images.resolve().stem}")
    writer = scores_writer(place, facts, cases, options.keep, options.dtype)
    waiting = [case_id for case_id in cases if case_id not in writer.done]
    with Display(["case"] * len(waiting), 1) as shown:
        for case_id in waiting:
            scores, loaded = ensemble.scores_of(cases[case_id])
            writer.write(case_id, scores[0], None, loaded.valid, loaded.geometry)
            shown.done("case", case_id)
    return place, writer.finish(cases)


def _facts(run: RunFolder, read_data: Callable[[], SegmentationDataModule], model: dict[str, Any]) -> Deployment:
    """What the networks take and give."""
    if (run.outputs / MANIFEST).is_file():
        known = Manifest.load(run.outputs / MANIFEST)
        shared = ("dataset", "class_names", "spatial_dims", "background", "ignore_index", "preprocessing")
        if known.preprocessing is None:
            raise RunError(f"{run.outputs} does not say how images are read: its data set has a reader of its own")
        return Deployment("", members=(), **{name: getattr(known, name) for name in shared})
    try:
        data = read_data()
    except (ValueError, OSError) as problem:
        raise RunError(
            f"{run.outputs} is not there, so that the training data must say how images are read, but: {problem}"
        ) from problem
    return Deployment(
        "",
        dataset=data.name,
        class_names=tuple(data.class_names),
        spatial_dims=data.spatial_dims,
        members=(),
        background=data.background,
        ignore_index=data.ignore_index,
        preprocessing=replace(data.preprocessing, inference=model.get("inference")),
    )


def _ensemble(
    facts: Deployment, model: dict[str, Any], members: Sequence[MemberFolder], options: OutputOptions
) -> CalibratedEnsemble:
    """The members, without a calibrator; the config is the user's own, so that its classes are trusted."""
    pipeline = Pipeline.parse("identity(p)", len(facts.class_names), facts.spatial_dims)
    checkpoints = {member.name: member.checkpoint(options.checkpoint) for member in members}
    return CalibratedEnsemble.with_networks(pipeline, replace(facts, network=model["network"]), checkpoints, trust=True)


def options_of(found: Any) -> OutputOptions:  # noqa: ANN401
    """What is stored, from parsed options."""
    return OutputOptions(**{name: getattr(found, name) for name in asdict(OutputOptions())})
