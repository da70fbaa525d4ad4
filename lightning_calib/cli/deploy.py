"""``calibrate.py deploy``: the calibrated model in one folder."""

import json as json_format
from pathlib import Path

from lightning_calib.calibrators import Pipeline
from lightning_calib.deployment.deploy import deploy as write
from lightning_calib.deployment.deploy import write_deployment
from lightning_calib.deployment.folder import CARD, Deployment
from lightning_calib.deployment.refit import Cases
from lightning_calib.deployment.regions import save_regions
from lightning_calib.experiment.advice import Preserve, stored_advice
from lightning_calib.experiment.layout import find_runs
from lightning_calib.experiment.regions import read_runs
from lightning_calib.experiment.results import Results
from lightning_calib.kit.files import replaced_files
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.views import write_views


def deploy(
    calibration: Path,
    pipeline: str | None = None,
    preserve: Preserve = "order",
    outputs: Path | None = None,
    destination: Path | None = None,
    cases: Cases = "all",
    repeat: int = 0,
    networks: bool = True,
    json: bool = False,
    trust: bool = False,
    bundle: bool = False,
) -> int:
    """Fit the chosen pipeline once more, on all cases, and write the calibrated model into one folder.

    Of a run on regions, every region gets a folder in it.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        pipeline: what to deploy, such as "cms_op(p)"; by default the recommended one.
        preserve: what the recommended pipeline must keep of the pooled ranking.
        outputs: the frozen outputs behind the run; by default the folder that the run recorded.
        destination: where to write; by default a folder named deployed beside the calibration folder.
        cases: fit on all pool cases, or on cal_val of one repeat, which leaves its test cases unseen.
        repeat: which repeat, for cal_val.
        networks: also name the networks and their preprocessing, so that images can be taken.
        json: print what was written as JSON.
        trust: import classes of other packages that the run's folder names.
        bundle: also copy the networks' checkpoints into the folder, so that it can be moved by itself.
    """
    runs = find_runs(calibration)
    if runs is not None and bundle:
        raise ValueError("a model of regions takes stored outputs alone: there are no networks to --bundle")
    if runs is not None:
        views = write_views(outputs) if outputs is not None else {}
        place = destination or runs.resolve().parent / "deployed"
        found, written = read_runs(runs, trust), []
        with replaced_files(place) as aside:
            for run in found:
                store, slug = OutputStore(views[run.region.name]) if views else run.store, run.region.slug
                (aside / slug).mkdir()
                home, chosen = place / slug, (cases, repeat, False, preserve)
                written.append(write_deployment(run.results, store, aside / slug, pipeline, *chosen, home=home))
            save_regions(aside, [run.region for run in found], written)
        for run, deployment in zip(found, written, strict=True):
            _say(deployment, place / run.region.slug, json)
        return 0
    results = Results(calibration, trust)
    calibration = results.folder
    store = OutputStore(outputs or Path(results.settings["outputs"]))
    folder = destination or calibration.resolve().parent / "deployed"
    options = {"cases": cases, "repeat": repeat, "networks": networks, "preserve": preserve, "trust": trust}
    options |= {"bundle": bundle}
    deployed = write(results, store, folder, pipeline, **options)
    _say(deployed, folder, json)
    if pipeline is None and not json and (told := simpler(calibration, preserve, deployed)):
        print(told)
    return 0


def simpler(calibration: Path, preserve: Preserve, written: Deployment) -> str | None:
    """Which simpler pipelines are within noise of the deployed one, and why they were not taken; None without any."""
    found = None if "selection" in written.fit else stored_advice(calibration, preserve)
    if found is None or found[0].pipeline != written.pipeline:
        return None
    names = [written.pipeline, *found[0].within_noise]
    size = {name: Pipeline.parse(name, written.num_classes).calibrator.num_identifiable for name in names}
    few = sorted((name for name in names if size[name] < size[written.pipeline]), key=lambda name: size[name])
    if not few:
        return None
    told = ", ".join(f"{name} ({size[name]})" for name in few)
    return (
        f"simpler and within noise of it on test, with their numbers of parameters: {told}; {written.pipeline} has "
        f'{size[written.pipeline]}. They were not taken since test has no say in the choice: --pipeline "{few[0]}" does'
    )


def _say(written: Deployment, folder: Path, json: bool) -> None:
    """Print what was written."""
    if json:
        facts = {"deployed": str(folder), "pipeline": written.pipeline, "images": written.network is not None}
        print(json_format.dumps(facts | {"estimate": written.estimate}))
        return
    for warning in written.fit["certificate"].get("warnings", []):
        print(f"warning: {warning}")
    taken = "images and stored outputs" if written.network is not None else "stored outputs"
    print(f"{written.pipeline}, fitted on {written.fit['num_cases']} cases, takes {taken}\n{folder / CARD}")
