"""Samples depend on (seed, epoch, case) alone: not on workers, processes or where a run was resumed."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.datasets import sampling
from lightning_calib.datasets.sampling import EpochSampler, SampleKey, generator
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.datasets.shapes3d import Shapes3D


def shapes(**options):
    return Shapes(num_train=10, num_val=3, num_pool=4, size=(32, 32), batch_size=4, augmentation="strong", **options)


def epoch_of(module, epoch):
    loader = module.train_dataloader()
    loader.sampler.set_epoch(epoch)
    return list(loader)


def assert_same(first, second):
    assert [b["case_id"] for b in first] == [b["case_id"] for b in second]
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a["image"], b["image"], rtol=0, atol=0)
        torch.testing.assert_close(a["target"], b["target"], rtol=0, atol=0)


def test_workers_do_not_change_samples():
    for epoch in (0, 3):
        assert_same(epoch_of(shapes(seed=1), epoch), epoch_of(shapes(seed=1, num_workers=2), epoch))


def test_workers_do_not_change_patches():
    def make(workers):
        small = {"size": (12, 20, 20), "patch_size": (8, 8, 8), "augmentation": "strong"}
        return Shapes3D(num_train=4, num_val=1, num_pool=1, batch_size=2, seed=1, num_workers=workers, **small)

    assert_same(epoch_of(make(0), 1), epoch_of(make(2), 1))


def test_epochs_and_seeds_differ():
    first = epoch_of(shapes(seed=1), 0)
    for other in (epoch_of(shapes(seed=1), 1), epoch_of(shapes(seed=2), 0)):
        assert [b["case_id"] for b in first] != [b["case_id"] for b in other]
    by_case = {i: x for b in first for i, x in zip(b["case_id"], b["image"], strict=True)}
    later = {i: x for b in epoch_of(shapes(seed=1), 1) for i, x in zip(b["case_id"], b["image"], strict=True)}
    shared = by_case.keys() & later.keys()
    assert shared
    assert any(not torch.equal(by_case[i], later[i]) for i in shared)


def test_seed_of_the_run_is_used_unless_one_is_given(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert shapes().sample_seed == 7
    assert shapes(seed=0).sample_seed == 0
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert shapes().sample_seed == 0


class Recorder(pl.LightningModule):
    """Trains one number, and writes down what it was shown."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = {}

    def training_step(self, batch, index):
        self.seen.setdefault(self.current_epoch, []).append((batch["case_id"], batch["image"].double().sum().item()))
        return (self.weight - batch["image"].mean()) ** 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_resumed_run_sees_what_an_uninterrupted_one_sees(tmp_path):
    quiet = {
        **{"logger": False, "enable_checkpointing": False, "enable_progress_bar": False},
        **{"enable_model_summary": False, "accelerator": "cpu"},
    }
    whole = Recorder()
    pl.Trainer(max_epochs=4, **quiet).fit(whole, shapes(seed=5).train_dataloader())
    trainer = pl.Trainer(max_epochs=2, **quiet)
    trainer.fit(Recorder(), shapes(seed=5).train_dataloader())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    rest = Recorder()
    pl.Trainer(max_epochs=4, **quiet).fit(rest, shapes(seed=5).train_dataloader(), ckpt_path=tmp_path / "half.ckpt")
    assert sorted(whole.seen) == [0, 1, 2, 3]
    assert sorted(rest.seen) == [2, 3]
    assert all(rest.seen[epoch] == whole.seen[epoch] for epoch in rest.seen)
    assert whole.seen[2] != whole.seen[3]


def share(monkeypatch, rank, replicas, *args, **options):
    monkeypatch.setattr(sampling, "world", lambda: (rank, replicas))
    sampler = EpochSampler(*args, **options)
    keys = list(sampler)
    assert len(keys) == len(sampler)
    return keys


@pytest.mark.parametrize("size", [1, 2, 7, 8])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_prediction_gives_each_case_to_one_process(monkeypatch, size, replicas):
    shares = [share(monkeypatch, rank, replicas, size, even=False) for rank in range(replicas)]
    assert sorted(key.position for keys in shares for key in keys) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 7, 8])
@pytest.mark.parametrize("replicas", [2, 3])
def test_training_gives_every_process_equally_many(monkeypatch, size, replicas):
    shares = [share(monkeypatch, rank, replicas, size, shuffle=True) for rank in range(replicas)]
    assert len({len(keys) for keys in shares}) == 1
    assert {key.position for keys in shares for key in keys} == set(range(size))


@given(size=st.integers(1, 9), samples=st.integers(1, 30), epoch=st.integers(0, 5))
def test_more_samples_than_cases_draw_each_case_anew(size, samples, epoch):
    sampler = EpochSampler(size, seed=3, shuffle=True, num_samples=samples)
    sampler.set_epoch(epoch)
    keys = list(sampler)
    assert len(keys) == samples == len(sampler)
    assert len(set(keys)) == samples
    counts = np.bincount([key.position for key in keys], minlength=size)
    assert counts.max() - counts.min() <= 1


def test_numbers_follow_the_case_not_its_place():
    key = SampleKey(2, 1, 5)
    same = generator(1, key._replace(position=9), "a").random()
    assert generator(1, key, "a").random() == same
    others = [(2, key, "a"), (1, key, "b"), (1, key._replace(epoch=3), "a"), (1, key._replace(draw=0), "a")]
    assert all(generator(*other).random() != same for other in others)


def test_validation_is_the_same_every_epoch():
    module = shapes(seed=1, crop_size=(16, 16))
    first = list(module.val_dataloader())
    loader = module.val_dataloader()
    loader.sampler.set_epoch(4)
    assert_same(first, list(loader))
    assert_same(first, list(shapes(seed=2, crop_size=(16, 16)).val_dataloader()))
