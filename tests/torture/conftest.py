"""One small run for all tests of the battery, and the table of what became of them."""

import shutil

import numpy as np
import pytest
from PIL import Image

from tests.stores import write_store
from tests.torture.killing import KILLED, in_fork, touches
from tests.torture.outcomes import TALLY, VOXELS, called
from tests.training import tiny_config

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


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run: two members, their outputs, a calibration, and what was deployed of it; pictures beside it."""
    folder = tmp_path_factory.mktemp("trained")
    config, root = tiny_config(folder, epochs=2, pool=6), folder / "tiny"
    common = ["--config", config, "--runs_dir", folder]
    for seed in (0, 1):
        assert called(["train", "fit", *common, "--seed_everything", seed])[0] == 0
    assert called(["train", "predict", *common])[0] == 0
    settings = ["--repeats", 1, "--trials", 1, "--cal", 2, "--val", 2, "--workers", 0, "--logger", "none"]
    run = ["run", "--outputs", root / "outputs", "--pipelines", "identity(p),ts(p)", *settings, "--report", "false"]
    assert called(run)[0] == 0
    assert called(["deploy", "--calibration", root / "calibration", "--pipeline", "ts(p)"])[0] == 0
    (folder / "pictures").mkdir()
    for number in range(2):
        pixels = np.random.default_rng(number).integers(256, size=(16, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def half_trained(trained):
    """A run whose only member was killed in its second epoch."""
    root = trained.parent / "half"
    line = ["train", "fit", "--config", trained.parent / "tiny.yaml", "--runs_dir", root.parent, "--name", root.name]
    points = touches(line)
    for left in range(points - 1, 0, -1):  # back from the end, to where the first epoch alone is kept
        shutil.rmtree(root)
        assert in_fork(line, left) == KILLED
        member = root / "members" / "0"
        if not (member / "finished.json").exists() and '"epoch": 1' in (member / "progress.json").read_text():
            return root
    raise AssertionError("no epoch was kept")


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
