"""Two processes under Lightning's ddp give the figures of one."""

import pytest

from lightning_calib.experiment.results import Results
from tests.experiment.settings import small_experiment
from tests.experiment.synthetic import write_outputs

SETTINGS = {"pipelines": ["identity(p)", "ms(z)", "cms_op(p)", "ets(p)", "lts_ti(z)"], "repeats": 1}
DDP = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}


@pytest.mark.slow
def test_two_processes_give_the_figures_of_one(tmp_path):
    store = write_outputs(tmp_path / "outputs", cases=12)
    folders = tmp_path / "one", tmp_path / "two"
    for folder, trainer in zip(folders, ({"accelerator": "cpu"}, DDP), strict=True):
        experiment = small_experiment(store.path, folder, **SETTINGS)
        experiment.run(workers=1, display=False, logger="csv", trainer=trainer)
    one, two = (Results(folder) for folder in folders)
    assert two.failures == []
    for name in SETTINGS["pipelines"]:
        assert two.fit(0, name).val_nll == pytest.approx(one.fit(0, name).val_nll, rel=1e-6)
        pairs = zip(one.cases_of(0, name), two.cases_of(0, name), strict=True)
        for alone, shared in pairs:
            assert shared.case == alone.case
            assert shared.voxels == alone.voxels
            assert shared.scores == pytest.approx(alone.scores, abs=1e-6, nan_ok=True), name
