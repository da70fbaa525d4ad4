"""The commands of an installed package."""

import sys

import pytest

from lightning_calib.__main__ import COMMANDS, main


@pytest.mark.parametrize("argument", ["-h", "--help"])
def test_help_lists_the_commands(argument, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lightning-calib", argument])
    main()
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["trian"]])
def test_an_unknown_command_lists_the_known_ones(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lightning-calib", *arguments])
    with pytest.raises(SystemExit, match="calibrate") as caught:
        main()
    assert caught.value.code != 0


def test_the_rest_of_the_line_goes_to_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lightning-calib", "train", "fit", "--help"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert "--seed_everything" in capsys.readouterr().out
