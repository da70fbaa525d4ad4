"""Massachusetts Roads: aerial images with road masks."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lightning_calib.datasets.base import at_least
from lightning_calib.datasets.cases import Case, DataError, Splits, pick
from lightning_calib.datasets.checks import CaseFacts, scan
from lightning_calib.datasets.images import Array, ImageDataModule, ReadImage
from lightning_calib.datasets.pairing import pair_folders
from lightning_calib.datasets.readers import PICTURES, read_image, read_labels
from lightning_calib.datasets.splits import by_group, check_fraction

PARTS = ("train", "valid", "test")
IGNORE = 255


def blank(image: Array) -> Array:
    """Pixels that were never photographed: pure white ``(H, W)``."""
    return np.asarray((image == 255).all(axis=2))


@dataclass(frozen=True)
class ReadRoads:
    """Reads a tile, or a window of it.

    Attributes:
        ignore_blank: give blank pixels the ignore label; masks carry roads there.
    """

    ignore_blank: bool

    def __call__(self, case: Case) -> tuple[Array, Array]:
        """8-bit image ``(H, W, 3)`` and class numbers ``(H, W)``: 0 background, 1 road."""
        image = read_image(case.images[0])
        mask = read_labels(case, image.shape[:2])
        strange = np.setdiff1d(mask, (0, 1, 255))
        if strange.size:
            raise ValueError(f"{case.mask}: values {strange[:5].tolist()}; a road mask holds 0 and 255 (or 1)")
        target = (mask > 0).astype(np.uint8)
        if self.ignore_blank and image.shape[:2] == target.shape:
            target[blank(image)] = IGNORE
        if case.window is None:
            return image, target
        top, left, height, width = case.window
        area = (slice(top, top + height), slice(left, left + width))
        return image[area], target[area]


def tile_of(case_id: str) -> str:
    """Tile that a window is from: ``train_10078735_15_y1000_x0500`` is of ``train_10078735_15``."""
    head, _, tail = case_id.rpartition("_y")
    return head if head and tail.replace("_x", "").isdigit() else case_id


def cut(case: Case, shape: tuple[int, int], crop: int) -> list[Case]:
    """Windows of ``crop x crop`` pixels that cover a tile without overlap; the last ones may be smaller.

    Example:
        >>> [c.window for c in cut(Case("t"), (1500, 1500), 1000)]
        [(0, 0, 1000, 1000), (0, 1000, 1000, 500), (1000, 0, 500, 1000), (1000, 1000, 500, 500)]
    """
    return [
        replace(
            case,
            case_id=f"{case.case_id}_y{top:04d}_x{left:04d}",
            groups=case.groups or (case.case_id,),
            window=(top, left, min(crop, shape[0] - top), min(crop, shape[1] - left)),
        )
        for top in range(0, shape[0], crop)
        for left in range(0, shape[1], crop)
    ]


class MassachusettsRoads(ImageDataModule):
    """Massachusetts Roads in the layout ``{train,valid,test}/{sat,map}``; 2 classes.

    Tiles with too much blank area are left out, as in the paper, and listed. Windows of a tile (names that end
    in ``_yYYYY_xXXXX``) stay together.

    References:
        Mnih: Machine learning for aerial image labeling. PhD thesis, Toronto 2013.

    Args:
        root: folder of ``train``, ``valid`` and ``test``; the last two need not both exist.
        division: ``"official"``: pool set from ``valid`` and ``test``; ``"random"``: all tiles, ``pool_size``
            of them drawn at random for the pool set (the paper's 566 / 243).
        pool_size: tiles of the pool set in the random division.
        max_blank: largest share of blank pixels that a tile may have.
        ignore_blank: blank pixels of the remaining tiles count nowhere.
        crop: cut tiles of the pool set into windows of so many pixels a side; None keeps whole tiles.
        options: those of :class:`~lightning_calib.datasets.images.ImageDataModule`.
    """

    name = "massroads"
    background = 0
    any_orientation = True
    group_levels = ("tile",)
    group_level = "tile"

    def __init__(
        self,
        root: Path | str = "data/massroads",
        division: Literal["official", "random"] = "official",
        pool_size: int = 243,
        max_blank: float = 0.01,
        ignore_blank: bool = False,
        crop: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root, self.class_names = Path(root), ["background", "road"]
        self.max_blank = check_fraction(max_blank, "max_blank")
        self.ignore_index, self.crop = IGNORE if ignore_blank else None, crop
        at_least("crop", crop, 1)
        tiles, problems = self._find()
        facts, broken = scan(tiles, self.inspect, self.recipe())
        if problems + broken:
            raise DataError(problems + broken, self.where)
        full = {c.case_id: f"more than {max_blank:.1%} blank" for c in tiles if facts[c.case_id]["blank"] > max_blank}
        usable = [case for case in tiles if case.case_id not in full]
        rest, pool = self._divide(usable, division, pool_size)
        self.facts = {case.case_id: facts[case.case_id] for case in usable}
        self._finish(rest, pool, full)

    def _find(self) -> tuple[list[Case], list[str]]:
        """Tiles of every part that exists; at least ``train`` must."""
        tiles: list[Case] = []
        problems: list[str] = []
        for part in PARTS:
            if part == "train" or (self.root / part).is_dir():
                found, wrong = pair_folders(
                    self.root / part / "sat",
                    self.root / part / "map",
                    f"{part}_",
                    PICTURES,
                    lambda case_id: (tile_of(case_id),),
                )
                tiles, problems = tiles + found, problems + wrong
        return tiles, problems

    def _divide(self, tiles: list[Case], division: str, pool_size: int) -> tuple[list[Case], list[Case]]:
        if division == "official":
            rest = [case for case in tiles if case.case_id.startswith("train_")]
            return rest, [case for case in tiles if not case.case_id.startswith("train_")]
        if not 0 < pool_size < len(tiles):
            raise ValueError(f"pool_size = {pool_size}, but {self.where} has {len(tiles)} usable tiles; ask for fewer")
        groups = {case.case_id: case.group(1) for case in tiles}
        kept, held = by_group(groups, pool_size / len(tiles), self.split_seed)
        return pick(tiles, kept), pick(tiles, held)

    def _finish(self, rest: list[Case], pool: list[Case], left_out: dict[str, str]) -> None:
        train, val = by_group({c.case_id: c.group(1) for c in rest}, self.val_fraction, self.split_seed)
        if self.crop is not None:
            shapes = {c.case_id: self.facts[c.case_id]["shape"] for c in pool}
            pool = [window for c in pool for window in cut(c, shapes[c.case_id], self.crop)]
        self.check = False  # every tile was read above, for its blank area
        self.adopt(Splits(pick(rest, train), pick(rest, val), pool, left_out))

    def describe(self, case: Case, image: Array, target: Array) -> CaseFacts:
        """Also the share of blank pixels."""
        return super().describe(case, image, target) | {"blank": float(blank(image).mean())}

    def reader(self) -> ReadImage:
        """Reads tiles and windows."""
        return ReadRoads(self.ignore_index is not None)
