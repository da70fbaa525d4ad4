"""Runs that all tests of deployment read."""

import pytest

from tests.deployment.runs import calibrate, image_run, save_pool_pictures, volume_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    folder = image_run(tmp_path_factory.mktemp("image_run"))
    save_pool_pictures(folder / "pictures")
    return folder


@pytest.fixture(scope="session")
def deployed(run):
    """The order-preserving pipeline of the 2D run, deployed."""
    assert calibrate("deploy", "--calibration", run / "calibration", "--pipeline", "cms_op(p)") == 0
    return run / "deployed"


@pytest.fixture(scope="session")
def scans(tmp_path_factory):
    """The 3D run, deployed."""
    folder = volume_run(tmp_path_factory.mktemp("volume_run"))
    assert calibrate("deploy", "--calibration", folder / "calibration", "--pipeline", "ts(z)") == 0
    return folder
