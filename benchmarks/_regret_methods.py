"""Ways to come from ``cal`` and ``val`` to a calibrator, and the scores of what they choose on ``test``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from _regret_data import Small

from lightning_calib.calibrators import Calibrator, Identity, Pipeline, PipelineName, Stack, build
from lightning_calib.deployment.ensemble import CalibratedEnsemble
from lightning_calib.deployment.guard import Guard
from lightning_calib.deployment.statistics import case_statistics
from lightning_calib.experiment.search.search import search
from lightning_calib.experiment.selection.evidence import Evidence
from lightning_calib.experiment.selection.ladder import LADDER
from lightning_calib.experiment.selection.select import choose
from lightning_calib.experiment.selection.stacking import stack_by_groups, stacks_of
from lightning_calib.outputs.stored import CaseStream, StoredOutputsDataModule
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers import fit
from lightning_calib.tasks.evaluation import EvaluationTask

SCORES = ("nll", "ece", "ba_ece", "dice")
PIPELINES = ("identity(p)", "identity(z)", "ts(p)", "ts(z)", "ets(p)", "ets(z)", "cms_op(p)", "cms_op(z)")
GUARDED = ("ts", "groups")
FLIPPING = ("cms_ap(p)", "cms_ap(z)", "dc(p)", "dc(z)", "cdc(p)", "cdc(z)")  # these may change the segmentation


@dataclass(frozen=True)
class Chosen:
    """What a method ends with.

    Attributes:
        method: the method, or the pipeline that the paper's protocol has fitted.
        pipeline: name of what is applied.
        calibrator: fitted.
        val_nll: voxel-pooled NLL of ``val`` by which the paper's protocol selects; NaN elsewhere.
        guard: what mixes it with the identity on cases unlike those of ``cal`` and ``val``.
    """

    method: str
    pipeline: PipelineName
    calibrator: Calibrator
    val_nll: float = float("nan")
    guard: Guard | None = None

    def module(self) -> Calibrator:
        """What is applied; under a guard a mixture, whose weights :func:`mix` sets case by case."""
        facts = (self.calibrator.num_classes, self.calibrator.spatial_dims)
        return self.calibrator if self.guard is None else Stack(*facts, [self.calibrator, Identity(*facts)])


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
    """Selection by groups on ``cal`` and ``val`` together, with and without stacks, and the stack of each pooling."""
    case_ids, groups = [*data.ids("cal"), *data.ids("val")], data.store.groups
    candidates = [name for name in LADDER if name in options.pipelines]
    evidence = Evidence(data.store, case_ids, groups, candidates, options.seed)
    for method, above in (("ladder", ()), ("groups", stacks_of(evidence))):
        found = choose(evidence, candidates, above)
        yield Chosen(method, PipelineName.parse(found.pipeline), found.calibrator)
    for stacked in (stack_by_groups(evidence, pooling) for pooling in ("p", "z")):
        yield Chosen(stacked.pipeline, PipelineName.parse(stacked.pipeline), stacked.calibrator)


def guarded(data: StoredOutputsDataModule, chosen: Sequence[Chosen]) -> Iterator[Chosen]:
    """Choices as they are, and those of some methods once more with a guard from the cases of ``cal`` and ``val``."""
    case_ids = [*data.ids("cal"), *data.ids("val")]
    for one in chosen:
        yield one
        if one.method in GUARDED:
            ensemble = CalibratedEnsemble(Pipeline(one.pipeline.pooling, one.calibrator))
            guard = Guard([case_statistics(data.cases, case_id, ensemble) for case_id in case_ids])
            yield replace(one, method=f"{one.method}, guarded", guard=guard)


METHODS: dict[str, Callable[[StoredOutputsDataModule, Options], Iterator[Chosen]]] = {
    "pipelines": searched,
    "ts": always_ts,
    "groups": by_groups,
}


def mix(one: Chosen, module: Calibrator, cases: StoredCases, case_id: str) -> None:
    """Set the weights of a guarded calibrator for a case."""
    if one.guard is not None:
        ensemble = CalibratedEnsemble(Pipeline(one.pipeline.pooling, one.calibrator))
        doubt = one.guard.weight(case_statistics(cases, case_id, ensemble))
        module.get_parameter("weights").copy_(torch.tensor([1 - doubt, doubt]))


@torch.inference_mode()
def judge(small: Small, case_ids: Sequence[str], chosen: Sequence[Chosen]) -> list[dict[str, Any]]:
    """Scores of calibrators on some cases: a row a calibrator and case."""
    facts, groups, rows = small.store.manifest, small.store.groups, []
    for pooling in sorted({one.pipeline.pooling for one in chosen}):
        cases = StoredCases(small.store, pooling)
        own = [one for one in chosen if one.pipeline.pooling == pooling]
        modules = {one.method: one.module().eval() for one in own}
        task = EvaluationTask(modules, cases.ignore_index, facts.background, SCORES)
        for case_id in case_ids:
            for one in own:
                mix(one, modules[one.method], cases, case_id)
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
