"""From real volumes to a deployed calibrator, with the shipped configs and the commands of the documentation."""

import json

import numpy as np
import pytest

from lightning_calib.cli.calibrate import main as calibrate
from lightning_calib.cli.train import main as train
from lightning_calib.experiment.results import Results
from lightning_calib.outputs.store import OutputStore

PIPELINES = ["identity(z)", "ts(z)", "ms(z)", "cms_ap(z)", "cms_op(z)", "lts_ti(z)"]
TINY = {
    "data.init_args.pool_fraction": 0.5,
    "data.init_args.samples_per_epoch": 8,
    "model.network.init_args.features": "[4,8]",
    "model.network.init_args.blocks": "[1,1]",
    "trainer.max_epochs": 2,
    "trainer.enable_progress_bar": "false",
}


@pytest.fixture(scope="module")
def few_cases(hippocampus_root, tmp_path_factory):
    """A task of 24 volumes."""
    root = tmp_path_factory.mktemp("task")
    index = json.loads((hippocampus_root / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps(index | {"training": index["training"][:24]}))
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).symlink_to(hippocampus_root / folder)
    return root


@pytest.mark.slow
def test_hippocampus_from_images_to_a_deployed_calibrator(few_cases, tmp_path, capfd):
    options = [f"--{key}={value}" for key, value in TINY.items()]
    common = ["--config=configs/hippocampus.yaml", f"--data.init_args.root={few_cases}", f"--runs_dir={tmp_path}"]
    train(["ensemble", *common, *options, "--members=2", "--parallel=2"])
    train(["predict", *common, *options])
    run = tmp_path / "hippocampus"
    store = OutputStore(run / "outputs")
    assert len(store) == 12
    assert store.manifest.class_names == ("background", "Anterior", "Posterior")

    sizes = ["--cal=5", "--val=3", "--test=4", "--repeats=2", "--trials=2", "--lts_trials=1", "--lts_epochs=1"]
    outputs = f"--outputs={run / 'outputs'}"
    assert calibrate(["run", outputs, f"--pipelines={','.join(PIPELINES)}", *sizes]) == 0
    results = Results(run / "calibration")
    assert results.missing == []
    nll = {name: np.mean(results.scores(name, "nll")) for name in PIPELINES}
    assert nll["ms(z)"] < nll["ts(z)"] <= nll["identity(z)"]
    for name in ("ts(z)", "cms_ap(z)", "cms_op(z)", "lts_ti(z)"):
        assert np.max(results.scores(name, "flip")) == 0

    calibration = f"--calibration={run / 'calibration'}"
    assert calibrate(["study", "flips", calibration]) == 0
    assert (run / "calibration" / "studies" / "flips" / "study.json").is_file()
    assert 'id="study-flips"' in (run / "report" / "index.html").read_text()
    assert calibrate(["deploy", calibration]) == 0
    assert "takes images and stored outputs" in capfd.readouterr().out
