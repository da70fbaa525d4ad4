"""``calibrate.py evaluate``: every score of a fitted calibrator on part of a store."""

import json as json_format
from pathlib import Path
from typing import Literal, cast

from pytorch_lightning import Trainer

from lightning_calib.calibrators import Calibrator, Identity, PipelineName, load_calibrator, read_header
from lightning_calib.cli.fitted import TRAINER, find_split
from lightning_calib.functional.overlap import class_counts, class_iou
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import plain, write_json
from lightning_calib.metrics import StatisticsMetric
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import Outside, StoredOutputsDataModule
from lightning_calib.tasks.calibration import CalibrationTask

Scores = dict[str, float]


def evaluate(
    outputs: Path,
    calibrator: Path,
    part: Literal["test", "val", "cal", "all"] = "test",
    split: Path | None = None,
    pooling: Pooling | None = None,
    outside: Outside = "exclude",
    cache: bool = True,
    destination: Path | None = None,
    json: bool = False,
    trainer: Trainer = TRAINER,
) -> int:
    """Print and write the scores of a fitted calibrator, beside those without calibration.

    Args:
        outputs: folder of the frozen outputs.
        calibrator: file that fit, search or run wrote.
        part: cases to judge on; all takes every case of the store, for stores the calibrator has never seen.
        split: file with the cases of each part; by default the one that was written with the calibrator.
        pooling: how members are pooled; by default as the calibrator was fitted.
        outside: what voxels count as that were never predicted.
        cache: keep pooled maps and distances on disk beside the store.
        destination: file to write; by default scores-<part>.json beside the calibrator.
        json: print the scores as JSON.
        trainer: options of Lightning's Trainer.
    """
    module = load_calibrator(calibrator)
    store = OutputStore(outputs)
    if module.num_classes != store.manifest.num_classes:
        raise ValueError(
            f"{calibrator} is for {module.num_classes} classes, {outputs} has {store.manifest.num_classes}"
        )
    case_ids = list(store.case_ids) if part == "all" else list(getattr(find_split(calibrator, split), part))
    stored = StoredOutputsDataModule(
        store, pooling or fitted_pooling(calibrator), cal=case_ids, val=0, test=0, outside=outside, cache=cache
    )
    found = [score(each, stored, trainer) for each in (module, Identity(module.num_classes))]
    (calibrated, ious), (uncalibrated, plain_ious) = found
    facts = {"calibrator": str(calibrator), "outputs": str(outputs), "part": part, "cases": len(case_ids)}
    facts |= {"scores": calibrated, "uncalibrated": uncalibrated}
    facts |= {"class_iou": ious, "uncalibrated_class_iou": plain_ious}
    if trainer.is_global_zero:
        path = destination or calibrator.parent / f"scores-{part}.json"
        write_json(path, facts)
        tables = [table("score", calibrated, uncalibrated), table("IoU of class", ious, plain_ious)]
        print(json_format.dumps(plain(facts)) if json else "\n\n".join([*tables, str(path)]))
    return 0


def score(calibrator: Calibrator, data: StoredOutputsDataModule, trainer: Trainer) -> tuple[Scores, Scores]:
    """Scores, and IoU by class name, over the cases of ``cal``, which here are the ones to judge on."""
    task = CalibrationTask(calibrator, data.num_classes, data.spatial_dims, data.ignore_index, data.background)
    (found,) = trainer.test(task, data.case_dataloader("cal", distances=True), verbose=False)
    statistics = cast(StatisticsMetric, task.scores["miou"]).statistics()[1].pooled()
    ious = class_iou(class_counts(statistics.confusion)[0]).tolist()
    names = data.store.manifest.class_names
    scores = {name.removeprefix("test/"): found[name] for name in sorted(found)}
    return scores, dict(zip(names, ious, strict=True))


def fitted_pooling(calibrator: Path) -> Pooling:
    """Pooling that a calibrator was fitted on."""
    fitted = read_header(calibrator)["fitted"] or {}
    if "pipeline" not in fitted:
        raise ValueError(f"{calibrator} does not say how its logits were pooled; name it with --pooling")
    return PipelineName.parse(fitted["pipeline"], file=calibrator).pooling


def table(title: str, calibrated: Scores, uncalibrated: Scores) -> str:
    """Two columns of scores."""
    width = max(20, 1 + max(map(len, calibrated)))
    rows = [f"{name:<{width}}{value:>12.5f}{uncalibrated[name]:>14.5f}" for name, value in calibrated.items()]
    return "\n".join([f"{title:<{width}}{'calibrated':>12}{'uncalibrated':>14}", *rows])
