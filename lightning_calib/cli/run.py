"""``calibrate.py run``: an experiment from frozen outputs to a report."""

import json as json_format
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lightning_calib.cli.cost import show_cost
from lightning_calib.cli.doctor import require_healthy
from lightning_calib.cli.trainer import ONE_DEVICE, TrainerOptions
from lightning_calib.experiment.advice import Preserve, describe, describe_groups, selected_advice
from lightning_calib.experiment.concerns import concerns
from lightning_calib.experiment.plan import Experiment
from lightning_calib.experiment.recommend import recommend
from lightning_calib.experiment.regions import read_runs, write_runs
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.tracking.trackers import named_wandb_run
from lightning_calib.experiment.tracking.tracking import Runs
from lightning_calib.kit.noise import quiet
from lightning_calib.outputs.manifest import MANIFEST, Manifest
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.views import has_regions, write_views
from lightning_calib.report.build import build_report
from lightning_calib.report.inputs import Inputs
from lightning_calib.report.main_table import NOT_INVARIANT
from lightning_calib.report.regions import build_overview


def run(
    workers: int | None = None,
    executor: str | dict[str, Any] = "local",
    report: bool = True,
    logger: str = "csv",
    logger_runs: Runs = "experiment",
    experiment: str | None = None,
    preserve: Preserve = "order",
    doctor: bool = True,
    join: bool = False,
    dry_run: bool = False,
    json: bool = False,
    trainer: TrainerOptions = ONE_DEVICE,
    **settings: Any,
) -> int:
    """Fit every pipeline in every repeat on cal, select on val, evaluate on test, and report.

    Goes on where an earlier run stopped; what was computed with other settings is computed again. Of a store of
    regions, every region is run as a problem of two classes, in regions/<region> beside the store.

    Args:
        workers: jobs at a time; by default one a core. Results do not depend on it.
        executor: where jobs run: local, or the name of another executor.
        report: also write the report, in a folder named report beside the results.
        logger: tracker that gets every number when it arises: csv, wandb, tensorboard, mlflow, none, or the name of
            another; its files go to tracking beside the results.
        logger_runs: experiment for one tracked run; pipelines for one of each pipeline, too, in the same group.
        experiment: name of the tracked run; by default that of the run's folder.
        preserve: what the recommended pipeline must keep of the pooled ranking.
        doctor: examine the outputs first; an error stops the run.
        join: share the work with other calls of the same command on the same folder, also on other machines that see
            it; each job is done once, and each call ends with all results.
        dry_run: say what the run would cost (jobs, hours, disk, memory), and do not begin it.
        json: print what came out as JSON, of regions one line each.
        trainer: options of Lightning's Trainer, for fits and evaluations.
        **settings: see Experiment.

    Returns:
        0, or 1 where a pipeline failed.
    """
    quiet()
    planned = Experiment(**settings)
    options = {"workers": workers, "executor": executor, "logger": logger, "join": join, "trainer": trainer.options}
    options["logger_runs"] = logger_runs
    asked = _Asked(report, experiment, preserve, doctor, dry_run, json, options)
    outputs = planned.outputs
    if isinstance(outputs, OutputStore) or not has_regions(Path(outputs)):
        return asked.run(planned)
    return _run_regions(asked, planned, Path(outputs))


@dataclass(frozen=True)
class _Asked:
    """What is asked of a run, whatever its store."""

    report: bool
    name: str | None
    preserve: Preserve
    doctor: bool
    dry_run: bool
    json: bool
    options: dict[str, Any]

    def run(self, planned: Experiment) -> int:
        """Run one experiment."""
        require_healthy(planned.store.path, self.doctor)
        if self.dry_run:
            return show_cost(planned, self.options["workers"], self.json)
        page = planned.folder.resolve().parent / "report" / "index.html"

        def write(results: Results) -> Path:
            return build_report(results.folder, planned.store.path, page.parent, self.preserve)

        results = planned.run(
            **self.options, name=self.name, display=not self.json, report=write if self.report else None
        )
        if self.json:
            facts = {"calibration": str(planned.folder), "report": str(page) if self.report else None}
            told = {key: results.summary[key] for key in ("recommendation", "selection", "failures")}
            print(json_format.dumps(facts | told))
        else:
            show(results, self.preserve, page if self.report else None)
        return 1 if results.summary["failures"] else 0


def _run_regions(asked: _Asked, planned: Experiment, outputs: Path) -> int:
    """Run the experiment on the view of each region of a store, then write the page over all of them."""
    if asked.options["logger"] == "wandb" and named_wandb_run():
        raise ValueError(
            f"{outputs} has several regions, with a tracked run each, and the W&B run is chosen already (by a sweep or "
            "WANDB_RUN_ID): take another --logger, or run one region, such as --outputs "
            f"{outputs.parent / 'regions' / '<region>' / outputs.name}"
        )
    folder = planned.calibration or outputs.resolve().parent / "calibration"
    views, codes = write_views(outputs), []
    places = {name: view.parent / folder.name for name, view in views.items()}
    for name, view in views.items():
        if not asked.json:
            print(f"region {name}")
        codes.append(asked.run(replace(planned, outputs=view, calibration=places[name])))
    if not asked.dry_run:
        write_runs(folder, Manifest.load(outputs / MANIFEST).regions, places)
        if asked.report:
            page = build_overview(read_runs(folder), folder.resolve().parent / "report", asked.preserve)
            Console(soft_wrap=True, stderr=asked.json).print(f"report of all regions: {page}", markup=False)
    return max(codes)


def show(results: Results, preserve: Preserve, page: Path | None = None) -> None:
    """Print the main table, the recommendation, failures, and where everything is."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(table_text(results), markup=False)
    if (advice := advice_text(results, preserve)) is not None:
        console.print(advice, markup=False)
    for concern in concerns(results, results.chosen(preserve)):
        console.print(f"warning: {concern}", markup=False)
    for failure in results.failures:
        reason = failure.error.splitlines()[0]
        console.print(f"FAILED {failure.pipeline} in {failure.place}: {reason}", markup=False)
    console.print(f"results: {results.folder}", markup=False)
    if page is not None:
        console.print(f"report:  {page}", markup=False)


def advice_text(results: Results, preserve: Preserve) -> str | None:
    """What to deploy; None where nothing qualifies, or the selection failed."""
    if results.selects_by_groups:
        selected = results.summary["selection"][preserve] and selected_advice(results.summary, preserve)
        return describe_groups(selected) if selected else None
    if results.summary["recommendation"][preserve] is None:
        return None
    return describe(recommend(results, preserve), len(results.repeats))


def table_text(results: Results) -> str:
    """The main table for a terminal, in the paper's blocks."""
    legend = (
        f"*: better than uncalibrated beyond noise, and as good as the best; {NOT_INVARIANT}: not translation invariant"
    )
    return replace(Inputs.open(results.folder, None).table, caption=legend).to_text()
