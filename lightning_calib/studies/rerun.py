"""The run again with one setting changed; fits and scores that the change leaves alone are taken over."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from lightning_calib.experiment import layout, records
from lightning_calib.experiment.plan import Protocol
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.run import run_protocol
from lightning_calib.studies.base import Study
from lightning_calib.studies.scores import ScoreRow, change_rows, score_rows


def changed_protocol(study: Study, names: Sequence[str], **changes: Any) -> Protocol:
    """The run's protocol for some pipelines, with settings changed."""
    settings = study.results.settings
    own = {entry.name: settings[entry.name] for entry in fields(Protocol) if entry.name in settings}
    return Protocol(**(own | {"outputs": str(study.store.path), "pipelines": list(names)} | changes))


def rerun(study: Study, label: str, protocol: Protocol) -> Results:
    """Results of a changed protocol; goes on where an earlier call stopped.

    Args:
        study: where to read and write.
        label: folder of the results below the study's.
        protocol: the changed protocol.
    """
    folder = study.folder / label
    take_over(study.results, folder, protocol)
    run_protocol(protocol, folder, study.workers, study.display, study.start)
    return Results(folder)


def take_over(results: Results, folder: Path, protocol: Protocol) -> int:
    """Copy fits and scores of the run that a protocol asks for, too.

    Returns:
        Number of fits taken over.
    """
    copied = 0
    for task in protocol.tasks:
        source, target = (layout.job_folder(root, task.repeat, task.pipeline) for root in (results.folder, folder))
        wanted = protocol.fit_hash(task)
        if records.fit_done(source, wanted) and not records.fit_done(target, wanted):
            shutil.copytree(source, target, dirs_exist_ok=True)
            copied += 1
    return copied


def save_changes(
    study: Study, found: Mapping[int, Results], settings: Sequence[int], reference: int, names: Sequence[str]
) -> list[str]:
    """Write the scores under every setting, and their differences from the reference on the same test cases.

    Args:
        study: where to write ``scores.csv`` and ``deltas.csv``.
        found: results by setting, the reference among them.
        settings: those to write.
        reference: what differences are taken from.
        names: the pipelines.

    Returns:
        What failed, in words.
    """
    scores = [row for size in settings for row in score_rows(str(size), found[size], names)]
    deltas = [row for size in settings for row in change_rows(str(size), found[reference], found[size], names)]
    study.save("scores.csv", scores, ScoreRow)
    study.save("deltas.csv", deltas, ScoreRow)
    return [f"{n}: {f.pipeline}, repeat {f.repeat}" for n, held in found.items() for f in held.failures]
