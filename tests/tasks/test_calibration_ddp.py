"""Two processes give the result of one."""

import pytest
import torch

from tests.stores import write_store
from tests.tasks import ddp


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("ddp") / "outputs", cases=11, shape=(12, 12)).path


@pytest.fixture(scope="module")
def both(store):
    return ddp.run_two(store, store.parent)


@pytest.mark.parametrize(("solver", "tolerance"), [("newton", 1e-6), ("adam", 1e-8)])
def test_two_processes_give_the_result_of_one(store, both, solver, tolerance):
    alone, two = ddp.run(store, solver, devices=1), both[solver]
    assert two["steps"] == alone["steps"]
    assert solver == "newton" or two["steps"] == ddp.ADAM_STEPS
    torch.testing.assert_close(two["log_probs"], alone["log_probs"], rtol=0, atol=tolerance)
    assert two["objective"] == pytest.approx(alone["objective"], abs=1e-6)
    assert [nll for _, nll in two["curve"]] == pytest.approx([nll for _, nll in alone["curve"]], abs=1e-6)
    assert two["scores"] == pytest.approx(alone["scores"], abs=1e-6)


@pytest.mark.parametrize("name", [*ddp.FINALS, *ddp.ADAM_FINALS])
def test_the_selected_fit_of_a_search_gives_the_result_of_one_process(store, both, name):
    alone, two = ddp.run_final(store, name, devices=1), both[name]
    torch.testing.assert_close(two["log_probs"], alone["log_probs"], rtol=0, atol=1e-6)
    assert two["val_nll"] == pytest.approx(alone["val_nll"], abs=1e-6)
    assert two["searched"] == pytest.approx(alone["searched"], abs=1e-6)
