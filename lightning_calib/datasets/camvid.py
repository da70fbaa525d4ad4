"""CamVid: street scenes from five driving videos."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_calib.datasets.cases import Case, Splits, pick
from lightning_calib.datasets.images import ImageDataModule
from lightning_calib.datasets.pairing import pair_folders
from lightning_calib.datasets.readers import PICTURES
from lightning_calib.datasets.splits import hold_out_blocks, time_blocks

CLASSES = [
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
]
VOID = 11


def videos(cases: Sequence[Case]) -> dict[str, list[str]]:
    """Frames in order of time, by video: the part of a name before its underscore."""
    found: dict[str, list[str]] = {}
    for case in sorted(cases, key=lambda c: c.case_id):
        found.setdefault(case.case_id.rsplit("_", 1)[0], []).append(case.case_id)
    return found


class CamVid(ImageDataModule):
    """CamVid in the layout of SegNet: ``{train,val,test}/`` and ``{train,val,test}annot/``.

    11 classes; void (11) is ignored. The pool set is the official ``val`` and ``test``, in blocks of consecutive
    frames, which are the groups that stay whole; coarser groups are drives. Validation is held out of the official
    ``train`` in such blocks, too.

    References:
        Brostow, Fauqueur, Cipolla: Semantic object classes in video. Pattern Recognition Letters 2009.
        Badrinarayanan, Kendall, Cipolla: SegNet. TPAMI 2017 (the split at 360 x 480).

    Args:
        root: folder with the six folders.
        block: frames a block.
        gap: frames left out between training and validation.
        pool_gap: frames left out between two blocks of the pool set; None for a whole block, 0 to keep all.
        options: those of :class:`~lightning_calib.datasets.images.ImageDataModule`.
    """

    name = "camvid"
    ignore_index = VOID
    group_levels = ("drive", "block")
    group_level = "block"

    def __init__(
        self,
        root: Path | str = "data/camvid",
        block: int = 20,
        gap: int = 2,
        pool_gap: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root, self.class_names = Path(root), list(CLASSES)
        parts: dict[str, list[Case]] = {}
        problems: list[str] = []
        for part in ("train", "val", "test"):
            parts[part], wrong = pair_folders(self.root / part, self.root / f"{part}annot", suffixes=PICTURES)
            problems += wrong
        self.adopt(self._split(parts, block, gap, block if pool_gap is None else pool_gap), problems)

    def _split(self, parts: dict[str, list[Case]], block: int, gap: int, pool_gap: int) -> Splits:
        kept, held, near = hold_out_blocks(videos(parts["train"]), block, gap, self.val_fraction, self.split_seed)
        groups: dict[str, tuple[str, str]] = {}
        left_out = dict.fromkeys(near, f"closer than {gap + 1} frames to validation")
        for part in ("val", "test"):
            for video, ids in videos(parts[part]).items():
                blocks, between = time_blocks(ids, block, pool_gap, "block")
                groups |= {case_id: (video, name) for case_id, name in blocks.items()}
                left_out |= dict.fromkeys(between, "between two blocks of the pool set")
        cases = [case for part in parts.values() for case in part]
        pool = [replace(case, groups=groups[case.case_id]) for case in pick(cases, groups)]
        return Splits(pick(cases, kept), pick(cases, held), pool, left_out)
