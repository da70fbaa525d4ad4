"""Every region of a store as a store of two classes.

A store of regions holds ``logits (M, R, *S)``, one channel a region, and the labels of the data set. Nothing reads it
as it is: beside it stands one view a region, ``regions/<region>/outputs``, a folder whose manifest points to the store.
Opened as an output store a view has two classes, outside and inside, with the scores ``(0, z)``; so fits, scores,
reports and studies need to know nothing of regions.
"""

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from lightning_calib.kit.files import read_json, sha256, write_json
from lightning_calib.kit.typed import typed
from lightning_calib.outputs.manifest import MANIFEST, REGIONS_VERSION, Manifest, StoreError
from lightning_calib.outputs.regions import Region

FOLDER = "regions"


@dataclass(frozen=True)
class View:
    """What the manifest of a view says.

    Attributes:
        region: name of the region.
        store: folder of the store of regions, relative to the view.
        sha256: hash of the store's manifest when the view was written.
    """

    region: str
    store: str
    sha256: str

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The view in a folder; None where its manifest describes a store, or nothing."""
        try:
            view: Self = typed(read_json(folder / MANIFEST)["view"], cls)
        except (ValueError, KeyError, TypeError):
            return None
        return view

    def root(self, folder: Path) -> Path:
        """Folder of the store of a view in a folder."""
        return Path(os.path.normpath(folder / self.store))

    def channel(self, manifest: Manifest, folder: Path) -> int:
        """Channel of the region in the store of a view in a folder, which must be as it was."""
        names = [region.name for region in manifest.regions]
        root = self.root(folder)
        if self.region not in names or sha256(root / MANIFEST) != self.sha256:
            raise StoreError(
                f"{folder} is a view of {root}, which has changed since: `calibrate.py run --outputs {root}` writes it "
                "anew"
            )
        return names.index(self.region)


def view_folder(store: Path, region: Region) -> Path:
    """Where the view of a region stands: ``regions/<region>/outputs`` beside the store.

    Example:
        >>> view_folder(Path("/runs/brats/outputs"), Region("core", (2, 3))).as_posix()
        '/runs/brats/regions/core/outputs'
    """
    return store.resolve().parent / FOLDER / region.slug / store.resolve().name


def has_regions(store: Path) -> bool:
    """Whether a folder holds a store of regions; false where there is no store at all."""
    path = store / MANIFEST
    return path.is_file() and View.read(store) is None and bool(Manifest.load(path).regions)


def write_views(store: Path) -> dict[str, Path]:
    """Write the views of a store of regions that are missing or outdated.

    Args:
        store: folder of the store.

    Returns:
        The folder of each region's view.
    """
    folders = {}
    for region in Manifest.load(store / MANIFEST).regions:
        folder = view_folder(store, region)
        view = View(region.name, os.path.relpath(store.resolve(), folder), sha256(store / MANIFEST))
        earlier = View.read(folder)
        if earlier is None and (folder / MANIFEST).exists():
            raise StoreError(
                f"{folder} is no view of a region, but a store: move it, the view of {region.name} goes there"
            )
        if earlier != view:
            shutil.rmtree(folder, ignore_errors=True)  # pooled maps and distances of another store or other labels
            folder.mkdir(parents=True)
            write_json(folder / MANIFEST, {"format_version": REGIONS_VERSION, "view": asdict(view)})
        folders[region.name] = folder
    return folders
