"""What a tracker gets to see of an experiment: numbers when they arise, tables and figures at the end."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment.journal import Follower
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.trackers import TRACKERS, Tracked, close, log_config, log_figure, log_table
from lightning_calib.kit.files import digest

JOURNALS = "journals"


class Tracking:
    """One tracked run an experiment, opened before its first job.

    Jobs write their numbers to journals (:mod:`~lightning_calib.experiment.journal`), in whatever process or on
    whatever machine they run; this process hands them on while they come.

    Args:
        logger: the tracker's run.
        root: folder of the experiment's results.
        config: its settings.
    """

    def __init__(self, logger: Logger, root: Path, config: Mapping[str, Any]) -> None:
        self.logger, self.root = logger, root
        log_config(logger, config)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Hand on what jobs write meanwhile."""
        with Follower(self.root / JOURNALS, self.logger.log_metrics):
            yield

    def finish(self, results: Results, figures: Mapping[str, Path]) -> None:
        """Figures that can be compared between experiments, tables, pictures."""
        self.logger.log_metrics(final_figures(results), step=0)
        for key, frame in {
            "main": results.table(),
            "comparisons": results.comparisons(),
            "trials": results.all_trials(),
            "cases": results.cases(),
        }.items():
            log_table(self.logger, key, list(frame.columns), frame.to_numpy().tolist())
        for key, path in figures.items():
            log_figure(self.logger, key, path)


@contextmanager
def tracking(
    name: str | None, experiment: str, root: Path, config: Mapping[str, Any], place: Path | None = None
) -> Iterator[Tracking | None]:
    """Open a tracker for an experiment; None without one.

    Args:
        name: key of ``TRACKERS``, or None or ``none``.
        experiment: name of the experiment.
        root: folder of its results.
        config: its settings.
        place: where trackers keep their files; by default ``tracking`` beside the results.
    """
    if name in (None, "none"):
        yield None
        return
    folder = (place or root.resolve().parent / "tracking") / str(name)
    folder.mkdir(parents=True, exist_ok=True)
    run_id = digest([str(root.resolve()), config.get("outputs_sha256")])
    logger = TRACKERS[str(name)](Tracked(experiment, folder, run_id))
    try:
        yield Tracking(logger, root, config)
    finally:
        close(logger)
        shutil.rmtree(root / JOURNALS, ignore_errors=True)


def final_figures(results: Results) -> dict[str, float]:
    """Means of every pipeline, and of the recommended, selected and uncalibrated one under keys of their own."""
    entries = results.summary["pipelines"]
    named = {PipelineName.parse(name).slug: name for name in entries}
    advice = results.summary["recommendation"].get("order")
    if advice is not None:
        named["recommended"] = advice["pipeline"]
    if "identity(p)" in entries:
        named["uncalibrated"] = "identity(p)"
    found = {label: entries[name]["metrics"] for label, name in named.items()}
    selected = (results.summary["selection"] or {}).get("order")
    if selected is not None:
        found["selected"] = {key: parts["after"] for key, parts in selected["scores"].items()}
    return {
        f"{label}/{key}": float(score["mean"])
        for label, metrics in found.items()
        for key, score in metrics.items()
        if score["mean"] is not None
    }
