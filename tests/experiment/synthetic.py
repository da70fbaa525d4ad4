"""A small calibration run that looks like a real one, made in seconds: outputs, fits, tables and summary.

The logits are those of an overconfident ensemble on blocky label maps. Calibrators are not fitted but set: a
temperature near the right one, and random perturbations where a calibrator may flip. Scores, tables and the
summary come from the same functions that `calibrate.py run` calls.
"""

from pathlib import Path

import numpy as np
import torch

from lightning_calib.calibrators import PAPER_PIPELINES, build
from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment import layout
from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.records import FitRecord, add_timing, write_evaluation, write_failed_fit, write_fit
from lightning_calib.experiment.rows import CurveRow
from lightning_calib.experiment.summary import write_summary
from lightning_calib.functional import boundary_distance
from lightning_calib.kit.checksums import CHECKSUMS
from lightning_calib.kit.files import write_json
from lightning_calib.outputs.folds import Fold
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.tasks.evaluation import Evaluated, EvaluationTask

CLASSES = ["background", "disc", "rod", "speck"]
SIZE = (32, 40)


def label_map(rng: np.random.Generator, size=SIZE) -> torch.Tensor:
    """Rectangles of three classes on a background."""
    target = np.zeros(size, dtype=np.int64)
    for kind in (1, 2, 3, 1):
        top, left = rng.integers(size[0] - 8), rng.integers(size[1] - 8)
        target[top : top + rng.integers(4, 14), left : left + rng.integers(4, 14)] = kind
    return torch.from_numpy(target)


def member_logits(rng: np.random.Generator, target: torch.Tensor, members: int, sharpness: float) -> torch.Tensor:
    """Logits (M, C, *S) of members that agree by half, too sure of themselves by the factor `sharpness`."""
    onehot = torch.nn.functional.one_hot(target, len(CLASSES)).movedim(-1, 0).float()
    shared, own = (torch.from_numpy(rng.standard_normal((n, *onehot.shape))).float() for n in (1, members))
    return sharpness * (2.0 * onehot + 0.7 * shared + 0.7 * own)


def write_outputs(
    folder: Path, cases=24, members=3, sharpness=6.7, seed=0, ignore_index=None, folds=0, prefix="case"
) -> OutputStore:
    """An output store of `cases` made-up cases, in groups of two; of `folds` networks that take turns, if any."""
    rng = np.random.default_rng(seed)
    writer = OutputWriter(
        folder,
        "shapes",
        CLASSES,
        2,
        [Member(str(k)) for k in range(members)],
        background=0,
        ignore_index=ignore_index,
        groups={f"{prefix}_{n:03d}": f"pair_{n // 2}" for n in range(cases)},
        folds=[Fold(str(k), tuple(f"{prefix}_{n:03d}" for n in range(k, cases, folds))) for k in range(folds)],
    )
    for n in range(cases):
        target = label_map(rng)
        logits = member_logits(rng, target, members, sharpness)
        if ignore_index is not None:
            target[:2] = ignore_index
        writer.write(f"{prefix}_{n:03d}", logits=logits, target=target)
    writer.finish()
    return OutputStore(folder)


def set_calibrator(name: str, repeat: int):
    """A calibrator that improves on overconfident logits; unconstrained ones are disturbed a little."""
    generator = torch.Generator().manual_seed(repeat)
    calibrator = build(PipelineName.parse(name).calibrator, len(CLASSES))
    with torch.no_grad():
        for key, parameter in calibrator.named_parameters():
            if calibrator.name in ("ts", "ets") and "weight" not in key:
                parameter.fill_(float(np.log(2.2 + 0.1 * repeat)))
            elif calibrator.preserves is None:
                parameter.mul_(0.45).add_(0.05 * torch.randn(parameter.shape, generator=generator))
            elif calibrator.name in ("cms_ap", "cms_op"):
                parameter.mul_(0.45)
    return calibrator


def write_results(folder: Path, store: OutputStore, pipelines=PAPER_PIPELINES, repeats=3, fail=(), seed=0) -> Path:
    """A calibration folder; (repeat, pipeline) pairs in `fail` are recorded as failed."""
    experiment = Experiment(str(store.path), list(pipelines), repeats, trials=4, seed=seed, selection="paper")
    write_json(folder / layout.SETTINGS, experiment.describe())
    for repeat in range(repeats):
        order = np.random.default_rng([seed, repeat]).permutation(store.case_ids).tolist()
        third = len(order) // 3
        parts = {"cal": order[:third], "val": order[third : 2 * third], "test": order[2 * third :]}
        write_json(layout.split_path(folder, repeat), {part: sorted(ids) for part, ids in parts.items()})
        for name in pipelines:
            target = layout.job_folder(folder, repeat, name)
            if (repeat, name) in fail:
                write_failed_fit(target, repeat, name, "synthetic", "RuntimeError: the objective is NaN")
                continue
            write_job(target, store, repeat, name, sorted(parts["test"]))
    write_summary(folder)
    for noted in folder.rglob(CHECKSUMS):  # tests change what is there, as earlier versions left it
        noted.unlink()
    return folder


def evaluate(store: OutputStore, case_ids, calibrators, pooling: str = "z") -> dict[str, Evaluated]:
    """Scores of calibrators on some cases, without a Trainer."""
    manifest = store.manifest
    task = EvaluationTask(calibrators, manifest.ignore_index, manifest.background)
    with torch.inference_mode():
        for case_id in case_ids:
            task.test_step(batch_of(store, case_id, pooling), 0)
    task.conclude()
    return task.evaluated


def batch_of(store: OutputStore, case_id: str, pooling: str) -> dict:
    """One pooled case with its distances."""
    case = store[case_id]
    target = case.target[None]
    distance = boundary_distance(target, store.manifest.ignore_index)
    return {"logits": case.pooled(pooling)[None], "target": target, "case_id": [case_id], "distance": distance}


def write_job(target: Path, store: OutputStore, repeat: int, name: str, test: list[str]) -> None:
    """Files of one pipeline in one repeat."""
    calibrator, pooling = set_calibrator(name, repeat), PipelineName.parse(name).pooling
    evaluated = evaluate(store, test, {name: calibrator}, pooling)[name]
    nll = float(np.nanmean(evaluated.scores["nll"]))
    record = FitRecord(
        repeat=repeat,
        pipeline=name,
        settings_hash="synthetic",
        hyperparameters={"lam": 1e-3, "mu": 1e-3},
        val_nll=nll * 1.02,
        identity_val_nll=nll * 1.3,
        certificate={"solver": "newton", "converged": True, "passes": 9, "objective": nll, "gradient_norm": 3e-7},
    )
    trials = [
        {
            "trial": n,
            "state": "complete",
            "val_nll": nll * (1.1 - 0.02 * n),
            "values": {"lam": 10.0 ** -(n + 1), "mu": 1e-3},
        }
        for n in range(4)
    ]
    curve = [CurveRow(n, "val_nll", nll * (1.02 + 0.3 / (n + 1))) for n in range(9)]
    write_fit(target, record, calibrator, trials, curve, CLASSES)
    write_evaluation(target, store.manifest.dataset, repeat, name, evaluated, "synthetic")
    add_timing(target, fit=1.25, evaluate=0.5)
