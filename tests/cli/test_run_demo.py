"""The demo runs from nothing to a report."""

import pytest

from lightning_calib.cli.demo import CONFIG, demo
from lightning_calib.experiment.results import Results

TINY = """
name: demo
data:
  class_path: lightning_calib.datasets.shapes.Shapes
  init_args: {num_train: 8, num_val: 2, num_pool: 15, size: [32, 32], batch_size: 4}
model:
  network:
    class_path: lightning_calib.segmenters.SmpNetwork
    init_args:
      encoder_name: mobilenet_v2
      options: {decoder_channels: [16, 8, 8, 8, 8]}
trainer:
  max_epochs: 1
"""


def test_demo(tmp_path, capfd):
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    runs = tmp_path / "runs"
    assert demo(runs_dir=runs, config=config, members=2, repeats=1, trials=1, lts_trials=1, lts_epochs=1) == 0
    results = Results(runs / "demo" / "calibration")
    assert len(results.pipelines) == 19
    assert results.missing == []
    assert (runs / "demo" / "report" / "index.html").is_file()
    text = capfd.readouterr().out
    assert "3/3 calibrating" in text
    assert "(d)" in text
    assert str(runs / "demo" / "report" / "index.html") in text


def test_the_demo_has_its_config():
    assert CONFIG.is_file()


def test_a_step_that_fails_ends_the_demo(tmp_path, capfd):
    (tmp_path / "wrong.yaml").write_text(TINY + "  max_epoch: 1\n")
    with pytest.raises(SystemExit) as caught:
        demo(runs_dir=tmp_path / "runs", config=tmp_path / "wrong.yaml", members=1)
    assert caught.value.code == 2
    assert "did you mean trainer.max_epochs?" in capfd.readouterr().err
