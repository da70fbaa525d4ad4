"""What the processes of the distributed tests run; a module of its own, so that spawned processes import it."""

import json
import os
from pathlib import Path

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection

from lightning_calib import metrics as M

IGNORE = 255


def cases(count=5):
    """Named images of different content, some voxels ignored."""
    g = torch.Generator().manual_seed(3)
    made = []
    for i in range(count):
        logits = 2 * torch.randn(3, 8, 6, generator=g)
        target = torch.randint(0, 3, (8, 6), generator=g)
        target[torch.rand(8, 6, generator=g) < 0.2] = IGNORE
        made.append((f"case_{i}", logits, target))
    return made


def blind():
    """An image where nothing counts."""
    return ("blind", cases()[0][1], torch.full((8, 6), IGNORE))


def collection():
    return MetricCollection(
        {
            "nll": M.NegativeLogLikelihood(ignore_index=IGNORE),
            "dice": M.DiceScore(ignore_index=IGNORE),
            "ece": M.ExpectedCalibrationError(ignore_index=IGNORE),
            "ace": M.AverageCalibrationError(ignore_index=IGNORE),
            "ba": M.BoundaryAwareCalibrationError(ignore_index=IGNORE),
            "classwise": M.ClasswiseCalibrationError(ignore_index=IGNORE),
            "flips": M.FlipRate(ignore_index=IGNORE),
        }
    )


def add(metrics, case):
    name, logits, target = case
    flipped = logits.roll(1, dims=-1)
    metrics.update(logits[None].log_softmax(1), target[None], case_ids=[name], reference=flipped[None])


def results(metrics):
    values = {name: value.item() for name, value in metrics.compute().items()}
    images = {name: metric.per_image() for name, metric in metrics.items()}
    images = {name: {case: value for case, value in own.items() if case != "blind"} for name, own in images.items()}
    return {"values": values, "images": images}


class Cases(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        name, logits, target = cases()[index]
        return {"logits": logits, "target": target, "case_id": name}


class Evaluation(pl.LightningModule):
    """A user's module: metrics as attributes, logged by name."""

    def __init__(self):
        super().__init__()
        self.ece = M.ExpectedCalibrationError(ignore_index=IGNORE)
        self.nll = M.NegativeLogLikelihood(ignore_index=IGNORE)

    def test_step(self, batch, batch_idx):
        log_probs = batch["logits"].log_softmax(1)
        self.ece.update(log_probs, batch["target"], case_ids=batch["case_id"])
        self.nll(log_probs, batch["target"], case_ids=batch["case_id"])
        self.log("ece", self.ece, on_step=False, on_epoch=True)
        self.log("nll", self.nll, on_step=False, on_epoch=True)


def evaluate(folder, **options):
    """Run the module under Lightning and give what it logged."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", default_root_dir=folder, **quiet, **options)
    logged = trainer.test(Evaluation(), DataLoader(Cases(), batch_size=2), verbose=False)[0]
    return {name: float(value) for name, value in logged.items()}


def run_process(rank, port, folder, splits):
    """One of two processes, set up as torchrun does: metrics by hand on each split, then under Lightning."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "LOCAL_RANK": rank}
    size = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
    os.environ.update({name: str(value) for name, value in (place | size).items()})
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    outcome = {}
    for name, split in splits.items():
        metrics = collection()
        for index in split[rank]:
            add(metrics, [*cases(), blind()][index])
        outcome[name] = results(metrics)
    outcome["lightning"] = evaluate(folder, strategy="ddp", devices=2)
    Path(folder, f"{rank}.json").write_text(json.dumps(outcome))
    if dist.is_initialized():
        dist.destroy_process_group()
