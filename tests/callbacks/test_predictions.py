"""Stores of frozen outputs from modules that are not ours."""

from types import SimpleNamespace

import lightning as L
import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

import lightning_calib as lc
from lightning_calib.cli.calibrate import main
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.segmenters.inference import Inference
from tests.stores import blocky_target

CPU = {"accelerator": "cpu", "enable_progress_bar": False}
QUIET = CPU | {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}


class Theirs(pl.LightningModule):
    """A user's module, with layers that act otherwise in training."""

    def __init__(self, classes=3, channels=2):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, classes, 3, padding=1), nn.BatchNorm2d(classes), nn.Dropout(0.5))

    def forward(self, images):
        return self.body(images)


class TheirsLightning(L.LightningModule):
    """The same on the other of Lightning's two packages, with a predict step."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(2, 3, 1)

    def predict_step(self, batch, batch_idx):
        return self.body(batch[0])


def data(count=6, size=(12, 10), classes=3):
    """Images, labels and ids."""
    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        target = blocky_target(size, classes, generator)
        yield torch.randn(2, *size, generator=generator) + target, target, f"img-{number}"


def loader(form="tuple", batch_size=2, **options):
    rows = list(data())
    if form == "mapping":
        rows = [{"image": image, "mask": target[None], "case_id": name} for image, target, name in rows]
    elif form == "pairs":
        rows = [row[:2] for row in rows]
    return DataLoader(rows, batch_size=batch_size, **options)


def direct(modules):
    """Logits of each case by the modules alone."""
    with torch.inference_mode():
        return {name: torch.stack([m.eval()(image[None])[0] for m in modules]) for image, _, name in data()}


@pytest.mark.parametrize("form", ["tuple", "mapping"])
def test_the_store_holds_what_the_modules_say(tmp_path, form):
    modules = {"ours": Theirs().train(), "plain": nn.Conv2d(2, 3, 1)}
    store = lc.store_outputs(
        modules, loader(form), tmp_path / "toy" / "outputs", ["a", "b", "c"], background=0, trainer=CPU
    )
    assert [member.name for member in store.manifest.members] == list(modules)
    assert len({member.sha256 for member in store.manifest.members}) == 2
    assert (store.manifest.dataset, store.manifest.background) == ("toy", 0)
    expected = direct(modules.values())
    for _, target, name in data():
        case = store[name]
        assert torch.allclose(case.logits, expected[name], atol=1e-6)
        assert torch.equal(case.target, target)


def test_a_run_takes_the_store(tmp_path):
    torch.manual_seed(0)  # networks that a temperature helps
    outputs = tmp_path / "toy" / "outputs"
    lc.store_outputs([Theirs(), Theirs()], DataLoader(list(data(18)), batch_size=4), outputs, trainer=CPU)
    line = ["run", "--outputs", outputs, "--pipelines", "identity(p),ts(p)", "--repeats", "1", "--trials", "1"]
    assert main([*map(str, line), "--cal", "0.3", "--workers", "0", "--report", "false"]) == 0
    table = lc.load_results(tmp_path / "toy").table().set_index("pipeline")
    assert table.loc["ts(p)", "nll"] < table.loc["identity(p)", "nll"]


def test_what_is_there_is_not_computed_again(tmp_path):
    module, outputs = Theirs(), tmp_path / "outputs"
    calls = []

    def counted(member, images):
        calls.append(len(images))
        if len(calls) == 5:
            raise InterruptedError
        return member(images)

    kept = {"class_names": ["a", "b", "c"], "trainer": CPU, "scores": counted}
    with pytest.raises(InterruptedError):
        lc.store_outputs(module, loader(batch_size=1), outputs, **kept)
    assert not (outputs / "manifest.json").exists()
    store = lc.store_outputs(module, loader(batch_size=1), outputs, **kept)
    assert len(calls) == 5 + 2
    assert len(store.case_ids) == 6
    with pytest.raises(StoreError, match="another run"):
        lc.store_outputs(Theirs(), loader(batch_size=1), outputs, **kept)


@pytest.mark.parametrize("package", [pl, L], ids=["pytorch_lightning", "lightning"])
def test_the_callback_takes_the_module_of_either_package(tmp_path, package):
    module = TheirsLightning() if package is L else None
    if module is None:
        module = Theirs()
        module.predict_step = lambda batch, batch_idx: {"logits": module(batch[0])}
    callback = lc.StorePredictions(tmp_path / "outputs", ["a", "b", "c"])
    trainer = package.Trainer(**QUIET, callbacks=[callback])
    trainer.predict(module, loader(), return_predictions=False)
    store = lc.OutputStore(tmp_path / "outputs")
    image, _, name = next(data())
    with torch.inference_mode():
        expected = module.eval().body(image[None])
    assert torch.allclose(store[name].logits, expected, atol=1e-6)


@pytest.mark.parametrize(
    "told",
    [
        lambda module, images: {"out": module(images)},
        lambda module, images: SimpleNamespace(logits=module(images)),
        lambda module, images: (module(images), 1)[0],
    ],
    ids=["mapping", "object", "chosen"],
)
def test_scores_in_other_wrappings(tmp_path, told):
    module = Theirs()
    store = lc.store_outputs(module, loader(), tmp_path / "outputs", scores=told, trainer=CPU)
    assert torch.allclose(store["img-3"].logits, direct([module])["img-3"], atol=1e-6)


def test_windows_and_one_channel(tmp_path):
    module = nn.Conv2d(2, 1, 1)  # without surroundings, windows change nothing
    rows = [(image, (target > 0).float(), name) for image, target, name in data()]
    inference = Inference(window=[8, 8], mirror_axes=(0, 1))
    store = lc.store_outputs(module, DataLoader(rows), tmp_path / "outputs", inference=inference, trainer=CPU)
    logits = store["img-0"].logits
    with torch.inference_mode():
        expected = module(rows[0][0][None])[0]
    assert torch.equal(logits[0, 0], torch.zeros(12, 10))
    assert torch.allclose(logits[0, 1], expected[0], atol=1e-5)


def test_cases_without_ids_are_numbered_where_their_order_stays(tmp_path):
    store = lc.store_outputs(Theirs(), loader("pairs"), tmp_path / "a", trainer=CPU)
    assert store.case_ids == tuple(f"case-{number:05d}" for number in range(6))
    with pytest.raises(StoreError, match="no case ids"), pytest.warns(match="shuffling"):
        lc.store_outputs(Theirs(), loader("pairs", shuffle=True), tmp_path / "b", trainer=CPU)
    assert not (tmp_path / "b" / "manifest.json").exists()


REFUSED = {
    "twice": ([("a", 0), ("a", 0)], {}, "case id a comes twice"),
    "list": ([("a", 0)], {"scores": lambda module, images: [module(images)]}, "returned list"),
    "coarse": ([("a", 0)], {"scores": lambda module, images: module(images)[..., ::2, ::2]}, "do not fit labels"),
    "label": ([("a", 7)], {}, r"labels \[7\] are neither"),
    "soft": ([("a", 0.5)], {}, "not whole numbers"),
}


@pytest.mark.parametrize("rows", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path, rows):
    named, options, message = REFUSED[rows]
    cases = [(torch.zeros(2, 8, 8), torch.full((8, 8), float(label)), name) for name, label in named]
    with pytest.raises(ValueError, match=message):
        lc.store_outputs(Theirs(), DataLoader(cases), tmp_path / "outputs", trainer=CPU, **options)


def test_batches_of_another_make(tmp_path):
    with pytest.raises(ValueError, match="say how with unpack="):
        lc.store_outputs(Theirs(), DataLoader([{"x": torch.zeros(2, 8, 8)}]), tmp_path / "outputs", trainer=CPU)
    with pytest.raises(ValueError, match="no batches"):
        lc.store_outputs(Theirs(), DataLoader([]), tmp_path / "outputs", trainer=CPU)
