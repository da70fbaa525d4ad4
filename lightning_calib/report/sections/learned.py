"""The section on what calibrators learned: temperatures, matrices, temperature maps."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_calib.calibrators.affine import AffineCalibrator
from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.kit.style import SEQUENTIAL
from lightning_calib.report.figures import temperature_figure
from lightning_calib.report.heatmaps import Matrix, matrix_figure, without_common_part
from lightning_calib.report.inputs import Inputs, MissingInput
from lightning_calib.report.map_figures import scalar_figure
from lightning_calib.report.maps import case_plane
from lightning_calib.report.numbers import format_number
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.sections.pictures import spread_cases

_NO_CHANGE = 1e-4  # of a temperature
MAX_EXPERTS = 12  # matrices of a conditional calibrator that are shown


def learned(inputs: Inputs) -> Section:
    """Temperatures, matrices and temperature maps."""
    makers = (_temperatures, _shared_matrices, _expert_matrices, _temperature_maps)
    pictures = tuple(picture for make in makers if (picture := make(inputs)) is not None)
    if not pictures:
        raise MissingInput(f"There is no fitted calibrator in {inputs.results.folder}.")
    lead = "Temperatures of all repeats; matrices and maps of the first repeat that has them."
    return Section("learned", "What was learned", lead, pictures=pictures)


def _temperatures(inputs: Inputs) -> Picture | None:
    found: dict[str, list[float]] = {}
    mixtures = []
    for name in inputs.results.pipelines:
        for repeat in inputs.results.repeats:
            calibrator: Any = inputs.results.calibrator(repeat, name)
            if calibrator is not None and _has_temperature(calibrator):
                found.setdefault(name, []).append(float(calibrator.temperature.detach()))
            if hasattr(calibrator, "mixture") and repeat == inputs.results.repeats[0]:
                weights = ", ".join(format_number(float(w), 2) for w in calibrator.mixture().detach())
                mixtures.append(f"{name}: {weights}")
    if not found:
        return None
    caption = "Temperatures of the global calibrators."
    if mixtures:
        caption += (
            " Weights of the tempered, the original and the uniform part of ensemble temperature scaling, "
            f"first repeat: {'; '.join(mixtures)}."
        )
    return Picture("temperatures", temperature_figure(list(found.items())), caption)


def _has_temperature(calibrator: Calibrator) -> bool:
    """Whether one temperature serves all voxels."""
    found = getattr(calibrator, "temperature", None)
    return isinstance(found, torch.Tensor) and found.numel() == 1


def _affine(inputs: Inputs, name: str) -> AffineCalibrator | None:
    """The fitted calibrator of a pipeline, where it is an affine map with more to it than one temperature."""
    _, calibrator = inputs.fitted(name) or (None, None)
    return calibrator if isinstance(calibrator, AffineCalibrator) and not _has_temperature(calibrator) else None


def _shared_matrices(inputs: Inputs) -> Picture | None:
    """Matrices of calibrators with one map for all voxels."""
    class_names = tuple(inputs.results.dataset["class_names"])
    matrices = []
    for name in inputs.results.pipelines:
        calibrator = _affine(inputs, name)
        if calibrator is not None and len(calibrator.assemble()[1]) == 1:
            weight, bias = _assembled(calibrator)
            matrices.append(Matrix(name, weight[0], bias[0], class_names))
    if not matrices:
        return None
    caption = (
        "Affine maps shared by all voxels: what each class's score (columns) adds to each class (rows), and the bias. "
        "What moves all classes together is taken out, since softmax does not see it; "
        "no calibration would be the same value along the diagonal of every map."
    )
    return Picture("matrices", matrix_figure(matrices), caption, wide=True)


def _expert_matrices(inputs: Inputs) -> Picture | None:
    """Matrices of one conditional calibrator, a map for each predicted class: the recommended one, or the first."""
    names = [str(inputs.recommended), *inputs.results.pipelines]
    found = ((name, _affine(inputs, name)) for name in names)
    chosen = next(((n, c) for n, c in found if c is not None and len(c.assemble()[1]) > 1), None)
    if chosen is None:
        return None
    name, calibrator = chosen
    class_names = inputs.results.dataset["class_names"]
    weight, bias = _assembled(calibrator)
    labels = _positions(calibrator, class_names)
    experts = range(min(len(weight), MAX_EXPERTS))
    matrices = [Matrix(f"if {class_names[k]}", weight[k], bias[k], labels) for k in experts]
    caption = f"{name} has one map for each class that the ensemble predicts{_cut_note(len(weight))}. "
    if calibrator.preserves == "argmax":
        caption += "The predicted class stands first; the others follow in their order, the first in its place."
    elif calibrator.preserves == "order":
        caption += "Classes are sorted by score: 1st is the predicted one."
    return Picture("experts", matrix_figure(matrices), caption, wide=True)


def _cut_note(experts: int) -> str:
    return f" (the first {MAX_EXPERTS} of {experts} are shown)" if experts > MAX_EXPERTS else ""


def _positions(calibrator: Calibrator, class_names: list[str]) -> tuple[str, ...]:
    """Names of rows and columns: classes, or places in the canonical order of a constrained calibrator."""
    if calibrator.preserves is None:
        return tuple(class_names)
    if calibrator.preserves == "argmax":
        return ("predicted", *(f"other {k}" for k in range(1, len(class_names))))
    endings = {1: "st", 2: "nd", 3: "rd"}
    return tuple(f"{k}{endings.get(k, 'th')}" for k in range(1, len(class_names) + 1))


@torch.no_grad()
def _assembled(calibrator: AffineCalibrator) -> tuple[Any, Any]:
    weight, bias = (tensor.double().numpy() for tensor in calibrator.assemble())
    return without_common_part(weight, bias)


def _temperature_maps(inputs: Inputs) -> Picture | None:
    """Temperature maps of a local calibrator on the cases of the confidence maps; none where T is 1 everywhere."""
    names = [PipelineName.parse(name) for name in inputs.scored]
    local = [name for name in names if name.cls.looks_at != "voxel"]
    for pipeline in sorted(local, key=lambda name: not name.translation_invariant):
        found = inputs.fitted(str(pipeline)) if inputs.store is not None else None
        if found is not None and (maps := _maps_of(inputs, pipeline, *found)):
            caption = f"Temperatures that {pipeline} predicts for each voxel, from the hardest to the easiest case."
            return Picture("temperature-maps", scalar_figure(maps, SEQUENTIAL, "temperature"), caption, wide=True)
    return None


def _maps_of(
    inputs: Inputs, pipeline: PipelineName, repeat: int, calibrator: Calibrator
) -> list[tuple[str, NDArray[np.float64]]]:
    """Titles and temperature maps; empty for a calibrator that stayed at the identity."""
    cases = spread_cases(inputs, repeat, pipeline)
    shown = [case_plane(inputs.cases(pipeline.pooling), case, calibrator) for case in cases]
    maps = [(case.title, case.temperature) for case in shown if case.temperature is not None]
    moved = any(np.nanmax(np.abs(temperature - 1)) > _NO_CHANGE for _, temperature in maps)
    return maps if moved else []
