"""Deployed folders to and from the Hugging Face hub, against a stand-in on the loopback."""

import json
from dataclasses import replace

import pytest
import torch
from huggingface_hub import constants

import lightning_calib as lc
from lightning_calib.calibrators import TemperatureScaling, save_calibrator
from lightning_calib.cli.calibrate import main
from lightning_calib.deployment import Deployment, DeploymentError
from lightning_calib.kit.files import sha256
from lightning_calib.outputs.manifest import Member
from tests.deployment.hub_server import COMMIT, serving

CARD = """---
library_name: lightning_calib
---

# ts(z) on toy

## What it is

- members: ../secret/place

## How to use it

X

## Limits

L
"""


@pytest.fixture
def folder(tmp_path):
    """A deployed folder that names a checkpoint of this machine, and networks to go with it."""
    place = tmp_path / "run" / "deployed"
    place.mkdir(parents=True)
    checkpoint = tmp_path / "run" / "members" / "0.ckpt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"weights")
    calibrator = TemperatureScaling(3)
    with torch.no_grad():
        calibrator.log_temperature.fill_(0.5)
    save_calibrator(place / "calibrator.safetensors", calibrator, ["a", "b", "c"], {"pipeline": "ts(z)"})
    (place / "reference.json").write_text("{}")
    (place / "README.md").write_text(CARD)
    (place / "notes.txt").write_text("private")
    Deployment(
        pipeline="ts(z)",
        dataset="toy",
        class_names=("a", "b", "c"),
        spatial_dims=2,
        members=(Member("0", "../members/0.ckpt", sha256(checkpoint)),),
        network={"class_path": "toy.Network"},
        calibrator_sha256=sha256(place / "calibrator.safetensors"),
        fit={"cases": "all", "num_cases": 4, "hyperparameters": {}, "certificate": {}},
    ).save(place)
    return place


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serving() as (address, repos):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_made_up")
        yield repos


def test_what_is_pushed_is_what_is_loaded(folder, hub, tmp_path, capsys):
    assert main(["push", "--deployed", str(folder), "--repo", "me/toy"]) == 0
    assert capsys.readouterr().out == f"hf://me/toy@{COMMIT}\n"
    assert set(hub["me/toy"]) == {
        "README.md",
        "calibrator.safetensors",
        "deployment.json",
        "reference.json",
        "checksums.json",
    }
    logits = torch.randn(2, 1, 3, 4, 4)
    expected = lc.load_model(folder, networks=False)(logits)
    for place in ("hf://me/toy", f"hf://me/toy@{COMMIT}"):
        assert torch.equal(lc.load_model(place)(logits), expected)
    assert main(["pull", "--repo", "me/toy", "--destination", str(tmp_path / "here")]) == 0
    assert torch.equal(lc.load_model(tmp_path / "here")(logits), expected)


def test_no_paths_of_this_machine_are_pushed(folder, hub):
    main(["push", "--deployed", str(folder), "--repo", "me/toy"])
    deployment = json.loads(hub["me/toy"]["deployment.json"])
    assert [member["checkpoint"] for member in deployment["members"]] == [""]
    assert deployment["network"] is None
    card = hub["me/toy"]["README.md"].decode()
    assert "secret" not in card
    assert 'lc.load_model("hf://me/toy")' in card
    assert card.startswith("---\nlibrary_name: lightning_calib\n---\n\n# ts(z) on toy\n")
    assert card.endswith("## Limits\n\nL\n")


def test_networks_go_along_on_request(folder, hub, tmp_path):
    assert main(["push", "--deployed", str(folder), "--repo", "me/toy", "--networks"]) == 0
    assert hub["me/toy"]["networks/0.ckpt"] == b"weights"
    assert main(["pull", "--repo", "me/toy", "--destination", str(tmp_path / "here")]) == 0
    pulled = Deployment.load(tmp_path / "here")
    assert pulled.checkpoints(tmp_path / "here")["0"].read_bytes() == b"weights"
    replace(Deployment.load(folder), network=None).save(folder)
    assert main(["push", "--deployed", str(folder), "--repo", "me/toy", "--networks"]) == 2


def test_a_changed_calibrator_is_refused(folder, hub, tmp_path):
    main(["push", "--deployed", str(folder), "--repo", "me/toy"])
    hub["me/toy"]["calibrator.safetensors"] += b" "
    assert main(["pull", "--repo", "me/toy", "--destination", str(tmp_path / "here")]) == 2
    with pytest.raises(DeploymentError, match="changed or damaged"):
        lc.load_model("hf://me/toy")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("hf://me/nothing", "did not give or take me/nothing"),
        ("hf://nothing", "write hf://owner/name"),
        ("hf://me/empty", "deployment.json is missing"),
    ],
)
def test_what_is_not_there_is_told(hub, place, message):
    hub["me/empty"] = {"README.md": b"#"}
    with pytest.raises(DeploymentError, match=message):
        lc.load_model(place)


def test_a_hub_that_is_not_there_is_told(folder, monkeypatch, capsys):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert main(["push", "--deployed", str(folder), "--repo", "me/toy"]) == 2
    assert "is there a network?" in capsys.readouterr().err
