"""New images without masks: drift of them, their scores as a store, and what refuses such a store."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from lightning_calib.kit.files import sha256
from lightning_calib.outputs.manifest import MANIFEST, Member, StoreError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from tests.deployment.runs import calibrate


def verdict(capsys, *line):
    code = calibrate("monitor", *line, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_drift_of_images_is_that_of_their_outputs(run, deployed, capsys):
    common = ["--deployed", deployed]
    stored = verdict(capsys, *common, "--outputs", run / "outputs")
    seen = verdict(capsys, *common, "--images", run / "pictures")
    assert seen[0] == stored[0]
    assert seen[1]["new_cases"] == 24
    for ours, theirs in zip(seen[1]["checks"], stored[1]["checks"], strict=True):
        assert ours["quantity"] == theirs["quantity"]
        assert ours["value"] == pytest.approx(theirs["value"], abs=1e-3)


def test_images_and_outputs_exclude_each_other(run, deployed, capsys):
    both = ["--outputs", run / "outputs", "--images", run / "pictures"]
    for line in ([], both):
        assert calibrate("monitor", "--deployed", deployed, *line) == 2
        assert "give either --outputs or --images" in capsys.readouterr().err


@pytest.fixture(scope="module")
def kept(run, deployed, tmp_path_factory):
    """Maps of six pictures, with the networks' scores kept."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "pictures").mkdir()
    for path in sorted((run / "pictures").iterdir())[:6]:
        shutil.copy(path, folder / "pictures")
    line = ["--images", folder / "pictures", "--destination", folder / "maps", "--precision", "float32"]
    assert calibrate("apply", "--deployed", deployed, *line, "--keep_logits") == 0
    return folder


def test_kept_scores_are_those_of_predict(run, kept):
    store, known = OutputStore(kept / "maps" / "outputs"), OutputStore(run / "outputs")
    assert len(store) == 6
    assert not store.manifest.labelled
    for case in store:
        assert (case.logits - known[case.case_id].logits).abs().max() < 1e-4
        assert set(load_file(case.path)) == {"logits"}
        with pytest.raises(StoreError, match="holds no targets, since its images came without masks"):
            _ = case.target


def test_others_take_the_kept_scores(deployed, kept, capsys):
    outputs = kept / "maps" / "outputs"
    line = ["--outputs", outputs, "--destination", kept / "again", "--precision", "float32"]
    assert calibrate("apply", "--deployed", deployed, *line) == 0
    for path in (kept / "maps").glob("*.safetensors"):
        first, second = load_file(path), load_file(kept / "again" / path.name)
        torch.testing.assert_close(first["probs"], second["probs"], atol=1e-6, rtol=0)
        assert (first["mask"] == second["mask"]).all()
    capsys.readouterr()
    assert verdict(capsys, "--deployed", deployed, "--outputs", outputs)[1]["new_cases"] == 6


@pytest.mark.parametrize("line", [("run", "--pipelines", "ts(p)"), ("doctor",), ("run", "--doctor", "false")])
def test_what_needs_labels_refuses_the_kept_scores(kept, capsys, line):
    command, *options = line
    assert calibrate(command, "--outputs", kept / "maps" / "outputs", *options) == 2
    told = capsys.readouterr()
    assert (told.err + told.out).count("holds no targets") == 1
    assert "Traceback" not in told.err


def test_going_on_does_only_what_is_missing(deployed, kept, capsys):
    line = ["--images", kept / "pictures", "--destination", kept / "maps", "--precision", "float32", "--keep_logits"]
    before = sha256(kept / "maps" / "outputs" / MANIFEST)
    assert calibrate("apply", "--deployed", deployed, *line, "--json") == 0
    assert json.loads(capsys.readouterr().out)["written_now"] == 0
    shutil.rmtree(kept / "maps" / "outputs")
    assert calibrate("apply", "--deployed", deployed, *line, "--workers", "2", "--trust", "true", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["written_now"] == 6
    assert sha256(kept / "maps" / "outputs" / MANIFEST) == before


def test_a_picture_that_has_changed_is_kept_anew(deployed, kept, tmp_path, capsys):
    shutil.copytree(kept, tmp_path / "copy")
    pictures = sorted((tmp_path / "copy" / "pictures").iterdir())
    shutil.copy(pictures[1], pictures[0])
    line = ["--images", pictures[0].parent, "--destination", tmp_path / "copy" / "maps", "--precision", "float32"]
    assert calibrate("apply", "--deployed", deployed, *line, "--keep_logits", "--json") == 0
    assert json.loads(capsys.readouterr().out)["written_now"] == 1
    store = OutputStore(tmp_path / "copy" / "maps" / "outputs")
    assert torch.equal(store[pictures[0].stem].logits, store[pictures[1].stem].logits)


def test_scores_of_outputs_are_kept_already(run, deployed, tmp_path, capsys):
    line = ["--outputs", run / "outputs", "--destination", tmp_path, "--keep_logits"]
    assert calibrate("apply", "--deployed", deployed, *line) == 2
    assert "--keep_logits is for --images" in capsys.readouterr().err


def test_a_case_must_be_as_the_store(tmp_path):
    scores, target = torch.zeros(1, 2, 4, 4), torch.zeros(4, 4, dtype=torch.long)
    labelled = OutputWriter(tmp_path / "a", "toy", ["sky", "road"], 2, [Member("0")])
    unlabelled = OutputWriter(tmp_path / "b", "toy", ["sky", "road"], 2, [Member("0")], labelled=False)
    for writer, wrong, right in ((labelled, None, target), (unlabelled, target, None)):
        with pytest.raises(StoreError, match="a target where the store has none, or none where it has targets"):
            writer.write("one", scores, wrong)
        assert writer.write("one", scores, right).voxels == 16
        writer.finish()
    assert '"labelled": false' in (tmp_path / "b" / MANIFEST).read_text()
    assert "labelled" not in (tmp_path / "a" / MANIFEST).read_text()
