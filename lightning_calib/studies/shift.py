"""Calibrators fitted on clean images, judged without refitting on outputs for changed ones (Appendix H)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lightning_calib.datasets.corruptions import CORRUPTION, EXAMPLE, KINDS, SEVERITIES, corrupt, psnr
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.evaluation_jobs import evaluate_cases
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.summary import join_tables, matched_comparisons
from lightning_calib.experiment.work import make_trainer
from lightning_calib.functional.boundary import BANDS
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import digest, read_json, sha256
from lightning_calib.kit.tables import Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.store import OutputStore
from lightning_calib.report.figures import series_figure
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.map_figures import image_sheet
from lightning_calib.report.section import Picture, Section
from lightning_calib.studies.base import Pipelines, Study, StudyError
from lightning_calib.studies.judged import prepare
from lightning_calib.studies.scores import ScoreRow, change_rows, interval_text, panels, score_rows, score_table

CLEAN = "clean"
_PREFIX = "outputs-"
_LINES = ("identity(z)", "ms(z)", "ms_c(z)", "lts_ti(z)", "cdc(p)", "cms_op(p)", "ts(p)")  # the paper's contrasts
_METRICS = ("nll", "ece", "ba_ece", "ace", "dice", "flip")


@dataclass(frozen=True)
class ShiftJob:
    """Pipelines of one pooling on the test cases of one repeat, changed in one way."""

    images: str
    outputs: str
    repeat: int
    pooling: Pooling
    pipelines: tuple[str, ...]

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"{self.images}, {self.pooling}, repeat {self.repeat}"


class Shift(Study):
    """The run's calibrators on other outputs of the same cases."""

    name, title = "shift", "Shifted images"

    def run(self, stores: dict[str, Path] | None = None, pipelines: Pipelines | None = None) -> dict[str, Any]:
        """Judge calibrators fitted on clean images on changed images of the same cases, without refitting.

        Args:
            stores: output stores by a name for their images; by default all folders outputs-* beside the run's
                outputs, as train.py predict --corruption writes them.
            pipelines: which to evaluate; by default all of the run.
        """
        names = self.names(pipelines)
        found = dict(stores or shifted_stores(self.store.path))
        if not found:
            raise StudyError(
                f"there are no stores of changed images beside {self.store.path}; write them with "
                "`train.py predict --corruption mild` and `--corruption strong`, or name them with --stores"
            )
        for images, path in found.items():
            self._refuse_other_cases(images, self.open_store(path))
            prepare(self.results, self.folder / images, path, names)
        jobs = [
            ShiftJob(images, str(path), repeat, pooling, group)
            for images, path in found.items()
            for repeat in self.results.repeats
            for pooling, group in self.by_pooling(names, repeat).items()
        ]
        self.do([job for job in jobs if self._pending(job)], partial(shift_job, self))
        return self._conclude(found, names)

    def _refuse_other_cases(self, images: str, store: OutputStore) -> None:
        """Refuse a store of other cases, classes or networks."""
        own, other = self.store.manifest, store.manifest
        tested = {case for repeat in self.results.repeats for case in self.results.test_cases(repeat)}
        if missing := sorted(tested - set(store.case_ids)):
            raise StudyError(
                f"{store.path} ({images}) lacks {len(missing)} test cases of the run: {', '.join(missing[:5])}"
            )
        if own.class_names != other.class_names:
            raise StudyError(f"{store.path} ({images}) has the classes {other.class_names}, the run {own.class_names}")
        if own.members != other.members:
            raise StudyError(
                f"{store.path} ({images}) was predicted by other networks than {self.store.path}: predict both with "
                "the same checkpoints"
            )

    def _pending(self, job: ShiftJob) -> bool:
        folders = {name: layout.job_folder(self.folder / job.images, job.repeat, name) for name in job.pipelines}
        return not all(records.evaluation_done(folders[name], self.hash_of(job, name)) for name in job.pipelines)

    def hash_of(self, job: ShiftJob, name: str) -> str:
        """Hash of everything that the scores depend on."""
        return digest(
            {
                "outputs": sha256(Path(job.outputs) / MANIFEST),
                "calibrator": sha256(self.results.job_folder(job.repeat, name) / layout.CALIBRATOR),
                "test": self.results.test_cases(job.repeat),
                "outside": self.results.settings.get("outside"),
                "bands": str(BANDS),
            }
        )

    def _conclude(self, stores: Mapping[str, Path], names: Sequence[str]) -> dict[str, Any]:
        rows, changes = score_rows(CLEAN, self.results, names), list[ScoreRow]()
        comparisons: dict[str, Any] = {}
        for images in stores:
            join_tables(self.folder / images)
            results = Results(self.folder / images)
            rows += score_rows(images, results, names)
            changes += change_rows(images, self.results, results, names)
            comparisons[images] = [asdict(comparison) for comparison in matched_comparisons(results)]
        self.save("scores.csv", rows, ScoreRow)
        self.save("degradation.csv", changes, ScoreRow)
        return self.write(
            {
                "images": {images: str(path) for images, path in stores.items()},
                "corruptions": {images: _corruption(path) for images, path in stores.items()},
                "pipelines": list(names),
                "comparisons": comparisons,
            }
        )

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section:
        """Scores of the same calibrators on changed images, without refitting."""
        rows, names = self.read("scores.csv", ScoreRow), facts["pipelines"]
        images = list(dict.fromkeys(row.setting for row in rows))
        lines = panels(rows, [name for name in _LINES if name in names] or names, images, _METRICS)
        caption = (
            "Scores on clean and on changed images of the same test cases, with 95 % intervals (ACE: smallest and "
            "largest repeat). The flatter a line, the less the shift matters to the pipeline."
        )
        picture = Picture("shift", series_figure(lines, images, "images"), caption, wide=True)
        data, changed = inputs.results.dataset["name"], [name for name in images if name != CLEAN]
        tables = [score_table(data, rows, names, name, f"shift-{name}", f"{name} images") for name in changed]
        tables.append(_changes(self.read("degradation.csv", ScoreRow), names, changed))
        lead = (
            "Calibrators were fitted on clean images and meet changed ones: nothing is fitted again. "
            f"{_corruptions(facts)} Labels are untouched."
        )
        return Section(self.key, self.title, lead, (*_sheet(facts), picture), tuple(tables))


def shifted_stores(clean: Path) -> dict[str, Path]:
    """Stores beside the clean one by what was done to their images: ``outputs-mild`` is ``mild``."""
    found = sorted(path for path in clean.resolve().parent.glob(f"{_PREFIX}*") if (path / MANIFEST).is_file())
    return {path.name.removeprefix(_PREFIX): path for path in found}


def shift_job(study: Shift, job: ShiftJob) -> None:
    """Score the pipelines of a job in one pass over its cases, and write their tables."""
    store, cases = study.open_store(Path(job.outputs)), study.results.test_cases(job.repeat)
    calibrators = {name: study.calibrator(job.repeat, name) for name in job.pipelines}
    outside = study.results.settings.get("outside", "exclude")
    evaluated = evaluate_cases(calibrators, store, job.pooling, cases, make_trainer({}, None), outside)
    for name in job.pipelines:
        folder = layout.job_folder(study.folder / job.images, job.repeat, name)
        facts = (store.manifest.dataset, job.repeat, name)
        records.write_evaluation(folder, *facts, evaluated[name], study.hash_of(job, name))


def _corruption(store: Path) -> dict[str, Any] | None:
    """What `train.py predict` noted about the images; None for stores of other origin."""
    path = store / CORRUPTION
    return read_json(path) if path.is_file() else None


def _corruptions(facts: dict[str, Any]) -> str:
    """How many images got which corruption."""
    known = next((entry for entry in facts["corruptions"].values() if entry), None)
    if known is None:
        return "The stores do not say what was done to their images."
    kinds = list(known["kinds"].values())
    counts = ", ".join(f"{kind} {kinds.count(kind)}" for kind in known["parameters"])
    return f"Each image was corrupted once, the kind drawn by a hash of its name ({counts})."


def _changes(changes: list[ScoreRow], names: list[str], images: list[str]) -> Table:
    """NLL and ECE: how much worse than on clean images."""
    found = {(row.setting, row.pipeline, row.metric): row for row in changes}
    shown = [(kind, metric) for kind in images for metric in ("nll", "ece", "ba_ece")]
    rows = [[name, *(interval_text(found.get((kind, name, metric))) for kind, metric in shown)] for name in names]
    head = ("pipeline", *(f"{SCORES[metric].label}, {kind}" for kind, metric in shown))
    caption = "Changed minus clean images, case by case, with 95 % intervals: what the shift costs each pipeline."
    return Table.of("shift-degradation", caption, head, rows)


def _sheet(facts: dict[str, Any]) -> list[Picture]:
    """The corruptions on an image of the pool set, where a store has kept one."""
    path = next((path for store in facts["images"].values() if (path := Path(store) / EXAMPLE).is_file()), None)
    if path is None:
        return []
    with Image.open(path) as file:
        image = np.array(file.convert("RGB"))
    rows: dict[str, dict[str, NDArray[np.uint8]]] = {}
    for severity in SEVERITIES:
        changed = {kind: corrupt(image, kind, severity) for kind in KINDS}
        titled = {f"{kind}, {psnr(image, found):.1f} dB": found for kind, found in changed.items()}
        rows[severity] = {"clean": image} | titled
    caption = (
        "All corruptions on one image, mild above and strong below, with the peak signal-to-noise ratio. "
        "None of them moves a pixel, so that labels stay right."
    )
    return [Picture("corruptions", image_sheet(rows), caption, wide=True)]
