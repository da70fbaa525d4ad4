"""Scores of a run's pipelines under other conditions, in folders that are read as the run's own results."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lightning_calib.calibrators.temperature import Identity
from lightning_calib.experiment import layout
from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import write_json
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.tasks.evaluation import Evaluated, EvaluationTask

_LABEL = "scores"


def prepare(results: Results, folder: Path, outputs: Path, names: Sequence[str]) -> None:
    """Make a folder of results as the run's own is, with the run's splits.

    Args:
        results: the run.
        folder: where to.
        outputs: the store that scores are taken on.
        names: the pipelines that are to be scored.
    """
    for repeat in results.repeats:
        write_json(layout.split_path(folder, repeat), results.split(repeat))
    if (results.folder / layout.GROUPS).is_file():
        shutil.copyfile(results.folder / layout.GROUPS, folder / layout.GROUPS)
    write_json(folder / layout.SETTINGS, results.settings | {"pipelines": list(names), "outputs": str(outputs)})


def judge(cases: StoredCases, case_ids: Sequence[str], scores: Callable[[str], Tensor]) -> Evaluated:
    """All scores of some maps that no calibrator changes any more.

    Args:
        cases: targets and distances.
        case_ids: the cases.
        scores: logits or log-probabilities ``(C, *S)`` of a case.
    """
    manifest = cases.store.manifest
    identity = Identity(manifest.num_classes, manifest.spatial_dims)
    task = EvaluationTask({_LABEL: identity}, cases.ignore_index, manifest.background)
    with torch.no_grad():
        for number, case_id in enumerate(case_ids):
            batch = {"logits": scores(case_id), "target": cases.target(case_id), "distance": cases.distance(case_id)}
            task.test_step({name: value[None] for name, value in batch.items()} | {"case_id": [case_id]}, number)
    task.conclude()
    return task.evaluated[_LABEL]
