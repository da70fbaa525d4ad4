"""Numbers and labels that no fit should see: refused in words, or fitted to something finite that is no worse."""

import warnings

import pytest
import torch

import lightning_calib as lc
from lightning_calib.calibrators import build
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.solvers import fit
from tests.torture.outcomes import note

NAMES = ("ts", "cms_op", "ms")


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
    "nan": lambda: with_value(torch.nan),
    "inf": lambda: with_value(torch.inf),
    "-inf": lambda: with_value(-torch.inf),
    "1e38": lambda: with_value(1e38),
    "1e20": lambda: with_value(1e20),
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
    if name == "cms_op" and bad == "300 classes":
        pytest.skip("27 million parameters")
    logits, target, options = BAD[bad]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = lc.calibrate(logits, target, name, **options)
    except (ValueError, TypeError):
        note("numbers", "clear")
        return
    assert result.log_probs.isfinite().all()
    assert result.after["nll"] <= result.before["nll"] * (1 + 1e-6) + 1e-9
    note("numbers", "survived")


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
