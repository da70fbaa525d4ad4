"""One made-up run and its report, shared by all tests of this folder."""

from pathlib import Path

import pytest

from lightning_calib.data.store import OutputStore
from lightning_calib.report.build import build_report
from tests.protocol.synthetic import write_outputs, write_results


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> OutputStore:
    return write_outputs(tmp_path_factory.mktemp("run") / "outputs", cases=12)


@pytest.fixture(scope="session")
def calibration(store) -> Path:
    """All pipelines of the paper, two repeats; one pipeline failed in one of them, another in both."""
    fail = ((1, "ms_c(z)"), (0, "cdc(p)"), (1, "cdc(p)"))
    return write_results(store.path.parent / "calibration", store, repeats=2, fail=fail)


@pytest.fixture(scope="session")
def report(store, calibration) -> Path:
    return build_report(calibration, store.path, store.path.parent / "report")


@pytest.fixture(scope="session")
def page(report) -> str:
    return report.read_text(encoding="utf-8")
