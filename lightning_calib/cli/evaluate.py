"""``calibrate.py evaluate``: every score of a fitted calibrator on part of a store."""

import json as json_format
from pathlib import Path
from typing import Literal

from pytorch_lightning import Trainer

from lightning_calib.calibrators import Identity, PipelineName, load_calibrator, read_header
from lightning_calib.cli.fitted import TRAINER, find_split
from lightning_calib.experiment.evaluation_jobs import evaluate_cases
from lightning_calib.functional.overlap import class_counts, class_iou
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.checksums import refuse_changed
from lightning_calib.kit.files import plain, write_json
from lightning_calib.kit.tables import Table
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import Outside
from lightning_calib.tasks.evaluation import Evaluated

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
    refuse_changed(calibrator.parent, "fit again")
    module = load_calibrator(calibrator)
    store = OutputStore(outputs)
    if module.num_classes != store.manifest.num_classes:
        raise ValueError(
            f"{calibrator} is for {module.num_classes} classes, {outputs} has {store.manifest.num_classes}"
        )
    case_ids = list(store.case_ids) if part == "all" else list(getattr(find_split(calibrator, split), part))
    both = {"calibrated": module, "uncalibrated": Identity(module.num_classes)}
    pooled = pooling or fitted_pooling(calibrator)
    evaluated = evaluate_cases(both, store, pooled, case_ids, trainer, outside, cache)
    found = {label: each.figures() for label, each in evaluated.items()}
    ious = {label: class_ious(each, store) for label, each in evaluated.items()}
    facts = {"calibrator": str(calibrator), "outputs": str(outputs), "part": part, "cases": len(case_ids)}
    facts |= {"scores": found["calibrated"], "uncalibrated": found["uncalibrated"]}
    facts |= {"class_iou": ious["calibrated"], "uncalibrated_class_iou": ious["uncalibrated"]}
    if trainer.is_global_zero:
        path = destination or calibrator.parent / f"scores-{part}.json"
        write_json(path, facts)
        tables = [table("score", **found), table("IoU of class", **ious)]
        print(json_format.dumps(plain(facts)) if json else "\n".join([*tables, str(path)]))
    return 0


def class_ious(evaluated: Evaluated, store: OutputStore) -> Scores:
    """IoU of every class over all voxels together; NaN for one that occurs nowhere."""
    counts = class_counts(evaluated.statistics.pooled().confusion)
    return dict(zip(store.manifest.class_names, class_iou(counts)[0].tolist(), strict=True))


def fitted_pooling(calibrator: Path) -> Pooling:
    """Pooling that a calibrator was fitted on."""
    fitted = read_header(calibrator)["fitted"] or {}
    if "pipeline" not in fitted:
        raise ValueError(f"{calibrator} does not say how its logits were pooled; name it with --pooling")
    return PipelineName.parse(fitted["pipeline"], file=calibrator).pooling


def table(title: str, calibrated: Scores, uncalibrated: Scores) -> str:
    """Two columns of scores."""
    rows = [[name, f"{value:.5f}", f"{uncalibrated[name]:.5f}"] for name, value in calibrated.items()]
    return Table.of("scores", "", (title, "calibrated", "uncalibrated"), rows).to_text()
