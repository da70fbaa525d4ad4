"""One synthetic run for all tests that only read."""

import pytest

from lightning_calib.experiment.results import Results
from tests.experiment.synthetic import write_outputs, write_results


@pytest.fixture(scope="session")
def outputs(tmp_path_factory):
    return write_outputs(tmp_path_factory.mktemp("synthetic") / "outputs")


@pytest.fixture(scope="session")
def results(outputs):
    return Results(write_results(outputs.path.parent / "calibration", outputs))


@pytest.fixture(scope="session")
def broken_results(outputs):
    """A run in which dc(z) failed once and lts(z) always."""
    names = ["identity(z)", "ms(z)", "dc(z)", "ms_c(z)", "lts(z)", "lts_ti(z)", "ts(z)"]
    fail = {(1, "dc(z)"), (0, "lts(z)"), (1, "lts(z)"), (2, "lts(z)")}
    return Results(write_results(outputs.path.parent / "broken" / "calibration", outputs, names, fail=fail))
