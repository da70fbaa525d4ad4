"""Jobs that select by groups: on `cal` and `val` of a repeat, judged on its `test`, or on all cases, to be deployed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from lightning_calib.calibrators import Calibrator, Identity, PipelineName
from lightning_calib.datasets.cases import CASE
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.evaluation_jobs import evaluate_cases
from lightning_calib.experiment.parts import kinds_of
from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.recommend import eligible
from lightning_calib.experiment.rows import CaseRow
from lightning_calib.experiment.selection.evidence import Evidence, poolings_of
from lightning_calib.experiment.selection.folds import SAMPLE_VOXELS, choose_level
from lightning_calib.experiment.selection.ladder import ALPHA, LADDER, REFERENCE, WIDTH
from lightning_calib.experiment.selection.records import SelectionRecord, selection_done, write_selection
from lightning_calib.experiment.selection.select import Selection, choose, plain
from lightning_calib.experiment.selection.stacking import is_stack, stacks_of, with_parts
from lightning_calib.experiment.work import Work, make_trainer
from lightning_calib.kit.files import digest
from lightning_calib.metrics.score import SCORES
from lightning_calib.outputs.cache import DISTANCE, Kind
from lightning_calib.outputs.store import OutputStore


@dataclass(frozen=True)
class SelectionJob:
    """Selection by groups on ``cal`` and ``val`` of a repeat; for None on all cases, which is what is deployed."""

    repeat: int | None

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"selection by groups, {'all cases' if self.repeat is None else f'repeat {self.repeat}'}"


def selection_jobs(experiment: Experiment) -> list[SelectionJob]:
    """All selections of an experiment, the longest first; none where it selects as the paper does."""
    if not experiment.by_groups:
        return []
    return [SelectionJob(None), *map(SelectionJob, range(experiment.repeats))]


def pending_selections(work: Work) -> list[SelectionJob]:
    """Selections that are not there yet."""
    experiment = work.experiment
    return [
        job
        for job in selection_jobs(experiment)
        if not selection_done(layout.selection_folder(work.root, job.repeat), selection_hash(experiment, job))
    ]


def selected_cases(experiment: Experiment, job: SelectionJob) -> list[str]:
    """Cases that a selection is made on."""
    if job.repeat is None:
        return sorted(experiment.store.case_ids)
    split = experiment.split(job.repeat)
    return sorted([*split.cal, *split.val])


def judged_cases(experiment: Experiment, job: SelectionJob) -> list[str]:
    """Cases that a selection is judged on."""
    return [] if job.repeat is None else sorted(experiment.split(job.repeat).test)


def candidates_of(experiment: Experiment) -> tuple[str, ...]:
    """Pipelines of the experiment that are on the ladder, the reference, and stacks of them."""
    fitted = [name for name in LADDER if name == REFERENCE or name in experiment.names]
    return (*fitted, *filter(is_stack, experiment.names))


def maps_of(experiment: Experiment, job: SelectionJob) -> list[tuple[Kind, str]]:
    """Kinds and cases of the maps that a selection reads."""
    fitted, judged = selected_cases(experiment, job), judged_cases(experiment, job)
    kinds = dict.fromkeys(kind for text in candidates_of(experiment) for kind in kinds_of(PipelineName.parse(text)))
    pooled: list[tuple[Kind, str]] = [(kind, case) for kind in kinds for case in (*fitted, *judged)]
    return [*pooled, *((DISTANCE, case) for case in judged)]


def group_level(store: OutputStore, case_ids: Sequence[str], wanted: str | None = None) -> str:
    """The level of groups to select by: the coarsest at which the cases fall into enough groups.

    Args:
        store: where the cases are.
        case_ids: the cases.
        wanted: the level that the user names.

    Returns:
        The finest level where none has enough groups; ``case`` where the store knows no groups.
    """
    levels = store.group_levels or (CASE,)
    if wanted is not None:
        return wanted
    place = choose_level([store.groups_at(level) for level in levels], case_ids)
    return levels[-1 if place is None else place]


def selection_hash(experiment: Experiment, job: SelectionJob) -> str:
    """Hash of everything that a selection and its scores depend on."""
    cases = selected_cases(experiment, job)
    level = group_level(experiment.store, cases, experiment.group_level)
    groups = experiment.store.groups_at(level)
    return digest(
        {
            "version": layout.RESULTS_VERSION,
            "outputs": experiment.outputs_hash,
            "cases": [[case_id, groups[case_id]] for case_id in cases],
            "test": judged_cases(experiment, job),
            "seed": experiment.seed,
            "outside": experiment.outside,
            "members": experiment.members,
            "method": [candidates_of(experiment), ALPHA, WIDTH, SAMPLE_VOXELS],
            "scores": SCORES.names(),
        }
    )


def selection_job(work: Work, job: SelectionJob) -> None:
    """Cross-fit once, choose under each constraint, judge what was chosen, and write it all."""
    started, experiment, store = time.perf_counter(), work.experiment, work.experiment.store
    cases, test = selected_cases(experiment, job), judged_cases(experiment, job)
    level = group_level(store, cases, experiment.group_level)
    groups, candidates = store.groups_at(level), candidates_of(experiment)
    evidence = Evidence(store, cases, groups, with_parts(candidates), experiment.seed, outside=experiment.outside)
    stacks = stacks_of(evidence)
    found = {preserve: choose(evidence, eligible(candidates, preserve), stacks) for preserve in get_args(Preserve)}
    record = SelectionRecord(
        repeat=job.repeat,
        settings_hash=selection_hash(experiment, job),
        level=level,
        num_cases=len(cases),
        test_groups={case_id: groups[case_id] for case_id in test},
        unseen=not {groups[case_id] for case_id in test} & {groups[case_id] for case_id in cases},
        choices={preserve: _described(choice) for preserve, choice in found.items()},
        held_out=plain(evidence.table),
    )
    folder = layout.selection_folder(work.root, job.repeat)
    calibrators = {preserve: choice.calibrator for preserve, choice in found.items()}
    rows = _scores(work, job, {choice.pipeline: choice.calibrator for choice in found.values()}, test)
    write_selection(folder, record, calibrators, rows, list(store.manifest.class_names))
    records.add_timing(folder, selection=time.perf_counter() - started)


def _described(choice: Selection) -> dict[str, object]:
    facts = choice.to_dict()
    del facts["held_out"]  # one table for all constraints
    return facts


def _scores(work: Work, job: SelectionJob, chosen: Mapping[str, Calibrator], case_ids: Sequence[str]) -> list[CaseRow]:
    """Scores of the reference and of all that were chosen, on test cases of the repeat."""
    if job.repeat is None:
        return []
    experiment, store = work.experiment, work.experiment.store
    everyone = {REFERENCE: Identity(store.manifest.num_classes, store.manifest.spatial_dims)} | dict(chosen)
    rows: list[CaseRow] = []
    for pooling in poolings_of(list(everyone)):
        own = {name: found.eval() for name, found in everyone.items() if PipelineName.parse(name).pooling == pooling}
        trainer = make_trainer({**work.trainer, "devices": 1, "strategy": "auto", "logger": False}, None)
        evaluated = evaluate_cases(own, store, pooling, case_ids, trainer, experiment.outside)
        for name in own:
            rows += records.case_rows(store.manifest.dataset, job.repeat, name, evaluated[name])
    return rows
