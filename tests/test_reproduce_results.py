"""What stands behind docs/results: the commands are commands of this release, are run once, and fill the pages."""

import json
import sys
from pathlib import Path

import pytest

import lightning_calib as lc
from lightning_calib.cli.calibrate import main as calibrate
from lightning_calib.cli.train import main as train
from lightning_calib.outputs.store import OutputStore
from lightning_calib.report.build import build_report
from lightning_calib.studies.claims import Claims
from tests.experiment.synthetic import write_outputs, write_results
from tests.stores import write_store

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _results_journal
import _results_pages
import publish_outputs
import reproduce_results
from _results_plan import DATASETS, STAGES, Place, Step, scale_step, steps

ROOT = Path(__file__).parents[1]
MAINS = {"train.py": train, "calibrate.py": calibrate}


def lines(dataset):
    return steps(dataset, Place(Path("data"), Path("runs"), executor="ray"), STAGES)


@pytest.mark.parametrize("step", lines(DATASETS[1]), ids=lambda step: step.name)
def test_every_command_is_one_of_this_release(step, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    program, *arguments = step.line
    if program not in MAINS:
        assert (ROOT / program).is_file()
        return
    with pytest.raises(SystemExit) as ended:
        MAINS[program]([*arguments, "--print_config"])
    assert not ended.value.code, capsys.readouterr().err


def test_all_data_sets_have_configs_and_names_of_their_own(monkeypatch):
    monkeypatch.chdir(ROOT)
    for dataset in DATASETS:
        assert Path(f"configs/{dataset.name}.yaml").is_file()
        names = [step.name for step in lines(dataset)]
        assert len(set(names)) == len(names)
    assert not [step for step in lines(DATASETS[0]) if "corruption" in step.line]  # volumes cannot be corrupted


def test_the_data_set_of_scale_is_a_script_of_this_release(monkeypatch):
    monkeypatch.chdir(ROOT)
    step = scale_step(Place(Path("data"), Path("runs")), [8, 16])
    assert (ROOT / step.line[0]).is_file()
    assert json.loads(step.line[step.line.index("--cases") + 1]) == [8, 16]


def test_commands_are_run_once_and_failures_again(tmp_path):
    counter, switch = tmp_path / "counter", tmp_path / "switch"
    code = f"open({str(counter)!r}, 'a').write('x'); open({str(switch)!r}); print('told')"
    step = Step("run", "try", ("-c", code))
    assert not _results_journal.Journal(tmp_path / "results").do(step)  # the switch is missing
    switch.touch()
    journal = _results_journal.Journal(tmp_path / "results")
    assert journal.text("try") == ""
    assert journal.do(step)
    assert journal.do(step)
    assert counter.read_text() == "xx"
    assert _results_journal.Journal(tmp_path / "results").text("try") == "told\n"
    (entry,) = journal.of(["run"])
    assert entry.seconds > 0
    assert entry.processor_seconds > 0
    assert entry.gibibytes > 0
    assert journal.do(Step("run", "try", ("-c", "print('another')")))  # another command of that name
    assert journal.text("try") == "another\n"


def test_blocks_are_replaced_and_all_else_stays():
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    once = _results_pages.fill(page, {"x": "new"})
    assert once == "a\n<!-- x -->\n\nnew\n\n<!-- end of x -->\nb\n"
    assert _results_pages.fill(once, {"x": "new"}) == once
    with pytest.raises(ValueError, match="lacks <!-- y -->"):
        _results_pages.fill(page, {"y": "new"})


def test_a_page_without_marks_fails_by_its_name_and_the_others_are_written(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce_results, "summary_rows", lambda done: ", ".join(done))  # this run chose by val alone
    hippocampus, index = tmp_path / "docs" / "hippocampus.md", tmp_path / "docs" / "index.md"
    marks = "".join(f"<!-- {name} -->\n<!-- end of {name} -->\n" for name in ("summary", "claims", "paper"))
    hippocampus.parent.mkdir()
    hippocampus.write_text("old words\n")
    index.write_text(marks)
    (failure,) = reproduce_results.fill_pages(hippocampus.parent, finished.parent, [DATASETS[0]])
    assert failure.startswith(f"{hippocampus}: the page lacks <!-- commands -->")
    assert hippocampus.read_text() == "old words\n"
    assert "| claim | hippocampus |" in index.read_text()


def test_paths_are_shown_as_a_reader_would_type_them():
    line = ("train.py", "fit", "--runs_dir", "/a/runs", "--data.init_args.root", "/b/camvid", "--x", "a b")
    assert _results_pages.shown(line) == (
        "train.py fit --runs_dir runs --data.init_args.root $LIGHTNING_CALIB_DATA/camvid --x 'a b'"
    )


def test_published_outputs_are_pooled_half_precision_and_say_what_changed(tmp_path, capsys):
    store = write_outputs(tmp_path / "outputs", cases=6, ignore_index=255)
    for _ in range(2):  # the second call finds all of it done
        publish_outputs.main(tmp_path / "outputs", tmp_path / "published")
    told = capsys.readouterr().out
    assert "6 cases" in told
    published = OutputStore(tmp_path / "published")
    assert (published.manifest.keep, published.manifest.dtype) == ("pooled", "float16")
    assert published.groups == store.groups
    for case in store:
        pooled = published[case.case_id].pooled("p")
        assert pooled.float().sub(case.pooled("p")).abs().max() < 2e-2
        assert published[case.case_id].target.equal(case.target)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with a report and the study of the claims."""
    run = tmp_path_factory.mktemp("finished") / "runs" / "hippocampus"
    store = write_outputs(run / "outputs", cases=12, ignore_index=255)
    write_results(run / "calibration", store, ["identity(p)", "identity(z)", "ms(z)", "dc(z)", "ts(p)"], repeats=2)
    Claims(run / "calibration", run / "outputs", display=False).run()
    build_report(run / "calibration", run / "outputs", run / "report")
    return run


def test_pages_hold_what_the_run_says(finished, tmp_path):
    journal = _results_journal.Journal(finished / "results")
    journal.do(Step("decide", "structures", ("-c", "print('a table of volumes')")))
    journal.do(Step("peers", "peers", ("-c", r"print('noise\n| a |\n| --- |\n| 1 |')")))
    blocks = _results_pages.dataset_blocks(DATASETS[0], finished, journal, tmp_path / "images" / "hippocampus")
    assert "| `ts(p)` |" in blocks["table"]
    assert "a table of volumes" in blocks["decisions"]
    assert blocks["peers"] == "| a |\n| --- |\n| 1 |"
    assert "Translation-invariant counterparts" in blocks["studies"]
    assert "decisions" in blocks["times"]
    for name in ("answer", "confidence"):
        assert f"../images/hippocampus/{name}.png" in blocks["figures"]
        assert (tmp_path / "images" / "hippocampus" / f"{name}.png").is_file()


def test_choices_by_val_and_by_groups_stand_side_by_side(tmp_path):
    groups = {f"case-{number:02d}": f"g{number % 8}" for number in range(16)}
    store = write_store(tmp_path / "runs" / "nuclei" / "outputs", cases=16, num_classes=3, groups=groups)
    options = {"repeats": 1, "trials": 1, "cal": 0.4, "val": 0.2, "selection": "groups"}
    results = lc.Experiment(store, "identity(p),ts(p)", **options).run(workers=0, display=False)
    told = _results_pages.choice(results.summary)
    advice = results.summary["selection"]["order"]
    assert [line.split(" | ")[0] for line in told.splitlines()[2:]] == ["| order", "| argmax", "| none"]
    assert f"`{advice['pipeline']}`" in told
    assert f"{advice['gain']['mean']:+.4f} [{advice['gain']['low']:+.4f}" in told
    row = _results_pages.summary_rows({"nuclei": tmp_path / "runs" / "nuclei"}).splitlines()[2]
    assert row.startswith(f"| [nuclei](nuclei.md) | 3 | 2 | {len(results.test_cases(0))} | ")


def test_the_index_sets_data_sets_beside_the_paper(finished):
    claims = _results_pages.claim_rows({"hippocampus": finished})
    told = json.loads((finished / "calibration" / "studies" / "claims" / "study.json").read_text())["claims"]
    assert claims.count("\n") == len(told) + 1
    beside = _results_pages.beside_the_paper({"hippocampus": finished})
    assert "| `identity(p)` | 1.00 | 1.00 |" in beside
    assert "| `identity(p0)` | 1.00 | - |" in beside  # .524 / .522; this run has no such pipeline
    assert "| `ms(z)` | 0.02 |" in beside  # .008 / .522
