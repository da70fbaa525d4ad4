"""What a data set looks like before anything is trained on it: sizes, values, classes, groups, near copies, a sheet."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from lightning_calib.datasets.base import SegmentationDataModule
from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.content import listed
from lightning_calib.datasets.images import ImageDataModule
from lightning_calib.datasets.readers import read_mask
from lightning_calib.kit.files import atomic_path

PARTS = {"train": "training", "val": "validation", "pool": "pool"}
_TILE, _ROW = 160, 6  # pixels a side of a case on the sheet, and cases a part
_CELLS, _ALIKE, _FLAT = 16, 0.9, 0.02  # of the hash that finds near copies: cells a side, agreement, a flat step
_COLOURS = np.array([[230, 90, 30], [40, 110, 220], [40, 170, 80], [220, 190, 30], [160, 70, 190], [60, 190, 200]])


def describe(data: SegmentationDataModule, most: int) -> list[str]:
    """Lines on what the data are beyond their summary.

    Args:
        data: the data.
        most: cases that values and near copies are looked for in, evenly spread.
    """
    drawn = spread(data.splits.all, most)
    told = [*_sizes(data), *_values(data, drawn), *_mask_values(drawn)]
    return [*told, *_classes(data), *_groups(data), *_copies(data, drawn)]


def spread(cases: Sequence[Case], most: int) -> list[Case]:
    """Some cases, evenly spread.

    Example:
        >>> [case.case_id for case in spread([Case(name) for name in "abcdef"], 3)]
        ['a', 'c', 'e']
    """
    return [cases[number * len(cases) // most] for number in range(most)] if most < len(cases) else list(cases)


def _sizes(data: SegmentationDataModule) -> list[str]:
    found = Counter("x".join(map(str, facts["shape"])) for facts in data.facts.values() if "shape" in facts)
    if not found:
        return []
    told = ", ".join(f"{size} ({count} cases)" for size, count in found.most_common(4))
    lines = [f"sizes: {told}" + (f" and {len(found) - 4} more" if len(found) > 4 else "")]
    cut = not isinstance(data, ImageDataModule) or data.crop_size or data.image_size
    if len(found) > 1 and data.batch_size > 1 and not cut:
        lines.append("ATTENTION: images of a batch must have one size; set crop_size, image_size or batch_size: 1")
    return lines


def _values(data: SegmentationDataModule, cases: Sequence[Case]) -> list[str]:
    """Type and range of raw images; volumes are all read as float32."""
    if not isinstance(data, ImageDataModule):
        return []
    read, ranges = data.reader(), dict[str, list[tuple[float, float]]]()
    for case in cases:
        image = read(case)[0]
        ranges.setdefault(str(image.dtype), []).append((float(image.min()), float(image.max())))
    told = [f"{kind} from {min(lows):g} to {max(tops):g}" for kind, (lows, tops) in _transposed(ranges)]
    return [f"values of images: {', '.join(told)} ({data.normalization} normalisation)"]


def _mask_values(cases: Sequence[Case], most: int = 10) -> list[str]:
    """What mask files hold, by their share of the voxels."""
    counts: Counter[float] = Counter()
    for case in cases:
        if case.mask is not None:
            try:
                values, found = np.unique(read_mask(case.mask), return_counts=True)
            except (OSError, ValueError):  # colours, fractions or segments, which readers make classes of
                return []
            counts.update(dict(zip(values.tolist(), found.tolist(), strict=True)))
    if not counts:
        return []
    total = sum(counts.values())
    shown = [f"{value:g} ({100 * counts[value] / total:.2f} %)" for value in sorted(counts)[:most]]
    more = f" and {len(counts) - most} more" if len(counts) > most else ""
    return [f"values of masks: {', '.join(shown)}{more}"]


def _transposed(ranges: dict[str, list[tuple[float, float]]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    return ((kind, tuple(zip(*pairs, strict=True))) for kind, pairs in ranges.items())


def _classes(data: SegmentationDataModule) -> list[str]:
    """In how many cases of each part a class is; one that training or the pool set lacks is pointed out."""
    if not any("counts" in facts for facts in data.facts.values()):
        return []
    lines = []
    for number, name in enumerate(data.class_names):
        has = {part: _holding(data, part, number) for part in PARTS}
        told = ", ".join(f"{has[part]} of {len(getattr(data.splits, part))} {PARTS[part]}" for part in PARTS)
        lacking = " and ".join(PARTS[part] for part in ("train", "pool") if not has[part])
        lines.append(f"class {name}: in {told} cases" + (f"; ATTENTION: none in {lacking}" if lacking else ""))
    return lines


def _holding(data: SegmentationDataModule, part: str, number: int) -> int:
    facts = [data.facts.get(case.case_id, {}).get("counts") for case in getattr(data.splits, part)]
    return sum(1 for counts in facts if counts is not None and counts[number] > 0)


def _groups(data: SegmentationDataModule) -> list[str]:
    if not data.group_levels:
        return ["groups: none; where images share a patient, a site or a video, name them by group_regex or groups_csv"]
    told = []
    for depth, level in enumerate(data.group_levels, start=1):
        counts = [len({case.group(depth) for case in getattr(data.splits, part)}) for part in PARTS]
        told.append(f"{level} ({', '.join(f'{n} {PARTS[part]}' for n, part in zip(counts, PARTS, strict=True))})")
    return [f"groups: {', '.join(told)}"]


def _copies(data: SegmentationDataModule, cases: Sequence[Case]) -> list[str]:
    """Cases of the pool set that look like one of training: their agreement of brightness steps on a coarse grid."""
    home = {case.case_id: part for part in PARTS for case in getattr(data.splits, part)}
    hashes = {case.case_id: _steps(picture(data, case)[0]) for case in cases}
    pairs = [
        f"{one} looks like {other} ({PARTS[home[other]]})"
        for one, ours in hashes.items()
        for other, theirs in hashes.items()
        if home[one] == "pool" and home[other] != "pool" and _alike(ours, theirs)
    ]
    looked = f"{len(cases)} cases looked at"
    if not pairs:
        return [f"near copies between the pool set and training: none ({looked})"]
    return [f"ATTENTION: {len(pairs)} near copies between the pool set and training ({looked}): {listed(pairs)}"]


def _steps(image: NDArray[np.uint8]) -> NDArray[np.int8]:
    grey = np.asarray(Image.fromarray(image).convert("L").resize((_CELLS, _CELLS), Image.Resampling.BOX)) / 255
    steps = np.concatenate([np.diff(grey, axis=axis).ravel() for axis in (0, 1)])
    return np.where(np.abs(steps) < _FLAT, 0, np.sign(steps)).astype(np.int8)


def _alike(one: NDArray[np.int8], other: NDArray[np.int8]) -> bool:
    seen = (one != 0) | (other != 0)
    return bool(seen.sum() >= _CELLS and (one == other)[seen].mean() >= _ALIKE)


def picture(data: SegmentationDataModule, case: Case) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A case as people see it: 8-bit RGB ``(H, W, 3)`` and labels; of a volume the slice with most labels."""
    sample = data.dataset([case], "predict")[0]
    image, target = sample["image"].float(), sample["target"]
    if target.ndim == 3:
        middle = int(((target > 0) & (target != data.ignore_index)).sum(dim=(1, 2)).argmax())
        image = image[:, min(middle, image.shape[1] - 1)]
        target = target[middle]
    channels = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    low, high = torch.quantile(channels.flatten()[:: max(1, channels.numel() // 10**6)], torch.tensor([0.005, 0.995]))
    scaled = (255 * (channels - low) / (high - low).clamp(min=1e-6)).clamp(0, 255)
    return scaled.byte().permute(1, 2, 0).numpy(), target.numpy()


def save_sheet(data: SegmentationDataModule, path: Path) -> None:
    """Write a contact sheet: some cases of each part, images above, the same with their labels below."""
    rows = [(part, spread(getattr(data.splits, part), _ROW)) for part in PARTS]
    rows = [(part, cases) for part, cases in rows if cases]
    sheet = Image.new("RGB", (_ROW * _TILE, len(rows) * (2 * _TILE + 18)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (part, cases) in enumerate(rows):
        top = number * (2 * _TILE + 18)
        pen.text((4, top + 3), f"{PARTS[part]}: {len(getattr(data.splits, part))} cases", fill="black")
        _legend(pen, data, top + 3)
        for column, case in enumerate(cases):
            image, target = picture(data, case)
            for below, shown in enumerate((image, coloured(image, target, data))):
                tile = Image.fromarray(shown)
                scale = (_TILE - 4) / max(tile.size)
                tile = tile.resize((max(1, round(tile.width * scale)), max(1, round(tile.height * scale))))
                sheet.paste(tile, (column * _TILE, top + 18 + below * _TILE))
            pen.text(
                (column * _TILE + 3, top + 20), case.case_id[-24:], fill="yellow", stroke_width=1, stroke_fill="black"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as aside:
        sheet.save(aside, format="PNG")


def _legend(pen: ImageDraw.ImageDraw, data: SegmentationDataModule, top: int) -> None:
    """Names of the classes in their colours, at the right of a part's title."""
    left = 2.0 * _TILE
    for number, name in enumerate(data.class_names):
        if number != (0 if data.background is None else data.background):
            pen.text((left, top), name, fill=tuple(_COLOURS[number % len(_COLOURS)].tolist()))
            left += pen.textlength(name) + 12


def coloured(image: NDArray[np.uint8], target: NDArray[np.int64], data: SegmentationDataModule) -> NDArray[np.uint8]:
    """The image with its labels drawn over it; the background and what is ignored stay as they are."""
    if target.shape != image.shape[:2]:  # a volume whose grid is another one
        return image
    mixed = (0.45 * image + 0.55 * _COLOURS[target % len(_COLOURS)]).astype(np.uint8)
    plain = (target == (0 if data.background is None else data.background)) | (target == data.ignore_index)
    return np.where(plain[..., None], image, mixed)
