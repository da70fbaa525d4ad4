"""Strangers are registered while tests of this folder run."""

import pytest

from lightning_calib.calibrators import CALIBRATORS
from tests.calibrators.strangers import STRANGERS


@pytest.fixture(autouse=True, scope="module")
def strangers():
    known = CALIBRATORS.registered
    CALIBRATORS.registered = {**known, **STRANGERS}
    yield
    CALIBRATORS.registered = known
