"""Ways to come from ``cal`` and ``val`` to a calibrator, and the scores of what they choose on ``test``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from _regret_data import Small

from lightning_calib.calibrators import Calibrator, PipelineName, build
from lightning_calib.experiment.search import search
from lightning_calib.metrics.score import score_collection
from lightning_calib.outputs.stored import CaseStream, StoredOutputsDataModule
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers import fit
from lightning_calib.tasks.evaluation import gathered

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


METHODS: dict[str, Callable[[StoredOutputsDataModule, Options], Iterator[Chosen]]] = {
    "pipelines": searched,
    "ts": always_ts,
}


def judge(small: Small, case_ids: Sequence[str], chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
    """Scores of calibrators on some cases: a row a calibrator and case."""
    facts, groups, rows = small.store.manifest, small.store.groups, []
    for pooling in sorted({one.pipeline.pooling for one in chosen}):
        cases = StoredCases(small.store, pooling)
        own = [one for one in chosen if one.pipeline.pooling == pooling]
        collections = [score_collection(cases.ignore_index, facts.background, SCORES) for _ in own]
        for case_id in case_ids:
            logits, target = (array[None] for array in cases.read(case_id))
            known = {"case_ids": [case_id], "reference": logits, "distance": small.distances[case_id][None]}
            for one, scores in zip(own, collections, strict=True):
                scores.update(one.calibrator(logits), target, **known)
        for one, scores in zip(own, collections, strict=True):
            found = gathered(scores, facts.background)
            said = {"method": one.method, "pipeline": str(one.pipeline), "val_nll": one.val_nll}
            for n, case_id in enumerate(found.cases):
                values = {key: found.scores[key][n] for key in SCORES}
                rows.append({**said, "group": groups[case_id], "case": case_id, **values})
    return rows
