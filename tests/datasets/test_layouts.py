"""Every DataModule on files written in the official layout of its data set."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_calib.datasets.brats import BraTS
from lightning_calib.datasets.camvid import CamVid
from lightning_calib.datasets.cityscapes import Cityscapes
from lightning_calib.datasets.decathlon import Decathlon
from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.massroads import MassachusettsRoads
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.datasets.shapes3d import Shapes3D
from lightning_calib.datasets.volume_folder import VolumeFolder
from tests import layouts

PATCH = {"patch_size": (16, 16, 16), "batch_size": 2}
MODULES = {
    "shapes": lambda root: Shapes(num_train=4, num_val=2, num_pool=2, size=(32, 48), batch_size=2),
    "shapes3d": lambda root: Shapes3D(num_train=4, num_val=2, num_pool=2, size=(16, 20, 20), **PATCH),
    "camvid": lambda root: CamVid(layouts.write_camvid(root), batch_size=2, block=2, gap=1),
    "cityscapes": lambda root: Cityscapes(layouts.write_cityscapes(root), batch_size=2, crop_size=(32, 32)),
    "massroads": lambda root: MassachusettsRoads(layouts.write_massroads(root), batch_size=2),
    "brats": lambda root: BraTS(layouts.write_brats(root, visits=2), **PATCH),
    "decathlon": lambda root: Decathlon(layouts.write_decathlon(root), **PATCH),
    "folder": lambda root: Folder(layouts.write_folder(root), ["a", "b", "c"], batch_size=2),
    "folder_npy": lambda root: Folder(layouts.write_folder(root, suffix=".npy"), ["a", "b", "c"], batch_size=2),
    "volumes": lambda root: VolumeFolder(layouts.write_volume_folder(root), ["a", "b", "c"], **PATCH),
}


@pytest.fixture(scope="module", params=MODULES)
def module(request, tmp_path_factory):
    return MODULES[request.param](tmp_path_factory.mktemp(request.param))


def check_batch(module, batch):
    size = len(batch["case_id"])
    assert batch["image"].dtype == torch.float32
    assert batch["image"].shape[:2] == (size, module.in_channels)
    assert batch["image"].ndim == 2 + module.spatial_dims
    assert batch["image"].isfinite().all()
    assert batch["target"].dtype == torch.int64
    assert batch["target"].shape[0] == size
    labels = set(batch["target"].unique().tolist())
    assert labels <= {*range(module.num_classes), module.ignore_index}


def test_facts(module):
    assert module.num_classes == len(module.class_names) >= 2
    assert module.spatial_dims in (2, 3)
    assert module.background in (None, 0)
    assert isinstance(module.name, str)


def test_training_and_validation_batches(module):
    for loader in (module.train_dataloader(), module.val_dataloader()):
        batches = list(loader)
        assert batches
        for batch in batches:
            check_batch(module, batch)
            assert batch["image"].shape[2:] == batch["target"].shape[1:]


def test_pool_comes_whole_one_by_one_and_in_order(module):
    batches = list(module.predict_dataloader())
    assert [batch["case_id"] for batch in batches] == [[i] for i in module.pool_ids]
    for batch in batches:
        check_batch(module, batch)
        logits = torch.randn(module.num_classes, *batch["image"].shape[2:])
        restored = module.restore(logits, batch["case_id"][0])
        assert restored.shape == (module.num_classes, *batch["target"].shape[1:])
        if "valid" in batch:
            assert batch["valid"].shape == batch["target"].shape
            assert batch["valid"].dtype == torch.bool


def test_parts_are_apart(module):
    train, val, pool = ({c.case_id for c in getattr(module.splits, part)} for part in ("train", "val", "pool"))
    assert train
    assert val
    assert pool
    assert not train & val
    assert not (train | val) & pool
    assert set(module.groups) == pool
    if module.name not in ("camvid",):  # its parts are official, and share videos
        groups = {c.group(len(module.group_levels)) for c in (*module.splits.train, *module.splits.val)}
        assert not groups & set(module.groups.values())


def test_summary_names_counts_and_classes(module):
    text = module.summary()
    assert f"{len(module.splits.train)} training" in text
    assert f"{len(module.pool_ids)} pool" in text
    assert all(name in text for name in module.class_names)


def test_camvid_blocks_and_gaps(tmp_path):
    module = CamVid(layouts.write_camvid(tmp_path, train=30, val=10, test=7), block=4, gap=2, val_fraction=0.2)
    videos = {}
    for case_id, group in module.groups.items():
        videos.setdefault(group, []).append(int(case_id[-5:]) // 30)
    assert sorted(map(len, videos.values())) == [2, 4, 4]
    for first, second in pairwise(sorted(videos)):
        if first[:-4] == second[:-4]:  # the next block of the same video
            assert min(videos[second]) - max(videos[first]) == 5
    frames = {i: int(i[-5:]) // 30 for i in (c.case_id for c in (*module.splits.train, *module.splits.val))}
    held = {frames[c.case_id] for c in module.splits.val}
    assert min(abs(frames[c.case_id] - f) for c in module.splits.train for f in held) == 3
    assert set(module.splits.left_out.values()) == {
        "closer than 3 frames to validation",
        "between two blocks of the pool set",
    }


@pytest.mark.parametrize(("pool_gap", "frames", "blocks"), [(0, 17, 5), (1, 14, 4), (None, 10, 3)])
def test_camvid_gap_of_the_pool_set(tmp_path, pool_gap, frames, blocks):
    module = CamVid(layouts.write_camvid(tmp_path, train=30, val=10, test=7), block=4, pool_gap=pool_gap)
    assert len(module.pool_ids) == frames
    assert len(set(module.groups.values())) == blocks
    assert module.group_levels == ("drive", "block")
    assert all(i.startswith(f"{group.split('/')[0]}_") for i, group in module.groups.items())


def test_cityscapes_label_ids(tmp_path):
    root = layouts.write_cityscapes(tmp_path)
    mask = np.arange(64 * 128).reshape(64, 128) % 34
    layouts.save_picture(root / "gtFine/val/munster/munster_000000_000019_gtFine_labelIds.png", mask.astype(np.uint8))
    official = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12}
    official |= {26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}
    for void, index in (("class", 19), ("ignore", 255)):
        module = Cityscapes(root, void=void)
        target = next(iter(module.predict_dataloader()))["target"][0].numpy()
        expected = np.vectorize(lambda label, index=index: official.get(label, index))(mask)
        np.testing.assert_array_equal(target, expected)
    assert (module.num_classes, module.ignore_index) == (19, 255)
    assert Cityscapes(root).num_classes == 20
    assert Cityscapes(root).ignore_index is None


def white_corner(path, share):
    image = np.full((64, 64, 3), 90, dtype=np.uint8)
    image[: round(64 * share)] = 255
    layouts.save_picture(path, image)


def test_massroads_leaves_out_blank_tiles_and_says_so(tmp_path):
    root = layouts.write_massroads(tmp_path)
    white_corner(root / "train/sat/10000001_15.tiff", 0.5)
    white_corner(root / "valid/sat/10000000_15.tiff", 0.25)
    module = MassachusettsRoads(root, max_blank=0.3, ignore_blank=True)
    assert list(module.splits.left_out) == ["train_10000001_15"]
    assert "more than 30.0% blank: train_10000001_15" in module.summary()
    first = next(iter(module.predict_dataloader()))
    assert first["case_id"] == ["valid_10000000_15"]
    assert (first["target"][0] == 255).nonzero()[:, 0].unique().tolist() == list(range(16))
    plain = next(iter(MassachusettsRoads(root, max_blank=0.3).predict_dataloader()))
    assert set(plain["target"].unique().tolist()) <= {0, 1}
    assert len(MassachusettsRoads(root, max_blank=0.1).splits.left_out) == 2


def test_massroads_windows_tile_the_pool(tmp_path):
    root = layouts.write_massroads(tmp_path)
    whole = {b["case_id"][0]: b["image"][0] for b in MassachusettsRoads(root).predict_dataloader()}
    pieces = list(MassachusettsRoads(root, crop=40).predict_dataloader())
    assert len(pieces) == 4 * len(whole)
    rebuilt = {name: torch.full_like(image, torch.nan) for name, image in whole.items()}
    for piece in pieces:
        geometry = piece["geometry"][0]
        top, left, height, width = geometry["window"]
        rebuilt[geometry["tile"]][:, top : top + height, left : left + width] = piece["image"][0]
    assert all(torch.equal(rebuilt[name], image) for name, image in whole.items())


def test_massroads_random_division(tmp_path):
    root = layouts.write_massroads(tmp_path, train=6, valid=2, test=2)
    module = MassachusettsRoads(root, division="random", pool_size=3)
    assert len(module.pool_ids) == 3
    assert len(module.splits.train) + len(module.splits.val) == 7
    assert module.pool_ids == MassachusettsRoads(root, division="random", pool_size=3).pool_ids
    assert module.pool_ids != MassachusettsRoads(root, division="random", pool_size=3, split_seed=1).pool_ids
    with pytest.raises(ValueError, match=r"pool_size = 10, but massroads .* has 10 usable tiles"):
        MassachusettsRoads(root, division="random", pool_size=10)


def test_brats_crops_to_the_brain_and_normalises_there(tmp_path):
    module = BraTS(layouts.write_brats(tmp_path, shape=(32, 36, 34)), **PATCH)
    batch = next(iter(module.predict_dataloader()))
    image, valid = batch["image"][0], batch["valid"][0]
    assert image.shape == (4, 27, 27, 23)  # z, y, x of the box that layouts.write_brats fills
    expected = torch.zeros(34, 36, 32, dtype=torch.bool)
    expected[5:-2, 3:-6, 4:-5] = True
    assert torch.equal(valid, expected)
    for channel in image:
        assert abs(channel.mean().item()) < 1e-4
        assert abs(channel.std(correction=0).item() - 1) < 1e-4
    logits = torch.randn(5, *image.shape[1:])
    restored = module.restore(logits, batch["case_id"][0])
    assert torch.equal(restored[:, valid], logits.flatten(1))
    assert not restored[:, ~valid].any()
    unchecked = BraTS(tmp_path, check=False, **PATCH)
    assert torch.equal(unchecked.restore(logits, batch["case_id"][0]), restored)


def test_brats_pool_of_another_folder_takes_its_patients_along(tmp_path):
    root = layouts.write_brats(tmp_path / "training", patients=4, visits=2)
    extra = layouts.write_brats(tmp_path / "additional", patients=2, first=3)  # patient 3 is in both
    (extra / "BraTS-GLI-00003-100").rename(extra / "BraTS-GLI-00003-102")
    for path in (extra / "BraTS-GLI-00003-102").iterdir():
        path.rename(path.with_name(path.name.replace("-100-", "-102-")))
    module = BraTS(root, extra, **PATCH)
    assert module.pool_ids == ["BraTS-GLI-00003-102", "BraTS-GLI-00004-100"]
    assert sorted(module.splits.left_out) == ["BraTS-GLI-00003-100", "BraTS-GLI-00003-101"]
    assert "patient of the pool set" in module.summary()


def test_decathlon_resamples_to_the_median_and_back(tmp_path):
    root = layouts.write_decathlon(tmp_path, cases=9, spacings=((1, 1, 1), (1, 1, 1), (1, 1, 2)))
    module = Decathlon(root, **PATCH)
    assert module.volume_reader.spacing == (1.0, 1.0, 1.0)
    for batch in module.predict_dataloader():
        coarse = int(batch["case_id"][0][-3:]) % 3 == 2
        assert batch["target"].shape[1:] == (22, 26, 24)
        assert batch["image"].shape[2:] == ((44, 26, 24) if coarse else (22, 26, 24))
    assert any(int(i[-3:]) % 3 == 2 for i in module.pool_ids)


def test_decathlon_refuses_mixed_spacings_on_request(tmp_path):
    root = layouts.write_decathlon(tmp_path, spacings=((1, 1, 1), (1, 1, 2)))
    with pytest.raises(ValueError, match=r"voxel sizes differ \(1 x 1 x 1, 2 x 1 x 1, .*mixed_spacing: resample"):
        Decathlon(root, mixed_spacing="refuse", **PATCH)


def test_decathlon_channels(tmp_path):
    module = Decathlon(layouts.write_decathlon(tmp_path, channels=2), **PATCH)
    assert module.in_channels == 2
    assert next(iter(module.predict_dataloader()))["image"].shape == (1, 2, 22, 26, 24)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".webp", ".npy"])
def test_folder_reads_every_format(tmp_path, suffix):
    module = Folder(layouts.write_folder(tmp_path, cases=4, suffix=suffix), ["a", "b", "c"], batch_size=1)
    batch = next(iter(module.predict_dataloader()))
    assert batch["image"].shape == (1, 2 if suffix == ".npy" else 3, 64, 64)
    assert module.normalization == ("image" if suffix == ".npy" else "imagenet")


def test_folder_keeps_groups_together(tmp_path):
    module = Folder(layouts.write_folder(tmp_path), ["a", "b", "c"], group_regex="^(p[0-9]+)_", batch_size=2)
    assert all(module.groups[i] == i[:3] for i in module.pool_ids)
    pool = {i[:3] for i in module.pool_ids}
    assert not pool & {c.group(1) for c in (*module.splits.train, *module.splits.val)}


def test_folder_follows_lists(tmp_path):
    root = layouts.write_folder(tmp_path)
    (tmp_path / "pool.txt").write_text("p03_b\np00_a\n")
    (tmp_path / "val.txt").write_text("p01_a\n")
    module = Folder(root, ["a", "b", "c"], pool_list=tmp_path / "pool.txt", val_list=tmp_path / "val.txt")
    assert module.pool_ids == ["p00_a", "p03_b"]
    assert [c.case_id for c in module.splits.val] == ["p01_a"]
    assert len(module.splits.train) == 7


def test_folder_finds_the_pool_set_by_name_and_groups_concern_it_alone(tmp_path):
    root = layouts.write_folder(tmp_path)
    module = Folder(root, ["a", "b", "c"], group_regex="^(p[0-9]+)_", pool_regex="_b|p04", val_fraction=0.25)
    assert module.groups == {f"p0{n}_b": f"p0{n}" for n in range(5)} | {"p04_a": "p04"}
    assert [len(module.splits.train), len(module.splits.val)] == [3, 1]
    with pytest.raises(ValueError, match="pool_regex says what the pool set is"):
        Folder(root, ["a", "b", "c"], pool_regex="_b", pool_list=tmp_path / "pool.txt")
    with pytest.raises(ValueError, match=r"pool_regex '\(' is no regular expression"):
        Folder(root, ["a", "b", "c"], pool_regex="(")


def test_folder_reads_grey_images_among_coloured_ones(tmp_path):
    root = layouts.write_folder(tmp_path, cases=4)
    grey = np.asarray(Image.open(root / "images" / "p00_a.png").convert("L"))
    layouts.save_picture(root / "images" / "p00_a.png", grey)
    module = Folder(root, ["a", "b", "c"], pool_regex="p00", normalize="image", batch_size=1)
    images = {batch["case_id"][0]: batch["image"][0] for batch in module.predict_dataloader()}
    assert images["p00_a"].shape == images["p00_b"].shape == (3, 64, 64)
    assert (images["p00_a"][0] == images["p00_a"][2]).all()
    assert not (images["p00_b"][0] == images["p00_b"][2]).all()


def test_folder_maps_mask_values(tmp_path):
    root = layouts.write_folder(tmp_path, classes=2)
    for path in (root / "masks").iterdir():
        layouts.save_picture(path, np.asarray(Image.open(path)) * 255)
    module = Folder(root, ["no", "yes"], mask_values=[0, 255], background_class=0)
    assert set(next(iter(module.predict_dataloader()))["target"].unique().tolist()) == {0, 1}


def test_raw_transform_sees_the_raw_image_of_every_case(tmp_path):
    seen = {}

    def darken(image, case_id):
        seen[case_id] = (image.dtype, image.shape)
        return np.zeros_like(image)

    module = Folder(layouts.write_folder(tmp_path), ["a", "b", "c"], raw_transform=darken)
    batches = list(module.predict_dataloader())
    assert seen == dict.fromkeys(module.pool_ids, (np.dtype(np.uint8), (64, 64, 3)))
    assert all(batch["image"].std(dim=(2, 3)).max() == 0 for batch in batches)


def test_image_size_resizes_image_and_target(tmp_path):
    module = CamVid(layouts.write_camvid(tmp_path), image_size=(32, 40), block=2)
    batch = next(iter(module.predict_dataloader()))
    assert batch["image"].shape == (1, 3, 32, 40)
    assert batch["target"].shape == (1, 32, 40)
    assert set(batch["target"].unique().tolist()) <= set(range(12))
