"""What a GPU would see, without one: fake tensors on "cuda" refuse other devices' tensors and give no values.

An operation that asks for a value (`.item()`, `bool()`, `nonzero()`, a mask as index) would have the host wait for the
GPU; here it raises. The few that there must be are named in WAITS, with the reason, and taken out. Copies between
devices raise nothing: they are counted, and must not grow with the number of chunks.

Autograd's backward pass needs a driver: torch's own part of a step of adam is left out.
"""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_calib.calibrators import CALIBRATORS, LinearCalibrator, TemperatureScaling, build
from lightning_calib.functional import flip_table, free_energy_moments, image_statistics, pool
from lightning_calib.functional.pooling import POOLINGS
from lightning_calib.functional.voxels import count_kept
from lightning_calib.metrics.score import score_collection
from lightning_calib.solvers import AdamSolver, NewtonSolver
from lightning_calib.solvers.basis import BasisCoordinates
from lightning_calib.solvers.coordinates import coordinates_of
from lightning_calib.solvers.mixture import mixture_terms
from lightning_calib.solvers.objective import PooledNLL
from lightning_calib.solvers.stream import Walk
from lightning_calib.solvers.sums import LinearNLL
from lightning_calib.tasks.evaluation import EvaluationTask
from tests.features import features_like, fed

pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # torchmetrics' copies

CLASSES, SIZE, IGNORED = 3, 8, 9
PACKAGE = "lightning_calib"
NAMES = list(CALIBRATORS)
AFFINE = [name for name in NAMES if issubclass(CALIBRATORS[name], LinearCalibrator)]


def nearly_all(target, keep, parts, *_):
    """As if one voxel of the first chunk were ignored."""
    counts = count_kept(None, parts, len(target))
    return counts if keep is None else [counts[0] - 1, *counts[1:]]


def equal_shares(prepared):
    """As if every expert had about as many voxels."""
    chunk = prepared.chunk
    edges = [number * len(chunk.target) // CLASSES for number in range(CLASSES + 1)]
    shares = tuple((number, slice(*edge)) for number, edge in enumerate(pairwise(edges)))
    return chunk if prepared.counts is None else replace(chunk, experts=shares)


# What waits for the device, how often, and what stands in for it here.
WAITS = {
    "calibrators.base.check_finite": ("NaN is refused: once a call, once a case in tasks and in first passes", None),
    "tasks.evaluation.check_finite": ("the same, once for all calibrators", None),
    "solvers.adam.check_size": ("huge logits are refused: in first passes", None),
    "solvers.objective._check_labels": ("labels are checked where NaN is: not in later passes of adam", None),
    "functional.truth.count_labels": ("labels are checked, voxels that count are counted: once an image", nearly_all),
    "solvers.stream.count_labels": ("the same", nearly_all),
    "functional.energy.count_kept": ("voxels that count: once an image", lambda k, p, n: nearly_all(range(n), k, p)),
    "functional.sweep.check_totals": ("probabilities are checked: once an image", None),
    "functional.truth._check_distance": ("distances are checked: once an image", None),
    "solvers.stream.Prepared.ready": (
        "sizes of the experts' products: once a chunk, one ahead",
        equal_shares,
    ),
    "solvers.sample.Sampler.add": ("voxels for the curvature go to the CPU: once a chunk, in first passes only", None),
    "functional.devices.arrival": ("the end of a copy to the CPU", lambda _: SimpleNamespace(synchronize=lambda: None)),
    "functional.devices.free_bytes": ("asks the driver, not the device", lambda _: 2**34),
}


class Copies(TorchDispatchMode):
    """Counts what goes from one device to another while the host waits."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        devices = {value.device.type for value in (*args, found) if isinstance(value, torch.Tensor) and value.ndim}
        self.count += len(devices) > 1 and not (kwargs or {}).get("non_blocking", False)
        return found


@pytest.fixture
def cuda(monkeypatch):
    for place, (_, stand_in) in WAITS.items():
        monkeypatch.setattr(f"{PACKAGE}.{place}", stand_in or (lambda *_: None))
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        yield torch.device("cuda")


def case(device):
    logits = torch.randn(1, CLASSES, SIZE, SIZE, device=device)
    return logits, torch.zeros(1, SIZE, SIZE, dtype=torch.long, device=device)


def on_cuda(name):
    with torch.device("cuda"):
        return fed(build(name, CLASSES))


def batch_for(name, device):
    """Logits, target, case ids and features, where the calibrator looks at some."""
    logits, target = case(device)
    count = len(build(name, CLASSES).feature_names)
    return logits, target, ["a"], features_like(logits, count) if count else None


def copies_of(work, monkeypatch):
    """Copies of one chunk; refused where several chunks take more."""
    counts = []
    for values in (2**24, 16 * CLASSES):  # one chunk, four chunks
        monkeypatch.setattr(f"{PACKAGE}.functional.devices.BUSY_VALUES", values)
        work()
        with Copies() as copies:
            work()
        counts.append(copies.count)
    assert counts[0] == counts[1]
    return counts[0]


@pytest.mark.parametrize("name", NAMES)
def test_forward_waits_for_nothing(name, cuda, monkeypatch):
    calibrator, (logits, _) = on_cuda(name), case(cuda)
    assert calibrator(logits).device.type == "cuda"
    assert copies_of(lambda: calibrator(logits), monkeypatch) == 0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_waits_for_nothing(pooling, cuda, monkeypatch):
    members = torch.randn(1, 2, CLASSES, SIZE, SIZE, device=cuda)
    assert copies_of(lambda: pool(members, pooling), monkeypatch) == 0


@pytest.mark.parametrize("ignore_index", [None, IGNORED])
def test_statistics_come_back_once_an_image(ignore_index, cuda, monkeypatch):
    logits, target = case(cuda)
    options = {"ignore_index": ignore_index, "reference": logits, "distance": target.float(), "classwise": True}
    options["sigma"] = 2.0
    statistics = image_statistics(logits.log_softmax(1), target, **options)
    assert {tensor.device.type for tensor in statistics.tensors()} == {"cpu"}
    assert copies_of(lambda: image_statistics(logits.log_softmax(1), target, **options), monkeypatch) == 0
    assert copies_of(lambda: free_energy_moments(logits, target, ignore_index), monkeypatch) == 1
    assert copies_of(lambda: flip_table(logits, target, logits, ignore_index), monkeypatch) == 1


def test_metrics_add_rows_on_the_cpu(cuda, monkeypatch):
    logits, target = case(cuda)
    collection = score_collection(IGNORED, None)
    facts = {"case_ids": ["a"], "reference": logits, "distance": target.float()}
    copies_of(lambda: collection.update(logits.log_softmax(1), target, **facts), monkeypatch)
    rows = [row for metric in collection.values() for row in (*metric.counts, *metric.sums)]
    assert {row.device.type for row in rows} == {"cpu"}


@pytest.mark.parametrize("name", AFFINE)
def test_a_pass_of_newton_stays_on_the_gpu(name, cuda, monkeypatch):
    batch = batch_for(name, cuda)
    with unset_fake_temporarily():  # between passes newton works on the CPU, with values
        coordinates = coordinates_of(build(name, CLASSES))
    monkeypatch.setattr(f"{PACKAGE}.solvers.newton.coordinates_of", lambda _: coordinates)
    solver = NewtonSolver(on_cuda(name), ignore_index=IGNORED)
    if isinstance(coordinates, BasisCoordinates):
        coordinates.calibrator = solver.calibrator
    for survey in (solver.survey, None):
        solver.survey = survey
        solver._begin_pass()
        copies_of(lambda: solver.accumulate(*batch), monkeypatch)
        assert {solver.sums.loss.device.type, solver.sums.gradient.device.type} == {"cuda"}


@pytest.mark.parametrize("name", NAMES)
def test_the_nll_stays_on_the_gpu(name, cuda, monkeypatch):
    calibrator, batch = on_cuda(name), batch_for(name, cuda)
    pooled = [PooledNLL(calibrator, IGNORED)]
    if name in AFFINE:
        pooled.append(LinearNLL(calibrator, Walk(calibrator, IGNORED)))
    copies_of(lambda: [sums.add(*batch) for sums in pooled], monkeypatch)
    assert pooled[0].sums.device.type == "cuda"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "identity"])
def test_a_step_of_adam_stays_on_the_gpu(name, cuda, monkeypatch):
    calibrator, batch = on_cuda(name), batch_for(name, cuda)
    solver = AdamSolver(calibrator, ignore_index=IGNORED)
    monkeypatch.setattr(solver.optimizer, "step", lambda: None)
    monkeypatch.setattr(torch.autograd, "grad", lambda loss, parameters, **_: map(torch.zeros_like, parameters))
    assert copies_of(lambda: solver.accumulate(*batch), monkeypatch) == 0
    assert solver.loss.device.type == "cuda"
    assert {parameter.grad.device.type for parameter in calibrator.parameters()} == {"cuda"}


def test_the_mixture_of_ets_stays_on_the_gpu(cuda, monkeypatch):
    walk, weights = Walk(TemperatureScaling(CLASSES), IGNORED), torch.ones(3, device=cuda, dtype=torch.float64) / 3

    def terms():
        return [mixture_terms(c.features, c.position, 0.1, weights).sum(1) for c in walk(*case(cuda), ["a"])]

    assert copies_of(terms, monkeypatch) == 0
    assert {values.device.type for values in terms()} == {"cuda"}


def test_an_evaluation_fetches_rows_only(cuda, monkeypatch):
    logits, target = case(cuda)
    names = ["identity", "cms_op", "lts_ti"]
    task = EvaluationTask({name: on_cuda(name) for name in names}, IGNORED, background=0)
    batch = {"logits": logits, "target": target, "case_id": ["a"], "distance": target.float()}
    copies = copies_of(lambda: task.test_step(batch, 0), monkeypatch)
    one = EvaluationTask({"ms": on_cuda("ms")}, IGNORED, background=0)
    assert copies <= len(names) * copies_of(lambda: one.test_step(batch, 0), monkeypatch)
