"""What tests of training share: a one-layer network, a tiny config, and the command line in this process."""

import re
import time
from pathlib import Path

import psutil
import yaml
from pytorch_lightning import Callback
from torch import nn

from lightning_calib.cli.train import main
from lightning_calib.segmenters import Network, Segmenter


class TinyNetwork(Network):
    """Two small convolutions, 2D or 3D."""

    def __init__(self, width: int = 4) -> None:
        self.width = width

    def build(self, in_channels, num_classes, spatial_dims):
        conv = nn.Conv2d if spatial_dims == 2 else nn.Conv3d
        body = nn.Sequential(conv(in_channels, self.width, 3, padding=1), nn.ReLU(), conv(self.width, num_classes, 1))
        return Segmenter(body, (1,) * spatial_dims)


class Explode(Callback):
    """Fail in the middle of an epoch, as a crash would."""

    def __init__(self, epoch: int, flag: str) -> None:
        self.epoch, self.flag = epoch, Path(flag)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == self.epoch and batch_idx == 1 and not self.flag.exists():
            self.flag.touch()
            raise RuntimeError("the crash of this test")


class LoseNode(Callback):
    """Lose the node of a Ray cluster in the middle of an epoch: its raylet, and the worker that started this member."""

    def __init__(self, epoch: int, flag: str) -> None:
        self.epoch, self.flag = epoch, Path(flag)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch == self.epoch and batch_idx == 1 and not self.flag.exists():
            self.flag.touch()
            worker = psutil.Process().parent()
            raylet = worker.parent()
            assert raylet.name() == "raylet"
            raylet.kill()
            worker.kill()
            time.sleep(60)  # the system ends this process with its parent


def explosion(flag: Path, epoch: int) -> dict[str, object]:
    """The config of a crash that comes once."""
    return {"class_path": "tests.training.Explode", "init_args": {"epoch": epoch, "flag": str(flag)}}


def tiny_config(folder: Path, epochs: int = 2, pool: int = 5, **trainer) -> Path:
    """Config of a run that takes a second: four classes, 16 x 24 pixels."""
    config = {
        "name": "tiny",
        "runs_dir": str(folder / "runs"),
        "data": {
            "class_path": "lightning_calib.datasets.shapes.Shapes",
            "init_args": {"num_train": 8, "num_val": 3, "num_pool": pool, "size": [16, 24], "batch_size": 4},
        },
        "model": {"network": {"class_path": "tests.training.TinyNetwork"}},
        "trainer": {"max_epochs": epochs, "accelerator": "cpu", "enable_progress_bar": False, **trainer},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def train(command: str, config: Path, *options: str) -> None:
    """``python train.py <command> --config <config> <options>``, without a process of its own."""
    assert main([command, "--config", str(config), *map(str, options)]) == 0


def refused(capsys, message: str, command: str, config: Path, *options: str) -> None:
    """The same for a command that must end in a message, first and without a traceback."""
    capsys.readouterr()
    assert main([command, "--config", str(config), *map(str, options)]) == 2
    error = capsys.readouterr().err
    assert re.search(f"error: .*{message}", error), error
    assert "Traceback" not in error


def file_bytes(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
