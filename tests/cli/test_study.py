"""calibrate.py study, audit and reproduce: commands, exit codes, files and sections."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from lightning_calib.calibrators import Identity
from lightning_calib.cli.calibrate import main
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.kit.tables import Table
from lightning_calib.outputs.store import OutputStore
from lightning_calib.report.section import Section
from lightning_calib.report.studies import STUDIES
from lightning_calib.studies import audit as audits
from lightning_calib.studies.base import Study, register_study
from tests.experiment.synthetic import write_outputs, write_results
from tests.studies.conftest import noisy, write_changed

ROOT = Path(__file__).parents[2]
PIPELINES = ["identity(p0)", "identity(z)", "ms(z)", "ms_c(z)", "cms_op(p)", "ts(z)"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    write_results(folder / "calibration", write_outputs(folder / "outputs", cases=9), PIPELINES, repeats=2)
    return folder


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def study(run, name, *options):
    where = ("--calibration", str(run / "calibration"), "--outputs", str(run / "outputs"), "--workers", "0")
    return main(["study", name, *where, *options])


def test_a_study_tells_and_reports(run, capsys):
    assert study(run, "bins", "--pipelines", "ts(z),ms(z)") == 0
    told = capsys.readouterr().out
    assert "ECE ranking: " in told
    assert str(run / "calibration" / "studies" / "bins") in told
    page = (run / "report" / "index.html").read_text()
    assert 'id="study-bins"' in page
    assert "Kendall" in page
    assert 'id="study-offsets"' not in page
    assert {"bins-ece.png", "bins-ace.png"} <= {path.name for path in (run / "report" / "figures").iterdir()}
    assert r"\toprule" in (run / "report" / "studies" / "bins-ece.tex").read_text()


def test_json_and_no_report(run, capsys):
    assert study(run, "offsets", "--members", "[1,3]", "--report", "false", "--json") == 0
    assert [entry["members"] for entry in json.loads(capsys.readouterr().out)["summary"]] == [1, 3]
    assert not (run / "report").exists()


def test_every_study_has_its_section(run):
    write_changed(OutputStore(run / "outputs"), run / "outputs-strong", noisy)
    image, _ = Shapes(num_train=1, num_val=1, num_pool=1).draw(
        Shapes(num_train=1, num_val=1, num_pool=1).splits.pool[0]
    )
    Image.fromarray(image).save(run / "outputs-strong" / "example.png")
    for name in ("claims", "selection", "offsets", "shift", "flips", "properties"):
        assert study(run, name, "--report", "false") == 0
    assert study(run, "subsets", "--report", "false", "--subsets", '{"all": "*"}') == 0
    assert study(run, "reliability") == 0
    page = (run / "report" / "index.html").read_text()
    for key in ("claims", "selection", "offsets", "shift", "subsets", "flips", "properties"):
        assert f'<section id="study-{key}">' in page
    assert "could not be read" not in page
    assert {
        *("corruptions", "shift", "offsets", "offset-maps", "flip-bands", "flip-worst", "selection", "reliability"),
    } <= {path.stem for path in (run / "report" / "figures").iterdir()}


def test_the_study_of_reliability_is_the_reports_section_in_other_bins(run):
    assert study(run, "reliability", "--bins", "30") == 0
    page = (run / "report" / "index.html").read_text()
    assert page.count('<section id="reliability">') == page.count('<figure id="figure-reliability"') == 1
    assert "in 30 bins of confidence" in page
    assert "study-reliability" not in page


def test_bad_options_are_refused_in_one_line(run, capsys):
    assert study(run, "shift") == 2
    assert "error: there are no stores of changed images beside" in capsys.readouterr().err
    assert study(run, "shift", "--stores", json.dumps({"night": str(run / "nowhere")})) == 2
    assert f"there is no output store at {run / 'nowhere'}" in capsys.readouterr().err
    assert study(run, "bins", "--pipelines", "dc(p)") == 2
    assert "dc(p): no fits in" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        study(run, "seeds")
    assert study(run, "subsets") == 2
    assert "name subsets and patterns of their case ids" in capsys.readouterr().err


class Toy(Study):
    """A study of somebody else."""

    name, title = "toy", "A stranger's study"

    def run(self, factor: float, names: list[str] | None = None) -> dict:
        """Multiply the number of repeats.

        Args:
            factor: what with.
            names: whatever
                is shown.

        Returns:
            The facts.
        """
        return self.write({"product": factor * len(self.results.repeats), "names": names, "failures": names or []})

    def tell(self, facts):
        return [f"product {facts['product']}"]

    def section(self, inputs, facts):
        table = Table.of("toy", "Toy.", ("what", "value"), [["product", str(facts["product"])]])
        return Section(self.key, self.title, "Strange <b>words</b>.", tables=(table,))


@pytest.fixture
def toy():
    yield register_study(Toy)
    del STUDIES.registered["toy"]


def test_a_strangers_study_is_a_command_and_a_section(run, toy, capsys):
    assert study(run, "toy", "--factor", "1.5") == 0
    assert "product 3.0" in capsys.readouterr().out
    page = (run / "report" / "index.html").read_text()
    assert '<section id="study-toy">' in page
    assert "Strange &lt;b&gt;words" in page
    assert "| product | 3.0 |" in (run / "report" / "studies" / "toy.md").read_text()
    assert study(run, "toy", "--factor", "2", "--names", "[a]", "--report", "false") == 1  # it says so itself


def test_the_help_of_a_study_is_the_docstring_of_its_run(toy, capsys):
    with pytest.raises(SystemExit):
        main(["study", "toy", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "Multiply the number of repeats." in told
    assert "what with. (required)" in told
    assert "whatever is shown." in told
    assert "jobs at a time; by default one a core" in told
    assert "The facts." not in told


PACKAGE = """
from functools import partial
from pathlib import Path

from lightning_calib.report.section import Section
from lightning_calib.studies.base import Study


def touch(folder: Path, number: int) -> None:
    (folder / f"{number}.txt").touch()


class Strange(Study):
    name, title = "strange", "From another package"

    def run(self, jobs: int = 2):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.do(range(jobs), partial(touch, self.folder))
        return self.write({"jobs": len(list(self.folder.glob("*.txt")))})

    def section(self, inputs, facts):
        return Section(self.key, self.title, f"{facts['jobs']} jobs")
"""


def test_a_study_of_an_installed_package_runs_in_workers(run, tmp_path):
    (tmp_path / "strange.py").write_text(PACKAGE)
    info = tmp_path / "strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lightning_calib.studies]\nstrange = strange:Strange\n")
    command = ["study", "strange", "--calibration", str(run / "calibration"), "--jobs", "3", "--workers", "1"]
    paths = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "calibrate.py"), *command],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (run / "report" / "index.html").read_text()
    assert '<section id="study-strange">' in page
    assert "3 jobs" in page


def test_only_studies_are_registered_and_under_their_own_name():
    with pytest.raises(ValueError, match=r"there is a study 'bins' already"):
        register_study(type("Other", (Toy,), {"name": "bins"}))
    with pytest.raises(ValueError, match="other is no Study"):
        STUDIES.register("other", 3)
    with pytest.raises(ValueError, match="has the name 'toy', not 'other'"):
        STUDIES.register("other", Toy)


def calibrator_file(run, name):
    return run / "calibration" / "repeats" / "0" / name / "calibrator.safetensors"


def test_an_audit_leaves_what_it_found(run, capsys):
    path = calibrator_file(run, "cms_op-p")
    assert main(["audit", "--calibrator", str(path), "--outputs", str(run / "outputs"), "--cases", "3"]) == 0
    assert "0 argmax changes, 0 inversions" in capsys.readouterr().out
    certificate = json.loads((path.parent / "audit.json").read_text())
    assert certificate["passed"]
    assert certificate["measured"]["voxels"] == 3 * 32 * 40
    assert certificate["declared"] == {"translation_invariant": True, "preserves": "order"}
    assert certificate["measured"]["shift_change"] == 0
    assert main(["audit", "--calibrator", str(calibrator_file(run, "ms-z")), "--outputs", str(run / "outputs")]) == 0
    found = json.loads((calibrator_file(run, "ms-z").parent / "audit.json").read_text())
    assert found["measured"]["translation_invariant"] is False  # it never claimed to be
    assert found["measured"]["argmax_changes"] > 0


class Liar(Identity):
    """Declares the order and turns it round."""

    def forward(self, logits):
        return (-logits).log_softmax(dim=1)


def test_a_broken_promise_is_an_exit_code(run, capsys, monkeypatch):
    monkeypatch.setattr(audits, "load_calibrator", lambda path: Liar(4))
    path = calibrator_file(run, "ts-z")
    assert main(["audit", "--calibrator", str(path), "--outputs", str(run / "outputs"), "--json"]) == 1
    certificate = json.loads(capsys.readouterr().out)
    assert not certificate["passed"]
    assert certificate["broken"][0].startswith("argmax: ")
    assert json.loads((path.parent / "audit.json").read_text()) == certificate


def test_reproduce_makes_the_whole_paper(tmp_path, capsys):
    write_outputs(tmp_path / "outputs", cases=10, members=2)
    options = ["--pipelines", "identity(z),ms(z),ts(z)", "--repeats", "1", "--trials", "1", "--cal", "3", "--val", "3"]
    command = ["reproduce", "--outputs", str(tmp_path / "outputs"), "--workers", "0", *options]
    assert main([*command, "--studies", "[bin]"]) == 2
    assert "unknown study 'bin'; did you mean bins?" in capsys.readouterr().err
    assert main([*command, "--logger", "csv"]) == 0
    told = capsys.readouterr().out
    assert "studies: claims, selection, reliability, properties, flips, triage, bins, offsets, calibration_size" in told
    assert "left out shift: there are no stores of changed images" in told
    page = (tmp_path / "report" / "index.html").read_text()
    for key in ("claims", "properties", "flips", "bins", "offsets", "calibration-size", "ensemble-size"):
        assert f'<section id="study-{key}">' in page
    assert "could not be read" not in page
