"""The W&B workspace that is suggested; nothing is sent."""

import json

import pytest

from lightning_calib.cli.calibrate import main
from lightning_calib.experiment.tracking.tracking import final_figures

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style")  # wandb-workspaces 0.4 on pydantic 2


def panels(capsys):
    assert main(["dashboard", "--entity", "E", "--project", "P", "--dry_run", "true"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert (view["entity"], view["project"], view["displayName"]) == ("E", "P", "lightning_calib")
    sections = view["spec"]["section"]["panelBankConfig"]["sections"]
    assert sections[0]["name"] == "Before and after calibration"
    return [panel for section in sections for panel in section["panels"]]


def test_bars_compare_keys_that_runs_have(capsys):
    bars = [panel["config"]["metrics"] for panel in panels(capsys) if panel["viewType"] == "Bar Chart"]
    scored = {"metrics": {key: {"mean": 1.0} for key in ("nll", "ece", "ace", "ba_ece", "dice")}}

    class Results:
        summary = {  # noqa: RUF012
            "pipelines": {"identity(p)": scored, "ts(p)": scored},
            "recommendation": {"order": {"pipeline": "ts(p)"}},
            "selection": None,
        }

    logged = final_figures(Results())
    assert len(bars) == 5
    assert {key for pair in bars for key in pair} <= logged.keys()


def test_lines_follow_the_step_that_trackers_get(capsys):
    lines = [panel["config"] for panel in panels(capsys) if panel["viewType"] == "Run History Line Plot"]
    assert {line["xAxis"] for line in lines} == {"trainer/global_step"}
    assert "fit/.*objective" in {line.get("metricRegex") for line in lines}


def test_a_server_that_takes_nothing_is_said(monkeypatch, capsys):
    from wandb_workspaces.workspaces import Workspace

    def refuse(self):
        raise OSError("no route to host")

    monkeypatch.setattr(Workspace, "save", refuse)
    assert main(["dashboard", "--entity", "E", "--project", "P"]) == 2
    assert "W&B took no workspace E/P: no route to host" in capsys.readouterr().err
