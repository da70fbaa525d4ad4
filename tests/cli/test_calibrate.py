"""calibrate.py fit, search, evaluate and verify, as users call them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from lightning_calib.calibrators import load_calibrator, read_header
from lightning_calib.cli.calibrate import main
from lightning_calib.outputs.partition import Split
from lightning_calib.outputs.stored import StoredOutputsDataModule
from tests.stores import write_store

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "calibrate").glob("*.yaml"))
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("cli") / "run" / "outputs", cases=9, shape=(12, 12)).path


def fit_line(outputs, *more):
    return ["fit", f"--outputs={outputs}", "--pipeline=cms_op(p)", "--cal=4", "--val=2", *QUIET, *more]


def test_fit_then_evaluate(outputs, capsys):
    assert main(fit_line(outputs)) == 0
    folder = outputs.parent / "fits" / "cms_op-p-0"
    assert "newton" in capsys.readouterr().out
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["converged"]
    with (folder / "curve.csv").open() as file:
        curve = [row for row in csv.DictReader(file) if row["quantity"] == "val_nll"]
    assert len(curve) == certificate["passes"]
    data = StoredOutputsDataModule(outputs, "p", cal=4, val=2)
    assert Split.load(folder / "split.json") == data.split
    assert read_header(folder / "calibrator.safetensors")["class_names"] == data.class_names

    assert (
        main(["evaluate", f"--outputs={outputs}", f"--calibrator={folder}/calibrator.safetensors", "--json", *QUIET])
        == 0
    )
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads((folder / "scores-test.json").read_text())
    assert printed["cases"] == len(data.ids("test")) == 3
    calibrator = load_calibrator(folder / "calibrator.safetensors")
    case_nll = []
    for logits, target, _ in data.batches("test"):
        keep = target != 255
        picked = calibrator(logits).detach().gather(1, target.where(keep, 0)[:, None])[:, 0]
        case_nll.append(-picked[keep].mean())
    assert printed["scores"]["nll"] == pytest.approx(torch.stack(case_nll).mean().item(), abs=1e-6)
    assert printed["scores"]["nll"] < printed["uncalibrated"]["nll"]
    assert printed["scores"]["flip"] == 0
    assert list(printed["class_iou"]) == data.class_names
    for number, name in enumerate(data.class_names):
        pairs = [(logits.argmax(1), target) for logits, target, _ in data.batches("test")]
        found, true = (
            torch.cat([(each == number)[target != 255] for each, target in chosen])
            for chosen in (pairs, [(target, target) for _, target in pairs])
        )
        assert printed["class_iou"][name] == pytest.approx(float((found & true).sum() / (found | true).sum()))
    assert printed["class_iou"] == printed["uncalibrated_class_iou"]
    assert np.mean(list(printed["class_iou"].values())) == pytest.approx(printed["scores"]["miou"], abs=1e-6)


def test_search(outputs, tmp_path, capsys):
    line = ["search", f"--outputs={outputs}", "--pipeline=vs(z)", "--cal=4", "--val=2", "--trials=3"]
    line += [f"--storage={tmp_path}/s.log", f"--destination={tmp_path}/fit"]
    assert main([*line, "--logger=CSVLogger", f"--logger.save_dir={tmp_path}/log"]) == 0
    printed = capsys.readouterr().out
    assert "[3/3] trial 2" in printed
    assert "left" in printed
    trials = json.loads((tmp_path / "fit" / "trials.json").read_text())
    fit = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert fit["val_nll"] == min(row["val_nll"] for row in trials)
    assert list((tmp_path / "log").rglob("metrics.csv"))
    assert main([*line, "--trials=4"]) == 0  # goes on with the same storage
    assert "trial 3" in capsys.readouterr().out


def test_verify(outputs, capsys, tmp_path):
    assert main(["verify", f"--outputs={outputs}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"outputs": str(outputs), "ok": True, "cases": 9, "problem": ""}
    store = write_store(tmp_path / "changed", cases=2)
    path = store["case-01"].path
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    line = ["doctor", f"--outputs={store.path}", "--json"]
    assert main(line) == 2  # one byte at the end: only the hash tells, also where the case is read
    assert "case-01.safetensors does not have the content" in capsys.readouterr().err
    assert main([*line, "--hashes"]) == 1
    named = [found for found in json.loads(capsys.readouterr().out)["findings"] if found["name"] == "changed_files"]
    assert "case-01.safetensors does not have the content" in named[0]["evidence"]
    assert main(["verify", f"--outputs={store.path}"]) == 1
    assert "case-01.safetensors does not have the content" in capsys.readouterr().out
    assert main(["verify", f"--outputs={tmp_path}/nothing", "--json"]) == 1
    assert "no output store" in json.loads(capsys.readouterr().out)["problem"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--pipeline=cms_xx(p)"], "unknown calibrator 'cms_xx'; did you mean cms_"),
        (["--pipeline=cms_op"], "is not a pipeline; write calibrator(pooling)"),
        (["--cal=40"], "cal 40 + val 2 = 42 cases, but the store"),
        (["--outputs=/nowhere"], "there is no output store at /nowhere"),
        (["--pipeline=identity(p)"], "identity has nothing to fit"),
        (["--pipeline=ets(p)", "--solver=newton"], "newton cannot fit ets"),
        (["--outside=one_hot_logits"], "needs a background class"),
        (["--pipeline=lts(z)", "--val=0"], "lbfgs stops by the NLL on val"),
    ],
)
def test_bad_input_is_named_without_a_traceback(outputs, capsys, more, message):
    assert main(fit_line(outputs, *more)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("wrong", ["--call=4", "--outside=somewhere", "--trainer.device=2", "--lam=much"])
def test_wrong_options_are_refused_when_parsing(outputs, capsys, wrong):
    with pytest.raises(SystemExit) as stopped:
        main(fit_line(outputs, wrong))
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err


def test_help_comes_from_docstrings(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help-all"])
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        'such as "cms_op(p)"',
        "keep cases of one group (patient, sequence, tile) in one part",
        "--trainer.devices",
    ):
        assert text in printed


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("command", ["fit", "search"])
def test_configs_are_understood_by_every_command(outputs, capsys, config, command):
    with pytest.raises(SystemExit):
        main([command, f"--config={config}", f"--outputs={outputs}", "--pipeline=ts(p)", "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)
    stated = yaml.safe_load(config.read_text())
    assert {key: printed[key] for key in stated} == stated


def test_configs_hold_the_partitions_of_the_paper():
    sizes = {
        path.stem: tuple(yaml.safe_load(path.read_text())[part] for part in ("cal", "val", "test")) for path in CONFIGS
    }
    assert sizes["brats"] == (50, 27, 194)
    assert sizes["cityscapes"] == (50, 50, 400)
    assert sizes["massroads"] == (50, 24, 169)


def test_evaluate_asks_for_what_it_needs(outputs, tmp_path, capsys):
    from lightning_calib.calibrators import build, save_calibrator

    save_calibrator(tmp_path / "a" / "ts.safetensors", build("ts", 4))
    save_calibrator(tmp_path / "a" / "five.safetensors", build("ts", 5))
    line = ["evaluate", f"--outputs={outputs}", *QUIET]
    for name, more, message in (
        ("ts", ["--part=all"], "does not say how its logits were pooled"),
        ("ts", ["--pooling=z"], "no split at"),
        ("five", ["--part=all"], "is for 5 classes"),
        ("none", ["--part=all"], "no calibrator file at"),
    ):
        assert main([*line, f"--calibrator={tmp_path}/a/{name}.safetensors", *more]) == 2
        assert message in capsys.readouterr().err
    assert main([*line, f"--calibrator={tmp_path}/a/ts.safetensors", "--part=all", "--pooling=z"]) == 0
    assert "uncalibrated" in capsys.readouterr().out
