"""Ways to come from ``cal`` and ``val`` to a calibrator, and the scores of what they choose on ``test``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _regret_data import Small

from lightning_calib.calibrators import Calibrator, PipelineName, build
from lightning_calib.calibrators.stack import Stack
from lightning_calib.experiment.group_fit import GroupFitter
from lightning_calib.experiment.ladder import LADDER
from lightning_calib.experiment.search import search
from lightning_calib.experiment.selection import select_by_groups
from lightning_calib.outputs.stored import CaseStream, StoredOutputsDataModule
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers import fit
from lightning_calib.solvers.stacking import fit_weights
from lightning_calib.tasks.evaluation import EvaluationTask

SCORES = ("nll", "ece", "ba_ece", "dice")
PIPELINES = ("identity(p)", "identity(z)", "ts(p)", "ts(z)", "ets(p)", "ets(z)", "cms_op(p)", "cms_op(z)")
FLIPPING = ("cms_ap(p)", "cms_ap(z)", "dc(p)", "dc(z)", "cdc(p)", "cdc(z)")  # these may change the segmentation


@dataclass(frozen=True)
class Chosen:
    """What a method ends with.

    Attributes:
        method: the method, or the pipeline that the paper's protocol has fitted.
        pipeline: name of what is applied.
        calibrator: fitted.
        val_nll: voxel-pooled NLL of ``val`` by which the paper's protocol selects; NaN elsewhere.
    """

    method: str
    pipeline: PipelineName
    calibrator: Calibrator
    val_nll: float = float("nan")


@dataclass(frozen=True)
class Options:
    """What methods are told: pipelines of the paper's protocol, trials of each of its searches, seed."""

    pipelines: tuple[str, ...] = PIPELINES
    trials: int = 10
    seed: int = 0


def searched(data: StoredOutputsDataModule, options: Options) -> Iterator[Chosen]:
    """Every pipeline by the paper's protocol: fitted on ``cal``, strengths and the identity chosen on ``val``."""
    for name in options.pipelines:
        found = search(name, data, trials=options.trials, seed=options.seed)
        yield Chosen(f"pipeline {name}", PipelineName.parse(name), found.calibrator, found.val_nll)


def always_ts(data: StoredOutputsDataModule, options: Options) -> Iterator[Chosen]:
    """Temperature scaling on ``cal`` and ``val`` together, whatever they say."""
    name, calibrator = PipelineName.parse("ts(p)"), build("ts", data.num_classes, data.spatial_dims)
    data.pooling = name.pooling
    cases = CaseStream(data.cases, (*data.ids("cal"), *data.ids("val")))
    fit(calibrator, cases, ignore_index=data.ignore_index)
    yield Chosen("ts", name, calibrator)


def by_groups(data: StoredOutputsDataModule, options: Options) -> Iterator[Chosen]:
    """Selection by groups on ``cal`` and ``val`` together, and the stack of each pooling by the same cross-fits."""
    case_ids, groups = [*data.ids("cal"), *data.ids("val")], data.store.groups
    candidates = [name for name in LADDER if name in options.pipelines]
    found = select_by_groups(data.store, case_ids, groups, candidates, seed=options.seed)
    yield Chosen("groups", PipelineName.parse(found.pipeline), found.calibrator)
    refit = GroupFitter(data.cases, case_ids, groups)
    for pooling in ("p", "z"):
        sample = found.samples.get(pooling)
        if sample is None:  # too few groups to tell
            stack = Stack(data.num_classes, data.spatial_dims)
        else:
            weights = fit_weights(sample.log_q, sample.weights).weights
            kept = [part for part in zip(sample.pipelines, sample.strengths, weights, strict=True) if part[2] > 0]
            stack = Stack.of([refit(name, strength)[0] for name, strength, _ in kept], [part[2] for part in kept])
        yield Chosen(f"stack({pooling})", PipelineName("stack", pooling), stack)


METHODS: dict[str, Callable[[StoredOutputsDataModule, Options], Iterator[Chosen]]] = {
    "pipelines": searched,
    "ts": always_ts,
    "groups": by_groups,
}


@torch.inference_mode()
def judge(small: Small, case_ids: Sequence[str], chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
    """Scores of calibrators on some cases: a row a calibrator and case."""
    facts, groups, rows = small.store.manifest, small.store.groups, []
    for pooling in sorted({one.pipeline.pooling for one in chosen}):
        cases = StoredCases(small.store, pooling)
        own = [one for one in chosen if one.pipeline.pooling == pooling]
        task = EvaluationTask({one.method: one.calibrator for one in own}, cases.ignore_index, facts.background, SCORES)
        for case_id in case_ids:
            logits, target = (array[None] for array in cases.read(case_id))
            batch = {"logits": logits, "target": target, "case_id": [case_id]}
            task.test_step(batch | {"distance": small.distances[case_id][None]}, 0)
        task.conclude()
        for one in own:
            found = task.evaluated[one.method]
            said = {"method": one.method, "pipeline": str(one.pipeline), "val_nll": one.val_nll}
            for n, case_id in enumerate(found.cases):
                values = {key: found.scores[key][n] for key in SCORES}
                rows.append({**said, "group": groups[case_id], "case": case_id, **values})
    return rows
