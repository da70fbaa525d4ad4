"""train.py in this process: members, resumption, prediction and what is refused."""

import json
import shutil

import pytest
import torch
import yaml

from lightning_calib.cli import prediction
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.outputs.store import OutputStore
from tests.training import TinyNetwork, explosion, file_bytes, refused, tiny_config, train


@pytest.fixture(scope="module")
def two_members(tmp_path_factory):
    """A run with two trained members and no outputs yet."""
    folder = tmp_path_factory.mktemp("two_members")
    config = tiny_config(folder)
    for seed in (0, 1):
        train("fit", config, "--seed_everything", seed)
    return folder


@pytest.fixture
def run(two_members, tmp_path):
    """A copy of that run, free to be changed: its config file."""
    shutil.copytree(two_members, tmp_path, dirs_exist_ok=True)
    return tiny_config(tmp_path)


def weights(config, seed=0, which="last"):
    path = config.parent / "runs" / "tiny" / "members" / str(seed) / "checkpoints" / f"{which}.ckpt"
    return torch.load(path, weights_only=True)["state_dict"]


def close(first, second, tolerance=1e-6):
    return first.keys() == second.keys() and all(
        torch.allclose(first[name], second[name], atol=tolerance) for name in first
    )


def test_a_member_leaves_checkpoints_config_and_logs(two_members):
    member = two_members / "runs" / "tiny" / "members" / "1"
    files = file_bytes(member)
    assert {"checkpoints/best.ckpt", "checkpoints/last.ckpt", "config.yaml", "finished.json"} <= files.keys()
    assert json.loads(files["finished.json"]) == {"seed": 1, "epochs": 2, "steps": 4}
    assert yaml.safe_load(files["config.yaml"])["seed_everything"] == 1
    header = files["logs/csv/version_0/metrics.csv"].decode().splitlines()[0].split(",")
    assert {"train/loss", "val/loss", "val/dice", "val/ece"} <= set(header)
    assert not list(member.rglob("*.part"))


def test_members_differ_by_their_seed_alone(two_members, tmp_path):
    assert not close(weights(two_members / "tiny.yaml", 0), weights(two_members / "tiny.yaml", 1), 1e-3)
    again = tiny_config(tmp_path)
    train("fit", again, "--seed_everything", 1)
    assert close(weights(again, 1), weights(two_members / "tiny.yaml", 1))


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_interrupted_member_resumes_to_the_same_weights(tmp_path, epoch):
    straight = tiny_config(tmp_path / "straight", epochs=4)
    train("fit", straight)
    broken = tiny_config(tmp_path / "broken", epochs=4, callbacks=[explosion(tmp_path / "flag", epoch)])
    with pytest.raises(RuntimeError, match="the crash of this test"):
        train("fit", broken)
    member = tmp_path / "broken" / "runs" / "tiny" / "members" / "0"
    assert not (member / "finished.json").exists()
    interrupted = weights(broken)
    train("fit", broken)
    assert not close(interrupted, weights(broken), 1e-4)
    assert close(weights(straight), weights(broken))
    assert close(weights(straight, which="best"), weights(broken, which="best"))
    assert json.loads((member / "finished.json").read_text()) == {"seed": 0, "epochs": 4, "steps": 8}


def test_a_finished_member_is_left_alone(run):
    before = file_bytes(run.parent)
    train("fit", run)
    assert file_bytes(run.parent) == before


def test_another_config_is_not_mixed_into_a_run(run, capsys):
    refused(
        capsys, r"member 0 .*model.loss: 'dice_ce' there, 'ce' now.*name another run", "fit", run, "--model.loss", "ce"
    )
    train("fit", run, "--data.init_args.num_workers", "1")  # speed is no difference


def test_validate_and_test_score_a_member(run, capsys):
    train("validate", run)
    assert "val/dice" in capsys.readouterr().out
    train("test", run)
    assert "test/ece" in capsys.readouterr().out
    refused(capsys, r"members/7/checkpoints/last.ckpt does not exist", "validate", run, "--seed_everything", "7")


def test_predict_stores_what_the_members_say(run):
    train("predict", run)
    store = OutputStore(run.parent / "runs" / "tiny" / "outputs")
    store.verify()
    data = Shapes(num_train=8, num_val=3, num_pool=5, size=(16, 24), batch_size=4)
    assert store.case_ids == tuple(data.pool_ids)
    assert store.manifest.dataset == "shapes"
    assert store.manifest.class_names == tuple(data.class_names)
    assert [member.checkpoint for member in store.manifest.members] == [
        f"members/{seed}/checkpoints/last.ckpt" for seed in (0, 1)
    ]
    for batch in data.predict_dataloader():
        case = store[batch["case_id"][0]]
        assert torch.equal(case.target, batch["target"][0])
        for seed in (0, 1):
            network = TinyNetwork().build(3, 4, 2)
            state = {name.removeprefix("network."): value for name, value in weights(run, seed).items()}
            network.load_state_dict(state)
            with torch.no_grad():
                assert torch.allclose(case.logits[seed], network.logits(batch["image"])[0], atol=1e-6)


@pytest.mark.slow
def test_shards_of_a_prediction_write_the_same_store(run, monkeypatch, capsys):
    outputs = run.parent / "runs" / "tiny" / "outputs"
    train("predict", run)
    whole = file_bytes(outputs)
    shutil.rmtree(outputs)
    monkeypatch.setattr(prediction, "SHARD_CASES", 2)
    train("predict", run, "--executor", "local", "--parallel", 2)
    assert "[3/3] predicted" in capsys.readouterr().out
    assert file_bytes(outputs) == whole


def test_predict_goes_on_where_it_stopped(run):
    train("predict", run)
    outputs = run.parent / "runs" / "tiny" / "outputs"
    whole = file_bytes(outputs)
    train("predict", run)
    assert file_bytes(outputs) == whole
    manifest = json.loads(whole["manifest.json"])
    (outputs / "manifest.json").unlink()
    facts = outputs / "unfinished"
    facts.mkdir()
    (facts / ".header.json").write_text(json.dumps(manifest | {"cases": []}))
    for case in manifest["cases"][:2]:
        (facts / f"{case['case_id']}.json").write_text(json.dumps(case))
    for case in manifest["cases"][2:]:
        (outputs / "cases" / f"{case['case_id']}.safetensors").unlink()
    kept = outputs / "cases" / f"{manifest['cases'][0]['case_id']}.safetensors"
    written = kept.stat().st_mtime_ns
    train("predict", run)
    assert file_bytes(outputs) == whole
    assert kept.stat().st_mtime_ns == written


def test_what_is_stored_is_chosen_by_options(run, capsys):
    options = ["--outputs.keep", "pooled", "--outputs.dtype", "float16", "--outputs.members", "[1]"]
    train("predict", run, *options, "--outputs.checkpoint", "best")
    store = OutputStore(run.parent / "runs" / "tiny" / "outputs")
    assert (store.manifest.keep, store.manifest.dtype, store.manifest.num_members) == ("pooled", "float16", 1)
    assert store.manifest.members[0].checkpoint == "members/1/checkpoints/best.ckpt"
    refused(capsys, "holds outputs of another run", "predict", run)


def test_half_precision_outputs_are_warned_about(run):
    with pytest.warns(UserWarning, match="bf16-mixed: stored logits keep 2 to 3 digits"):
        train("predict", run, "--trainer.precision", "bf16-mixed")


def test_predict_needs_finished_members(run, capsys):
    (run.parent / "runs" / "tiny" / "members" / "1" / "finished.json").unlink()
    refused(capsys, r"member\(s\) 1 .* have not finished.*train.py ensemble", "predict", run)
    refused(capsys, "no members in", "predict", run, "--name", "nobody")


def test_another_network_than_the_members_is_named(run, capsys):
    refused(
        capsys,
        r"member 0: .*another network than the config names",
        "predict",
        run,
        "--model.network.init_args.width",
        "5",
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--model.los", "ce"], "los"),
        (["--model.loss", "dise"], "dise"),
        (["--data.init_args.batchsize", "3"], "batchsize"),
        (["--trainer.max_epoch", "3"], "max_epoch"),
    ],
)
def test_wrong_keys_are_refused_before_anything_runs(tmp_path, options, reason, capsys):
    with pytest.raises(SystemExit) as caught:
        train("fit", tiny_config(tmp_path), *options)
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_member_that_is_being_trained_is_not_trained_twice(run, monkeypatch, capsys):
    from lightning_calib.cli import run_folder

    monkeypatch.setattr(run_folder, "_LOCK_SECONDS", 0.3)
    member = run_folder.RunFolder(run.parent / "runs" / "tiny").member(0)
    with member.locked():
        refused(capsys, "member 0 in .* is in use by another process", "fit", run)


def test_a_kill_while_the_config_is_written_leaves_a_healthy_member(tmp_path, monkeypatch):
    config = tiny_config(tmp_path, callbacks=[explosion(tmp_path / "flag", 1)])
    with pytest.raises(RuntimeError, match="the crash of this test"):
        train("fit", config)
    kept = tmp_path / "runs" / "tiny" / "members" / "0" / "config.yaml"
    before, usual = kept.read_bytes(), type(kept).write_text

    def killed(path, text, *args, **options):
        if kept.name not in path.name:  # other files come first
            return usual(path, text, *args, **options)
        with open(path, "w") as file:
            file.write(text[: len(text) // 2])
        raise SystemExit("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(type(kept), "write_text", killed)
        with pytest.raises(SystemExit, match="killed here"):
            train("fit", config)
    assert kept.read_bytes() == before
    train("fit", config)
    assert (kept.parent / "finished.json").exists()
