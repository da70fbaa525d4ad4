"""Calibrators as graphs that run without this library: ``torch.export`` and ONNX."""

import copy
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lightning_calib.calibrators import Calibrator, Pipeline
from lightning_calib.calibrators.base import features_of
from lightning_calib.calibrators.regions import RegionCalibrator
from lightning_calib.deployment.ensemble import calibrated
from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.regions import RegionEnsemble
from lightning_calib.functional.features import NEED_MEMBERS
from lightning_calib.functional.pooling import pool
from lightning_calib.kit.files import atomic_path

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

    outputs: ClassVar[list[str]] = ["log_probs", "mask", "confidence"]

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


class RegionGraph(nn.Module):
    """What is exported of a model of regions: scores to calibrated log-odds, probabilities and label map.

    Args:
        ensemble: pooling and calibrators of all regions.
        pooling: take member scores ``(B, M, R, *S)``; false for pooled log-odds ``(B, R, *S)``.
    """

    outputs: ClassVar[list[str]] = ["calibrated_logits", "probs", "mask"]
    takes_features: ClassVar[bool] = False

    def __init__(self, ensemble: RegionEnsemble, pooling: bool = True) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.pooling = ensemble.poolings if pooling else None

    @property
    def inputs(self) -> list[str]:
        """Name of the input."""
        return [POOLED if self.pooling is None else MEMBERS]

    @property
    def calibrator(self) -> RegionCalibrator:
        """The calibrators of all regions."""
        return self.ensemble.calibrator

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-odds ``(B, R, *S)``, probabilities ``(B, R, *S)`` and label map ``(B, *S)``."""
        ensemble = self.ensemble
        found = ensemble.calibrate_pooled(logits) if self.pooling is None else ensemble.calibrate(logits)
        return found.logits, found.probs, found.mask


Graph = CalibrationGraph | RegionGraph
Exported = Pipeline | Calibrator | Graph


def as_graph(module: Exported) -> Graph:
    """The graph of a pipeline or a calibrator; a graph itself."""
    return (module if isinstance(module, Graph) else CalibrationGraph(module)).eval()


def example_inputs(graph: Graph, num_members: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Scores, and perhaps features, of the right number of axes to trace the graph with."""
    sizes = [_TRACED_SIZE + axis for axis in range(graph.calibrator.spatial_dims)]  # differ: axes stay apart
    members = [] if graph.pooling is None else [num_members]
    scores = torch.zeros(2, *members, graph.calibrator.num_classes, *sizes, dtype=dtype)
    features = torch.zeros(2, len(graph.calibrator.feature_names), *sizes)
    return (scores, features) if graph.takes_features else (scores,)


def dynamic_axes(graph: Graph) -> dict[int, Dim]:
    """Axes of any size: the batch and all spatial ones; boxes around voxels are made for 3 voxels or more."""
    first = 2 if graph.pooling is None else 3
    names = _SPATIAL[-graph.calibrator.spatial_dims :]
    least = 3 if graph.calibrator.feature_names and not graph.takes_features else None
    return {0: Dim("batch")} | {first + axis: Dim(name, min=least) for axis, name in enumerate(names)}


def export_program(module: Exported, num_members: int = 1, dtype: torch.dtype = torch.float32) -> ExportedProgram:
    """The graph of ``torch.export``, for any batch and spatial size.

    Args:
        module: a pipeline, a calibrator, or the graph of regions.
        num_members: members of the ensemble; a calibrator alone does not look at it.
        dtype: type of the scores that the graph takes, float16, float32 or float64; it computes as the calibrator
            does, in float32 or wider.

    Returns:
        A program with the inputs and outputs of the graph.
    """
    graph = as_graph(module)
    examples = example_inputs(graph, num_members, dtype)
    shapes = (dynamic_axes(graph),) * len(examples)  # features come with pooled scores: on the same axes
    with torch.no_grad():
        return torch.export.export(graph, examples, dynamic_shapes=shapes, strict=False)


def save_program(path: Path, program: ExportedProgram) -> None:
    """Write a program (``*.pt2``); the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as aside, aside.open("wb") as file:
        torch.export.save(program, file)


def save_onnx(path: Path, module: Exported, num_members: int = 1, dtype: torch.dtype = torch.float32) -> None:
    """Write an ONNX file for any batch and spatial size.

    Needs the extra ``export``: onnx and onnxscript.

    Args:
        path: the file, by custom ``*.onnx``.
        module: a pipeline (input ``member_logits``), a calibrator (input ``logits``, and ``features`` where it looks at
            some that cannot be made of pooled logits), or the graph of regions.
        num_members: members of the ensemble.
        dtype: type of the scores that the graph takes.
    """
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise DeploymentError(f'ONNX files need {" and ".join(missing)}: pip install "lightning-calib[export]"')
    graph = as_graph(module)
    program = export_program(graph, num_members, dtype)
    with quiet():
        converted = torch.onnx.export(
            program,
            input_names=graph.inputs,
            output_names=graph.outputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert converted is not None
    model = converted.model_proto
    tidy(model, {axis: str(dim.__name__) for axis, dim in dynamic_axes(graph).items()})
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
