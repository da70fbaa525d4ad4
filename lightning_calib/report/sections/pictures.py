"""Sections drawn from the stored outputs: confidence maps, flip maps, free energy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.rows import CaseRow
from lightning_calib.functional.flips import FLIP_KINDS
from lightning_calib.kit.style import ENERGY
from lightning_calib.kit.tables import Cell, Column, Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.outputs.previews import IGNORED
from lightning_calib.report.inputs import Inputs, MissingInput, spread
from lightning_calib.report.map_figures import confidence_figure, flip_figure, scalar_figure
from lightning_calib.report.maps import CLOSE_UP, CasePlane, case_plane, free_energy
from lightning_calib.report.numbers import format_number, format_score
from lightning_calib.report.section import Picture, Section

SHOWN = 3  # cases in each figure
MEASURED = 24  # cases whose free energy is summed up: reading all of a large store takes minutes


def confidences(inputs: Inputs) -> Section:
    """Confidence before and after the recommended pipeline on an easy, a typical and a hard case."""
    store, pipeline = inputs.outputs, inputs.recommended
    found = inputs.fitted(str(pipeline))
    if found is None:
        raise MissingInput(f"There is no fitted calibrator of {pipeline} in {inputs.results.folder}.")
    repeat, calibrator = found
    cases = spread_cases(inputs, repeat, pipeline)
    pooled = inputs.cases(pipeline.pooling)
    maps = [case_plane(pooled, case, calibrator) for case in cases]
    names, background = store.manifest.class_names, store.manifest.background
    caption = (
        f"Test cases of repeat {repeat}, from the hardest (largest NLL without calibration) to the easiest. "
        f"Red: wrong. "
        f"Confidence before: {inputs.uncalibrated(pipeline)}; after: {pipeline}. "
        f"Good confidences are low where the errors are, and high elsewhere.{_blank_note(maps)}"
    )
    pictures = [Picture("confidence", confidence_figure(maps, names, background), caption)]
    bordered = [case for case, shown in zip(cases, maps, strict=True) if shown.has_border]
    if bordered and max(maps[0].target.shape) > CLOSE_UP:
        near = [case_plane(pooled, case, calibrator, CLOSE_UP) for case in bordered]
        close = (
            f"The same cases where most borders are, {CLOSE_UP} pixels a side. Lines: the true borders. "
            f"An honest model is in doubt along them, as far as it errs there."
        )
        pictures.append(Picture("borders", confidence_figure(near, names, background, close_up=True), close))
    return Section(
        "confidence-maps",
        "Confidence maps",
        "Where does the recommended pipeline take confidence back?",
        pictures=tuple(pictures),
    )


def worst_cases(inputs: Inputs) -> Section:
    """The test cases that the recommended pipeline is most wrong about, with their images."""
    pipeline = inputs.recommended
    found = inputs.fitted(str(pipeline))
    if found is None:
        raise MissingInput(f"There is no fitted calibrator of {pipeline} in {inputs.results.folder}.")
    repeat, calibrator = found
    rows = [row for row in inputs.results.cases_of(repeat, str(pipeline)) if row.score("nll") == row.score("nll")]
    worst = sorted(rows, key=lambda row: -row.score("nll"))[:SHOWN]
    pooled, manifest = inputs.cases(pipeline.pooling), inputs.outputs.manifest
    maps = [case_plane(pooled, row.case, calibrator) for row in worst]
    shown = [SCORES[key] for key in ("nll", "ece", "dice")]
    head = ("case", *(f"{score.heading} {score.arrow}" for score in shown))
    body: list[list[str | Cell]] = [
        [Cell(row.case, style="code"), *(format_score(score, row.score(score.key)) for score in shown)] for row in worst
    ]
    caption = f"Test cases of repeat {repeat} with the largest NLL after {pipeline}. Red: wrong.{_blank_note(maps)}"
    figure = confidence_figure(maps, manifest.class_names, manifest.background)
    lead = "Where is the calibrated model wrong, and does it know? Look at these images, and at their masks."
    table = Table.of("worst", "The same cases: scores after calibration.", head, body)
    return Section("worst-cases", "Worst cases", lead, (Picture("worst", figure, caption),), (table,))


def spread_cases(inputs: Inputs, repeat: int, pipeline: PipelineName) -> list[str]:
    """A hard, a typical and an easy test case by the NLL of the uncalibrated ensemble; fewer where there are fewer."""
    baseline = inputs.results.cases_of(repeat, inputs.uncalibrated(pipeline))
    rows = baseline or inputs.results.cases_of(repeat, str(pipeline))
    ranked = [row.case for row in sorted(rows, key=lambda row: -row.score("nll"))]
    return list(spread(ranked, SHOWN))


def flips(inputs: Inputs) -> Section:
    """The pipeline that flips most, on its worst cases, and the balance of every pipeline that flips."""
    rows = {name: _rows(inputs, name) for name in inputs.scored}
    changed = {name: found for name, found in rows.items() if any(row.score("flip") > 0 for row in found)}
    if not changed:
        return Section(
            "flip-maps", "Flips", "No pipeline of this run changed the predicted class of a single test voxel."
        )
    calibrated = (PipelineName.parse(name) for name in inputs.scored if name not in changed)
    kept = [name for name in calibrated if name.preserves and name.calibrator != "identity"]
    lead = (
        "Calibrators without a guarantee may change the segmentation itself. "
        f"The {len(kept)} calibrated pipelines that promise to keep it did so in every test voxel."
    )
    head = ("pipeline", "flips (%)", "harmful (%)", "beneficial (%)", "wrong both times (%)")
    caption = (
        "Flips in % of the voxels, averaged over test cases and repeats; harmful, beneficial and others in % of all "
        "flips."
    )
    balance = [_balance(name, found) for name, found in changed.items()]
    table = Table.of("flips", caption, (*head, Column("on balance", left=True)), balance)
    section = Section("flip-maps", "Flips", lead, tables=(table,))
    name = max(changed, key=lambda name: float(np.mean([row.score("flip") for row in changed[name]])))
    cases = [(row.repeat, row.case) for row in sorted(changed[name], key=lambda row: -row.score("flip"))]
    told = f"The test cases on which {name}, the pipeline with most flips, changes most voxels."
    return with_flips(inputs, section, "flips", name, cases, told)


def _rows(inputs: Inputs, name: str) -> list[CaseRow]:
    return [row for repeat in inputs.results.repeats for row in inputs.results.cases_of(repeat, name)]


def _balance(name: str, rows: list[CaseRow]) -> list[str | Cell]:
    """Flip rate of a pipeline and the shares of harmful, beneficial and neutral flips."""
    counts = {kind: sum(row.flips[kind] for row in rows) for kind in FLIP_KINDS}
    rate = format_score(SCORES["flip"], float(np.mean([row.score("flip") for row in rows])), 2)
    harm = counts["harmful"] > counts["beneficial"]
    told = Cell(
        "more right voxels lost than won" if harm else "as many won as lost, or more",
        style=f"badge {'worse' if harm else 'better'}",
    )
    return [Cell(name, style="code"), rate, *flip_shares(counts), told]


def flip_shares(counts: Mapping[str, int]) -> list[str]:
    """Kinds of flips in % of all; dashes where there are none.

    Example:
        >>> flip_shares({"harmful": 3, "beneficial": 1, "neutral": 0, "voxels": 100})
        ['75.0', '25.0', '0']
    """
    total = sum(counts[kind] for kind in FLIP_KINDS)
    return [format_number(100 * counts[kind] / total if total else None, 1) for kind in FLIP_KINDS]


def with_flips(
    inputs: Inputs, section: Section, key: str, name: str, cases: Sequence[tuple[int, str]], caption: str
) -> Section:
    """The section with maps of the first few cases in which a pipeline flips voxels, or a notice why there are none.

    Args:
        inputs: results and outputs.
        section: what the picture is added to.
        key: name of the picture.
        name: the pipeline.
        cases: repeats and cases, the worst first; a case is shown once.
        caption: what the picture shows.
    """
    planes: dict[str, CasePlane] = {}
    try:
        pooled, manifest = inputs.cases(PipelineName.parse(name).pooling), inputs.outputs.manifest
    except MissingInput as problem:
        return replace(section, notices=(*section.notices, str(problem)))
    for repeat, case in cases:
        calibrator = inputs.results.calibrator(repeat, name)
        if calibrator is not None and case not in planes and len(planes) < SHOWN:
            planes[case] = case_plane(pooled, case, calibrator.eval())
    if not planes:
        missing = f"There is no fitted calibrator of {name} in {inputs.results.folder}."
        return replace(section, notices=(*section.notices, missing))
    figure = flip_figure(list(planes.values()), manifest.class_names, manifest.background)
    picture = Picture(key, figure, caption + _blank_note(planes.values()))
    return replace(section, pictures=(*section.pictures, picture))


def _blank_note(maps: Iterable[CasePlane]) -> str:
    """What blank places are, where there are any."""
    return " Blank: voxels that do not count." if any((case.target == IGNORED).any() for case in maps) else ""


def free_energies(inputs: Inputs) -> Section:
    """Maps of the free energy of the pooled logits, and its spread over cases."""
    store = inputs.outputs
    if store.manifest.representation == "log_probs":
        raise MissingInput(
            "The store holds log-probabilities, whose free energy is 0 everywhere: the networks' own scores are gone."
        )
    tested, pooled = inputs.results.test_cases(inputs.results.repeats[0]), inputs.cases("z")
    found = [(case, *free_energy(pooled, case)) for case in spread(tested, MEASURED)]
    sizes = np.array([size for _, _, size in found])
    low, middle, high = (format_number(float(x), 2) for x in np.quantile(sizes, (0.25, 0.5, 0.75)))
    ranked = sorted(found, key=lambda entry: -entry[2])
    maps = [(f"{case} (spread {format_number(size, 2)})", energy) for case, energy, size in spread(ranked, SHOWN)]
    lead = (
        f"Softmax does not see this part of the scores, but calibrators that are not translation invariant do. "
        f"Its standard deviation within an image is {format_number(float(sizes.mean()), 2)} on average "
        f"(quartiles {low}, {middle}, {high}; {len(found)} test cases of the first repeat)."
    )
    caption = (
        "Free energy of the mean scores (pooling z), for the case with the largest, a typical and the smallest spread."
    )
    figure = scalar_figure(maps, ENERGY, "free energy")
    return Section("free-energy", "Free energy", lead, (Picture("free-energy", figure, caption, wide=True),))
