"""The folder of a single fit: what ``fit`` and ``search`` write and ``evaluate`` reads."""

from pathlib import Path
from typing import Any

from jsonargparse import lazy_instance  # type: ignore[attr-defined]  # public, but not listed
from pytorch_lightning import Trainer

from lightning_calib.calibrators import Calibrator, PipelineName
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.rows import CurveRow
from lightning_calib.kit.checksums import note_checksums
from lightning_calib.kit.files import write_json
from lightning_calib.outputs.partition import Split
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers.epochs import MAX_EPOCHS

SPLIT, CERTIFICATE = "split.json", "certificate.json"

# What --trainer.* options change.
TRAINER: Trainer = lazy_instance(
    Trainer,
    max_epochs=MAX_EPOCHS,
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)


def fit_folder(outputs: Path, name: PipelineName, repeat: int) -> Path:
    """Where a fit goes unless told otherwise: ``fits/<calibrator>-<pooling>-<repeat>`` beside the outputs.

    Example:
        >>> fit_folder(Path("runs/camvid/outputs"), PipelineName("ts", "z"), 0).as_posix()
        'runs/camvid/fits/ts-z-0'
    """
    return outputs.parent / "fits" / f"{name.slug}-{repeat}"


def save_fit(
    folder: Path, name: PipelineName, data: StoredOutputsDataModule, calibrator: Calibrator, facts: dict[str, Any]
) -> None:
    """Write calibrator, certificate, curve, trials and the cases of the parts.

    Args:
        folder: where to.
        name: the pipeline.
        data: what it was fitted on.
        calibrator: the result.
        facts: ``hyperparameters``, ``val_nll``, ``identity_val_nll``, ``certificate``, ``curve`` and ``trials``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data.split.save(folder / SPLIT)
    write_json(folder / CERTIFICATE, facts["certificate"])
    record = records.FitRecord(
        repeat=data.repeat,
        pipeline=str(name),
        settings_hash="",
        **{key: facts[key] for key in ("hyperparameters", "val_nll", "identity_val_nll", "certificate")},
    )
    curve: list[CurveRow] = facts["curve"]
    records.write_fit(folder, record, calibrator, facts["trials"], curve, data.class_names)
    note_checksums(folder, (SPLIT, CERTIFICATE))


def find_split(calibrator: Path, split: Path | None) -> Split:
    """The split that a calibrator was fitted with: the one named, beside its file, or one folder up."""
    places = [split] if split is not None else [calibrator.parent / SPLIT, calibrator.parent.parent / SPLIT]
    for place in places:
        if place.is_file():
            return Split.load(place)
    raise ValueError(
        f"no split at {' or '.join(map(str, places))}: name it with --split, or judge all cases of the store with "
        "--part all"
    )


def say(name: PipelineName, facts: dict[str, Any], folder: Path) -> None:
    """Print what came out of a fit."""
    certificate = facts["certificate"]
    for warning in certificate.get("warnings", []):
        print(f"warning: {warning}")
    print(f"{name}: NLL {facts['val_nll']:.6f} on val, {facts['identity_val_nll']:.6f} without calibration")
    if facts["hyperparameters"]:
        told = {
            key: f"{value:g}" if isinstance(value, float) else value for key, value in facts["hyperparameters"].items()
        }
        print("  " + ", ".join(f"{key} = {value}" for key, value in told.items()))
    if certificate:
        print(f"  {certificate['solver']}: {certificate['passes']} passes, {certificate['reason']}")
    print(f"  {folder / layout.CALIBRATOR}")
