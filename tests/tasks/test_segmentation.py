"""The task: what it optimises, logs and predicts; and the memory of prediction."""

import psutil
import pytest
import torch
from pytorch_lightning import Callback, LightningDataModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from lightning_calib.callbacks.outputs import StoreOutputs
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.segmenters import (
    AdamWCosine,
    Inference,
    Members,
    Network,
    NnUNetSGD,
    ResidualEncoderUNet,
    Segmenter,
)
from lightning_calib.segmenters.losses import deep_supervision_loss, dice_ce
from lightning_calib.tasks.prediction import EnsemblePrediction
from lightning_calib.tasks.segmentation import SegmentationTask
from tests.training import TinyNetwork

IGNORE = 255


class Noise(LightningDataModule):
    """Random images; the target follows from the first channel, the last row is ignored."""

    def __init__(self, count=4, size=(8, 8), crop=0):
        super().__init__()
        self.count, self.size, self.crop = count, size, crop
        self.pool_ids = [f"case_{n:03d}" for n in range(count)]

    def sample(self, index):
        image = torch.randn(1, *self.size, generator=torch.Generator().manual_seed(index))
        target = (image[0] > 0).long()
        target[-1] = IGNORE
        sample = {"image": image, "target": target, "case_id": self.pool_ids[index]}
        if self.crop:  # the network sees less than the target holds
            sample["image"] = image[:, : -self.crop]
        return sample

    def loader(self, batch_size):
        return DataLoader(dataset=range(self.count), batch_size=batch_size, collate_fn=self.collate)

    def collate(self, indices):
        samples = [self.sample(index) for index in indices]
        stacked = {key: torch.stack([s[key] for s in samples]) for key in ("image", "target")}
        return stacked | {"case_id": [s["case_id"] for s in samples]}

    def train_dataloader(self):
        return self.loader(2)

    def val_dataloader(self):
        return self.loader(2)

    def predict_dataloader(self):
        return self.loader(1)

    def restore(self, logits, case_id):
        return nn.functional.pad(logits, (0, 0, 0, self.crop)) if self.crop else logits


def task_of(network=None, **options):
    torch.manual_seed(0)
    defaults = {"num_classes": 2, "in_channels": 1, "ignore_index": IGNORE}
    return SegmentationTask(network or TinyNetwork(), **(defaults | options))


def trainer_of(folder, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", default_root_dir=folder, enable_model_summary=False, **(quiet | options))


pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning", "ignore:.*does not have many workers", "ignore:.*smaller than the logging"
)


@pytest.mark.parametrize("recipe", [AdamWCosine(lr=0.05), NnUNetSGD(lr=0.05, momentum=0.9)])
def test_training_lowers_the_loss_and_logs_grouped_keys(tmp_path, recipe):
    task = task_of(recipe=recipe)
    trainer = trainer_of(tmp_path, max_epochs=15)
    trainer.validate(task, datamodule=Noise(), verbose=False)
    before = {name: float(value) for name, value in trainer.callback_metrics.items()}
    trainer.fit(task, datamodule=Noise())
    after = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert set(after) == {"train/loss", "val/loss", "val/dice", "val/miou", "val/ece"}
    assert after["val/loss"] < before["val/loss"] / 2
    assert after["val/dice"] > 0.9


def test_the_loss_covers_all_resolutions_and_leaves_ignored_voxels_out(tmp_path):
    task = task_of(ResidualEncoderUNet([4, 8, 8], [1, 1, 1]), background=0)
    task.log = lambda *args, **kwargs: None
    batch = Noise(2, (16, 16)).collate([0, 1])
    loss = task.training_step(batch, 0)
    logits, lower = task.network(batch["image"])
    assert len(lower) == 1
    assert loss.item() == pytest.approx(
        deep_supervision_loss(dice_ce, [logits, *lower], batch["target"], IGNORE, 0).item(), rel=1e-5
    )


@pytest.mark.parametrize(("flag", "largest"), [(None, 12.0), (1e-3, 1e-3)])
def test_gradients_are_clipped_by_the_recipe_unless_the_trainer_says_otherwise(tmp_path, flag, largest):
    norms = []

    class Norms(Callback):
        def on_train_batch_end(self, trainer, pl_module, *rest):
            norms.append(torch.cat([p.grad.flatten() for p in pl_module.parameters()]).norm().item())

    task = task_of(recipe=NnUNetSGD())
    task.loss = lambda logits, *rest: 1e4 * logits.square().sum()
    trainer_of(tmp_path, max_steps=1, gradient_clip_val=flag, callbacks=[Norms()]).fit(task, datamodule=Noise())
    assert norms == [pytest.approx(largest, rel=1e-3)]


def test_a_training_without_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"trainer.max_epochs or max_steps"):
        trainer_of(tmp_path, max_epochs=-1).fit(task_of(), datamodule=Noise())


def test_predictions_are_logits_on_the_grid_of_the_target(tmp_path):
    task, data = task_of(), Noise(3, (8, 8), crop=2)
    found = trainer_of(tmp_path).predict(task, datamodule=data)
    for index, logits in enumerate(found):
        assert logits.shape == (1, 2, 8, 8)
        with torch.no_grad():
            expected = task.network.logits(data.sample(index)["image"][None])
        assert torch.allclose(logits[:, :, :6], expected, atol=1e-6)
        assert not logits[:, :, 6:].any()


def test_voxels_without_prediction_count_nowhere(tmp_path):
    class Marked(Noise):
        """The last three rows are not valid."""

        def collate(self, indices):
            batch = super().collate(indices)
            valid = torch.ones_like(batch["target"], dtype=torch.bool)
            valid[:, -3:] = False
            return batch | {"valid": valid, "target": batch["target"].clamp(max=1)}

        def test_dataloader(self):
            return self.predict_dataloader()

    class CutOut(Marked):
        """The last three rows are not there."""

        def collate(self, indices):
            batch = Noise.collate(self, indices)
            return batch | {"target": batch["target"][:, :-3]}

        def restore(self, logits, case_id):
            return logits[:, :-3]

    scores = []
    for data in (Marked(), CutOut()):
        trainer = trainer_of(tmp_path)
        trainer.test(task_of(ignore_index=None), datamodule=data, verbose=False)
        scores.append({name: float(value) for name, value in trainer.callback_metrics.items()})
    assert scores[0].keys() == {"test/loss", "test/dice", "test/miou", "test/ece"}
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_compiled_networks_keep_the_names_of_their_weights():
    task = task_of(compile=True)
    assert task.state_dict().keys() == task_of().state_dict().keys()


class Growing(Callback):
    """Memory of this process after each case."""

    def __init__(self):
        self.used = []

    def on_predict_batch_end(self, *args, **kwargs):
        self.used.append(psutil.Process().memory_info().rss - psutil.Process().memory_info().shared)


class Wide(Network):
    """Eight classes: the outputs are much larger than the weights."""

    def build(self, in_channels, num_classes, spatial_dims):
        return Segmenter(nn.Conv2d(in_channels, num_classes, 1), (1, 1))


def test_memory_of_predict_does_not_grow_with_the_cases(tmp_path):
    data, count = Noise(40, (256, 256)), 40
    members = Members([Wide().build(in_channels=1, num_classes=8, spatial_dims=2) for _ in range(2)])

    def open_writer():
        names = [f"class_{n}" for n in range(8)]
        return OutputWriter(tmp_path / "outputs", "noise", names, 2, [Member("0"), Member("1")], ignore_index=IGNORE)

    growing = Growing()
    trainer = trainer_of(tmp_path, callbacks=[StoreOutputs(open_writer, data.pool_ids), growing])
    trainer.predict(EnsemblePrediction(members), datamodule=data, return_predictions=False)
    store = OutputStore(tmp_path / "outputs")
    assert len(store) == count
    written = sum(case.record.size for case in list(store)[5:])
    assert written > 120e6
    assert max(growing.used[5:]) - growing.used[4] < 0.2 * written


def test_windows_and_mirrors_are_part_of_the_score():
    plain, mirrored = task_of(), task_of(inference=Inference(mirror_axes=(1,), window=[8, 8]))
    images = torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        expected = (plain.score(images) + plain.score(images.flip(3)).flip(3)) / 2
        assert torch.allclose(mirrored.score(images), expected, atol=1e-5)
