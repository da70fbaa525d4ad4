"""The commands of an installed package, and what starting one costs."""

import subprocess
import sys

import pytest

from lightning_calib import __version__
from lightning_calib.__main__ import COMMANDS, main
from tests.stores import write_store

HEAVY = {"torch", "pytorch_lightning", "matplotlib", "optuna", "jsonargparse", "rich", "numpy"}


@pytest.mark.parametrize("argument", ["-h", "--help"])
def test_help_lists_the_commands(argument, capsys):
    assert main([argument]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "no command"), (["trian"], "did you mean train?"), (["--fast"], "a command comes first")],
)
def test_an_unknown_command_lists_the_known_ones(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "calibrate" in error


def test_the_rest_of_the_line_goes_to_the_command(capsys):
    assert main(["train", "fit", "--help"]) == 0
    assert "--seed_everything" in capsys.readouterr().out


@pytest.mark.parametrize("program", ["__main__", "cli.train", "cli.calibrate"])
@pytest.mark.parametrize("argument", ["--help", "--version", "recomend", "--help-all"])
def test_light_lines_import_nothing_heavy(program, argument):
    code = f"""
import sys
from lightning_calib.{program} import main
main([{argument!r}])
print("HEAVY", sorted({HEAVY!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("HEAVY []\n")
    assert argument != "--version" or __version__ in done.stdout


@pytest.mark.parametrize("command", ["show", "recommend", "verify"])
def test_light_commands_do_without_lightning_and_searches(command, tmp_path):
    option = "--outputs" if command == "verify" else "--calibration"
    code = f"""
import sys
from lightning_calib.cli.calibrate import main
main([{command!r}, {option!r}, {str(tmp_path)!r}])
print("HEAVY", sorted({{"pytorch_lightning", "pandas", "optuna"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("HEAVY []\n"), done.stdout


def test_the_doctor_does_without_what_its_checks_rarely_need(tmp_path):
    store = write_store(tmp_path / "outputs").path
    code = f"""
import sys
from lightning_calib.cli.calibrate import main
main(["doctor", "--outputs", {str(store)!r}])
print("HEAVY", sorted({{"pytorch_lightning", "torchmetrics", "torchvision", "pandas", "matplotlib", "numba", "sympy"}}
                      & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("HEAVY []\n"), done.stdout


@pytest.mark.parametrize(
    ("started", "name"),
    [
        ("calibrate.py", "calibrate.py run"),
        ("/usr/bin/lightning-calib", "lightning-calib calibrate run"),
        ("/x/lightning_calib/__main__.py", "python -m lightning_calib calibrate run"),
    ],
)
def test_messages_name_the_form_that_was_used(started, name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [started])
    assert main(["calibrate", "recommend", "--calibration", str(tmp_path)]) == 2
    assert f"make them with `{name}`" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["calibrate", "recommend", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"folder that {name} wrote" in shown
    assert f"usage: {name.removesuffix(' run')} [options] recommend" in shown
