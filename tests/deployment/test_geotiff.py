"""GeoTIFF in and out: the place on Earth stays, through windows, resizing and stores."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image
from rasterio.errors import NotGeoreferencedWarning
from safetensors.torch import load_file

from lightning_calib.datasets import georeference as module
from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.georeference import georeference
from lightning_calib.datasets.massroads import MassachusettsRoads
from lightning_calib.deployment.folder import DeploymentError
from lightning_calib.deployment.writers import writer_for
from tests.deployment.runs import calibrate
from tests.deployment.test_writers import case_maps
from tests.layouts import write_folder, write_massroads

ROTATED = rasterio.Affine(0.9, 0.2, 331000.0, 0.1, -1.1, 4690000.0)
CRS = rasterio.CRS.from_epsg(26986)


def at(x, y):
    """Coordinates of a column and a row."""
    a, b, c, d, e, f = ROTATED[:6]
    return a * x + b * y + c, d * x + e * y + f


def save_geotiff(path, bands, crs=CRS, transform=ROTATED):
    """``(bands, H, W)`` at a place on Earth."""
    facts = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2], "dtype": bands.dtype}
    with rasterio.open(path, "w", driver="GTiff", crs=crs, transform=transform, **facts) as file:
        file.write(bands)
    return path


def replaced(folder):
    """Pictures of a folder as GeoTIFF files in their place."""
    for path in sorted(folder.iterdir()):
        bands = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)
        path.unlink()
        save_geotiff(path.with_suffix(".tif"), np.ascontiguousarray(bands))


def test_maps_lie_where_the_images_lie(run, deployed, tmp_path):
    """And hold what those of the same pictures without a place hold."""
    images = tmp_path / "images"
    images.mkdir()
    for path in sorted((run / "pictures").iterdir())[:3]:
        (images / path.name).write_bytes(path.read_bytes())
    common = ["--deployed", deployed, "--images", images, "--precision"]
    assert calibrate("apply", *common, "float32", "--destination", tmp_path / "plain") == 0
    replaced(images)
    for precision, error in (("float32", 0), ("16bit", 0.5 / 65535), ("8bit", 0.5 / 255)):
        where = tmp_path / precision
        assert calibrate("apply", *common, precision, "--destination", where) == 0
        for path in (tmp_path / "plain").glob("*.safetensors"):
            plain = load_file(path)
            for kind, wanted in (("probs", plain["probs"]), ("confidence", plain["confidence"][None])):
                with rasterio.open(where / f"{path.stem}_{kind}.tif") as file:
                    assert file.crs == CRS
                    assert file.transform.almost_equals(ROTATED)
                    found = file.read() * np.array(file.scales)[:, None, None]
                    np.testing.assert_allclose(found, wanted, atol=error + 1e-7)
            with rasterio.open(where / f"{path.stem}_mask.tif") as file:
                np.testing.assert_array_equal(file.read(1), plain["mask"])
    with rasterio.open(where / f"{path.stem}_probs.tif") as file:
        assert file.descriptions == ("background", "disc", "rod", "speck")


def test_the_command_of_the_docs_runs(run, deployed, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"```sh\n(.*?)```", page.partition("### GeoTIFF")[2].partition("### DICOM")[0], re.DOTALL)
    for folder in ("runs", "tiles"):
        (tmp_path / folder).mkdir()
    (tmp_path / "runs" / "shapes").symlink_to(run)
    one = sorted((run / "pictures").iterdir())[0]
    (tmp_path / "tiles" / one.name).write_bytes(one.read_bytes())
    replaced(tmp_path / "tiles")
    monkeypatch.chdir(tmp_path)
    assert calibrate(*shlex.split(command)[2:]) == 0
    assert len(list(Path("maps-on-earth").glob("*.tif"))) == 3


def corners(place, shape):
    """Coordinates of a grid's outer corners ``(4, 2)``."""
    a, b, c, d, e, f = place["georeference"]["transform"]
    return np.array([(a * x + b * y + c, d * x + e * y + f) for y in (0, shape[0]) for x in (0, shape[1])])


def test_windows_and_resized_grids_keep_their_corners(tmp_path):
    path = save_geotiff(tmp_path / "a.tif", np.zeros((3, 20, 30), np.uint8))
    whole = corners(georeference(path, (20, 30)), (20, 30))
    assert whole == pytest.approx(np.array([at(*xy) for xy in ((0, 0), (30, 0), (0, 20), (30, 20))]))
    assert corners(georeference(path, (5, 90)), (5, 90)) == pytest.approx(whole)
    window = corners(georeference(path, (4, 6), (2, 10, 8, 12)), (4, 6))
    assert window == pytest.approx(np.array([at(*xy) for xy in ((10, 2), (22, 2), (10, 10), (22, 10))]))


def test_images_without_a_place_have_none(tmp_path):
    Image.new("RGB", (4, 5)).save(tmp_path / "a.tif")
    Image.new("RGB", (4, 5)).save(tmp_path / "b.png")
    (tmp_path / "b.png").rename(tmp_path / "b.tif")
    assert georeference(tmp_path / "a.tif", (5, 4)) is None
    assert georeference(tmp_path / "b.tif", (5, 4)) is None


def test_a_place_without_a_named_system(tmp_path):
    path = save_geotiff(tmp_path / "a.tif", np.zeros((3, 4, 5), np.uint8), crs=None)
    place = georeference(path, (4, 5))
    assert place["georeference"]["crs"] == ""
    maps = case_maps((4, 5), place)
    with rasterio.open(writer_for(maps).write(tmp_path / "m", maps, "16bit", False)[0]) as file:
        assert file.crs is None
        assert file.transform.almost_equals(ROTATED)


@pytest.mark.parametrize(("size", "shape"), [(None, (64, 64)), ((32, 48), (32, 48))])
def test_stored_cases_know_their_place(tmp_path, size, shape):
    write_folder(tmp_path, classes=2)
    replaced(tmp_path / "images")
    data = Folder(tmp_path, ["rest", "road"], image_size=size, crop_size=(16, 16))
    sample = data.dataset(data.splits.pool, "predict")[0]
    assert sample["target"].shape == shape
    assert corners(sample["geometry"], shape) == pytest.approx(
        np.array([at(*xy) for xy in ((0, 0), (64, 0), (0, 64), (64, 64))])
    )
    assert "geometry" not in data.dataset(data.splits.train, "train")[0]  # crops are nowhere in particular


def test_windows_of_roads_know_their_place(tmp_path):
    write_massroads(tmp_path, suffix=".png")
    for part in ("train", "valid", "test"):
        replaced(tmp_path / part / "sat")
    data = MassachusettsRoads(tmp_path, crop=32)
    for sample in data.dataset(data.splits.pool, "predict"):
        top, left, height, width = sample["geometry"]["window"]
        assert corners(sample["geometry"], (height, width))[0] == pytest.approx(at(left, top))


def test_without_the_extra_the_place_is_lost_and_said(tmp_path, monkeypatch):
    path = save_geotiff(tmp_path / "a.tif", np.zeros((3, 4, 5), np.uint8))
    maps = case_maps((4, 5), georeference(path, (4, 5)))
    monkeypatch.setitem(sys.modules, "rasterio", None)
    module._has_library.cache_clear()
    with pytest.warns(UserWarning, match=r'not kept: pip install "lightning-calib\[geo\]"'):
        assert georeference(path, (4, 5)) is None
    with pytest.raises(DeploymentError, match=r'pip install "lightning-calib\[geo\]", or --format arrays'):
        writer_for(maps).write(tmp_path / "a", maps, "16bit", True)
    module._has_library.cache_clear()


def test_the_maps_are_read_without_a_warning(tmp_path, recwarn):
    maps = case_maps((4, 5), georeference(save_geotiff(tmp_path / "a.tif", np.zeros((3, 4, 5), np.uint8)), (4, 5)))
    for path in writer_for(maps).write(tmp_path / "m", maps, "8bit", True):
        rasterio.open(path).close()
    assert not [each for each in recwarn if each.category is NotGeoreferencedWarning]
