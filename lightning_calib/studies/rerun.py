"""The run again with one setting changed; fits and scores that the change leaves alone are taken over."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_calib.executors.local import LocalExecutor
from lightning_calib.experiment import layout, records
from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.results import Results
from lightning_calib.kit.tables import Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.studies.base import Study
from lightning_calib.studies.scores import ScoreRow, change_rows, interval_text, score_rows


class RerunStudy(Study):
    """A study that runs the experiment again under other settings, and compares on the same test cases."""

    def changed(self, names: Sequence[str], trials: int | None, **changes: Any) -> Experiment:
        """The experiment for some pipelines, with settings changed; ``trials`` where they are not None."""
        more = {"selection": "paper"} | ({} if trials is None else {"trials": trials})
        return Experiment.of_settings(
            self.results.settings, outputs=str(self.store.path), pipelines=list(names), **more, **changes
        )

    def rerun(self, label: str, experiment: Experiment) -> Results:
        """Results of a changed experiment in the folder ``label``; goes on where an earlier call stopped."""
        placed = replace(experiment, calibration=self.folder / label)
        take_over(self.results, placed)
        executor = self.executor or LocalExecutor(0, placed.threads)
        return placed.run(executor=executor, display=self.display, logger=None)

    def conclude(
        self, found: Mapping[int, Results], settings: Sequence[int], reference: int, names: Sequence[str], **more: Any
    ) -> dict[str, Any]:
        """Write the scores under every setting, and their differences from the reference on the same test cases.

        Args:
            found: results by setting, the reference among them.
            settings: those to write.
            reference: what differences are taken from.
            names: the pipelines.
            more: what else ``study.json`` is to hold.

        Returns:
            ``study.json``.
        """
        scores = [row for size in settings for row in score_rows(str(size), found[size], names)]
        deltas = [row for size in settings for row in change_rows(str(size), found[reference], found[size], names)]
        self.save("scores.csv", scores, ScoreRow)
        self.save("deltas.csv", deltas, ScoreRow)
        failures = [f"{n}: {f.pipeline}, {f.place}" for n, held in found.items() for f in held.failures]
        facts = {"settings": list(settings), "reference": reference, "pipelines": list(names), "failures": failures}
        return self.write(facts | more)

    def differences(self, caption: str, names: Sequence[str], prefix: str) -> Table:
        """Differences of NLL and ECE with intervals."""
        found = {(row.pipeline, row.metric, row.setting): row for row in self.read("deltas.csv", ScoreRow)}
        settings = list(dict.fromkeys(setting for _, _, setting in found))
        body = [
            [
                f"{name}, {SCORES[metric].label}",
                *(interval_text(found.get((name, metric, setting))) for setting in settings),
            ]
            for name in names
            for metric in ("nll", "ece")
        ]
        head = ("pipeline", *(prefix + setting for setting in settings))
        return Table.of(self.name.replace("_", "-"), f"{caption} 95 % intervals in brackets.", head, body)


def take_over(results: Results, experiment: Experiment) -> int:
    """Copy fits and scores of a run that another experiment asks for, too.

    Returns:
        Number of fits taken over.
    """
    copied = 0
    for job in experiment.jobs:
        source, target = (layout.job_folder(root, job.repeat, job.name) for root in (results.folder, experiment.folder))
        wanted = experiment.fit_hash(job)
        if records.fit_done(source, wanted) and not records.fit_done(target, wanted):
            shutil.copytree(source, target, dirs_exist_ok=True)
            copied += 1
    return copied
