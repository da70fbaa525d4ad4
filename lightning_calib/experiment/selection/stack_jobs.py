"""Stacks as pipelines of a run: parts and weights from the groups of ``cal``, judged on ``val`` as others are."""

import time
from collections.abc import Sequence

from lightning_calib.calibrators import Calibrator, Identity
from lightning_calib.experiment import records
from lightning_calib.experiment.plan import FitJob
from lightning_calib.experiment.selection.evidence import Evidence
from lightning_calib.experiment.selection.jobs import group_level
from lightning_calib.experiment.selection.stacking import Stacked, parts_of, stack_by_groups
from lightning_calib.experiment.work import Work
from lightning_calib.functional.pooling import Pooling
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import CaseStream, Outside
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.solvers import mean_nll


def fit_stack(
    store: OutputStore,
    case_ids: Sequence[str],
    pooling: Pooling,
    level: str | None = None,
    seed: int = 0,
    outside: Outside = "exclude",
) -> Stacked:
    """The stack of some cases.

    Args:
        store: the outputs.
        case_ids: the cases to use.
        pooling: of the stack.
        level: level of the groups; by default the coarsest that has enough of them.
        seed: seed of the folds.
        outside: what voxels count as that were never predicted.
    """
    groups = store.groups_at(group_level(store, case_ids, level))
    evidence = Evidence(store, case_ids, groups, parts_of(pooling), seed, outside=outside)
    return stack_by_groups(evidence, pooling)


def stack_job(work: Work, job: FitJob) -> None:
    """Put a stack together in one repeat, and write what came out; the identity where ``val`` says so."""
    started, experiment, store = time.perf_counter(), work.experiment, work.experiment.store
    split, pooling = experiment.split(job.repeat), job.name.pooling
    how = (pooling, experiment.group_level, experiment.seed, experiment.outside)
    stacked = fit_stack(store, sorted(split.cal), *how)
    cases = StoredCases(store, pooling, experiment.outside)
    stream = CaseStream(cases, split.val)
    identity = Identity(store.manifest.num_classes, store.manifest.spatial_dims)
    nll, without = (mean_nll(each, stream, cases.ignore_index)[0] for each in (stacked.calibrator, identity))
    better = nll < without
    record = records.FitRecord(
        repeat=job.repeat,
        pipeline=job.pipeline,
        settings_hash=experiment.fit_hash(job),
        val_nll=min(nll, without),
        identity_val_nll=without,
        certificate=stacked.certificate if better else {},
    )
    row = {"trial": 0, "state": "complete", "val_nll": nll, "values": {}, "passes": stacked.weights.steps}
    chosen: Calibrator = stacked.calibrator if better else job.name.cls(identity.num_classes, identity.spatial_dims)
    records.write_fit(work.folder(job), record, chosen, [row], [], list(store.manifest.class_names))
    records.add_timing(work.folder(job), fit=time.perf_counter() - started)
