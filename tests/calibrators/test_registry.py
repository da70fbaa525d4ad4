"""Calibrators by name: ours, registered ones, those of a path; facts that follow from the class."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from lightning_calib.calibrators import (
    CALIBRATORS,
    MatrixScaling,
    Pipeline,
    PipelineName,
    build,
    expand_pipelines,
    load_calibrator,
    read_header,
    register_calibrator,
    save_calibrator,
)
from lightning_calib.calibrators.registry import registered_name
from lightning_calib.report.glossary import explain
from lightning_calib.report.html import render
from lightning_calib.report.main_table import latex_name
from tests.calibrators.strangers import BiasOnly

MODULE = '''
import torch
from lightning_calib.calibrators import Calibrator

class Softer(Calibrator):
    """Half of every logit: ``S(z / 2)``.

    More about it.
    """

    preserves = "order"
    monotone = True

    def calibrate(self, logits):
        return (logits / 2).log_softmax(dim=1)
'''


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(CALIBRATORS, "registered", {})


@pytest.fixture
def softer(tmp_path, monkeypatch):
    """The dotted path of a class in a file of its own."""
    module = f"softer_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield f"{module}.Softer"
    sys.modules.pop(module, None)


def test_our_names_are_those_of_the_classes():
    assert [cls.name for cls in CALIBRATORS.values()] == list(CALIBRATORS.ours)
    assert all(vars(cls)["description"][-1] != "." for cls in CALIBRATORS.values())


def test_what_suits_our_calibrators():
    facts = {cls.name: (cls.looks_at, cls.solver, cls.searched) for cls in CALIBRATORS.values()}
    local = ("neighbourhood", "lbfgs", ("weight_decay",))
    exact = {
        name: ("voxel", "newton", ()) for name in ("ts", "gs", "vs", "ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op")
    }
    others = {"identity": ("voxel", "adam", ()), "ets": ("voxel", "slsqp", ()), "lts": local, "lts_ti": local}
    featured = {name: ("features", "newton", ()) for name in ("fts", "fts_pooled", "case_ts", "case_ts_pooled")}
    featured["fts_net"] = ("features", "lbfgs", ("weight_decay",))
    assert facts == exact | others | featured | {"stack": ("voxel", "stacking", ())}


def test_a_registered_calibrator_is_one_of_them():
    assert register_calibrator(BiasOnly) is BiasOnly
    assert build("bias_only", 4).num_optimized == 4
    assert PipelineName.parse("bias_only(z)").cls is BiasOnly
    assert str(Pipeline("p", BiasOnly(3))) == "bias_only(p)"
    assert [str(name) for name in expand_pipelines("all")][-2:] == ["bias_only(p)", "bias_only(z)"]


def test_the_report_speaks_of_a_registered_calibrator():
    register_calibrator(BiasOnly)
    name = PipelineName.parse("bias_only(p)")
    assert explain(name) == "A bias for each class: S(z + b) on the members' mean probability."
    assert latex_name(name) == r"BIAS$_{only}$($\bar{p}$)"
    assert "<code>bias_only</code></dt><dd>A bias for each class" in render("toy", [])


def test_a_dotted_path_is_a_name(softer):
    name = PipelineName.parse(f" {softer} (z)", imports=True)
    assert (str(name), name.slug, name.preserves) == (f"{softer}(z)", f"{softer}-z", "order")
    assert name.cls.name == softer
    assert name.cls.description == "Half of every logit: S(z / 2)"
    pipeline = Pipeline.parse(str(name), num_classes=3)
    assert pipeline.pipeline_name == name
    torch.testing.assert_close(
        pipeline(torch.tensor([[[4.0, 0.0, 0.0]]])), torch.tensor([[2.0, 0.0, 0.0]]).log_softmax(1)
    )
    assert [str(name) for name in expand_pipelines(f"ts(z), {softer}(z)")] == ["ts(z)", f"{softer}(z)"]


def test_a_file_causes_no_import(softer, tmp_path):
    path, module = tmp_path / "a.safetensors", softer.rpartition(".")[0]
    save_calibrator(path, build(softer, 3), fitted={"pipeline": f"{softer}(z)"})
    assert type(load_calibrator(path)).name == softer == read_header(path)["name"]
    CALIBRATORS.registered.clear()
    del sys.modules[module]
    with pytest.raises(ValueError, match=rf"a\.safetensors names the class {softer} of .*--trust"):
        load_calibrator(path)
    with pytest.raises(ValueError, match=r"a\.safetensors names the class"):
        PipelineName.parse(f"{softer}(z)", file=path)
    with pytest.raises(ValueError, match="names the class"):
        PipelineName(softer, "z")
    assert module not in sys.modules
    assert PipelineName.parse(f"{softer}(z)", imports=True).cls.name == softer  # the user names it
    assert PipelineName.parse(f"{softer}(z)", file=path).pooling == "z"
    assert type(load_calibrator(path)).name == softer


def test_a_file_says_which_class_it_needs(tmp_path):
    """A class that nobody registered is stored by its path, also where it took a name of ours."""
    path = tmp_path / "a.safetensors"
    save_calibrator(path, BiasOnly(3))
    assert read_header(path)["name"] == "tests.calibrators.strangers.BiasOnly"
    register_calibrator(BiasOnly)
    save_calibrator(path, BiasOnly(3))
    assert type(load_calibrator(path)) is BiasOnly
    assert registered_name(type("Other", (BiasOnly,), {"name": "ts"})) == f"{__name__}.Other"


def test_names_and_descriptions_are_not_inherited():
    class Mine(MatrixScaling):
        pass

    assert Mine.name.endswith("test_names_and_descriptions_are_not_inherited.<locals>.Mine")
    assert (Mine.description, Mine.solver, registered_name(Mine)) == ("Mine", "newton", Mine.name)
    with pytest.raises(ValueError, match="cannot stand in a pipeline; give Mine a name such as"):
        register_calibrator(Mine)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: register_calibrator(nn.Linear), "must be a subclass of Calibrator, got <class"),
        (lambda: build("torch.nn.Linear", 3), r"calibrator torch\.nn\.Linear must be a subclass of Calibrator"),
        (lambda: build("torch.nn.Linnear", 3), r"cannot import the calibrator torch\.nn\.Linnear"),
        (lambda: register_calibrator(type("Other", (BiasOnly,), {"name": "ts"})), "a calibrator 'ts' already"),
    ],
)
def test_what_is_no_calibrator_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_package_is_imported_without_the_heavy_ones():
    code = "import sys, lightning_calib.calibrators; print([m for m in sys.modules if m in {names}])"
    names = ("pytorch_lightning", "torchmetrics", "scipy", "pandas", "optuna", "matplotlib")
    done = subprocess.run([sys.executable, "-c", code.format(names=names)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
