"""``calibrate.py import`` and ``doctor`` as a user calls them, and the worked example of the docs."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from lightning_calib.cli.calibrate import main
from lightning_calib.outputs.store import OutputStore
from tests.outputs.test_import_folder import write_arrays
from tests.outputs.test_import_nnunet import write_predictions
from tests.stores import write_store

PAGE = (Path(__file__).parents[2] / "docs" / "importing.md").read_text(encoding="utf-8")


def test_the_worked_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    *_, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "importing", "exec"), {})
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.strip().splitlines():
        python, program, *arguments = shlex.split(line)
        assert (python, program) == ("python", "calibrate.py")
        assert main(arguments) == 0, line
    printed = capsys.readouterr().out
    assert "runs/mine/outputs: 12 cases, 2 members, 3 classes" in printed
    assert "12 cases, nothing found" in printed
    store = OutputStore("runs/mine/outputs")
    assert store.groups["p03_scan"] == "p03"
    assert (store.manifest.dataset, store.manifest.class_names) == ("mine", ("grass", "soil", "water"))
    assert (tmp_path / "runs/mine/fits/ts-z-0/calibrator.safetensors").is_file()


def test_the_page_names_every_finding():
    from lightning_calib.outputs import doctor

    sources = "".join(path.read_text() for path in Path(doctor.__file__).parent.glob("*.py"))
    named = set(re.findall(r'"([a-z0-9_]+)",\s+"(?:error|warning)"', sources)) - {"error"}
    assert len(named) >= 13
    assert named <= set(re.findall(r"^\| `([a-z0-9_]+)`", PAGE, re.MULTILINE))


def test_representation_must_be_said(tmp_path, capsys):
    write_arrays(tmp_path)
    line = ["import", "folder", "--scores", str(tmp_path / "m0"), "--targets", str(tmp_path / "masks")]  # one folder
    line += ["--outputs", str(tmp_path / "outputs"), "--class_names", "[a, b, c]"]
    with pytest.raises(SystemExit):
        main(line)
    assert "representation" in capsys.readouterr().err
    assert main([*line, "--representation", "logits"]) == 0
    assert OutputStore(tmp_path / "outputs").manifest.representation == "logits"


def test_probabilities_declared_as_logits_are_found_out(tmp_path, capsys):
    logits, _ = write_arrays(tmp_path, members=1)
    for name, array in logits.items():
        probs = np.exp(array[0]) / np.exp(array[0]).sum(0)
        np.save(tmp_path / "m0" / f"{name}.npy", probs)
    line = ["import", "folder", "--scores", f"[{tmp_path / 'm0'}]", "--targets", str(tmp_path / "masks")]
    line += ["--class_names", "[a, b, c]"]
    assert main([*line, "--outputs", str(tmp_path / "wrong"), "--representation", "logits"]) == 1
    assert "error: softmax_as_logits" in capsys.readouterr().out
    assert main([*line, "--outputs", str(tmp_path / "right"), "--representation", "probs"]) == 0
    assert OutputStore(tmp_path / "right").manifest.representation == "log_probs"


def test_nnunet_probabilities(tmp_path, capsys):
    written = write_predictions(tmp_path, cases=3)
    line = ["import", "nnunet", "--predictions", f"[{tmp_path / 'fold_0'}, {tmp_path / 'fold_1'}]"]
    line += ["--targets", str(tmp_path / "labels"), "--outputs", str(tmp_path / "outputs")]
    assert main(line) == 0
    store = OutputStore(tmp_path / "outputs")
    assert (store.manifest.representation, store.manifest.background) == ("log_probs", 0)
    assert store.manifest.class_names == ("background", "front", "back")
    case = store["case_2"]
    np.testing.assert_allclose(
        case.logits.exp()[..., case.valid].numpy(),
        np.stack([written["case_2", fold][:, case.valid.numpy()] for fold in range(2)]),
        rtol=1e-5,
    )
    assert case.geometry["axes"] == "zyx"
    for options, told in (([], "--predictions"), (["--model", "m"], "--model needs --images")):
        assert main([*line[:2], *line[4:], *options]) == 2
        assert told in capsys.readouterr().err


def test_training_images_that_come_back_are_reported(tmp_path, capsys):
    write_predictions(tmp_path, cases=2)
    for folder, names in (("images", ["case_0", "case_1"]), ("training", ["old_0", "old_1"])):
        (tmp_path / folder).mkdir()
        for name in names:
            content = b"the same" if name in ("case_1", "old_0") else name.encode()
            (tmp_path / folder / f"{name}_0000.nii").write_bytes(content)
    line = ["import", "nnunet", "--predictions", f"[{tmp_path / 'fold_0'}]", "--targets", str(tmp_path / "labels")]
    line += ["--outputs", str(tmp_path / "outputs"), "--images", str(tmp_path / "images")]
    for path in (tmp_path / "images").iterdir():
        path.rename(path.with_name(path.name + ".gz"))
    for path in (tmp_path / "images").iterdir():
        import gzip

        path.write_bytes(gzip.compress(path.read_bytes()))
    assert main([*line, "--training_images", str(tmp_path / "training")]) == 1
    assert "case_1: case_1_0000.nii.gz is" in capsys.readouterr().out


def test_doctor_as_json_and_by_exit_code(tmp_path, capsys):
    store = write_store(tmp_path / "outputs", cases=3)
    assert main(["doctor", "--outputs", str(store.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["cases"], facts["findings"]) == (True, 3, [])
    assert main(["doctor", "--outputs", str(store.path), "--pool_images", str(tmp_path)]) == 2
    assert "--training_images" in capsys.readouterr().err
    same = ["--pool_images", str(store.path), "--training_images", str(store.path)]
    assert main(["doctor", "--outputs", str(store.path), "--json", *same]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["name"], finding["severity"]) == ("training_leak", "error")
    assert {"evidence", "cause", "remedy", "cases"} <= set(finding)


@pytest.mark.parametrize("command", ["fit", "search", "run"])
def test_errors_stop_a_fit(tmp_path, capsys, command):
    from tests.outputs.test_doctor import rewrite, with_logits

    good = write_store(tmp_path / "good", cases=6)
    bad = rewrite(good, tmp_path / "bad" / "outputs", with_logits(lambda z: z.softmax(1)))
    named = ["--pipelines", "identity(p)"] if command == "run" else ["--pipeline", "ts(z)"]
    assert main([command, "--outputs", str(bad.path), *named, "--cal", "2", "--val", "2"]) == 2
    told = capsys.readouterr().err
    assert "not fit for calibration" in told
    assert "softmax_as_logits" in told
    assert "--doctor false" in told
    assert not (tmp_path / "bad" / "fits").exists()


def test_a_fit_goes_on_where_the_doctor_is_told_to_stay_away(tmp_path, capsys):
    from tests.outputs.test_doctor import one_hot_fill, rewrite, with_logits

    good = write_store(tmp_path / "good", cases=6, shape=(24, 20))
    bad = rewrite(good, tmp_path / "bad" / "outputs", with_logits(lambda z: z[[0, 0]]))
    line = ["--pipeline", "ts(z)", "--cal", "2", "--val", "2", "--trainer.enable_progress_bar", "false"]
    assert main(["fit", "--outputs", str(bad.path), *line, "--doctor", "false"]) == 0
    odd = rewrite(good, tmp_path / "odd" / "outputs", with_logits(one_hot_fill))
    with pytest.warns(UserWarning, match="exactly the logits of their neighbour"):
        assert main(["fit", "--outputs", str(odd.path), *line]) == 0
    assert "warning: constant_region" in capsys.readouterr().err
