"""Calibrators as graphs that run without this library: ``torch.export`` and ONNX."""

import copy
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lightning_calib.calibrators import Calibrator, Pipeline
from lightning_calib.calibrators.base import features_of
from lightning_calib.deployment.ensemble import calibrated
from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.functional.features import NEED_MEMBERS
from lightning_calib.functional.pooling import pool
from lightning_calib.kit.files import atomic_path

OUTPUTS = ["log_probs", "mask", "confidence"]
MEMBERS, POOLED, FEATURES = "member_logits", "logits", "features"  # names of the inputs
OPSET = 18  # the first whose reductions take axes as inputs, as the exporter writes them
_SPATIAL = ("depth", "height", "width")
_TRACED_SIZE = 7  # of every dynamic axis while the graph is made; the graph does not depend on it


class CalibrationGraph(nn.Module):
    """What is exported: scores to log-probabilities, mask and confidence.

    The mask of a preserving pipeline is the argmax of the pooled scores themselves: rounding on another machine
    cannot change it. Features that a calibrator looks at are made inside the graph, of the members' scores or of the
    pooled ones; only a calibrator alone whose features need the members' scores takes them as a second input.

    Args:
        module: a pipeline, which takes member logits ``(B, M, C, *S)``, or a calibrator, which takes pooled
            logits ``(B, C, *S)``.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> log_probs, mask, confidence = CalibrationGraph(build("ts", 3))(torch.randn(1, 3, 8, 8))
        >>> log_probs.shape, mask.shape, confidence.shape
        (torch.Size([1, 3, 8, 8]), torch.Size([1, 8, 8]), torch.Size([1, 8, 8]))
    """

    def __init__(self, module: Pipeline | Calibrator) -> None:
        super().__init__()
        self.pooling = module.pooling if isinstance(module, Pipeline) else None
        chosen = module.calibrator if isinstance(module, Pipeline) else module
        self.calibrator = copy.deepcopy(chosen).eval().requires_grad_(False)
        self.takes_features = self.pooling is None and bool(NEED_MEMBERS.intersection(chosen.feature_names))

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return [POOLED if self.pooling is None else MEMBERS, *([FEATURES] if self.takes_features else [])]

    def forward(self, logits: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities ``(B, C, *S)``, mask ``(B, *S)`` and confidence ``(B, *S)``."""
        pooled = logits if self.pooling is None else pool(logits, self.pooling)
        if not self.takes_features:
            features = features_of(self.calibrator, pooled, None if self.pooling is None else logits)
        log_probs, mask, confidence = calibrated(pooled, self.calibrator, features)
        return log_probs, mask, confidence  # files of torch.export know no named tuples


def example_inputs(graph: CalibrationGraph, num_members: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Scores, and perhaps features, of the right number of axes to trace the graph with."""
    sizes = [_TRACED_SIZE + axis for axis in range(graph.calibrator.spatial_dims)]  # differ: axes stay apart
    members = [] if graph.pooling is None else [num_members]
    scores = torch.zeros(2, *members, graph.calibrator.num_classes, *sizes, dtype=dtype)
    features = torch.zeros(2, len(graph.calibrator.feature_names), *sizes)
    return (scores, features) if graph.takes_features else (scores,)


def dynamic_axes(graph: CalibrationGraph) -> dict[int, Dim]:
    """Axes of any size: the batch and all spatial ones; boxes around voxels are made for 3 voxels or more."""
    first = 2 if graph.pooling is None else 3
    names = _SPATIAL[-graph.calibrator.spatial_dims :]
    least = 3 if graph.calibrator.feature_names and not graph.takes_features else None
    return {0: Dim("batch")} | {first + axis: Dim(name, min=least) for axis, name in enumerate(names)}


def export_program(
    module: Pipeline | Calibrator, num_members: int = 1, dtype: torch.dtype = torch.float32
) -> ExportedProgram:
    """The graph of ``torch.export``, for any batch and spatial size.

    Args:
        module: a pipeline or a calibrator.
        num_members: members of the ensemble; a calibrator alone does not look at it.
        dtype: type of the scores that the graph takes, float16, float32 or float64; it computes as the calibrator
            does, in float32 or wider.

    Returns:
        A program with the inputs and outputs of :class:`CalibrationGraph`.
    """
    graph = CalibrationGraph(module).eval()
    examples = example_inputs(graph, num_members, dtype)
    shapes = (dynamic_axes(graph),) * len(examples)  # features come with pooled scores: on the same axes
    with torch.no_grad():
        return torch.export.export(graph, examples, dynamic_shapes=shapes, strict=False)


def save_program(path: Path, program: ExportedProgram) -> None:
    """Write a program (``*.pt2``); the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as aside, aside.open("wb") as file:
        torch.export.save(program, file)


def save_onnx(
    path: Path, module: Pipeline | Calibrator, num_members: int = 1, dtype: torch.dtype = torch.float32
) -> None:
    """Write an ONNX file for any batch and spatial size.

    Needs the extra ``export``: onnx and onnxscript.

    Args:
        path: the file, by custom ``*.onnx``.
        module: a pipeline (input ``member_logits``) or a calibrator (input ``logits``, and ``features`` where it looks
            at some that cannot be made of pooled logits).
        num_members: members of the ensemble.
        dtype: type of the scores that the graph takes.
    """
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise DeploymentError(f'ONNX files need {" and ".join(missing)}: pip install "lightning-calib[export]"')
    program = export_program(module, num_members, dtype)
    with quiet():
        converted = torch.onnx.export(
            program,
            input_names=CalibrationGraph(module).inputs,
            output_names=OUTPUTS,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert converted is not None
    model = converted.model_proto
    tidy(model, {axis: str(dim.__name__) for axis, dim in dynamic_axes(CalibrationGraph(module)).items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as aside:
        aside.write_bytes(model.SerializeToString())


def tidy(model: Any, names: dict[int, str]) -> None:  # noqa: ANN401  # of onnx, an optional library
    """Name the free sizes, and take out what the exporter notes about this machine's source files."""
    for node in model.graph.node:
        del node.metadata_props[:]
    del model.graph.value_info[:]  # sizes of intermediate results; every runtime infers them
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    symbols = {sizes[axis].dim_param: name for axis, name in names.items()}
    for value in (*model.graph.input, *model.graph.output):
        del value.metadata_props[:]
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_param = symbols.get(size.dim_param, size.dim_param)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence for the exporter's remarks about its own parts."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
