"""Shared fixtures: the real data sets, and a machine that tests can share."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a worker: pytest-xdist fills the cores
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import hypothesis
import pytest
import torch

from lightning_calib.kit import registry

torch.set_num_threads(1)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=50, print_blob=True)
hypothesis.settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests leave nothing in the user's cache, and find nothing there."""
    os.environ["LIGHTNING_CALIB_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of later tests do not look for modules that a test made and registered."""
    monkeypatch.setattr(registry, "_MODULES", dict(registry._MODULES))


def real_data(name: str) -> Path:
    """Folder of a real data set; skips the calling test where it is absent."""
    root = os.environ.get("LIGHTNING_CALIB_DATA")
    if not root:
        pytest.skip("LIGHTNING_CALIB_DATA is not set: no real data on this machine")
    folder = Path(root) / name
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist: no real data on this machine")
    return folder


@pytest.fixture(scope="session")
def camvid_root() -> Path:
    return real_data("camvid")


@pytest.fixture(scope="session")
def hippocampus_root() -> Path:
    return real_data("hippocampus")


@pytest.fixture(scope="session")
def massroads_root() -> Path:
    return real_data("massroads")


@pytest.fixture(scope="session")
def nuclei_root() -> Path:
    return real_data("nuclei")
