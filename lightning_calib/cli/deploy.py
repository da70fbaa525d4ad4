"""``calibrate.py deploy``: the calibrated model in one folder."""

import json as json_format
from pathlib import Path

from lightning_calib.deployment.deploy import deploy as write_deployment
from lightning_calib.deployment.folder import CARD, Deployment
from lightning_calib.deployment.refit import Cases
from lightning_calib.deployment.regions import REGIONS, save_regions
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.layout import find_runs
from lightning_calib.experiment.regions import read_runs
from lightning_calib.experiment.results import Results
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
    """
    runs = find_runs(calibration)
    if runs is not None:
        views = write_views(outputs) if outputs is not None else {}
        place = destination or runs.resolve().parent / "deployed"
        (place / REGIONS).unlink(missing_ok=True)  # what is half written must not pass for what was there before
        found, written = read_runs(runs), []
        for run in found:
            store = OutputStore(views[run.region.name]) if views else run.store
            folder = place / run.region.slug
            written.append(write_deployment(run.results, store, folder, pipeline, cases, repeat, False, preserve))
            _say(written[-1], folder, json)
        save_regions(place, [run.region for run in found], written)
        return 0
    results = Results(calibration)
    store = OutputStore(outputs or Path(results.settings["outputs"]))
    folder = destination or calibration.resolve().parent / "deployed"
    _say(write_deployment(results, store, folder, pipeline, cases, repeat, networks, preserve), folder, json)
    return 0


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
