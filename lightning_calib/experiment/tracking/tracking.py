"""What a tracker gets to see of an experiment: numbers when they arise, tables, figures and files at the end."""

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning.loggers.logger import Logger

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.experiment import layout
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.tracking.handover import close, log_config, log_figure, log_files, log_table, release
from lightning_calib.experiment.tracking.journal import Follower
from lightning_calib.experiment.tracking.trackers import TRACKERS, OpenTracker, Tracked, named_wandb_run
from lightning_calib.kit.files import digest

JOURNALS = "journals"
Runs = Literal["experiment", "pipelines"]


class Tracking:
    """One tracked run an experiment, opened before its first job, and perhaps one for each of its pipelines.

    Jobs write their numbers to journals (:mod:`~lightning_calib.experiment.tracking.journal`), in whatever process or
    on whatever machine they run; this process hands them on while they come.

    Args:
        open_tracker: opens a run.
        tracked: what the experiment's run is opened for.
        root: folder of the experiment's results.
        config: its settings.
        pipelines: pipelines that get runs of their own.
    """

    def __init__(
        self,
        open_tracker: OpenTracker,
        tracked: Tracked,
        root: Path,
        config: Mapping[str, Any],
        pipelines: Sequence[str] = (),
    ) -> None:
        self.tracked, self.root = tracked, root
        self.logger = open_tracker(tracked)
        log_config(self.logger, config)
        self.of_pipelines: dict[str, Logger] = {}
        for pipeline in pipelines:
            slug = PipelineName.parse(pipeline).slug
            mine = Tracked(slug, tracked.folder, digest([tracked.run_id, slug]), parent=tracked)
            self.of_pipelines[slug] = open_tracker(mine)
            log_config(self.of_pipelines[slug], {**config, "pipeline": pipeline})

    @contextmanager
    def following(self) -> Iterator[None]:
        """Hand on what jobs write meanwhile."""
        with Follower(self.root / JOURNALS, self.receive):
            yield

    def receive(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand on numbers to the experiment's run, and what is a pipeline's own to its run, without its name."""
        self.logger.log_metrics(dict(metrics), step)
        shares: dict[str, dict[str, float]] = {}
        for key, value in metrics.items():
            words = key.split("/")
            for slug in self.of_pipelines.keys() & set(words[:2]):
                shares.setdefault(slug, {})["/".join(word for word in words if word != slug)] = value
        for slug, share in shares.items():
            self.of_pipelines[slug].log_metrics(share, step)

    def finish(self, results: Results, page: Path | None = None) -> None:
        """Figures that can be compared between experiments, tables, pictures, and the files that one would keep.

        Args:
            results: of the experiment.
            page: of the report, whose pictures and tables are beside it.
        """
        folder = page.parent if page else None
        self.receive(final_figures(results), 0)
        for key, frame in {
            "main": results.table(),
            "comparisons": results.comparisons(),
            "trials": results.all_trials(),
            "cases": results.cases(),
        }.items():
            log_table(self.logger, key, list(frame.columns), frame.to_numpy().tolist())
        for path in sorted((folder / "figures").glob("*.png")) if folder else ():
            log_figure(self.logger, path.stem, path)
        report = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()} if folder else {}
        for kind, files in {"calibrator": calibrators(results), "tables": tables(results), "report": report}.items():
            if files:
                log_files(self.logger, f"{self.tracked.name}-{kind}", kind, files)

    def close(self, failed: bool) -> None:
        """End all runs."""
        for logger in (*self.of_pipelines.values(), self.logger):
            close(logger, failed)
        release()


@contextmanager
def tracking(
    name: str | None,
    experiment: str,
    root: Path,
    config: Mapping[str, Any],
    place: Path | None = None,
    runs: Runs = "experiment",
) -> Iterator[Tracking | None]:
    """Open a tracker for an experiment; None without one.

    Args:
        name: key of ``TRACKERS``, or None or ``none``.
        experiment: name of the experiment.
        root: folder of its results.
        config: its settings.
        place: where trackers keep their files; by default ``tracking`` beside the results.
        runs: ``pipelines`` for a run of each pipeline besides that of the experiment.
    """
    if name in (None, "none"):
        yield None
        return
    folder = (place or root.resolve().parent / "tracking") / str(name)
    folder.mkdir(parents=True, exist_ok=True)
    run_id = digest([str(root.resolve()), config.get("outputs_sha256")])
    pipelines = config["pipelines"] if runs == "pipelines" else ()
    if pipelines and name == "wandb" and named_wandb_run():
        warnings.warn("the W&B run is chosen already (by a sweep or WANDB_RUN_ID): no runs of pipelines", stacklevel=2)
        pipelines = ()
    tracked = Tracking(TRACKERS[str(name)], Tracked(experiment, folder, run_id), root, config, pipelines)
    failed = True
    try:
        yield tracked
        failed = False
    finally:
        tracked.close(failed)
        shutil.rmtree(root / JOURNALS, ignore_errors=True)


def calibrators(results: Results) -> dict[str, Path]:
    """Files of the pipeline that is recommended, and of the one that was selected by groups."""
    advice = results.summary["recommendation"].get("order")
    names = ("calibrator.safetensors", "fit.json")
    found = [results.folder / layout.selection_folder(Path(), None) / name for name in (*names, layout.SELECTION)]
    if advice is not None:
        folders = [results.job_folder(repeat, advice["pipeline"]) for repeat in results.repeats]
        found += [folder / name for folder in folders for name in names]
    return {path.relative_to(results.folder).as_posix(): path for path in found if path.is_file()}


def tables(results: Results) -> dict[str, Path]:
    """The tables that everything else is computed from, and the summary."""
    found = [*results.folder.glob("*.csv"), results.folder / layout.SETTINGS, results.folder / layout.SUMMARY]
    return {path.name: path for path in sorted(found)}


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
