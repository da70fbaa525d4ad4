"""Cityscapes: street scenes of 50 cities."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lightning_calib.datasets.cases import Case, Splits, pick
from lightning_calib.datasets.images import Array, ImageDataModule, ReadImage
from lightning_calib.datasets.readers import read_image, read_labels
from lightning_calib.datasets.splits import by_fraction

IMAGE, LABEL = "_leftImg8bit.png", "_gtFine_labelIds.png"
# The 19 classes of training with their numbers in *_labelIds.png (cityscapesScripts, helpers/labels.py).
LABEL_IDS = {
    **{"road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17, "traffic light": 19},
    **{"traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23, "person": 24, "rider": 25, "car": 26},
    **{"truck": 27, "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33},
}
VOID, IGNORE = 19, 255
MAX_LABEL_ID = 33


@dataclass(frozen=True)
class ReadCityscapes:
    """Reads a frame and translates its label ids.

    Attributes:
        void: class number of everything that is none of the 19 classes.
    """

    void: int

    def __call__(self, case: Case) -> tuple[Array, Array]:
        """8-bit image ``(H, W, 3)`` and class numbers ``(H, W)``."""
        image = read_image(case.images[0])
        ids = read_labels(case, image.shape[:2])
        strange = [i for i in np.unique(ids).tolist() if i > MAX_LABEL_ID and i != IGNORE]
        if strange:
            raise ValueError(f"{case.mask}: {strange} are no label ids of Cityscapes (0 to {MAX_LABEL_ID})")
        table = np.full(256, self.void, dtype=np.uint8)  # 255 is -1 (licence plate) in 8 bits
        table[list(LABEL_IDS.values())] = np.arange(len(LABEL_IDS))
        return image, table[ids]


def find_part(root: Path, part: str) -> tuple[list[Case], list[str]]:
    """Frames of an official part, and one line for each thing that is wrong."""
    images, labels = root / "leftImg8bit" / part, root / "gtFine" / part
    names = {p.relative_to(images).as_posix().removesuffix(IMAGE) for p in images.glob(f"*/*{IMAGE}")}
    masks = {p.relative_to(labels).as_posix().removesuffix(LABEL) for p in labels.glob(f"*/*{LABEL}")}
    if not names:
        return [], [f"{images}: no <city>/*{IMAGE}; root is the folder of leftImg8bit/ and gtFine/"]
    problems = [f"{images / (n + IMAGE)}: lacks its mask {labels / (n + LABEL)}" for n in sorted(names - masks)]
    problems += [f"{labels / (n + LABEL)}: lacks its image {images / (n + IMAGE)}" for n in sorted(masks - names)]
    cases = [
        Case(name.split("/")[-1], (images / (name + IMAGE),), labels / (name + LABEL), _groups(name))
        for name in sorted(names & masks)
    ]
    return cases, problems


def _groups(name: str) -> tuple[str, ...]:
    """City and sequence of ``city/city_sequence_frame``; cities have underscores in their names, too."""
    city, sequence, _ = name.split("/")[-1].rsplit("_", 2)
    return city, sequence


class Cityscapes(ImageDataModule):
    """Cityscapes in the official layout: ``leftImg8bit/<part>/<city>/`` and ``gtFine/<part>/<city>/``.

    The pool set is the official ``val``; validation is held out of ``train`` at random: annotated frames come
    from different 30-frame snippets, so that neighbours are no near-copies. Groups are cities and, in them,
    sequences; sequences stay whole unless ``group_level`` of a calibration says otherwise.

    References:
        Cordts et al.: The Cityscapes dataset for semantic urban scene understanding. CVPR 2016.

    Args:
        root: folder of ``leftImg8bit`` and ``gtFine``.
        void: everything that is none of the 19 classes as a ``"class"`` of its own, the 20th, or ``"ignore"``.
        options: those of :class:`~lightning_calib.datasets.images.ImageDataModule`.
    """

    name = "cityscapes"
    group_levels = ("city", "sequence")
    group_level = "sequence"

    def __init__(
        self, root: Path | str = "data/cityscapes", void: Literal["class", "ignore"] = "class", **options: Any
    ) -> None:
        super().__init__(**options)
        self.root, self.void = Path(root), void
        self.class_names = [*LABEL_IDS, "void"] if void == "class" else list(LABEL_IDS)
        self.ignore_index = None if void == "class" else IGNORE
        cases, problems = find_part(self.root, "train")
        pool, wrong = find_part(self.root, "val")
        train, val = by_fraction([case.case_id for case in cases], self.val_fraction, self.split_seed)
        self.adopt(Splits(pick(cases, train), pick(cases, val), pool), problems + wrong)

    def reader(self) -> ReadImage:
        """Reads files and translates label ids."""
        return ReadCityscapes(VOID if self.void == "class" else IGNORE)
