"""Messages and reports name the program in the form in which it was called."""

import pytest

from lightning_calib.kit.program import command, named

CALLS = {
    "calibrate.py": ("python calibrate.py", "calibrate.py"),
    "/home/me/bin/lightning-calib": ("lightning-calib calibrate", "lightning-calib calibrate"),
    "/lib/lightning_calib/__main__.py": ("python -m lightning_calib calibrate", "python -m lightning_calib calibrate"),
    "ipykernel_launcher.py": ("lightning-calib calibrate", "calibrate.py"),
}


@pytest.mark.parametrize("started", CALLS)
def test_the_form_of_the_call_is_kept(monkeypatch, started):
    monkeypatch.setattr("sys.argv", [started])
    line, told = CALLS[started]
    assert command(["calibrate", "deploy", "--calibration", "my runs/c"]) == f"{line} deploy --calibration 'my runs/c'"
    assert named("see `calibrate.py run`, not my/calibrate.py") == f"see `{told} run`, not my/calibrate.py"
