"""The last fit: which hyperparameters, how many epochs, and when not to calibrate."""

import json

import pytest

from lightning_calib.calibrators import Identity, PipelineName
from lightning_calib.deployment.refit import best_epochs, chosen_values, refit
from lightning_calib.experiment.results import Results
from lightning_calib.solvers import mean_nll
from tests.experiment.synthetic import write_outputs, write_results

NAMES = ("identity(z)", "ts(z)", "ms_c(z)", "lts_ti(z)")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_outputs(tmp_path_factory.mktemp("refit") / "outputs", cases=9)


@pytest.fixture
def results(store, tmp_path):
    return Results(write_results(tmp_path / "calibration", store, NAMES))


def change_fit(results, repeat, pipeline, **changes):
    path = results.job_folder(repeat, pipeline) / "fit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_each_hyperparameter_is_the_median_of_the_repeats(results):
    for repeat, (lam, mu) in enumerate([(1e-6, 0.0), (1e-2, 1e-3), (1e-4, 1.0)]):
        change_fit(results, repeat, "ms_c(z)", hyperparameters={"lam": lam, "mu": mu})
    assert chosen_values(results, "ms_c(z)") == {"lam": 1e-4, "mu": 1e-3}


def test_no_calibration_is_deployed_where_most_repeats_want_none(results, store):
    for repeat in (0, 2):
        change_fit(results, repeat, "ms_c(z)", val_nll=1.0, identity_val_nll=1.0)
    calibrator, facts = refit(results, store, PipelineName.parse("ms_c(z)"))
    assert "no calibration" in facts["note"]
    batches = [(case.pooled("z")[None], case.target[None], None) for case in store]
    assert mean_nll(calibrator, batches, None)[0] == pytest.approx(mean_nll(Identity(4), batches, None)[0])


def test_local_temperatures_are_trained_for_the_epochs_that_were_best(results, store):
    for repeat in range(3):
        change_fit(results, repeat, "lts_ti(z)", hyperparameters={"weight_decay": 1e-3})
    assert best_epochs(results, "lts_ti(z)") == 8
    first, facts = refit(results, store, PipelineName.parse("lts_ti(z)"))
    assert facts["certificate"] == {"solver": "lbfgs", "passes": 8}
    batches = [(case.pooled("z")[None], case.target[None], None) for case in store]
    nll = mean_nll(first, batches, None)[0]
    assert nll < 0.95 * mean_nll(Identity(4), batches, None)[0]
    second, _ = refit(results, store, PipelineName.parse("lts_ti(z)"))
    assert mean_nll(second, batches, None)[0] == nll  # the same bits again


def test_a_pipeline_that_failed_is_refused(results, store):
    change_fit(results, 1, "ts(z)", status="failed")
    with pytest.raises(ValueError, match="no fit in some repeats"):
        refit(results, store, PipelineName.parse("ts(z)"))


def test_a_fit_that_makes_things_worse_is_refused(results, store):
    for repeat in range(3):
        change_fit(results, repeat, "lts_ti(z)", hyperparameters={"lr": 0.1, "patience": 5, "weight_decay": 0.0})
    with pytest.raises(ValueError, match="without calibration: search longer"):
        refit(results, store, PipelineName.parse("lts_ti(z)"))
