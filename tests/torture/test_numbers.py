"""Numbers and labels that no fit should see: refused in words, or fitted to something finite that is no worse."""

import warnings

import pytest
import torch

import lightning_calib as lc
from lightning_calib.calibrators import CALIBRATORS, build
from lightning_calib.calibrators.base import LARGEST, features_of, seen_by
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.solvers import fit
from lightning_calib.tasks.evaluation import EvaluationTask
from tests.calibrators.helpers import randomized
from tests.torture.outcomes import note

NAMES = ("ts", "ets", "cms_op", "ms", "gs", "lts_ti")
HUGE = ("nan", "inf", "-inf", "3e38", "-3e38", "1e20", "2e4", "float16")  # refused whatever the calibrator


def voxels(classes=3, number=60, scale=2.0):
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(classes, (number,), generator=generator)
    logits = torch.randn(number, classes, generator=generator)
    logits[torch.arange(number), target] += 1.0
    return scale * logits, target


def with_value(value):
    logits, target = voxels()
    logits[3, 1] = value
    return logits, target, {}


def separable(sign):
    logits, target = voxels()
    found = torch.full_like(logits, -5.0 * sign)
    found[torch.arange(len(target)), target] = 5.0 * sign
    return found, target, {}


def labelled(label, **options):
    logits, target = voxels()
    target = target.clone()
    target[::2] = label
    return logits, target, options


BAD = {
    "nothing": lambda: (*voxels(), {}),  # bad: fitted like any other
    "nan": lambda: with_value(torch.nan),
    "inf": lambda: with_value(torch.inf),
    "-inf": lambda: with_value(-torch.inf),
    "3e38": lambda: with_value(3e38),
    "-3e38": lambda: with_value(-3e38),
    "1e20": lambda: with_value(1e20),
    "2e4": lambda: with_value(2e4),
    "float16": lambda: (voxels()[0].half() * 1e4, voxels()[1], {}),
    "one voxel": lambda: (*voxels(number=1), {}),
    "no voxel": lambda: (*voxels(number=0), {}),
    "one class in the labels": lambda: (voxels()[0], torch.zeros(60, dtype=torch.long), {}),
    "300 classes": lambda: (*voxels(300, 900), {}),
    "separable": lambda: separable(1),
    "anti-separable": lambda: separable(-1),
    "label above": lambda: labelled(3),
    "label below": lambda: labelled(-7),
    "all ignored": lambda: (voxels()[0], torch.full((60,), 255), {"ignore_index": 255}),
    "ignore inside": lambda: labelled(1, ignore_index=1),
    "equal logits": lambda: (torch.zeros(60, 3), voxels()[1], {}),
    "labels are fractions": lambda: (voxels()[0], voxels()[1].double() + 0.5, {}),
    "one label too few": lambda: (voxels()[0], voxels()[1][1:], {}),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", BAD)
def test_bad_numbers_are_refused_or_fitted(bad, name):
    if name in ("cms_op", "lts_ti") and bad == "300 classes":
        pytest.skip("27 million parameters, or half a minute")
    logits, target, options = BAD[bad]()
    if name == "lts_ti":  # sees neighbours
        logits, target = logits.T[None, :, None], target[None, None]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = lc.calibrate(logits, target, name, **options)
    except (ValueError, TypeError):
        assert bad != "nothing"
        note("numbers", "clear")
        return
    assert bad not in HUGE
    assert result.log_probs.isfinite().all()
    assert result.after["nll"] <= result.before["nll"] * (1 + 1e-6) + 1e-9
    note("numbers", "survived")


@pytest.mark.parametrize("name", sorted(set(CALIBRATORS) - {"stack"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_applied_is_finite_or_refused(name, dtype):
    """Up to the largest logits that are taken, whatever the parameters; beyond, an error in place of NaN."""
    calibrator = randomized(name, 3, 0)
    logits = torch.randn(1, 3, 6, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits = LARGEST * logits / logits.abs().max()
    seen = seen_by(calibrator, features_of(calibrator, logits, torch.stack([logits, -logits], dim=1)))
    found = calibrator(logits, *seen)
    assert found.isfinite().all()
    for value in (3.0e38, -3.0e38, 2 * LARGEST):
        huge = logits.clone()
        huge[0, 1, 2, 3] = value
        with pytest.raises(ValueError, match=r"logits must be within 1e\+30, got .* at \(0, 1, 2, 3\)"):
            calibrator(huge, *seen)
        note("numbers", "clear")


@pytest.mark.parametrize(("solver", "name"), [("newton", "ms"), ("slsqp", "ets"), ("adam", "ts"), ("lbfgs", "lts_ti")])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -3e38, 1e20, 2e4])
def test_every_solver_refuses_values_that_leave_no_room(solver, name, value):
    """Also in a later batch than the first."""
    logits, target = voxels()
    images = [logits.T.reshape(1, 3, 6, 10).clone(), logits.T.reshape(1, 3, 6, 10).clone()]
    images[1][0, 1, 2, 3] = value
    batches = [(image, target.view(1, 6, 10)) for image in images]
    with pytest.raises(ValueError, match=r"logits reach|must be finite|within 1e\+30"):
        fit(build(name, 3), batches, solver=solver, **({"epochs": 2} if solver == "adam" else {}))
    note("numbers", "clear")


@pytest.mark.parametrize("name", ["ts", "ets", "ms", "cms_op"])
def test_large_logits_are_fitted_as_well_as_small_ones(name):
    """Their temperature goes along, to 1000: the best NLL is the same, and converged means just that."""
    logits, target = voxels(number=3000, scale=0.7)
    found = []
    for scale in (1, 300):
        calibrator = build(name, 3)
        assert fit(calibrator, [(scale * logits, target)]).converged
        found.append(torch.nn.functional.nll_loss(calibrator(scale * logits.double()), target))
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=0)
    note("numbers", "survived")


def test_evaluation_refuses_what_is_too_large():
    logits, target = voxels()
    logits[0, 0] = 3e38
    task = EvaluationTask({"ts(z)": build("ts", 3)})
    with pytest.raises(ValueError, match="logits must be within"):
        task.test_step({"logits": logits, "target": target, "case_id": ["a"]}, 0)
    note("numbers", "clear")


def test_probabilities_taken_for_logits_are_told():
    logits, target = voxels()
    with pytest.warns(UserWarning, match="sum to 1 over the classes"):
        lc.calibrate(logits.softmax(1), target, "ts")
    with pytest.warns(UserWarning, match="sum to 1 over the classes"):
        fit(build("ts", 3), [(logits.softmax(1), target)])


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"logits": torch.nan}, {}),
        ({"logits": torch.inf}, {}),
        ({"target": 7}, {}),
        ({"logits": 1e6}, {"dtype": "float16"}),
    ],
)
def test_bad_cases_do_not_get_into_a_store(tmp_path, changes, options):
    writer = OutputWriter(tmp_path / "outputs", "toy", ["a", "b", "c"], 2, [Member("0")], **options)
    arrays = {"logits": torch.zeros(1, 3, 4, 4), "target": torch.zeros(4, 4, dtype=torch.long)}
    for name, value in changes.items():
        arrays[name][..., 0, 0] = value
    with pytest.raises(ValueError, match="case a"):
        writer.write("a", **arrays)
    note("numbers", "clear")
