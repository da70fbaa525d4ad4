"""Every DataModule can be built from YAML, and refuses options that it does not know."""

import jsonargparse
import pytest
import yaml

from lightning_calib.datasets.base import SegmentationDataModule
from tests import layouts

NAMES = ["a", "b", "c"]
CONFIGS = {
    "shapes.Shapes": (None, {"size": [24, 24], "num_train": 4, "augmentation": "strong"}),
    "shapes3d.Shapes3D": (None, {"size": [8, 16, 16], "patch_size": [8, 8, 8], "foreground": 0.5}),
    "camvid.CamVid": (layouts.write_camvid, {"image_size": [32, 48], "block": 2, "gap": 0}),
    "cityscapes.Cityscapes": (layouts.write_cityscapes, {"void": "ignore", "crop_size": [32, 32]}),
    "massroads.MassachusettsRoads": (layouts.write_massroads, {"crop": 32, "max_blank": 0.1}),
    "brats.BraTS": (layouts.write_brats, {"patch_size": [8, 8, 8], "pool_root": None}),
    "decathlon.Decathlon": (layouts.write_decathlon, {"mixed_spacing": "refuse", "samples_per_epoch": 9}),
    "folder.Folder": (layouts.write_folder, {"class_names": NAMES, "group_regex": "(p..)_"}),
    "volume_folder.VolumeFolder": (layouts.write_volume_folder, {"class_names": NAMES, "content_only": True}),
}


def parser():
    built = jsonargparse.ArgumentParser(exit_on_error=False)
    built.add_argument("--config", action="config")
    built.add_subclass_arguments(SegmentationDataModule, "data")
    return built


def config_file(tmp_path, name, root, options):
    given = options | {"batch_size": 3, "num_workers": 0, "seed": 5, "split_seed": 1}
    given |= {} if root is None else {"root": str(root)}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"data": {"class_path": f"lightning_calib.datasets.{name}", "init_args": given}}))
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_from_yaml(tmp_path, name):
    write, options = CONFIGS[name]
    root = None if write is None else write(tmp_path / "files")
    arguments = [f"--config={config_file(tmp_path, name, root, options)}"]
    module = parser().instantiate(parser().parse_args(arguments)).data
    assert type(module).__name__ == name.split(".")[1]
    assert (module.batch_size, module.sample_seed, module.split_seed) == (3, 5, 1)
    assert len(next(iter(module.train_dataloader()))["case_id"]) <= 3
    with pytest.raises(jsonargparse.ArgumentError, match="bach_size"):
        parser().parse_args([*arguments, "--data.bach_size=4"])


@pytest.mark.parametrize("name", CONFIGS)
def test_help_explains_every_option(name):
    """A docstring names each argument of the constructor and of its parents."""
    import inspect
    from importlib import import_module

    module, _, class_name = name.partition(".")
    for kind in getattr(import_module(f"lightning_calib.datasets.{module}"), class_name).__mro__:
        if kind.__module__.startswith("lightning_calib") and "__init__" in vars(kind):
            arguments = list(inspect.signature(vars(kind)["__init__"]).parameters)[1:]
            missing = [a for a in arguments if f"        {a}: " not in kind.__doc__]
            assert not missing, (kind, missing)
