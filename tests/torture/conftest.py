"""One small run for all tests of the battery, and the table of what became of them."""

import pytest

from tests.stores import write_store
from tests.torture.outcomes import TALLY, VOXELS, called

OUTCOMES = ("survived", "clear", "silent", "traceback")


@pytest.fixture(scope="session")
def tortured(tmp_path_factory):
    """A store, a run on it, and what was deployed of it."""
    root = tmp_path_factory.mktemp("tortured")
    write_store(root / "outputs", cases=6, num_classes=3, shape=(8, 12), ignore_index=None)
    settings = ["--repeats", 1, "--trials", 1, "--cal", 2, "--val", 2, "--workers", 0, "--logger", "none"]
    run = ["run", "--outputs", root / "outputs", "--pipelines", "identity(p),ts(p)", *settings, "--report", "false"]
    assert called(run)[0] == 0
    assert called(["deploy", "--calibration", root / "calibration", "--pipeline", "ts(p)"])[0] == 0
    return root


def pytest_terminal_summary(terminalreporter):
    """Print the table."""
    parts = list(dict.fromkeys(part for part, _ in TALLY))
    if not parts and not VOXELS:
        return
    terminalreporter.write_line("")
    terminalreporter.write_line(f"{'part':<14}{'tried':>8}" + "".join(f"{name:>11}" for name in OUTCOMES))
    for part in parts:
        counts = [TALLY[part, outcome] for outcome in OUTCOMES]
        terminalreporter.write_line(f"{part:<14}{sum(counts):>8}" + "".join(f"{count:>11}" for count in counts))
    for name, count in VOXELS.items():
        terminalreporter.write_line(f"{name}: {count:,}")
