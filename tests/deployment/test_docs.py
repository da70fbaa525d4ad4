"""The commands of docs/deploying.md run as they stand."""

import re
import shlex
from pathlib import Path

from lightning_calib.deployment import CalibratedEnsemble
from tests.deployment.runs import calibrate

PAGE = Path(__file__).parents[2] / "docs" / "deploying.md"
(COMMANDS,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_worked_example_runs(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "shapes").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS.splitlines():
        assert calibrate(*shlex.split(line)[2:]) == 0, capsys.readouterr().err
    assert CalibratedEnsemble.load("runs/shapes/deployed").pipeline.pooling == "p"
    assert len(list(Path("maps").glob("*.safetensors"))) == 24
    assert Path("runs/shapes/deployed/pipeline.pt2").is_file()
