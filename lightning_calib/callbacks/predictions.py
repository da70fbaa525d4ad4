"""The store of frozen outputs from any module: as a callback of ``trainer.predict``, or in one call."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from lightning_calib.outputs.manifest import Member, StoreError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.segmenters.inference import Inference
from lightning_calib.tasks.modules import (
    Labelled,
    ModuleEnsemble,
    Unpack,
    class_scores,
    labels,
    score_tensor,
    unpack,
    weights_sha256,
)


class StorePredictions(Callback):
    """Write what ``predict_step`` of any LightningModule returns as a store that ``calibrate.py run`` takes.

    ``predict_step`` returns logits ``(B, C, *S)`` of one network, or ``(B, M, C, *S)`` of an ensemble. Call
    ``trainer.predict(module, loader, return_predictions=False)``: Lightning would keep all logits in memory otherwise.
    The manifest comes last; an interrupted prediction goes on with the cases that are missing.

    Args:
        outputs: folder of the store, such as ``runs/mine/outputs``.
        class_names: one name a class.
        members: names of the members, in the order of their axis.
        spatial_dims: 2 for images, 3 for volumes.
        unpack: takes images, labels and case ids out of a batch; by default those of tuples and mappings.
        dataset: name of the data set; by default that of the folder around the store.
        **options: further arguments of :class:`~lightning_calib.outputs.writer.OutputWriter`: ``ignore_index``,
            ``background``, ``representation``, ``groups``, ``keep``, ``dtype`` and so on.
    """

    def __init__(
        self,
        outputs: str | Path,
        class_names: Sequence[str],
        members: Sequence[str] = ("0",),
        spatial_dims: int = 2,
        unpack: Unpack = unpack,
        dataset: str | None = None,
        **options: Any,
    ) -> None:
        """Keep the arguments; the store is opened when prediction starts."""
        self.path, self.class_names, self.members = Path(outputs), list(class_names), list(members)
        self.spatial_dims, self.unpack, self.options = spatial_dims, unpack, options
        self.dataset = dataset or self.path.resolve().parent.name

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the store, in the first process first."""
        hashes = pl_module.hashes() if isinstance(pl_module, ModuleEnsemble) else [weights_sha256(pl_module)]
        hashes = hashes * len(self.members) if len(hashes) == 1 else hashes
        known = [Member(name, sha256=found) for name, found in zip(self.members, hashes, strict=True)]
        for turn in (True, False):
            if trainer.is_global_zero == turn:
                self.writer = OutputWriter(
                    self.path, self.dataset, self.class_names, self.spatial_dims, known, **self.options
                )
            trainer.strategy.barrier("the store is open")
        self._done, self._seen = self.writer.done, list[str]()
        if isinstance(pl_module, ModuleEnsemble):
            pl_module.done = self._done

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Write the cases of a batch, as far as the store lacks them."""
        found = self.unpack(batch)
        target = labels(found.target, self.spatial_dims)
        names = found.case_ids or self._numbered(trainer, len(target))
        if len(names) != len(target):
            raise StoreError(f"{len(names)} case ids in a batch of {len(target)} images: {', '.join(names[:5])}")
        if twice := [name for number, name in enumerate(names) if name in self._seen or name in names[:number]]:
            raise StoreError(f"case id {twice[0]} comes twice: give every image an id of its own")
        self._seen += names
        if self._done.issuperset(names):
            return
        scores = class_scores(score_tensor(outputs), target, self.spatial_dims)
        for name, logits, truth, image in zip(names, scores, target, found.images, strict=True):
            if name not in self._done:
                self.writer.write(name, logits.float(), truth, image=image)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the manifest once every process has written its cases."""
        trainer.strategy.barrier("all cases are written")
        if trainer.is_global_zero:
            self.writer.finish(self._seen)
        trainer.strategy.barrier("the store is complete")

    def _numbered(self, trainer: Trainer, count: int) -> tuple[str, ...]:
        """Ids of cases that come without: their numbers, where the order is always the same."""
        found = trainer.predict_dataloaders
        loaders = found if isinstance(found, list) else [found]
        # Lightning wraps the sampler of batches, and that of cases is below it.
        samplers = [getattr(getattr(one, "batch_sampler", None), "sampler", None) for one in loaders]
        if trainer.world_size > 1 or any(isinstance(each, RandomSampler) for each in samplers):
            raise StoreError(
                "the batches hold no case ids, and their order is not always the same (shuffled, or several "
                "processes): give each image its id, as (images, target, ids) or as 'case_id' of a mapping"
            )
        return tuple(f"case-{number:05d}" for number in range(len(self._seen), len(self._seen) + count))


def store_outputs(
    modules: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
    dataloader: "DataLoader[Any]",
    outputs: str | Path,
    class_names: Sequence[str] | None = None,
    unpack: Unpack = unpack,
    scores: Callable[[nn.Module, Tensor], Any] | None = None,
    inference: Inference | None = None,
    trainer: Mapping[str, Any] | None = None,
    **options: Any,
) -> OutputStore:
    """Write a store of frozen outputs from trained modules: LightningModules, or any ``nn.Module``.

    Checkpoints become members by ``[MyModule.load_from_checkpoint(path) for path in paths]``. The same call again goes
    on where an interrupted one stopped; other weights in the same folder are refused.

    Args:
        modules: the members of the ensemble, perhaps with their names; one network is an ensemble of one.
        dataloader: batches of held-out images with their labels and, best, their case ids (see ``unpack``).
        outputs: folder of the store, such as ``runs/mine/outputs``.
        class_names: one name a class; by default their numbers.
        unpack: takes images, labels and ids out of a batch: :func:`lightning_calib.tasks.modules.unpack`.
        scores: gives a module's logits for images; by default ``module(images)``.
        inference: sliding windows and mirrored views; images in one piece by default.
        trainer: options of ``pytorch_lightning.Trainer``, such as ``{"accelerator": "gpu"}``.
        **options: those of :class:`StorePredictions`: ``ignore_index``, ``background``, ``groups``, ``dataset``, ...

    Example:
        >>> import tempfile
        >>> images, target = torch.randn(4, 3, 8, 8), torch.zeros(4, 8, 8)
        >>> loader = DataLoader(list(zip(images, target)), batch_size=2)
        >>> networks = [nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1)]
        >>> quiet = {"accelerator": "cpu", "enable_progress_bar": False}
        >>> store = store_outputs(networks, loader, tempfile.mkdtemp() + "/toy/outputs", trainer=quiet)
        >>> store.case_ids[0], store.manifest.num_members, store.manifest.num_classes
        ('case-00000', 2, 5)
    """
    named = modules if isinstance(modules, Mapping) else _numbered(modules)
    if not named:
        raise ValueError("no modules: give one network or more")
    first = unpack(_first_batch(dataloader))
    spatial_dims = first.images.ndim - 2
    ensemble = ModuleEnsemble(list(named.values()), unpack, scores, inference, spatial_dims)
    if class_names is None:
        class_names = [str(number) for number in range(_num_classes(ensemble, first))]
    callback = StorePredictions(outputs, class_names, list(named), spatial_dims, unpack, **options)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False} | dict(trainer or {})
    callbacks = [*(quiet.pop("callbacks", None) or []), callback]
    Trainer(**quiet, callbacks=callbacks).predict(ensemble, dataloader, return_predictions=False)
    return OutputStore(outputs)


def _numbered(modules: nn.Module | Sequence[nn.Module]) -> dict[str, nn.Module]:
    each = [modules] if isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList) else list(modules)
    return {str(number): module for number, module in enumerate(each)}


def _first_batch(dataloader: Iterable[Any]) -> Any:  # noqa: ANN401
    for batch in dataloader:
        return batch
    raise ValueError("the dataloader has no batches: give one with held-out images and their labels")


def _num_classes(ensemble: ModuleEnsemble, first: Labelled) -> int:
    """Classes that the first member tells apart, tried on one image."""
    member = ensemble.eval().members[0]
    device = next((weights.device for weights in member.parameters()), torch.device("cpu"))
    with torch.inference_mode():
        return max(2, ensemble.member_scores(member, first.images[:1].to(device)).shape[1])
