"""--executor and its options on the command line and in config files."""

from typing import Any

import pytest
from jsonargparse import auto_cli

from lightning_calib.cli.calibrate import main
from lightning_calib.cli.parser import Parser
from lightning_calib.cli.training import TrainParser
from lightning_calib.executors.base import make_executor


def chosen(executor: str | dict[str, Any] = "local") -> str | dict[str, Any]:
    """Say what was chosen.

    Args:
        executor: where jobs run.
    """
    return executor


def parsed(line):
    return auto_cli({"run": chosen}, args=["run", *line], as_positional=False, parser_class=Parser)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "local"),
        ("--executor ray", "ray"),
        ("--executor=mine.Own", "mine.Own"),
        (
            "--executor ray --executor.address auto --executor.gpus 0.25",
            {"name": "ray", "address": "auto", "gpus": 0.25},
        ),
        ("--executor.gpus 0.25 --executor ray", {"name": "ray", "gpus": 0.25}),
        ("--executor.gpus 2", {"name": "local", "gpus": 2}),
    ],
)
def test_names_and_options_come_together(line, expected):
    assert parsed(line.split()) == expected


@pytest.mark.parametrize("text", ["ray", "{name: ray, gpus: 1}"])
def test_a_config_file_and_the_command_line_go_together(tmp_path, text):
    (tmp_path / "run.yaml").write_text(f"executor: {text}\n")
    line = ["--config", str(tmp_path / "run.yaml"), "--executor.address", "auto"]
    assert parsed(line) == {"name": "ray", "address": "auto"} | ({"gpus": 1} if "gpus" in text else {})


def test_help_lists_the_options_of_every_executor(capsys):
    with pytest.raises(SystemExit):
        parsed(["--help"])
    told = capsys.readouterr().out
    assert "Options of --executor ray:" in told
    assert "--executor.address ADDRESS" in told
    assert "--executor.slots" not in told


def test_members_take_the_same_options():
    parser = TrainParser()
    parser.add_argument("--executor", type=str | dict[str, Any], default="local")
    assert parser.parse_args(["--executor", "ray", "--executor.retries", "1"]).executor == {"name": "ray", "retries": 1}


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("rai", "unknown executor 'rai'; did you mean ray?"),
        ({"name": "ray", "adress": "auto"}, "the executor ray has no option 'adress'; did you mean address?"),
        ({"name": "ray", "gpus": "many"}, "options of the executor ray: .*gpus"),
        ({"name": "ray", "gpus": -1}, "gpus = -1.0"),
        ({"name": "ray", "slots": 2}, "has no option 'slots'"),
    ],
)
def test_wrong_choices_are_refused_with_the_right_one(choice, told):
    with pytest.raises(ValueError, match=told):
        make_executor(choice)


def test_the_command_refuses_them_in_one_line(tmp_path, capsys):
    code = main(["run", "--outputs", str(tmp_path), "--executor", "ray", "--executor.adress", "auto"])
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_choosing_ray_imports_and_starts_nothing(monkeypatch):
    import sys

    before = set(sys.modules)
    executor = make_executor({"name": "ray", "gpus": "0.25"}, slots=3, threads=2)
    assert executor.needs.gpus == 0.25
    assert executor.slots == 3
    assert executor.doing() == {}
    executor.close()
    assert not {name for name in set(sys.modules) - before if name == "ray" or name.startswith("ray.")}
