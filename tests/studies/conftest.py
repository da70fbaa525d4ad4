"""One small made-up run for all studies, and a copy for each test that writes."""

import shutil

import numpy as np
import pytest
import torch

from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from tests.experiment.synthetic import write_outputs, write_results

PIPELINES = [
    "identity(p0)",
    "identity(p)",
    "identity(z)",
    "ms(z)",
    "ms_c(z)",
    "lts_ti(z)",
    "cdc(p)",
    "cms_op(p)",
    "ts(z)",
]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Outputs of 9 cases with an ignored border, and results of two repeats."""
    folder = tmp_path_factory.mktemp("studies")
    store = write_outputs(folder / "outputs", cases=9, ignore_index=255)
    write_results(folder / "calibration", store, PIPELINES, repeats=2)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy that a test may write to; settings name the original outputs, which are the same."""
    shutil.copytree(made / "calibration", tmp_path / "run" / "calibration")
    shutil.copytree(made / "outputs", tmp_path / "run" / "outputs")
    return tmp_path / "run"


@pytest.fixture
def study(folder):
    """Opens a study in this process."""
    return lambda kind: kind(folder / "calibration", folder / "outputs", display=False)


def write_changed(store: OutputStore, path, change, members=None, case_ids=None) -> OutputStore:
    """The same cases with logits changed by a function of member logits and the case's number."""
    manifest = store.manifest
    writer = OutputWriter(
        path,
        f"{manifest.dataset}-changed",
        manifest.class_names,
        2,
        members or manifest.members,
        background=manifest.background,
        ignore_index=manifest.ignore_index,
    )
    for number, case_id in enumerate(case_ids or store.case_ids):
        case = store[case_id]
        writer.write(case_id, change(case.logits, number), case.target)
    writer.finish()
    return OutputStore(path)


def noisy(logits, number):
    """Half as informative, a little noisy."""
    noise = np.random.default_rng(number).standard_normal(logits.shape)
    return 0.5 * logits + torch.from_numpy(noise).float()
