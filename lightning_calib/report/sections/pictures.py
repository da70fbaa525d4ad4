"""Sections drawn from the stored outputs: confidence maps, flip maps, free energy."""

from collections.abc import Iterable

import numpy as np

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.rows import CaseRow
from lightning_calib.report.columns import COLUMN, format_metric
from lightning_calib.report.inputs import Inputs, MissingInput
from lightning_calib.report.map_figures import border_figure, confidence_figure, energy_figure, flip_figure
from lightning_calib.report.maps import CLOSE_UP, IGNORED, CaseMaps, case_maps, free_energy
from lightning_calib.report.numbers import format_number
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
    maps = [case_maps(store[case], pipeline.pooling, calibrator) for case in cases]
    names, background = store.manifest.class_names, store.manifest.background
    titles = ("confidence before", "confidence after")
    caption = (
        f"Test cases of repeat {repeat}, from the hardest (largest NLL without calibration) to the easiest. "
        f"Confidence before: {inputs.uncalibrated(pipeline)}; after: {pipeline}. "
        f"Good confidences are low where the errors are, and high elsewhere.{_blank_note(maps)}"
    )
    pictures = [Picture("confidence", confidence_figure(maps, names, background, titles), caption, wide=True)]
    bordered = [case for case, shown in zip(cases, maps, strict=True) if shown.has_border]
    if bordered and max(maps[0].target.shape) > CLOSE_UP:
        near = [case_maps(store[case], pipeline.pooling, calibrator, CLOSE_UP) for case in bordered]
        close = (
            f"The same cases where most borders are, {CLOSE_UP} pixels a side. Lines: the true borders. "
            f"An honest model is in doubt along them, as far as it errs there."
        )
        pictures.append(Picture("borders", border_figure(near, names, background, titles), close, wide=True))
    return Section(
        "confidence-maps",
        "Confidence maps",
        "Where does the recommended pipeline take confidence back?",
        pictures=tuple(pictures),
    )


def spread_cases(inputs: Inputs, repeat: int, pipeline: PipelineName) -> list[str]:
    """A hard, a typical and an easy test case by the NLL of the uncalibrated ensemble; fewer where there are fewer."""
    baseline = inputs.results.cases_of(repeat, inputs.uncalibrated(pipeline))
    rows = baseline or inputs.results.cases_of(repeat, str(pipeline))
    ranked = [row.case for row in sorted(rows, key=lambda row: -row.nll)]
    places = np.unique(np.linspace(0, len(ranked) - 1, min(SHOWN, len(ranked))).round().astype(int))
    return [ranked[place] for place in places]


def flips(inputs: Inputs) -> Section:
    """The pipeline that flips most, on its worst cases, and the balance of every pipeline that flips."""
    rows = {name: _rows(inputs, name) for name in inputs.scored}
    changed = {name: found for name, found in rows.items() if any(row.flip > 0 for row in found)}
    calibrated = (PipelineName.parse(name) for name in inputs.scored if name not in changed)
    kept = [name for name in calibrated if name.preserves and name.calibrator != "identity"]
    lead = (
        "Calibrators without a guarantee may change the segmentation itself. "
        f"The {len(kept)} calibrated pipelines that promise to keep it did so in every test voxel."
    )
    data = {"audit": [_audit(name, found) for name, found in changed.items()]}
    if not changed:
        lead = "No pipeline of this run changed the predicted class of a single test voxel."
        return Section("flip-maps", "Flips", lead, "flips.html", data=data)
    section = Section("flip-maps", "Flips", lead, "flips.html", data=data)
    try:
        pictures = (_flip_picture(inputs, changed),)
    except MissingInput as problem:
        return Section(**{**vars(section), "notices": (str(problem),)})
    return Section(**{**vars(section), "pictures": pictures})


def _rows(inputs: Inputs, name: str) -> list[CaseRow]:
    return [row for repeat in inputs.results.repeats for row in inputs.results.cases_of(repeat, name)]


def _audit(name: str, rows: list[CaseRow]) -> dict[str, object]:
    """Flip rate of a pipeline and the shares of harmful, beneficial and neutral flips."""
    counts = {kind: sum(getattr(row, kind) for row in rows) for kind in ("harmful", "beneficial", "neutral")}
    total = sum(counts.values())
    rate = format_metric(COLUMN["flip"], float(np.mean([row.flip for row in rows])), 2)
    shares = {kind: format_number(100 * count / total, 1) for kind, count in counts.items()}
    return {"pipeline": name, "rate": rate, "shares": shares, "harm": counts["harmful"] > counts["beneficial"]}


def _flip_picture(inputs: Inputs, changed: dict[str, list[CaseRow]]) -> Picture:
    store = inputs.outputs
    name = max(changed, key=lambda name: float(np.mean([row.flip for row in changed[name]])))
    pooling, maps = PipelineName.parse(name).pooling, dict[str, CaseMaps]()
    for row in sorted(changed[name], key=lambda row: -row.flip):
        calibrator = inputs.results.calibrator(row.repeat, name)
        if calibrator is not None and row.case not in maps and len(maps) < SHOWN:
            maps[row.case] = case_maps(store[row.case], pooling, calibrator.eval())
    if not maps:
        raise MissingInput(f"There is no fitted calibrator of {name} in {inputs.results.folder}.")
    figure = flip_figure(list(maps.values()), store.manifest.class_names, store.manifest.background)
    caption = f"The test cases on which {name}, the pipeline with most flips, changes most voxels."
    caption += _blank_note(maps.values())
    return Picture("flips", figure, caption, wide=True)


def _blank_note(maps: Iterable[CaseMaps]) -> str:
    """What blank places are, where there are any."""
    return " Blank: voxels that do not count." if any((case.target == IGNORED).any() for case in maps) else ""


def free_energies(inputs: Inputs) -> Section:
    """Maps of the free energy of the pooled logits, and its spread over cases."""
    store = inputs.outputs
    if store.manifest.representation == "log_probs":
        raise MissingInput(
            "The store holds log-probabilities, whose free energy is 0 everywhere: the networks' own scores are gone."
        )
    tested = inputs.results.test_cases(inputs.results.repeats[0])
    places = np.unique(np.linspace(0, len(tested) - 1, min(MEASURED, len(tested))).round().astype(int))
    found = [(tested[place], *free_energy(store[tested[place]])) for place in places]
    spread = np.array([deviation for _, _, deviation in found])
    low, middle, high = (format_number(float(x), 2) for x in np.quantile(spread, (0.25, 0.5, 0.75)))
    ranked = sorted(found, key=lambda entry: -entry[2])
    chosen = [
        ranked[place] for place in np.unique(np.linspace(0, len(ranked) - 1, min(SHOWN, len(ranked))).astype(int))
    ]
    maps = [(f"{case} (spread {format_number(deviation, 2)})", energy) for case, energy, deviation in chosen]
    lead = (
        f"Softmax does not see this part of the scores, but calibrators that are not translation invariant do. "
        f"Its standard deviation within an image is {format_number(float(spread.mean()), 2)} on average "
        f"(quartiles {low}, {middle}, {high}; {len(found)} test cases of the first repeat)."
    )
    caption = (
        "Free energy of the mean scores (pooling z), for the case with the largest, a typical and the smallest spread."
    )
    return Section(
        "free-energy",
        "Free energy",
        lead,
        pictures=(Picture("free-energy", energy_figure(maps), caption, wide=True),),
    )
