"""``calibrate.py export``: a deployed pipeline as a graph that runs without this library."""

import json as json_format
from pathlib import Path
from typing import Literal

import torch

from lightning_calib.deployment.export import Exported, RegionGraph, export_program, save_onnx, save_program
from lightning_calib.deployment.folder import Deployment
from lightning_calib.deployment.regions import RegionEnsemble, is_region_folder

Format = Literal["onnx", "torch"]
_DTYPES = {"float32": torch.float32, "float16": torch.float16}


def export(
    deployed: Path,
    format: Format = "onnx",
    pooling: bool = True,
    dtype: Literal["float32", "float16"] = "float32",
    destination: Path | None = None,
    json: bool = False,
) -> int:
    """Write pooling and calibrator, or the calibrator alone, as ONNX or torch.export, for any batch and spatial size.

    Args:
        deployed: folder that calibrate.py deploy wrote.
        format: onnx (needs the extra export), or torch for torch.export.
        pooling: take member logits (B, members, classes or regions, ...); false for logits that are pooled already.
        dtype: type of the logits that the graph takes.
        destination: file to write; by default <pipeline or calibrator>.onnx or .pt2 in the deployed folder.
        json: print what was written as JSON.
    """
    module, members = _module(deployed, pooling)
    ending = "onnx" if format == "onnx" else "pt2"
    path = destination or deployed / f"{'pipeline' if pooling else 'calibrator'}.{ending}"
    if format == "onnx":
        save_onnx(path, module, members, _DTYPES[dtype])
    else:
        save_program(path, export_program(module, members, _DTYPES[dtype]))
    print(json_format.dumps({"file": str(path)}) if json else str(path))
    return 0


def _module(deployed: Path, pooling: bool) -> tuple[Exported, int]:
    """What is exported of a deployed folder, and the number of members."""
    if is_region_folder(deployed):
        ensemble = RegionEnsemble.load(deployed)
        return RegionGraph(ensemble, pooling), len(ensemble.deployments[0].members)
    deployment = Deployment.load(deployed)
    pipeline = deployment.read_pipeline(deployed)
    return (pipeline if pooling else pipeline.calibrator), len(deployment.members)
