"""What users read when data, options or they themselves stand in the way."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import yaml
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from lightning_calib.cli.calibrate import main as calibrate
from lightning_calib.cli.configs import CONFIGS, with_packaged
from lightning_calib.cli.errors import TRACEBACK, guarded
from lightning_calib.cli.train import main
from lightning_calib.segmenters import SmpNetwork
from tests.layouts import write_folder
from tests.training import refused, tiny_config, train

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    """Config of a data set in a folder."""
    root = write_folder(tmp_path / "data")
    config = tiny_config(tmp_path)
    facts = yaml.safe_load(config.read_text())
    arguments = {"root": str(root), "class_names": ["a", "b", "c"], "group_regex": "^(p..)"}
    facts["data"] = {"class_path": "lightning_calib.datasets.folder.Folder", "init_args": arguments}
    config.write_text(yaml.safe_dump(facts))
    return config


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict", "ensemble"])
def test_a_group_in_pool_and_training_is_told_first(folder, command, capsys):
    names = folder.parent / "pool.txt"
    names.write_text("p00_a\np01_a\n")
    option = f"--data.init_args.pool_list={names}"
    capsys.readouterr()
    assert main([command, "--config", str(folder), option]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: 2 problems in data")
    assert lines[1] == "- group 'p00' is in pool and training; list all of it"
    assert len(lines) == 3


def test_problems_are_listed_once_and_not_for_pages(folder, capsys):
    masks = folder.parent / "data" / "masks"
    for number in range(14):
        shutil.copy(masks / "p00_a.png", masks / f"x{number}.png")
    capsys.readouterr()
    assert main(["fit", "--config", str(folder)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "14 problems" in lines[0]
    assert "x0.png: no image of the same name" in lines[1]
    assert lines[11:] == ["... and 4 more"]


def test_a_missing_file_is_told(folder, capsys):
    refused(capsys, "/nowhere.txt", "fit", folder, "--data.init_args.pool_list=/nowhere.txt")


@pytest.mark.parametrize("name", ["", "../evil", "/evil", "a/../../evil", ".hidden", "a\nb"])
def test_a_run_stays_in_the_folder_of_runs(folder, capsys, name):
    refused(capsys, "cannot name a folder in", "fit", folder, f"--name={name}")
    assert sorted(path.name for path in folder.parent.iterdir()) == ["data", "tiny.yaml"]


@pytest.mark.parametrize("problem", [MisconfigurationException("no gpu here"), MemoryError("9 TB")])
def test_what_lightning_and_memory_refuse_is_told(capsys, problem):
    def work():
        raise problem

    assert guarded(work) == 2
    assert capsys.readouterr().err == f"error: {problem}\n"


def test_a_wrong_name_among_hundreds_gets_the_nearest():
    with pytest.raises(ValueError, match="supported encoders: resnet18, ") as caught:
        SmpNetwork("unet", "resnet1").build(3, 2, 2)
    assert len(str(caught.value)) < 200


def test_the_traceback_comes_back_on_request(folder, monkeypatch):
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(ValueError, match="no such folder"):
        main(["fit", "--config", str(folder), "--data.init_args.root=/nowhere"])


@pytest.mark.parametrize(
    ("program", "wrong", "meant"),
    [
        (main, ["fit", "--trainer.max_epoch=3"], "trainer.max_epochs"),
        (main, ["fit", "--data=lightning_calib.datasets.shapes.Shapes", "--data.batchsize=3"], "batch_size"),
        (calibrate, ["fit", "--trainer.device=2"], "trainer.devices"),
        (calibrate, ["run", "--repeat=2"], "repeats"),
        (calibrate, ["study", "flips", "--pipeline=ts(z)"], "pipelines"),
    ],
)
def test_a_wrong_option_is_answered_by_the_nearest(program, wrong, meant, capsys):
    with pytest.raises(SystemExit) as caught:
        program(wrong)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert f"did you mean {meant}?" in lines
    assert len(lines) < 7


def test_a_wrong_key_of_a_config_is_answered_by_the_nearest(tmp_path, capsys):
    config = tiny_config(tmp_path, max_epoch=3)
    with pytest.raises(SystemExit):
        main(["fit", "--config", str(config)])
    assert "did you mean trainer.max_epochs?" in capsys.readouterr().err


def test_configs_of_the_package_stand_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("shapes.yaml", "configs/shapes.yaml"):
        assert with_packaged(["fit", "--config", name]) == ["fit", "--config", str(CONFIGS / "shapes.yaml")]
        assert f"{name} is not here; taking {CONFIGS}" in capsys.readouterr().err
    taken = str(CONFIGS / "calibrate" / "camvid.yaml")
    for name in ("camvid.yaml", "configs/calibrate/camvid.yaml"):
        assert with_packaged([f"--config={name}"], "calibrate") == [f"--config={taken}"]
    assert with_packaged(["-c", "elsewhere/shapes.yaml", "-c"]) == ["-c", "elsewhere/shapes.yaml", "-c"]
    (tmp_path / "shapes.yaml").touch()
    assert with_packaged(["-c", "shapes.yaml"]) == ["-c", "shapes.yaml"]


def test_configs_at_the_top_are_those_of_the_package():
    assert (ROOT / "configs").resolve() == CONFIGS.resolve()


def test_class_paths_of_earlier_versions_are_understood(tmp_path):
    """Also where a member was begun by an earlier version."""
    config = tiny_config(tmp_path)
    old = config.read_text().replace("lightning_calib.datasets.", "lightning_calib.data.")
    assert "lightning_calib.data." in old
    config.write_text(old)
    train("fit", config)
    kept = tmp_path / "runs" / "tiny" / "members" / "0" / "config.yaml"
    assert "lightning_calib.datasets.shapes.Shapes" in kept.read_text()
    kept.write_text(kept.read_text().replace("lightning_calib.datasets.", "lightning_calib.data."))
    (kept.parent / "checksums.json").unlink()  # which those versions did not write
    train("fit", config)


def test_an_interrupt_is_one_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert guarded(interrupted) == 130
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", [["fit"], ["ensemble", "--members", "2", "--parallel", "2"]])
def test_ctrl_c_ends_a_training_in_one_line(tmp_path, command):
    config = tiny_config(tmp_path, epochs=1000)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *command, "--config", str(config)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests may run in the background
    )
    progress = tmp_path / "runs" / "tiny" / "members" / "0" / "progress.json"
    deadline = time.monotonic() + 240
    while not progress.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert error.splitlines()[-1].startswith("interrupted; run the same line again")
    assert "Traceback" not in error
    epoch = json.loads(progress.read_text())["epoch"]
    time.sleep(1)
    assert json.loads(progress.read_text())["epoch"] == epoch


def test_a_terminal_without_arrows_gets_question_marks(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert guarded(lambda: print("NLL ↓")) == 0
    sys.stdout.flush()
    assert raw.getvalue() == b"NLL ?\n"


def test_warnings_are_told_like_errors(capsys, monkeypatch):
    """One line in the form of the call, without the place in our code; other packages' keep theirs."""
    from lightning_calib.kit import noise

    def work():
        for place in (noise.__file__, "/lib/other.py"):
            warnings.warn_explicit("see `calibrate.py doctor`", UserWarning, place, 1)

    monkeypatch.setattr("sys.argv", ["/bin/lightning-calib"])
    before = warnings.formatwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *facts, **rest: print(warnings.formatwarning(*facts[:4]), end="", file=sys.stderr)
        assert guarded(work) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "warning: see `lightning-calib calibrate doctor`"
    assert told[1] == "/lib/other.py:1: UserWarning: see `calibrate.py doctor`"
    assert warnings.formatwarning is before
