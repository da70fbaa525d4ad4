"""True logits of each fold of a trained nnU-Net v2 model, through nnU-Net's own predictor."""

import contextlib
import io
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_calib.kit.files import sha256
from lightning_calib.outputs.imports.loop import CaseSource, Imported
from lightning_calib.outputs.imports.nnunet import DatasetFacts, image_files, label_files, read_dataset_facts
from lightning_calib.outputs.imports.orientation import find_orientation
from lightning_calib.outputs.manifest import Member, Representation, StoreError

Array = NDArray[Any]


class FoldPredictor(CaseSource):
    """Predicts cases with every fold of a model by itself.

    Tiles and mirrors are averaged in logit space and logits are resampled to the image's grid, all by nnU-Net's
    functions; then, where nnU-Net takes the softmax (of regions, the sigmoid), this stops. What was cropped away before
    the prediction gets logits of 0 and is marked as not valid.

    Args:
        model: folder with ``plans.json``, ``dataset.json`` and ``fold_<k>/<checkpoint>``.
        images: folder of ``<case>_0000<ending>``.
        targets: folder of ``<case><ending>``.
        folds: folds that become members; None for all that have the checkpoint.
        checkpoint: name of the checkpoint file.
        tile_step_size: step of the sliding window as a share of the patch.
        mirror: average over mirrored images where the training allows it.
        device: ``cpu``, ``cuda`` or ``auto``.
        dataset_json: facts on the data set; None for the file in ``model``.
        trusted: whether the user trusts the checkpoints: nnU-Net unpickles them.
    """

    representation: Representation = "logits"

    def __init__(
        self,
        model: Path,
        images: Path,
        targets: Path,
        folds: list[int | str] | None = None,
        checkpoint: str = "checkpoint_final.pth",
        tile_step_size: float = 0.5,
        mirror: bool = True,
        device: str = "auto",
        dataset_json: Path | None = None,
        trusted: bool = False,
    ) -> None:
        self.model, self.checkpoint = model, checkpoint
        self.tile_step_size, self.mirror, self.device = tile_step_size, mirror, device
        self.facts: DatasetFacts = read_dataset_facts(dataset_json or model / "dataset.json")
        self.folds = _folds(model, checkpoint, folds)
        if not trusted:
            raise StoreError(
                f"loading {model} unpickles its checkpoints, which can run any program: if the model is your own or "
                "from people you trust, say --trust_model_folder true; otherwise import --predictions"
            )
        self.files = image_files(images, self.facts.file_ending)
        self.labels = label_files(targets, self.facts.file_ending, self.files)

    def members(self) -> list[Member]:
        """One a fold, with the hash of its checkpoint."""
        files = {fold: self.model / f"fold_{fold}" / self.checkpoint for fold in self.folds}
        return [Member(f"fold_{f}", str(path.relative_to(self.model)), sha256(path)) for f, path in files.items()]

    @cached_property
    def predictor(self) -> Any:  # noqa: ANN401  # nnunetv2 has no type information
        """nnU-Net's predictor with the weights of all folds."""
        try:
            from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
        except ImportError as problem:
            raise StoreError(
                f"predicting with an nnU-Net model needs nnunetv2 ({problem}): pip install 'lightning-calib[nnunet]'"
            ) from problem
        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        with contextlib.redirect_stdout(io.StringIO()):  # it greets
            predictor = nnUNetPredictor(
                tile_step_size=self.tile_step_size,
                use_mirroring=self.mirror,
                device=torch.device(chosen),
                allow_tqdm=False,
            )
            predictor.initialize_from_trained_model_folder(str(self.model), self.folds, self.checkpoint)
        self._refuse(predictor)
        return predictor

    def _refuse(self, predictor: Any) -> None:  # noqa: ANN401
        if (previous := predictor.configuration_manager.previous_stage_name) is not None:
            raise StoreError(
                f"{self.model} is the second stage of a cascade and needs the segmentations of {previous}: predict it "
                "with nnUNetv2_predict --save_probabilities, fold by fold, and import --predictions"
            )

    def load(self, case_id: str, folds: Sequence[str] | None = None) -> Imported:
        """Predict one case: logits ``(M, C, *S)`` on the grid of the label file.

        Args:
            case_id: the case.
            folds: which of the folds predict it; None for all.
        """
        logits, valid, labels, image = self.predict(case_id, folds)
        target = self.target(case_id)
        turn = find_orientation(labels, target.array, str(self.labels[case_id])).apply
        inside = None if valid.all() else turn(valid)
        return Imported(turn(logits), target.array, inside, target.geometry, image=turn(image))

    def predict(self, case_id: str, folds: Sequence[str] | None = None) -> tuple[Array, Array, Array, Array]:
        """Logits ``(M, C, *S)``, predicted voxels and labels ``(*S)``, image ``(channels, *S)``: axes as nnU-Net's."""
        it, files = self.predictor, [str(path) for path in self.files[case_id]]
        plans, configuration = it.plans_manager, it.configuration_manager
        with contextlib.redirect_stdout(io.StringIO()):
            preprocessor = configuration.preprocessor_class(verbose=False)
            data, _, facts = preprocessor.run_case(files, None, plans, configuration, it.dataset_json)
            scores = [
                self._fold(weights, torch.from_numpy(np.asarray(data)), facts) for weights in self.weights_of(folds)
            ]
            reader = plans.image_reader_writer_class()
            labels, image = reader.read_seg(str(self.labels[case_id]))[0][0], reader.read_images(files)[0]
        full = np.zeros((len(scores), len(scores[0]), *facts["shape_before_cropping"]), dtype=np.float32)
        valid = np.zeros(full.shape[2:], dtype=bool)
        box = tuple(slice(a, b) for a, b in facts["bbox_used_for_cropping"])
        valid[box], full[(slice(None), slice(None), *box)] = True, np.stack(scores)
        back = plans.transpose_backward
        logits, valid = full.transpose(0, 1, *(axis + 2 for axis in back)), valid.transpose(back)
        if self.spatial_dims == 2:  # nnU-Net holds pictures as one slice
            return logits[:, :, 0], valid[0], labels[0], image[:, 0]
        return logits, valid, labels, image

    @cached_property
    def _weights(self) -> list[Any]:
        return list(self.predictor.list_of_parameters)

    def weights_of(self, folds: Sequence[str] | None) -> list[Any]:
        """Weights of some folds, in their order; of all for None."""
        return [self._weights[self.folds.index(fold)] for fold in folds or self.folds]

    def _fold(self, weights: Any, data: torch.Tensor, facts: dict[str, Any]) -> Array:  # noqa: ANN401
        """Logits ``(C, *S)`` of one fold on the cropped image's own grid, resampled as nnU-Net resamples them."""
        it = self.predictor
        it.list_of_parameters = [weights]
        logits = it.predict_logits_from_preprocessed_data(data).cpu().numpy()
        shape = facts["shape_after_cropping_and_before_resampling"]
        own = [facts["spacing"][axis] for axis in it.plans_manager.transpose_forward]
        network = list(it.configuration_manager.spacing)
        network = network if len(network) == len(shape) else [own[0], *network]  # 2D models keep the slices
        resampled = it.configuration_manager.resampling_fn_probabilities(logits, shape, network, own)
        return np.asarray(resampled, dtype=np.float32)


def _folds(model: Path, checkpoint: str, asked: Sequence[int | str] | None) -> list[str]:
    """Folds with a checkpoint, all or the ones asked for; others are refused."""
    if not (model / "plans.json").is_file():
        raise StoreError(
            f"{model} has no plans.json: name the folder <trainer>__<plans>__<configuration> of a trained model"
        )
    found = sorted(path.parent.name.removeprefix("fold_") for path in model.glob(f"fold_*/{checkpoint}"))
    wanted = [str(fold) for fold in asked or ()]
    absent = [fold for fold in wanted if fold not in found]
    if not found or absent:
        told = f"folds {', '.join(absent)} have" if absent else "no fold has"
        raise StoreError(f"{model}: {told} {checkpoint}; there are folds {', '.join(found) or 'none'}")
    return wanted or [fold for fold in found if fold != "all"] or found
