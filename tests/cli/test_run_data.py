"""Data that change while a run goes on: labels, images, more images."""

import json
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from lightning_calib.datasets.folder import Folder
from lightning_calib.outputs.doctor import examine
from lightning_calib.outputs.store import OutputStore
from tests import layouts
from tests.training import refused, tiny_config, train

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on a folder of twelve images, with one member and its outputs."""
    folder = tmp_path_factory.mktemp("finished")
    layouts.write_folder(folder / "data", cases=12, size=(16, 24))
    train("fit", written(folder))
    train("predict", written(folder))
    return folder


def written(folder):
    """The config of a run on the data of a folder."""
    path = tiny_config(folder, epochs=1)
    config = yaml.safe_load(path.read_text())
    options = {"root": str(folder / "data"), "class_names": NAMES, "batch_size": 4}
    config["data"] = {"class_path": "lightning_calib.datasets.folder.Folder", "init_args": options}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def run(finished, tmp_path):
    """A copy of that run, free to be changed: its folder."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def store_of(folder):
    return OutputStore(folder / "runs" / "tiny" / "outputs")


def split_of(folder):
    return json.loads((folder / "runs" / "tiny" / "split.json").read_text())


def repaint(path, value):
    array = np.asarray(Image.open(path)).copy()
    array[:4, :4] = value
    layouts.save_picture(path, array)
    return array


def add_images(folder, count=8):
    for number in range(count):
        for kind in ("images", "masks"):
            shutil.copy(folder / "data" / kind / "p00_a.png", folder / "data" / kind / f"q{number}.png")
        repaint(folder / "data" / "images" / f"q{number}.png", number)


def test_a_corrected_mask_is_predicted_again(run):
    changed, *others = store_of(run).case_ids
    mask = repaint(run / "data" / "masks" / f"{changed}.png", 2)
    times = {name: (store_of(run).path / "cases" / f"{name}.safetensors").stat().st_mtime_ns for name in others}
    with pytest.warns(UserWarning, match=f"the mask of {changed} has changed since it was predicted"):
        train("predict", written(run))
    store = store_of(run)
    store.verify()
    assert np.array_equal(store[changed].target.numpy(), mask)
    assert times == {name: (store.path / "cases" / f"{name}.safetensors").stat().st_mtime_ns for name in others}


def test_a_store_with_an_outdated_case_is_not_taken_for_a_whole_one(run, monkeypatch):
    """A process that is killed after it has found the change leaves an unfinished store."""
    from lightning_calib.callbacks import outputs

    repaint(run / "data" / "images" / f"{store_of(run).case_ids[1]}.png", 9)

    def killed(writer):
        raise SystemExit("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "say_outdated", killed)
        with pytest.raises(SystemExit, match="killed here"):
            train("predict", written(run))
    with pytest.raises(ValueError, match=r"manifest\.json is missing"):
        store_of(run)
    train("predict", written(run))
    store_of(run).verify()


def test_a_case_that_is_gone_leaves_the_store(run):
    gone, *others = store_of(run).case_ids
    for kind in ("images", "masks"):
        (run / "data" / kind / f"{gone}.png").unlink()
    with pytest.warns(UserWarning, match=f"{gone} is not in the pool set any more|stay in the parts"):
        train("predict", written(run))
    assert store_of(run).case_ids == tuple(others)
    store_of(run).verify()


def test_more_images_do_not_change_the_division(run, capsys):
    before, ids = split_of(run), store_of(run).case_ids
    add_images(run)
    drawn = Folder(run / "data", NAMES)
    assert set(drawn.pool_ids) & {*before["train"], *before["val"]}  # what a new draw would leak
    with pytest.warns(UserWarning, match="stay in the parts that .*split.json gives them"):
        train("fit", written(run), "--seed_everything", "1")
    capsys.readouterr()
    with pytest.warns(UserWarning, match="stay in the parts"):
        train("predict", written(run), "--outputs.members", "[0]")
    assert split_of(run) == before
    assert store_of(run).case_ids == ids
    assert "training_leak" not in [finding.name for finding in examine(store_of(run))]
    trained = json.loads((run / "runs" / "tiny" / "members" / "1" / "cases.json").read_text())
    assert list(trained["train"]) == before["train"]


def test_a_member_is_tested_on_nothing_that_it_was_trained_on(run, monkeypatch):
    from lightning_calib.cli.trainer import MemberTrainer

    add_images(run)
    tested = []
    monkeypatch.setattr(MemberTrainer, "test", lambda self, model, datamodule, **_: tested.append(datamodule.pool_ids))
    with pytest.warns(UserWarning, match="stay in the parts"):
        train("test", written(run))
    assert sorted(tested[0]) == sorted(split_of(run)["pool"])


def test_outputs_go_where_they_are_told_to(run):
    train("predict", written(run), "--outputs.folder", "outputs-second")
    second = OutputStore(run / "runs" / "tiny" / "outputs-second")
    assert second.case_ids == store_of(run).case_ids
    assert (second.path / "manifest.json").read_bytes() == (store_of(run).path / "manifest.json").read_bytes()


def test_new_images_go_where_they_are_told_to(run):
    before = split_of(run)
    add_images(run, 3)
    with pytest.warns(UserWarning, match="stay in the parts"):
        train("predict", written(run), "--new_cases", "pool")
    grown = split_of(run)
    assert grown["train"] == before["train"]
    assert set(grown["pool"]) == {*before["pool"], "q0", "q1", "q2"} == set(store_of(run).case_ids)


def test_members_on_other_data_are_refused_unless_asked_for(run, capsys):
    add_images(run, 1)
    with pytest.warns(UserWarning, match="stay in the parts"):
        refused(
            capsys,
            r"training data have changed since member 0 was begun: 1 cases more \(q0\)\..*--changed_data accept",
            *("ensemble", written(run), "--members", "1", "--new_cases", "train"),
        )
    (run / "data" / "images" / "q0.png").unlink()
    (run / "data" / "masks" / "q0.png").unlink()
    (run / "runs" / "tiny" / "split.json").unlink()
    first = next(iter(split_of(train_again(run))["train"]))
    repaint(run / "data" / "masks" / f"{first}.png", 1)
    refused(capsys, f"since member 0 was begun: the mask of {first}", "fit", written(run), "--seed_everything", "2")
    with pytest.warns(UserWarning, match=f"the mask of {first}"):
        train("fit", written(run), "--seed_everything", "2", "--changed_data", "accept")


def train_again(run):
    """The run with its division written anew."""
    train("fit", written(run), "--seed_everything", "1")
    return run


def test_copies_of_training_images_are_no_pool_cases(run, capsys):
    """The pool set is never what a member was trained on: not under another name, not in another division."""
    split = split_of(run)
    images, copied = run / "data" / "images", split["pool"][0]
    shutil.copy(images / f"{split['train'][0]}.png", images / f"{copied}.png")
    with pytest.warns(UserWarning, match=rf"{copied} \(as |{copied} is not in the pool set any more"):
        train("predict", written(run))
    assert store_of(run).case_ids == tuple(sorted(split["pool"][1:]))
    (run / "runs" / "tiny" / "split.json").unlink()
    listed = run / "pool.txt"
    listed.write_text("\n".join([split["pool"][1], *split["train"][:2]]))
    with pytest.warns(UserWarning, match="2 cases of the pool set are left out|not in the pool set any more"):
        train("predict", written(run), "--data.init_args.pool_list", str(listed))
    assert store_of(run).case_ids == (split["pool"][1],)


def test_a_pool_set_of_copies_alone_is_told_before_training(tmp_path, capsys):
    root = layouts.write_folder(tmp_path / "data", cases=10, size=(16, 24))
    pool, *others = sorted(path.stem for path in (root / "images").iterdir())
    (tmp_path / "pool.txt").write_text(pool)
    for part in ("images", "masks"):
        shutil.copy(root / part / f"{others[-1]}.png", root / part / f"{pool}.png")
    listed = ["--data.init_args.pool_list", str(tmp_path / "pool.txt")]
    for command in ("check", "fit"):
        refused(
            capsys,
            "no case of the pool set is left, since all of them are images of the",
            command,
            written(tmp_path),
            *listed,
        )


def test_members_of_earlier_versions_are_told(run):
    for name in ("cases.json", "checksums.json"):
        (run / "runs" / "tiny" / "members" / "0" / name).unlink()
    with pytest.warns(UserWarning, match=r"member\(s\) 0 were trained by a version that did not write down"):
        train("predict", written(run))
