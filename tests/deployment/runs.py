"""Small real runs: trained members, stored outputs, a calibration run, the deployed folder."""

from pathlib import Path

import nibabel
import numpy as np
import yaml
from PIL import Image

from lightning_calib.cli.calibrate import main
from lightning_calib.datasets.dicom import read_series
from lightning_calib.datasets.shapes import Shapes
from tests.dicom_series import write_series
from tests.training import tiny_config, train

AFFINE = np.array([[0.0, 0.9, 0.0, -7.0], [0.8, 0.0, 0.0, 4.0], [0.0, 0.0, -2.5, 11.0], [0.0, 0.0, 0.0, 1.0]])


def calibrate(*arguments) -> int:
    """``python calibrate.py <arguments>``, without a process of its own."""
    return main([str(argument) for argument in arguments])


def calibrated_run(config: Path, pipelines: str, **options) -> Path:
    """Train two members, predict, run the protocol; returns the run's folder."""
    for seed in (0, 1):
        train("fit", config, "--seed_everything", str(seed))
    train("predict", config)
    folder = config.parent / "runs" / "tiny"
    settings = {"repeats": 2, "trials": 1, "cal": 0.3, "val": 0.3, "workers": 0, "report": "false"} | options
    pairs = [text for name, value in settings.items() for text in (f"--{name}", value)]
    code = calibrate("run", "--outputs", folder / "outputs", "--pipelines", pipelines, *pairs)
    assert code == 0
    return folder


def image_run(folder: Path) -> Path:
    """A 2D run on shapes, 24 pool images of 16 x 24 pixels."""
    return calibrated_run(tiny_config(folder, pool=24), "identity(p),cms_op(p),ms_c(z)")


def save_pool_pictures(folder: Path) -> None:
    """The pool images of :func:`image_run` as PNG files."""
    shapes = Shapes(num_train=8, num_val=3, num_pool=24, size=(16, 24))
    folder.mkdir(parents=True)
    for case in shapes.splits.pool:
        Image.fromarray(shapes.draw(case)[0]).save(folder / f"{case.case_id}.png")


def write_nifti_scan(root: Path, name: str, image, mask) -> None:
    """An image and its mask, both ``(x, y, z)``, as NIfTI files with an oblique affine."""
    for part, array in (("images", image), ("masks", mask)):
        path = root / part / f"{name}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(array, AFFINE), path)


def write_dicom_scan(root: Path, name: str, image, mask) -> None:
    """The same as an oblique DICOM series with halves as steps, and a NIfTI mask with its axes in another order."""
    values = np.rint(2 * image.T).astype(np.int16)
    series = write_series(root / "images" / name, values, slope=0.5, seed=int(name[-2:]))
    (root / "masks").mkdir(exist_ok=True)
    whole = nibabel.Nifti1Image(mask, read_series(series).affine)
    nibabel.save(whole.as_reoriented([[1, -1], [2, 1], [0, -1]]), root / "masks" / f"{name}.nii.gz")


def volume_run(folder: Path, write=write_nifti_scan) -> Path:
    """A 3D run on small scans, zero outside a box, by sliding windows."""
    rng = np.random.default_rng(0)
    for number in range(12):
        mask = np.zeros((12, 11, 10), np.uint8)
        mask[4:8, 3:8, 3:7] = 1
        image = np.zeros(mask.shape, np.float32)
        image[1:11, 2:10, 1:9] = (10 + 5 * mask + rng.normal(0, 2, mask.shape))[1:11, 2:10, 1:9]
        write(folder / "data", f"scan-{number:02d}", image, mask)
    path = tiny_config(folder, epochs=1)
    config = yaml.safe_load(path.read_text())
    options = {"root": str(folder / "data"), "class_names": ["rest", "core"], "content_only": True}
    options |= {"patch_size": [8, 8, 8], "batch_size": 2, "pool_fraction": 0.6}
    config["data"] = {"class_path": "lightning_calib.datasets.volume_folder.VolumeFolder", "init_args": options}
    config["model"]["inference"] = {"window": [6, 6, 6]}
    path.write_text(yaml.safe_dump(config))
    return calibrated_run(path, "identity(z),ts(z)", repeats=1, doctor="false")  # networks of one epoch


def fitted_run(outputs: Path, *options: object) -> Path:
    """Run one repeat on a store and deploy what it fits on cal and val; returns the deployed folder."""
    settings = ["--repeats", 1, "--trials", 1, "--cal", 0.25, "--val", 0.15, "--workers", 0, "--report", "false"]
    chosen = ["--pipelines", "identity(p),ts(p)", "--selection", "paper", *options]
    assert calibrate("run", "--outputs", outputs, *settings, *chosen) == 0
    where = ["--calibration", outputs.parent / "calibration", "--pipeline", "ts(p)", "--cases", "cal_val"]
    assert calibrate("deploy", *where) == 0
    return outputs.parent / "deployed"
