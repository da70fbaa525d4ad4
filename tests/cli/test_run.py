"""`calibrate.py run` and `recommend`: from outputs to table, report, tracker and exit code."""

import json

import pytest

from lightning_calib.cli.calibrate import main
from lightning_calib.experiment import fit_jobs
from lightning_calib.experiment.results import Results
from tests.experiment.synthetic import write_outputs

SMALL = ["--repeats", "2", "--trials", "1", "--cal", "4", "--val", "3", "--workers", "0", "--selection", "paper"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run folder with outputs and a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    write_outputs(folder / "outputs", cases=12)
    return folder


def run(home, *options):
    return main(["run", "--outputs", str(home / "outputs"), *SMALL, *options])


def test_run_ends_with_table_report_and_tracked_runs(home, capsys):
    assert run(home, "--pipelines", "identity(z),ms(z),ts(z),cms_op(z)") == 0
    text = capsys.readouterr().out
    assert "[8/8] fitted" in text
    assert "evaluated 4 pipelines on z, repeat 1" in text
    table = [line for line in text.splitlines() if line.startswith(("identity(z)", "ms(z)", "ts(z)", "cms_op(z)"))]
    assert len(table) == 4
    assert table[1].startswith("ms(z) \N{MULTIPLICATION SIGN} ")
    assert "Deploy " in text
    assert (home / "report" / "index.html").is_file()
    assert str(home / "report" / "index.html") in text
    assert Results(home / "calibration").missing == []
    tracked = home / "tracking" / "csv"
    assert {path.name for path in tracked.iterdir()} >= {"metrics.csv", "main.csv", "cases.csv", "config.json"}


def test_a_finished_run_is_not_computed_again(home, capsys):
    names = ("--pipelines", "identity(z),ms(z),ts(z),cms_op(z)", "--report", "false", "--logger", "none")
    assert run(home, *names, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == []
    assert found["report"] is None
    assert found["recommendation"]["order"]["pipeline"] in ("identity(z)", "ts(z)", "cms_op(z)")
    assert run(home, *names) == 0
    assert "fitted" not in capsys.readouterr().out


def test_recommend(home, capsys):
    names = ("--pipelines", "identity(z),ms(z),ts(z),cms_op(z)", "--report", "false", "--logger", "none")
    assert run(home, *names) == 0  # where it has not run yet
    capsys.readouterr()
    assert main(["recommend", "--calibration", str(home / "calibration"), "--preserve", "none", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "ms(z)" not in found["val_nll"]
    assert main(["recommend", "--calibration", str(home / "calibration"), "--translation_invariant", "false"]) == 0
    assert "Deploy " in capsys.readouterr().out


def test_a_failure_shows_in_the_exit_code_and_by_name(home, tmp_path, capsys, monkeypatch):
    def failing(*args, **options):
        raise RuntimeError("no optimum today")

    monkeypatch.setattr(fit_jobs, "run_trials", failing)
    code = run(home, "--pipelines", "vs(z)", "--calibration", str(tmp_path / "calibration"), "--report", "false")
    assert code == 1
    assert "FAILED vs(z) in repeat 0: RuntimeError: no optimum today" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pipelines", "ts(q)"], "unknown pooling 'q'"),
        (["--cal", "40"], "cal 40"),
        (["--outputs", "nowhere"], "no output store at nowhere"),
    ],
)
def test_bad_input_is_told_before_work_starts(home, capsys, options, message):
    assert main(["run", "--outputs", str(home / "outputs"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_wrong_option_is_refused(home, capsys):
    with pytest.raises(SystemExit):
        run(home, "--nonsense", "3")
    assert "nonsense" in capsys.readouterr().err


def test_a_dry_run_says_what_it_would_cost_and_writes_nothing(home, tmp_path, capsys):
    names = ("--pipelines", "identity(z),ts(z)", "--calibration", str(tmp_path / "calibration"), "--dry_run", "true")
    before = sorted(home.rglob("*"))
    assert run(home, *names, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == 4 + 2 + (len(found["by_kind"]) - 3)  # searches, evaluations, maps that are not there yet
    assert found["processor_seconds"] == pytest.approx(sum(found["by_kind"].values()))
    assert found["wall_seconds"] > found["processor_seconds"] > 0
    assert found["disk_free_bytes"] > found["disk_bytes"]
    assert sorted(home.rglob("*")) == before
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_a_finished_run_has_nothing_to_measure(home, capsys):
    assert run(home, "--pipelines", "identity(z),ms(z)", "--report", "false") == 0
    assert run(home, "--pipelines", "identity(z),ms(z)", "--dry_run", "true") == 0
    assert "nothing is left to compute" in capsys.readouterr().out
