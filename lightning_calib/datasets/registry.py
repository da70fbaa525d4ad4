"""Data sets and readers by name: ours, those of other packages, those of a script."""

from typing import TYPE_CHECKING, Any

from lightning_calib.kit.registry import Registry

if TYPE_CHECKING:
    from lightning_calib.datasets.base import SegmentationDataModule

_OURS = {
    "CamVid": "camvid",
    "Cityscapes": "cityscapes",
    "MassachusettsRoads": "massroads",
    "BraTS": "brats",
    "Decathlon": "decathlon",
    "Folder": "folder",
    "VolumeFolder": "volume_folder",
    "Shapes": "shapes",
    "Shapes3D": "shapes3d",
}
# Where classes were in earlier versions, the longest beginning first.
_MOVED = {
    "lightning_calib.data.stored.": "lightning_calib.outputs.stored.",
    "lightning_calib.data.": "lightning_calib.datasets.",
}


def _check_dataset(name: str, cls: Any) -> None:  # noqa: ANN401
    from lightning_calib.datasets.base import SegmentationDataModule  # imports Lightning: only where it is used

    if not (isinstance(cls, type) and issubclass(cls, SegmentationDataModule)):
        raise TypeError(f"the data set {name} is {cls!r}, not a subclass of SegmentationDataModule")


DATASETS: "Registry[type[SegmentationDataModule]]" = Registry(
    "data set",
    "lightning_calib.datasets",
    {name: f"lightning_calib.datasets.{module}:{name}" for name, module in _OURS.items()},
    _check_dataset,
)

# What reads the files of a case, see `lightning_calib.datasets.preprocessing`.
READERS: Registry[Any] = Registry(
    "reader",
    "lightning_calib.readers",
    {
        "pictures": "lightning_calib.datasets.images:ReadPicture",
        "volumes": "lightning_calib.datasets.volume_reader:VolumeReader",
        "cityscapes": "lightning_calib.datasets.cityscapes:ReadCityscapes",
        "roads": "lightning_calib.datasets.massroads:ReadRoads",
    },
)


def register_dataset(cls: "type[SegmentationDataModule]") -> "type[SegmentationDataModule]":
    """Add a DataModule under the name of its class; also a decorator."""
    return DATASETS.register(cls.__name__, cls)


def current_class_path(path: str) -> str:
    """Where a DataModule is now, from its short name or from where an earlier version had it.

    Example:
        >>> current_class_path("CamVid"), current_class_path("lightning_calib.data.folder.Folder")
        ('lightning_calib.datasets.camvid.CamVid', 'lightning_calib.datasets.folder.Folder')
        >>> current_class_path("mypackage.Scans")
        'mypackage.Scans'
    """
    if path in DATASETS.ours:
        return DATASETS.ours[path].replace(":", ".")
    if path in DATASETS:
        return f"{DATASETS[path].__module__}.{DATASETS[path].__qualname__}"
    return _moved(path)


def current_class_paths(config: Any) -> Any:  # noqa: ANN401
    """A config with every class in it brought up to date (see :func:`current_class_path`)."""
    if isinstance(config, str):
        return _moved(config)
    if isinstance(config, list):
        return [current_class_paths(entry) for entry in config]
    if not isinstance(config, dict):
        return config
    return {
        key: current_class_path(value) if key == "class_path" and isinstance(value, str) else current_class_paths(value)
        for key, value in config.items()
    }


def _moved(path: str) -> str:
    """A dotted path of an earlier version as it is now; anything else as it is."""
    moved = (new + path.removeprefix(old) for old, new in _MOVED.items() if path.startswith(old))
    return next(moved, path)
