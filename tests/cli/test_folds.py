"""train.py with folds: members leave out different cases, which `predict --out_of_fold` scores by the right one."""

import pytest
import torch

from lightning_calib.datasets.cases import DataError
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.outputs.store import OutputStore
from tests.training import TinyNetwork, refused, tiny_config, train

FOLDS = ("--data.init_args.folds", "3")


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """The config of a run with three members, one a fold, and its out-of-fold store."""
    config = tiny_config(tmp_path_factory.mktemp("folded"), epochs=1)
    for seed in range(3):
        train("fit", config, "--seed_everything", seed, *FOLDS)
    train("predict", config, *FOLDS, "--out_of_fold", "true")
    return config


def data(seed):
    """The data as a member sees them."""
    return Shapes(num_train=8, num_val=3, num_pool=5, size=(16, 24), folds=3, seed=seed)


def test_every_member_leaves_out_another_fold():
    seen = [data(seed) for seed in range(4)]
    side = sorted(case.case_id for case in (*seen[0].splits.train, *seen[0].splits.val))
    assert len(side) == 11
    held = [{case.case_id for case in module.parts.val} for module in seen]
    assert sorted(case for fold in held[:3] for case in fold) == side
    assert sorted(map(len, held[:3])) == [3, 4, 4]
    assert held[3] == held[0]
    for module, own in zip(seen, held, strict=True):
        assert {case.case_id for case in module.parts.train} == set(side) - own
        assert module.pool_ids == seen[0].pool_ids


def test_each_case_is_scored_by_the_member_that_was_not_trained_on_it(folded):
    run = folded.parent / "runs" / "tiny"
    store, modules = OutputStore(run / "out_of_fold"), [data(seed) for seed in range(3)]
    assert len(store) == 11
    assert store.manifest.num_members == 1
    assert [fold.name for fold in store.manifest.folds] == ["0", "1", "2"]
    for seed, fold in enumerate(store.manifest.folds):
        held = modules[seed].parts.val
        assert set(fold.cases) == {case.case_id for case in held}
        network = TinyNetwork().build(3, 4, 2).eval()
        weights = torch.load(run / "members" / str(seed) / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        network.load_state_dict({name.removeprefix("network."): value for name, value in weights.items()})
        for sample in modules[seed].dataset(held, "predict"):
            with torch.no_grad():
                expected = network.logits(sample["image"][None])
            torch.testing.assert_close(store[sample["case_id"]].logits, expected, atol=1e-5, rtol=1e-4)
            assert store[sample["case_id"]].target.equal(sample["target"])
    assert not (run / "out_of_fold" / "images.json").exists()


def test_the_pool_set_is_scored_by_all_members(folded):
    train("predict", folded, *FOLDS)
    store = OutputStore(folded.parent / "runs" / "tiny" / "outputs")
    assert (store.manifest.num_members, store.manifest.folds) == (3, ())
    assert not set(store.case_ids) & set(OutputStore(store.path.with_name("out_of_fold")).case_ids)


def test_what_cannot_be_folded_is_refused(folded, tmp_path, capsys):
    with pytest.raises(DataError, match=r"folds = 12, but the training side has 11 groups"):
        Shapes(num_train=8, num_val=3, num_pool=5, size=(16, 24), folds=12)
    with pytest.raises(ValueError, match="folds = 1; give at least 2"):
        Shapes(num_train=8, num_val=3, num_pool=5, folds=1)
    refused(
        capsys,
        "has no folds: train the members with data.init_args.folds",
        "predict",
        folded,
        "--out_of_fold",
        "true",
    )
    others = ("--out_of_fold", "true", "--data.init_args.folds")
    refused(capsys, r"members/0 is to score fold 0 of 2, but was trained on", "predict", folded, *others, "2")
    refused(capsys, r"was trained without fold 1, 2 of 3", "predict", folded, *others, "3", "--outputs.members", "[0]")
    known = folded.parent / "runs" / "tiny" / "members" / "1" / "cases.json"
    text = known.read_text()
    known.unlink()
    noted = known.with_name("checksums.json").rename(tmp_path / "noted.json")  # earlier versions wrote neither
    refused(capsys, r"members/1 is to score fold 1 of 3, but did not write down", "predict", folded, *others, "3")
    known.write_text(text)
    noted.rename(known.with_name("checksums.json"))
