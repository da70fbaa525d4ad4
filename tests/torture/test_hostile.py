"""Folders from strangers: nothing of theirs is run, and nothing outside them is touched."""

import json
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from lightning_calib.calibrators import CALIBRATORS, load_calibrator
from lightning_calib.calibrators.registry import named_in
from lightning_calib.deployment import CalibratedEnsemble, Deployment
from lightning_calib.experiment.results import Results
from lightning_calib.kit.checksums import CHECKSUMS
from lightning_calib.outputs.manifest import StoreError, read_header
from lightning_calib.outputs.store import OutputStore
from lightning_calib.report.inputs import Inputs
from lightning_calib.segmenters import build_network
from tests.stores import write_store
from tests.torture.outcomes import called, damaged, note

EVIL = "import pathlib\npathlib.Path({mark!r}).touch()\nfrom lightning_calib.calibrators import Identity as Mine\n"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported, on the path; the mark."""
    (tmp_path / "evil_module.py").write_text(EVIL.format(mark=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(CALIBRATORS, "registered", {})
    yield tmp_path / "mark"
    sys.modules.pop("evil_module", None)


@pytest.fixture
def copy(tortured, tmp_path):
    """A copy of the run, without hashes: whoever edits a folder removes them."""
    with damaged(tortured, "outputs/manifest.json", lambda path: None, tmp_path) as root:
        for path in root.rglob(CHECKSUMS):
            path.unlink()
        yield root


def edit(path: Path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(line, evil, word="evil_module"):
    code, _, err = called(line)
    assert code == 2, err
    assert word in err
    assert not evil.exists()
    note("hostile", "clear")


@pytest.mark.parametrize("command", ["recommend", "compare", "report", "deploy", "study"])
def test_pipelines_of_a_run_are_not_imported(copy, evil, command):
    edit(copy / "calibration" / "settings.json", pipelines=["identity(p)", "evil_module.Mine(p)"])
    options = ["offsets"] if command == "study" else []
    (copy / "calibration" / "summary.json").unlink()  # recommend computes without it
    refused([command, *options, "--calibration", copy / "calibration"], evil)


def test_what_a_summary_recommends_is_not_imported(copy, evil):
    text = (copy / "calibration" / "summary.json").read_text()
    (copy / "calibration" / "summary.json").write_text(text.replace("ts(p)", "evil_module.Mine(p)"))
    code, _, err = called(["report", "--calibration", copy / "calibration", "--destination", copy / "report"])
    assert not evil.exists(), err
    assert code in (0, 2)


def test_a_run_of_ones_own_is_imported_on_request(copy, evil):
    edit(copy / "calibration" / "settings.json", pipelines=["identity(p)", "evil_module.Mine(p)"])
    Results(copy / "calibration", trust=True)
    assert evil.exists()


def test_deployed_folders_and_calibrators_import_nothing(copy, evil, tmp_path):
    deployed = copy / "deployed"
    apply = ["apply", "--deployed", deployed, "--outputs", copy / "outputs", "--destination", tmp_path / "maps"]
    edit(deployed / "deployment.json", pipeline="evil_module.Mine(p)")
    refused(apply, evil)
    with pytest.raises(ValueError, match="--trust"):
        build_network({"class_path": "evil_module.Mine"}, 3, 2, 2)
    path = copy / "calibration" / "repeats" / "0" / "ts-p" / "calibrator.safetensors"
    header = {"format_version": 1, "name": "evil_module.Mine", "num_classes": 3, "spatial_dims": 2, "options": {}}
    save_file(load_file(path), path, metadata={"lightning_calib": json.dumps(header)})
    with pytest.raises(ValueError, match="a file alone causes no import"):
        load_calibrator(path)
    assert not evil.exists()


@pytest.mark.parametrize("path", ["subprocess.Popen", "os.system", "pytest.exit"])
def test_classes_that_are_there_already_are_not_called(tmp_path, path):
    """Modules that are imported need no import: what they hold must be of the kind that is asked for."""
    options = {"args": ["touch", str(tmp_path / "mark")], "command": f"touch {tmp_path}/mark"}
    for given in ({}, options):
        with pytest.raises(ValueError, match="is no network of the ensemble"):
            build_network({"class_path": path, "init_args": given}, 3, 2, 2)
    with pytest.raises(ValueError, match=r"must be a subclass of Calibrator|cannot import"):
        named_in("deployment.json", path)
    assert not (tmp_path / "mark").exists()
    note("hostile", "clear")


def test_a_member_config_imports_nothing(copy, evil):
    """Stores of the first version take the preprocessing from there."""
    manifest = copy / "outputs" / "manifest.json"
    facts = json.loads(manifest.read_text()) | {"format_version": 1, "preprocessing": None}
    facts["members"] = [member | {"checkpoint": "members/0/last.ckpt"} for member in facts["members"]]
    manifest.write_text(json.dumps(facts))
    config = copy / "members" / "0" / "config.yaml"
    config.parent.mkdir(parents=True)
    network = {"class_path": "lightning_calib.segmenters.UNet", "init_args": {}}
    config.write_text(yaml.safe_dump({"data": {"class_path": "evil_module.Mine"}, "model": {"network": network}}))
    settings = copy / "calibration" / "settings.json"
    edit(settings, outputs=str(copy / "outputs"), outputs_sha256=None)
    refused(["deploy", "--calibration", settings.parent, "--pipeline", "ts(p)"], evil)


@pytest.mark.parametrize(
    "case_id", ["../../deployed/deployment", "/etc/hostname", "..", "a/b", ".hidden", "", "a\nb", 7]
)
def test_ids_stay_in_their_folder(copy, tmp_path, case_id):
    facts = json.loads((copy / "outputs" / "manifest.json").read_text())
    facts["cases"][0]["case_id"] = case_id
    (copy / "outputs" / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(StoreError, match="cannot name a file"):
        OutputStore(copy / "outputs")
    before = (copy / "deployed" / "deployment.json").read_bytes()
    apply = ["apply", "--deployed", copy / "deployed", "--outputs", copy / "outputs", "--destination", tmp_path / "m"]
    assert called(apply)[0] == 2
    assert (copy / "deployed" / "deployment.json").read_bytes() == before
    note("hostile", "clear")


@pytest.mark.parametrize("key", ["dataset", "class_names", "members"])
def test_names_cannot_command_a_terminal(copy, key):
    path = copy / "outputs" / "manifest.json"
    facts, name = json.loads(path.read_text()), "a\x1b[2J"
    facts[key] = {"dataset": name, "class_names": ["x", "y", name], "members": [facts["members"][0] | {"name": name}]}[
        key
    ]
    path.write_text(json.dumps(facts))
    code, out, err = called(["doctor", "--outputs", copy / "outputs"])
    assert code == 2
    assert "holds line breaks or control characters" in err
    assert "\x1b" not in out + err
    note("hostile", "clear")


def test_a_deployment_must_be_of_its_calibrator(copy):
    deployed = copy / "deployed"
    for change in (
        {"pipeline": "ts(z)"},
        {"pipeline": "cms_op(p)"},
        {"class_names": ["x", "y", "z"]},
        {"spatial_dims": 3},
    ):
        whole = (deployed / "deployment.json").read_text()
        edit(deployed / "deployment.json", **change)
        with pytest.raises(ValueError, match=r"is not of deployment\.json"):
            CalibratedEnsemble.load(deployed)
        (deployed / "deployment.json").write_text(whole)
        note("hostile", "clear")


def test_a_report_takes_no_maps_of_another_store(copy, tmp_path):
    other = write_store(tmp_path / "other", cases=6, num_classes=3, shape=(8, 12), ignore_index=None, seed=1)
    inputs = Inputs.open(copy / "calibration", other.path)
    assert inputs.store is None
    assert "another store than the one" in inputs.store_problem
    assert Inputs.open(copy / "calibration", copy / "outputs").store is not None
    note("hostile", "clear")


def test_a_calibrator_that_is_not_finite_is_refused(copy):
    path = copy / "calibration" / "repeats" / "0" / "ts-p" / "calibrator.safetensors"
    state = {key: torch.full_like(value, torch.nan) for key, value in load_file(path).items()}
    header = {"format_version": 1, "name": "ts", "num_classes": 3, "spatial_dims": 2, "options": {}}
    save_file(state, path, metadata={"lightning_calib": json.dumps(header)})
    with pytest.raises(ValueError, match="is NaN or infinite; fit it again"):
        load_calibrator(path)
    note("hostile", "clear")


HEADERS = {
    "format_version": "1",
    "name": 5,
    "num_classes": "3",
    "spatial_dims": None,
    "options": [1],
    "more options": {"no_such_option": 1},
    "classes": 10**6,
}


@pytest.mark.parametrize("wrong", HEADERS)
def test_headers_of_calibrators_are_typed(tmp_path, wrong):
    header = {"format_version": 1, "name": "ms", "num_classes": 3, "spatial_dims": 2, "options": {}}
    key = {"more options": "options", "classes": "num_classes"}.get(wrong, wrong)
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.zeros(1)}, path, metadata={"lightning_calib": json.dumps(header | {key: HEADERS[wrong]})})
    with pytest.raises(ValueError, match=r"a\.safetensors"):
        load_calibrator(path)
    note("hostile", "clear")


def test_headers_that_nest_are_refused(copy):
    path = next((copy / "outputs" / "cases").iterdir())
    bomb = b"[" * 100_000
    path.write_bytes(struct.pack("<Q", len(bomb)) + bomb)
    with pytest.raises(StoreError, match="is not a safetensors file"):
        read_header(path)
    assert called(["verify", "--outputs", copy / "outputs"])[0] == 1
    note("hostile", "clear")


def test_headers_that_declare_terabytes_are_refused(copy):
    path = next((copy / "outputs" / "cases").iterdir())
    path.write_bytes(struct.pack("<Q", 2**42) + b"{}")
    with pytest.raises(StoreError, match="longer than the file"):
        read_header(path)
    assert called(["verify", "--outputs", copy / "outputs"])[0] == 1
    note("hostile", "clear")


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_pickles_are_not_read(tmp_path):
    for name in ("scores", "targets"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", x=np.array([Bomb(tmp_path / "mark")], dtype=object))
    (tmp_path / "scores" / "b.npy").write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    line = ["import", "folder", "--scores", tmp_path / "scores", "--target_key", "x", "--representation", "logits"]
    assert called([*line, "--class_names", "[a, b]", "--outputs", tmp_path / "outputs"])[0] == 2
    assert not (tmp_path / "mark").exists()
    note("hostile", "clear")


def test_names_cannot_speak_html(copy):
    facts = json.loads((copy / "calibration" / "settings.json").read_text())
    script = "<script>alert(1)</script>"
    facts["dataset"] |= {"name": script, "class_names": [script, "=cmd()", "b"]}
    (copy / "calibration" / "settings.json").write_text(json.dumps(facts))
    line = ["report", "--calibration", copy / "calibration", "--destination", copy / "report"]
    code, _, err = called(line)
    assert code == 0, err
    assert script not in (copy / "report" / "index.html").read_text()
    note("hostile", "survived")
    path = copy / "outputs" / "manifest.json"
    path.write_text(path.read_text().replace('"toy"', json.dumps(script)))
    edit(copy / "calibration" / "settings.json", outputs=str(copy / "outputs"), outputs_sha256=None)
    assert called(["deploy", "--calibration", copy / "calibration", "--pipeline", "ts(p)"])[0] == 0
    _, _, shown = (copy / "deployed" / "README.md").read_text().split("---\n", 2)
    assert script not in shown
    assert r"\<script\>alert(1)\</script\>" in shown


def test_a_deployment_says_what_is_wrong_with_it(copy):
    path = copy / "deployed" / "deployment.json"
    whole = json.loads(path.read_text())
    for key in whole:
        path.write_text(json.dumps(whole | {key: {"a": [None]}}))
        try:
            Deployment.load(copy / "deployed").read_calibrator(copy / "deployed")
        except ValueError:
            note("hostile", "clear")
        else:  # free facts, for the card alone
            assert key in ("fit", "estimate", "network")
            note("hostile", "survived")
