"""Searches: what is chosen, that interruption changes nothing, and that processes can share one."""

import csv
import json
import os
import socket
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import torch
from optuna.trial import TrialState
from pytorch_lightning.loggers import CSVLogger
from safetensors.torch import load_file, save
from threadpoolctl import threadpool_limits

from lightning_calib.calibrators import CALIBRATORS, build
from lightning_calib.experiment.fitting import PipelineFitter
from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.experiment.search.draws import draw, round_of, rounds
from lightning_calib.experiment.search.search import SearchError, search
from lightning_calib.experiment.search.shared_trials import (
    ABANDONED,
    LOST_AFTER,
    OWNER,
    TrialQueue,
    began,
    is_lost,
    open_storage,
    owner,
)
from lightning_calib.experiment.search.space import PATIENCE, Space
from lightning_calib.experiment.search.trials import KeptTrials
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.solvers import ConvergenceError, NewtonSolver, fit, mean_nll
from lightning_calib.solvers.stream import KeptWalk
from lightning_calib.solvers.sums import LinearNLL
from tests.stores import with_changed, write_store

ROOT = Path(__file__).parents[2]
SPACE = Space(("lam", "mu"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("search") / "outputs", cases=8, num_classes=3, shape=(12, 12))


def pooled_nll(calibrator, data):
    return mean_nll(calibrator, data.batches("val"), data.ignore_index)[0]


def module(store, **options):
    return StoredOutputsDataModule(store, cal=4, val=2, **options)


def test_the_trial_with_the_lowest_nll_wins(store):
    data = module(store)
    found = search("ms_c(z)", data, trials=5)
    values = [row["val_nll"] for row in found.trials]
    assert len(values) == 5
    assert len(set(values)) > 1
    assert found.val_nll == min(values) < found.identity_val_nll
    assert found.hyperparameters == found.trials[values.index(min(values))]["values"]
    assert pooled_nll(found.calibrator, data) == pytest.approx(found.val_nll, abs=1e-6)
    assert found.certificate["converged"]
    assert [row.value for row in found.curve if row.quantity == "val_nll"] == [found.val_nll]
    assert [row["trial"] for row in found.trials] == list(range(5))


def test_trials_do_not_depend_on_the_ones_before(store):
    data = module(store)
    found = search("ms_c(z)", data, trials=3)
    fitter = PipelineFitter(found_name := SimpleNamespace(calibrator="ms_c", pooling="z"), data)
    assert found_name.pooling == data.pooling
    alone = fitter(found.trials[2]["values"])
    assert alone.val_nll == found.trials[2]["val_nll"]


@pytest.mark.parametrize("name", ["ts", "cdc", "cms_op"])
def test_kept_voxels_change_nothing(store, name):
    data = module(store, pooling="z")
    plain, kept, bounded = (build(name, 3) for _ in range(3))
    fit(plain, data.batches("cal"), ignore_index=255)
    half = KeptWalk(bounded, 255, memory=20_000)
    for calibrator, walk in ((kept, KeptWalk(kept, 255)), (bounded, half)):
        for _ in range(2):
            pooled = LinearNLL(plain, walk)
            for batch in data.batches("val"):
                pooled.add(*batch)
            assert pooled.mean()[0] == pytest.approx(pooled_nll(plain, data), abs=1e-6)
        NewtonSolver(calibrator, ignore_index=255, walk=walk).solve(data.batches("cal"))
        for mine, theirs in zip(calibrator.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    assert 0 < half.used() <= 20_000
    assert len(half.kept) < 6


def interrupt_at(monkeypatch, number):
    """Break the n-th fit as Ctrl-C does."""
    original, calls = PipelineFitter.__call__, []

    def interrupted(self, values):
        calls.append(values)
        if len(calls) == number:
            raise KeyboardInterrupt
        return original(self, values)

    monkeypatch.setattr(PipelineFitter, "__call__", interrupted)


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_an_interrupted_search_ends_as_an_uninterrupted_one(store, tmp_path, monkeypatch, kind):
    storage = tmp_path / "search.log" if kind == "journal" else f"sqlite:///{tmp_path}/search.db"
    whole = search("vs(z)", module(store), trials=12, seed=3)  # beyond the 10 random points that TPE starts with
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        with pytest.raises(KeyboardInterrupt):
            search("vs(z)", module(store), trials=12, seed=3, storage=storage)
    resumed = search("vs(z)", module(store), trials=12, seed=3, storage=storage)
    assert resumed.trials == whole.trials
    assert (resumed.hyperparameters, resumed.val_nll) == (whole.hyperparameters, whole.val_nll)
    again = search("vs(z)", module(store), trials=12, seed=3, storage=storage)  # nothing left to run but the best
    assert (again.trials, again.val_nll) == (whole.trials, whole.val_nll)
    logits = next(iter(module(store, pooling="z").batches("test")))[0]
    assert torch.equal(again.calibrator(logits), whole.calibrator(logits))


def test_seeds_and_splits_have_their_own_trials(store, tmp_path):
    storage = tmp_path / "search.log"
    first = search("vs(z)", module(store), trials=4, seed=0, storage=storage)
    other_seed = search("vs(z)", module(store), trials=4, seed=1, storage=storage)
    other_repeat = search("vs(z)", module(store, repeat=1), trials=4, seed=0, storage=storage)
    assert [row["values"] for row in first.trials] != [row["values"] for row in other_seed.trials]
    assert first.identity_val_nll != other_repeat.identity_val_nll
    assert len(optuna.get_all_study_names(open_storage(storage))) == 3


def test_two_processes_share_a_journal(store, tmp_path):
    code = (
        "import json, os, sys, time; from pathlib import Path\n"
        "from lightning_calib.outputs.stored import StoredOutputsDataModule\n"
        "from lightning_calib.experiment.search.search import search\n"
        "def meet(row):\n"  # after its first trial each waits for the other's, however long that one's imports took
        "    (Path(sys.argv[3]) / str(os.getpid())).touch()\n"
        "    while len(os.listdir(sys.argv[3])) < 2: time.sleep(0.01)\n"
        "data = StoredOutputsDataModule(sys.argv[1], cal=4, val=2)\n"
        "found = search('vs(z)', data, trials=16, storage=sys.argv[2], on_trial=meet)\n"
        "print(json.dumps([found.val_nll, found.trials]))"
    )
    (tmp_path / "met").mkdir()
    command = [sys.executable, "-c", code, str(store.path), str(tmp_path / "shared.log"), str(tmp_path / "met")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    processes = [subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    found = search("vs(z)", module(store), trials=16, storage=tmp_path / "shared.log")
    assert [row["trial"] for row in found.trials] == list(range(16))
    assert {row["state"] for row in found.trials} == {"complete"}
    storage = open_storage(tmp_path / "shared.log")
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    kept = [trial for trial in study.trials if ABANDONED not in trial.user_attrs]  # who finds no free place gives up
    points = [(trial.user_attrs["place"], trial.params["mu_is_zero"]) for trial in kept]
    assert [zero for _, zero in sorted(points)] == [row["values"]["mu"] == 0 for row in found.trials]
    assert len({trial.user_attrs[OWNER] for trial in kept}) == 2, "one process did all the work"


def running(owned_by, age=timedelta(0)):
    attributes = {OWNER: owned_by} if owned_by else {}
    return SimpleNamespace(user_attrs=attributes, datetime_start=datetime.now() - age)


def test_lost_trials_are_told_from_living_ones():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = socket.gethostname()
    assert is_lost(running(f"{host}:{gone.pid}"))
    assert not is_lost(running(f"{host}:{os.getppid()}"))
    assert not is_lost(running(f"{host}:{os.getppid()}:{began(os.getppid())}"))
    assert is_lost(running(f"{host}:{os.getppid()}:1"))  # its number was given to another process since
    assert is_lost(running(owner()))  # left behind by an earlier search of this very process
    assert not is_lost(running("elsewhere:1"))
    assert is_lost(running("elsewhere:1", LOST_AFTER + timedelta(minutes=1)))
    assert not is_lost(running(None))
    assert is_lost(running(None, timedelta(minutes=5)))


def test_the_place_of_a_lost_trial_is_taken_again(tmp_path):
    queue = TrialQueue("study", 3, 0, SPACE, tmp_path / "j.log")
    points = list(_told(KeptTrials(3, 0, SPACE)))
    lost = queue.study.ask()
    lost.set_user_attr(OWNER, f"{socket.gethostname()}:{2**22 + 1}")
    lost.set_user_attr("place", 0)
    assert list(_told(queue)) == points
    assert queue.study.trials[0].state == TrialState.FAIL


def _told(trials):
    for place, values in trials:
        yield place, values
        trials.tell(place, None, values)


def test_a_draw_sees_earlier_rounds_only():
    told = KeptTrials(20, 1, SPACE)
    for place, values in told:
        told.tell(place, abs(values["lam"] - 1e-3) + values["mu"], values)
    rows = told.rows()
    assert rounds(20) == [range(10), range(10, 15), range(15, 20)]
    for row in rows:
        start = round_of(row["trial"]).start
        seen, later = rows[:start], [{**other, "val_nll": 0.0} for other in rows[start:]]
        assert draw(SPACE, seen + later, 1, row["trial"]) == draw(SPACE, seen, 1, row["trial"]) == row["values"]
    worse = [{**row, "val_nll": -row["val_nll"]} for row in rows[:15]]
    assert any(draw(SPACE, worse, 1, place) != rows[place]["values"] for place in range(15, 20))


def test_trials_of_another_process_are_taken_up(store, tmp_path):
    whole = search("ms_c(z)", module(store), trials=12, seed=3, accelerator="cpu")
    kept = KeptTrials(12, 3, whole.fitter.space, tmp_path)
    for row in whole.trials[:7] + whole.trials[8:9]:
        kept.tell(row["trial"], row["val_nll"], row["values"], passes=row["passes"])
    (tmp_path / "3.json").write_text("damaged")
    run = []
    resumed = search("ms_c(z)", module(store), 12, 3, accelerator="cpu", folder=tmp_path, on_trial=run.append)
    assert [row["trial"] for row in run] == [3, 7, 9, 10, 11]
    assert (resumed.trials, resumed.val_nll) == (whole.trials, whole.val_nll)
    assert (resumed.certificate, resumed.curve) == (whole.certificate, whole.curve)
    for key, value in whole.calibrator.state_dict().items():
        assert torch.equal(resumed.calibrator.state_dict()[key], value)


def test_nothing_to_search_takes_one_trial(store):
    assert len(search("ts(p)", module(store), trials=20).trials) == 1
    assert len(search("ets(p)", module(store), trials=20).trials) == 1
    found = search("identity(p0)", module(store), trials=20)
    assert (found.trials, found.val_nll) == ([], found.identity_val_nll)


def test_threads_of_the_blas_do_not_change_a_bit(tmp_path):
    store = write_store(tmp_path / "outputs", cases=8, num_classes=3, shape=(48, 48))

    def fitted(threads):
        with threadpool_limits(threads, "blas"):
            return search("ets(p)", StoredOutputsDataModule(store, cal=4, val=2), accelerator="cpu").fitted

    one, two = fitted(1), fitted(2)
    assert one.val_nll == two.val_nll
    assert all(torch.equal(value, two.state[key]) for key, value in one.state.items())


def test_the_identity_is_a_candidate(tmp_path):
    cal = ["case-00", "case-01", "case-02"]

    def confuse(case_id, arrays):  # labels of cal that have nothing to do with the logits
        if case_id in cal:
            generator = torch.Generator().manual_seed(cal.index(case_id))
            arrays["target"] = torch.randint(4, arrays["target"].shape, generator=generator)

    store = with_changed(write_store(tmp_path / "outputs", cases=6, shape=(12, 12), ignore_index=None), confuse)
    data = StoredOutputsDataModule(store, cal=cal, val=["case-03", "case-04"])
    found = search("ts(z)", data)
    assert found.trials[0]["val_nll"] > found.identity_val_nll == found.val_nll
    assert found.identity_won
    assert found.calibrator.temperature.item() == 1
    assert (found.hyperparameters, found.certificate) == ({}, {})


def test_failed_trials_are_recorded_and_lose(store, monkeypatch):
    original = PipelineFitter.__call__

    def fails_without_bias_penalty(self, values):
        if values["mu"] == 0:
            raise ConvergenceError("60 passes ended above the tolerance")
        return original(self, values)

    monkeypatch.setattr(PipelineFitter, "__call__", fails_without_bias_penalty)
    found = search("vs(z)", module(store), trials=8)
    failed = [row for row in found.trials if row["state"] == "fail"]
    assert failed
    assert all(row["error"].startswith("60 passes") and row["val_nll"] is None for row in failed)
    assert found.hyperparameters["mu"] > 0
    monkeypatch.setattr(PipelineFitter, "__call__", lambda *_: (_ for _ in ()).throw(ConvergenceError("never")))
    with pytest.raises(SearchError, match="the first error: never"):
        search("vs(z)", module(store), trials=2)


def test_adam_is_searched_as_in_the_paper(store):
    found = search("lts_ti(z)", module(store), trials=2, max_epochs=3, solver="adam")
    assert set(found.trials[0]["values"]) == {"lr", "patience", "weight_decay"}
    assert found.val_nll == pytest.approx(pooled_nll(found.calibrator, module(store, pooling="z")), abs=1e-9)
    assert found.certificate["passes"] == 3


def test_samples_leave_the_weight_decay_to_search(store):
    found = search("lts_ti(z)", module(store), trials=2, max_epochs=2)
    assert set(found.trials[0]["values"]) == {"weight_decay"}
    assert (found.certificate["solver"], found.start) == ("lbfgs", None)


@pytest.mark.parametrize("solver", ["newton", "adam"])
def test_spaces_are_those_of_the_paper(solver):
    expected = {"ts": set(), "vs": {"mu"}}
    expected |= {name: {"lam", "mu"} for name in ("ms", "ms_c", "dc", "cdc", "cms_ap", "cms_op")}
    for name, penalties in expected.items():
        names = set(Space.of(build(name, 3), solver).names)
        assert names == penalties | ({"lr", "patience"} if solver == "adam" else set())
    assert all(Space.of(build(name, 3), "adam").names for name in CALIBRATORS)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    draws = [Space(("lr", "patience", "lam", "mu", "weight_decay")).suggest(study.ask()) for _ in range(60)]
    assert all(1e-4 <= draw["lr"] <= 3e-2 and draw["patience"] in PATIENCE for draw in draws)
    for name, high in (("lam", 1e-1), ("mu", 1e-1), ("weight_decay", 1e-2)):
        zeros = sum(draw[name] == 0 for draw in draws)
        assert 15 < zeros < 45
        assert all(draw[name] == 0 or 1e-6 <= draw[name] <= high for draw in draws)


def test_trials_reach_the_tracker(store, tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    rows = []
    found = search("vs(z)", module(store), trials=3, logger=logger, on_trial=rows.append)
    assert rows == found.trials
    with (tmp_path / "metrics.csv").open() as file:
        logged = list(csv.DictReader(file))
    assert [float(row["search/val_nll"]) for row in logged] == pytest.approx([row["val_nll"] for row in rows])


def test_a_search_needs_val_and_trials(store):
    with pytest.raises(ValueError, match="val has no cases"):
        search("ts(z)", StoredOutputsDataModule(store, cal=4, val=0))
    with pytest.raises(ValueError, match="trials = 0"):
        search("ts(z)", module(store), trials=0)


@pytest.fixture
def few(monkeypatch):
    """Coresets of so few voxels that the store of the tests counts as large."""
    monkeypatch.setattr("lightning_calib.solvers.coreset.CORESET_VOXELS", 2000)


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("large") / "outputs", cases=8, num_classes=3, shape=(40, 40))


@pytest.mark.parametrize("name", ["ms(z)", "cdc(z)", "cms_op(p)"])
def test_a_search_on_a_coreset_selects_like_one_on_all_voxels(larger, few, name):
    data = module(larger)
    sampled = search(name, data, trials=8, accelerator="cpu")
    exact = search(name, data, trials=8, accelerator="cpu", search="exact")
    assert sampled.fitter.sampled
    assert not exact.fitter.sampled
    chosen = sampled.fitted
    assert chosen.val_nll - exact.val_nll < 1e-4
    assert pooled_nll(sampled.calibrator, data) == pytest.approx(chosen.val_nll, abs=1e-6)
    strengths = {"ignore_index": data.ignore_index, **sampled.hyperparameters}
    best = fit(exact.fitter.fresh(), data.batches("cal"), **strengths)
    assert abs(chosen.certificate["objective"] - best.objective) < 1e-6
    assert chosen.certificate["num_voxels"] == best.num_voxels
    assert any(row.get("exact") for row in sampled.trials)


def test_a_search_on_a_coreset_is_the_same_in_any_process(larger, few, tmp_path):
    data = module(larger)
    fitter = PipelineFitter("ms(z)", data, accelerator="cpu", folder=tmp_path)
    values = {"lam": 1e-2, "mu": 0.0}
    first = fitter.trial(values)
    alone = PipelineFitter("ms(z)", data, accelerator="cpu").trial(values)
    other = PipelineFitter("ms(z)", data, accelerator="cpu", folder=tmp_path).trial(values)  # reads the coreset
    for found in (alone, other):
        assert found.val_nll == first.val_nll
        assert all(torch.equal(value, first.state[name]) for name, value in found.state.items())
    earlier = save({"tilt": torch.zeros(1), "offset": torch.zeros(())})  # as an earlier release wrote it
    for content in (b"damaged", earlier):
        (tmp_path / "coreset.safetensors").write_bytes(content)
        assert PipelineFitter("ms(z)", data, accelerator="cpu", folder=tmp_path).trial(values).val_nll == first.val_nll


@pytest.mark.parametrize(
    ("name", "solver"), [("ts(z)", "auto"), ("ms(z)", "adam"), ("gs(z)", "auto"), ("ets(z)", "auto")]
)
def test_only_searches_by_newton_take_a_coreset(larger, few, name, solver):
    assert not PipelineFitter(name, module(larger), solver, accelerator="cpu").sampled


def test_small_data_are_searched_exactly(store):
    assert not PipelineFitter("ms(z)", module(store), accelerator="cpu").sampled


def test_results_of_a_coreset_are_not_taken_for_exact_ones(larger, few):
    hashes = {
        (name, search): Experiment(larger, name, cal=4, val=2, search=search).fit_hash(FitJob(0, name))
        for name in ("ms(z)", "ts(z)")
        for search in ("coreset", "exact")
    }
    assert hashes["ms(z)", "coreset"] != hashes["ms(z)", "exact"]
    assert hashes["ts(z)", "coreset"] == hashes["ts(z)", "exact"]


def test_a_run_on_a_coreset_writes_the_final_fit(larger, few, tmp_path):
    experiment = Experiment(larger, "ms(z)", repeats=1, trials=3, cal=4, val=2, calibration=tmp_path / "calibration")
    experiment.run(logger="none", workers=1)
    data = module(larger, pooling="z")
    folder = tmp_path / "calibration" / "repeats" / "0" / "ms-z"
    record = json.loads((folder / "fit.json").read_text())
    calibrator = build("ms", 3)
    calibrator.load_state_dict(load_file(folder / "calibrator.safetensors"))
    assert record["val_nll"] == pytest.approx(pooled_nll(calibrator, data), abs=1e-6)
    assert record["certificate"]["num_voxels"] > 2000
    assert not list(folder.glob("trials-*"))
