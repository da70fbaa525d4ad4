"""The display counts, estimates and keeps to plain lines where there is no terminal."""

import io

import pytest
from rich.console import Console

from lightning_calib.kit.progress import Display


def test_plain_lines_with_time_left():
    text = io.StringIO()
    with Display(["ts", "ts", "lts"], workers=2, console=Console(file=text, width=200)) as display:
        display.done("ts", "fitted ts(z), repeat 0", 10.0)
        assert display.left() == pytest.approx(10 / 2)  # lts is unknown
        display.done("lts", "fitted lts(z), repeat 0", 100.0)
        assert display.left() == pytest.approx(10 / 2)
    lines = text.getvalue().splitlines()
    assert lines[0] == "[0/3] started, 2 at a time"
    assert lines[1] == "[1/3] fitted ts(z), repeat 0 in 10.0 s; at least 5 s left"
    assert lines[2] == "[2/3] fitted lts(z), repeat 0 in 100.0 s; about 5 s left"


def test_one_bar_on_a_terminal():
    text = io.StringIO()
    with Display(["ts", "ts"], console=Console(file=text, force_terminal=True, width=120)) as display:
        display.done("ts", "fitted ts(z), repeat 0", 75.0)
    assert "1/2" in text.getvalue()
    assert "about 75 s left" in text.getvalue()


def test_machines_at_work_are_named_when_one_is_new():
    text, doing = io.StringIO(), {"a": ["fit ts(p)"]}
    console = Console(file=text, width=200)
    with Display(["ts"] * 4, console=console, doing=lambda: doing) as display:
        display.done("ts", "first", 1.0)
        doing["b"] = ["fit ms(z)"]
        display.done("ts", "second", 1.0)
        doing["a"] = []
        display.done("ts", "third", 1.0)
    assert [line for line in text.getvalue().splitlines() if line.startswith("at work")] == ["at work: a (1), b (1)"]


def test_a_terminal_shows_what_each_machine_does():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    with Display(["ts"], console=console, doing=lambda: {"a": ["fit ts(p)", "fit ms(z)"]}) as display:
        display.done("ts", "first", 1.0)
    assert "a: fit ts(p) | fit ms(z)" in text.getvalue()


def test_quiet_means_quiet(capsys):
    with Display(["ts"], quiet=True) as display:
        display.done("ts", "fitted", 1.0)
    assert capsys.readouterr().out == ""


def test_a_job_of_unknown_length_began_when_the_last_one_ended(monkeypatch):
    monkeypatch.setattr("time.monotonic", iter([100.0, 103.0, 104.0]).__next__)
    display = Display(["ts", "ts"], quiet=True)
    display.done("ts", "first")
    display.done("ts", "second")
    assert display.seconds["ts"] == [3.0, 1.0]
