"""Tiny data sets in the official layouts, written to a folder; each function returns that folder."""

import json
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

CITYSCAPES_IDS = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]


def blocks(rng, shape, labels):
    """A mask of large random patches: labels drawn on a coarse grid, enlarged to ``shape``."""
    coarse = rng.choice(labels, size=[max(n // 8, 1) for n in shape])
    for axis, n in enumerate(shape):
        coarse = np.repeat(coarse, -(-n // coarse.shape[axis]), axis=axis)
    return coarse[tuple(slice(n) for n in shape)].astype(np.uint8)


def picture(rng, mask):
    """An 8-bit RGB image whose colour follows the mask, with noise."""
    base = 20 + (mask.astype(np.float64) * 37) % 200
    image = base[..., None] + rng.normal(0, 12, (*mask.shape, 3))
    return image.clip(0, 254).astype(np.uint8)  # 255 on all channels would be blank to Massachusetts Roads


def save_picture(path: Path, array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"lossless": True} if path.suffix == ".webp" else {}
    Image.fromarray(array).save(path, **options)


def save_nifti(path: Path, array, spacing=(1.0, 1.0, 1.0)) -> None:
    """Array in the file's own order of axes (x, y, z)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, np.diag([*spacing, 1.0])), path)


def write_camvid(root: Path, train: int = 12, val: int = 4, test: int = 4, size=(64, 96)) -> Path:
    """``{train,val,test}/<video>_<frame>.png`` and ``{train,val,test}annot/``; 11 is void."""
    rng = np.random.default_rng(0)
    for part, video, count in (("train", "0006R0", train), ("val", "0016E5", val), ("test", "Seq05VD", test)):
        for frame in range(count):
            mask = blocks(rng, size, np.arange(12))
            save_picture(root / part / f"{video}_f{frame * 30:05d}.png", picture(rng, mask))
            save_picture(root / f"{part}annot" / f"{video}_f{frame * 30:05d}.png", mask)
    return root


def write_cityscapes(root: Path, train: int = 6, val: int = 3, size=(64, 128)) -> Path:
    """``leftImg8bit/<part>/<city>/*_leftImg8bit.png`` and ``gtFine/<part>/<city>/*_gtFine_labelIds.png``."""
    rng = np.random.default_rng(1)
    for part, city, count in (("train", "aachen", train), ("val", "munster", val)):
        for number in range(count):
            name = f"{city}_{number:06d}_000019"
            mask = blocks(rng, size, [0, 1, 4, 6, *CITYSCAPES_IDS])
            save_picture(root / "leftImg8bit" / part / city / f"{name}_leftImg8bit.png", picture(rng, mask))
            save_picture(root / "gtFine" / part / city / f"{name}_gtFine_labelIds.png", mask)
    return root


def write_massroads(
    root: Path, train: int = 6, valid: int = 2, test: int = 2, size=(64, 64), suffix: str = ".tiff"
) -> Path:
    """``{train,valid,test}/{sat,map}``; masks hold 0 and 255."""
    rng = np.random.default_rng(2)
    for part, count in (("train", train), ("valid", valid), ("test", test)):
        for number in range(count):
            mask = blocks(rng, size, [0, 0, 0, 1])
            name = f"{10000000 + number}_15"
            save_picture(root / part / "sat" / f"{name}{suffix}", picture(rng, mask * 3))
            save_picture(root / part / "map" / f"{name}.tif", mask * 255)
    return root


def write_brats(root: Path, patients: int = 4, visits: int = 1, shape=(32, 36, 34), first: int = 0) -> Path:
    """``BraTS-GLI-<patient>-<visit>/*-{t1n,t1c,t2w,t2f,seg}.nii.gz``: zero outside a box, the brain."""
    rng = np.random.default_rng(3 + first)
    for patient in range(first, first + patients):
        for visit in range(visits):
            name = f"BraTS-GLI-{patient:05d}-{100 + visit}"
            brain = np.zeros(shape, dtype=bool)
            brain[4:-5, 3:-6, 5:-2] = True
            seg = np.where(brain, blocks(rng, shape, [0, 0, 0, 1, 2, 3, 4]), 0).astype(np.uint8)
            for scale, channel in enumerate(("t1n", "t1c", "t2w", "t2f"), start=1):
                scan = np.where(brain, 100 * scale + 40.0 * seg + rng.normal(0, 9, shape), 0)
                save_nifti(root / name / f"{name}-{channel}.nii.gz", scan.astype(np.float32))
            save_nifti(root / name / f"{name}-seg.nii.gz", seg)
    return root


def write_decathlon(
    root: Path, cases: int = 8, shape=(24, 26, 22), spacings=((1.0, 1.0, 1.0),), channels: int = 1
) -> Path:
    """``dataset.json``, ``imagesTr/``, ``labelsTr/``; spacings are used in turn."""
    rng = np.random.default_rng(4)
    entries = []
    for number in range(cases):
        name, spacing = f"tiny_{number:03d}.nii.gz", spacings[number % len(spacings)]
        seg = blocks(rng, shape, [0, 0, 1, 2])
        image = 50.0 * seg + rng.normal(100, 10, shape)
        image = image if channels == 1 else np.stack([image * (c + 1) for c in range(channels)], axis=-1)
        save_nifti(root / "imagesTr" / name, image.astype(np.float32), spacing)
        save_nifti(root / "labelsTr" / name, seg, spacing)
        entries.append({"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"})
    index = {
        "name": "Tiny",
        "modality": {str(c): "MRI" for c in range(channels)},
        "labels": {"0": "background", "1": "front", "2": "back"},
        "training": entries,
    }
    (root / "dataset.json").write_text(json.dumps(index))
    return root


def write_folder(root: Path, cases: int = 10, size=(64, 64), suffix: str = ".png", classes: int = 3) -> Path:
    """``images/`` and ``masks/``; two cases a patient: ``p00_a``, ``p00_b``, ``p01_a`` ..."""
    rng = np.random.default_rng(5)
    for number in range(cases):
        name = f"p{number // 2:02d}_{'ab'[number % 2]}"
        mask = blocks(rng, size, np.arange(classes))
        if suffix == ".npy":
            for folder, array in (("images", picture(rng, mask).astype(np.float32)[..., :2]), ("masks", mask)):
                (root / folder).mkdir(parents=True, exist_ok=True)
                np.save(root / folder / f"{name}.npy", array)
        else:
            save_picture(root / "images" / f"{name}{suffix}", picture(rng, mask))
            save_picture(root / "masks" / f"{name}.png", mask)
    return root


def write_volume_folder(root: Path, cases: int = 6, shape=(24, 26, 22), classes: int = 3) -> Path:
    """``images/`` and ``masks/`` of NIfTI files."""
    rng = np.random.default_rng(6)
    for number in range(cases):
        seg = blocks(rng, shape, np.arange(classes))
        save_nifti(root / "images" / f"scan{number}.nii.gz", (40.0 * seg + rng.normal(0, 5, shape)).astype(np.float32))
        save_nifti(root / "masks" / f"scan{number}.nii.gz", seg)
    return root
