"""Networks and preprocessing of an ensemble's members, from the config that they were trained with."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser

from lightning_calib.datasets.base import SegmentationDataModule
from lightning_calib.deployment.folder import Deployment, DeploymentError
from lightning_calib.deployment.preprocessing import Preprocessing
from lightning_calib.outputs.manifest import Manifest, Member
from lightning_calib.segmenters import Inference, Network, Segmenter

_PREFIX = "network."  # of a member's weights in the checkpoint of its training


def member_references(manifest: Manifest, run: Path, folder: Path) -> tuple[Member, ...]:
    """The members with checkpoints relative to the deployed folder."""
    return tuple(
        Member(m.name, os.path.relpath(run / m.checkpoint, folder) if m.checkpoint else "", m.sha256)
        for m in manifest.members
    )


def training_config(manifest: Manifest, run: Path) -> dict[str, Any] | None:
    """Config of the first member; None where the outputs come from elsewhere."""
    first = manifest.members[0]
    path = run / "members" / first.name / "config.yaml"
    if not first.checkpoint or not path.is_file():
        return None
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config


def training_facts(config: dict[str, Any]) -> dict[str, Any]:
    """``network``, ``inference`` and ``preprocessing`` of a deployment, from a training's config."""
    model = config["model"]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(SegmentationDataModule, "data")
    data = config["data"]
    options = {**data, "init_args": {**data.get("init_args", {}), "check": False}}
    try:
        module = parser.instantiate_classes(parser.parse_object({"data": options})).data
    except (ValueError, OSError) as problem:
        raise DeploymentError(
            f"the preprocessing cannot be read off the training data: {problem}\n"
            "bring the data back, or deploy for stored outputs alone with --networks false"
        ) from problem
    return {
        "network": model["network"],
        "inference": model.get("inference"),
        "preprocessing": Preprocessing.of(module),
    }


def build_members(deployment: Deployment, checkpoints: Sequence[Path]) -> list[Segmenter]:
    """The trained networks, in evaluation mode."""
    assert deployment.network is not None
    assert deployment.preprocessing is not None
    arguments = {**deployment.network, "init_args": dict(deployment.network.get("init_args") or {})}
    if "encoder_weights" in arguments["init_args"]:
        arguments["init_args"]["encoder_weights"] = None  # the checkpoint has them: nothing to download
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Network, "network")
    network: Network = parser.instantiate_classes(parser.parse_object({"network": arguments})).network
    members = []
    for path in checkpoints:
        facts = (deployment.preprocessing.in_channels, deployment.num_classes, deployment.spatial_dims)
        segmenter = network.build(*facts)
        weights = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        own = {name.removeprefix(_PREFIX): value for name, value in weights.items() if name.startswith(_PREFIX)}
        segmenter.load_state_dict(own)
        members.append(segmenter.eval().requires_grad_(False))
    return members


def build_inference(deployment: Deployment) -> Inference:
    """How the networks are applied to whole images."""
    options = dict(deployment.inference or {})
    if options.get("mirror_axes") is not None:
        options["mirror_axes"] = tuple(options["mirror_axes"])
    return Inference(**options)
