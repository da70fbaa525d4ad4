"""DataModules on real files, where this machine has them."""

from pathlib import Path

import numpy as np
import torch
import yaml

from lightning_calib.datasets.camvid import CamVid
from lightning_calib.datasets.decathlon import Decathlon
from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.massroads import MassachusettsRoads


def test_camvid(camvid_root):
    module = CamVid(camvid_root, crop_size=(256, 256), batch_size=4)
    parts = module.splits
    assert len(parts.all) + len(parts.left_out) == 367 + 101 + 233
    assert len(parts.pool) == 191
    assert len(set(module.groups.values())) == 10
    assert next(iter(module.train_dataloader()))["image"].shape == (4, 3, 256, 256)
    batch = next(iter(module.predict_dataloader()))
    assert batch["image"].shape == (1, 3, 360, 480)
    shares = module.class_shares()
    assert max(range(11), key=shares.__getitem__) == module.class_names.index("road")


def test_hippocampus(hippocampus_root):
    module = Decathlon(hippocampus_root, patch_size=(40, 56, 40), batch_size=2, augmentation="none")
    assert module.class_names == ["background", "Anterior", "Posterior"]
    assert [len(part) for part in (module.splits.train, module.splits.val, module.splits.pool)] == [164, 18, 78]
    assert module.volume_reader.spacing is None  # all files are 1 mm
    batch = next(iter(module.train_dataloader()))
    assert batch["image"].shape == (2, 1, 40, 56, 40)
    whole = next(iter(module.predict_dataloader()))
    assert whole["image"].shape[2:] == whole["target"].shape[1:]
    assert abs(whole["image"].mean()) < 1e-4
    assert abs(whole["image"].std() - 1) < 1e-3
    logits = torch.randn(3, *whole["image"].shape[2:])
    assert torch.equal(module.restore(logits, whole["case_id"][0]), logits)


def test_massroads(massroads_root):
    module = MassachusettsRoads(massroads_root, crop=500, crop_size=(256, 256), batch_size=2)
    assert len(module.splits.train) + len(module.splits.val) == 119
    assert len(module.pool_ids) == 14 * 9
    assert len(set(module.groups.values())) == 14
    train_tiles, val_tiles = ({case.group(1) for case in part} for part in (module.splits.train, module.splits.val))
    assert not train_tiles & val_tiles
    assert 0.03 < module.class_shares()[1] < 0.1
    assert next(iter(module.train_dataloader()))["target"].shape == (2, 256, 256)
    strict = MassachusettsRoads(massroads_root, max_blank=0.003)
    blank = [facts["blank"] for facts in module.facts.values()]
    assert len(strict.splits.left_out) == np.sum(np.array(blank) > 0.003) == 2


def test_nuclei(nuclei_root):
    options = yaml.safe_load((Path(__file__).parents[2] / "configs" / "nuclei.yaml").read_text())["data"]["init_args"]
    module = Folder(**options | {"root": nuclei_root})
    assert len(module.splits.train) + len(module.splits.val) == 307
    assert {case.groups[0] for case in module.splits.train} == {"fluo256", "fluo360", "stained"}
    assert len(module.pool_ids) == 357
    assert len(set(module.groups.values())) == 10
    assert 0.02 < module.class_shares()[2] < 0.03
