"""Calibrators of Fiducio, the library of the paper's authors, taken over and handed back."""

import sys

import fiducio
import pytest
import torch

import lightning_calib as lc
from lightning_calib.calibrators import build
from tests.references.authors import GAPS, KINDS, quickly_fitted

SHAPES = {"voxels": (200, 4), "images": (2, 4, 12, 10), "volumes": (1, 4, 5, 6, 7)}


def example(shape, seed=0):
    """Logits with a shift of their own at every voxel, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(shape, generator=generator) + torch.randn(shape[0], 1, *shape[2:], generator=generator)
    return logits, torch.randint(4, (shape[0], *shape[2:]), generator=generator)


def moved(name, num_classes=4):
    """One of ours away from the identity, with entries of CMS at their bound."""
    calibrator = build(name, num_classes).requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    for parameter in calibrator.parameters():
        parameter += 0.4 * torch.randn(parameter.shape, generator=generator)
    calibrator.project_()
    if name in GAPS:
        assert (calibrator.inner == 0).any()
    return calibrator


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", KINDS)
def test_their_parameters_give_their_outputs(name, kind, tmp_path):
    logits, target = example(SHAPES[kind])
    target.view(-1)[::7] = -100  # their label of voxels that do not count
    theirs = quickly_fitted(name, logits, target)
    theirs.save(tmp_path / "theirs.pt")
    expected = theirs.transform(logits)
    assert (expected - logits.softmax(1)).abs().max() > 1e-2
    for source in (theirs, tmp_path / "theirs.pt", str(tmp_path / "theirs.pt")):
        taken = lc.from_fiducio(source)
        assert taken.name == name
        torch.testing.assert_close(taken(logits).exp().detach(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_our_parameters_give_our_outputs_there_and_come_back(name):
    calibrator, (logits, _) = moved(name), example(SHAPES["images"])
    handed = lc.to_fiducio(calibrator)
    assert type(handed) is KINDS[name]
    torch.testing.assert_close(handed.transform(logits), calibrator(logits).exp(), rtol=0, atol=1e-5)
    torch.testing.assert_close(lc.from_fiducio(handed)(logits).detach(), calibrator(logits), rtol=0, atol=1e-4)


def test_softplus_weights_are_handed_over_as_they_act():
    calibrator, (logits, _) = build("cms_op", 4, parametrization="softplus"), example(SHAPES["images"])
    expected = calibrator(logits).exp().detach()
    torch.testing.assert_close(lc.to_fiducio(calibrator).transform(logits), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["ts", "ms", "cdc", "cms_ap"])
def test_one_that_was_fitted_on_probabilities_takes_their_logarithms(name):
    logits, target = example(SHAPES["images"])
    probs = logits.softmax(1)
    theirs = quickly_fitted(name, probs, target, input_type="probs")
    taken = lc.from_fiducio(theirs)
    torch.testing.assert_close(taken(probs.log()).exp().detach(), theirs.transform(probs), rtol=0, atol=1e-5)


def test_files_from_before_their_first_release_hold_a_full_matrix(tmp_path):
    logits, target = example(SHAPES["voxels"])
    theirs = quickly_fitted("ms_c", logits, target)
    theirs._set_state({"weight": torch.eye(4) + 0.1 * torch.arange(16.0).view(4, 4), "bias": torch.ones(4)})
    expected = theirs.transform(logits)
    torch.testing.assert_close(lc.from_fiducio(theirs)(logits).exp().detach(), expected, rtol=0, atol=1e-5)


# What differs.


@pytest.mark.parametrize("name", GAPS)
def test_theirs_flips_ties_that_rounding_makes_and_ours_does_not(name):
    """Theirs goes by log-probabilities in float32, where classes may tie that do not tie in the logits."""
    logits, target = example(SHAPES["voxels"])
    theirs = quickly_fitted(name, logits, target)
    near = torch.tensor([[0.0, 1e-9, -1.0, -2.0]])
    assert int(theirs.transform(near).argmax(1)) == 0
    assert int(lc.from_fiducio(theirs)(near).argmax(1)) == 1


def test_theirs_blanks_masked_voxels_and_allows_nan_there_and_ours_calibrates_every_voxel():
    logits, target = example(SHAPES["images"])
    theirs = quickly_fitted("ts", logits, target)
    mask = torch.ones_like(target, dtype=torch.bool)
    mask[:, :3] = False
    blank = theirs.transform(logits, mask)
    found = lc.from_fiducio(theirs)(logits).exp().detach()
    assert (blank.movedim(1, -1)[~mask] == 0).all()
    torch.testing.assert_close(found.sum(1), torch.ones_like(found[:, 0]))
    torch.testing.assert_close(found.movedim(1, -1)[mask], blank.movedim(1, -1)[mask], rtol=0, atol=1e-5)
    logits[:, :, 0] = torch.nan
    assert torch.equal(theirs.transform(logits, mask), blank)
    with pytest.raises(ValueError, match="logits must be finite"):
        lc.from_fiducio(theirs)(logits)


# What is refused.


def saved(path, **changes):
    """A file of Fiducio with some fields changed."""
    logits, target = example(SHAPES["voxels"])
    quickly_fitted("ms", logits, target).save(path)
    torch.save(torch.load(path, weights_only=True) | changes, path)
    return path


class Stranger:
    """A class that a file must not bring along."""

    def __reduce__(self):
        return (pytest.fail, ("the file ran code",))


def test_files_with_classes_of_their_own_are_refused_and_run_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"theirs\.pt holds more than tensors and plain types"):
        lc.from_fiducio(saved(tmp_path / "theirs.pt", config=Stranger()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is not a file of a Fiducio calibrator"),
        ({"format_version": 2}, "format version 2, this release reads 1; install a newer lightning-calib"),
        ({"calibrator_id": "isotonic"}, "is of the kind 'isotonic', which is none of temperature_scaling"),
        ({"fitted": False}, "has not been fitted"),
        ({"state": {"weight": torch.eye(4)}}, "lacks the parameter 'bias'"),
        ({"state": {"weight": torch.eye(3), "bias": torch.zeros(3)}}, "cannot be taken over: .*size mismatch"),
        ({"state": {"weight": torch.eye(4) / 0, "bias": torch.zeros(4)}}, "its parameters are not finite"),
        ({"state": {"weight": None, "bias": None}}, "cannot be taken over"),
        ({"num_classes": None}, "cannot be taken over"),
    ],
)
def test_files_that_cannot_be_taken_over_say_why(changes, message, tmp_path):
    with pytest.raises(ValueError, match=f"(?s)theirs.pt.*{message}"):
        lc.from_fiducio(saved(tmp_path / "theirs.pt", **changes))


def test_incomplete_and_missing_files_say_so(tmp_path):
    path = saved(tmp_path / "theirs.pt")
    facts = torch.load(path, weights_only=True)
    del facts["state"]
    torch.save(facts, path)
    with pytest.raises(ValueError, match="lacks state"):
        lc.from_fiducio(path)
    path.write_bytes(saved(path).read_bytes()[:700])
    with pytest.raises(ValueError, match=r"theirs\.pt is not a whole file"):
        lc.from_fiducio(path)
    with pytest.raises(FileNotFoundError, match="no file of a Fiducio calibrator at"):
        lc.from_fiducio(tmp_path / "none.pt")


def test_what_is_no_fitted_calibrator_is_refused():
    with pytest.raises(ValueError, match="this OrderPreservingMatrixScaling has not been fitted"):
        lc.from_fiducio(fiducio.CMSop())
    with pytest.raises(TypeError, match="expected a calibrator of Fiducio or the path of its file, got int"):
        lc.from_fiducio(3)
    with pytest.raises(ValueError, match="Fiducio has no counterpart of lts; it has those of ts, ets"):
        lc.to_fiducio(build("lts", 3))


def test_a_temperature_that_ran_away_is_refused():
    theirs = fiducio.TS(max_iter=1).fit(torch.randn(20, 3), torch.zeros(20))
    theirs.temperature = 1e7
    with pytest.raises(ValueError, match=r"temperature 1e\+07 is outside of \[0.001, 1000\]"):
        lc.from_fiducio(theirs)


def test_files_are_read_without_fiducio_and_handing_over_says_what_to_install(tmp_path, monkeypatch):
    path = saved(tmp_path / "theirs.pt")
    monkeypatch.setitem(sys.modules, "fiducio", None)
    assert lc.from_fiducio(path).name == "ms"
    with pytest.raises(ImportError, match="pip install fiducio"):
        lc.to_fiducio(build("ms", 4))
