"""Out-of-fold scores of an nnU-Net v2 model: each case from the one fold that was not trained on it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_calib.kit.files import read_json
from lightning_calib.outputs.folds import MEMBER, Fold
from lightning_calib.outputs.imports.loop import CaseSource, Imported
from lightning_calib.outputs.imports.nnunet_model import FoldPredictor
from lightning_calib.outputs.imports.nnunet_probs import ProbabilityFolders
from lightning_calib.outputs.manifest import Member, StoreError

SPLITS, VALIDATION = "splits_final.json", "validation"
_LISTED = 5

FoldCases = dict[str, tuple[str, ...]]  # cases that were held out, by the fold's number


class OutOfFold(CaseSource):
    """Cases of the training set, each scored by the fold that held it out.

    Which fold that is, nnU-Net's ``splits_final.json`` says. Scores are the probabilities that the training has left
    in ``fold_<k>/validation`` (``nnUNetv2_train ... --npz``) or, where images are named, logits that each fold's
    network predicts anew on its own cases.

    Args:
        model: folder with ``fold_<k>``.
        targets: folder of label files, ``labelsTr``.
        images: folder of images, ``imagesTr``; None takes what the training has left.
        splits_json: nnU-Net's file of the splits; None looks where nnU-Net keeps it.
        folds: folds to take; None for all of the file.
        dataset_json: facts on the data set; None for the file in ``model``.
        prediction: options of :class:`FoldPredictor`, for images.
    """

    def __init__(
        self,
        model: Path,
        targets: Path,
        images: Path | None = None,
        splits_json: Path | None = None,
        folds: list[int | str] | None = None,
        dataset_json: Path | None = None,
        **prediction: Any,
    ) -> None:
        self.cases = held_out(splits_json or find_splits(model), folds)
        _refuse_missing(model, self.cases)
        self.fold_of = {case_id: fold for fold, cases in self.cases.items() for case_id in cases}
        self.predictor: FoldPredictor | None = None
        self.folders: dict[str, ProbabilityFolders] = {}
        source: FoldPredictor | ProbabilityFolders
        if images is None:
            self.folders = _validation(model, targets, self.cases, dataset_json or model / "dataset.json")
            source = next(iter(self.folders.values()))
            self.labels = {case_id: self.folders[fold].labels[case_id] for case_id, fold in self.fold_of.items()}
        else:
            source = self.predictor = FoldPredictor(
                model, images, targets, list(self.cases), dataset_json=dataset_json, **prediction
            )
            _refuse_absent(images, "image", self.fold_of, source.files)
            self.labels = source.labels
        self.facts, self.representation, self.files = source.facts, source.representation, self.fold_of

    def members(self) -> list[Member]:
        """One, whose network differs from case to case."""
        return [Member(MEMBER)]

    def fold_records(self) -> list[Fold]:
        """The networks and their cases, with the hashes of the checkpoints that predicted anew."""
        known = {member.name: member for member in self.predictor.members()} if self.predictor else {}
        networks = {fold: known.get(f"fold_{fold}", Member(f"fold_{fold}")) for fold in self.cases}
        return [Fold(m.name, self.cases[fold], m.checkpoint, m.sha256) for fold, m in networks.items()]

    def load(self, case_id: str) -> Imported:
        """Scores ``(1, C, *S)`` of one case by its own fold."""
        fold = self.fold_of[case_id]
        return self.predictor.load(case_id, [fold]) if self.predictor else self.folders[fold].load(case_id)


def find_splits(model: Path) -> Path:
    """Where nnU-Net keeps the splits of the data set that a model folder belongs to.

    Raises:
        StoreError: naming the places, where there is no file.
    """
    home = os.environ.get("nnUNet_preprocessed")  # noqa: SIM112  # as nnU-Net spells it
    places = [model / SPLITS, *([Path(home) / model.resolve().parent.name / SPLITS] if home else [])]
    for path in places:
        if path.is_file():
            return path
    looked = " nor ".join(map(str, places))
    raise StoreError(
        f"which cases each fold has not seen is not known: {looked} does not exist. nnU-Net writes {SPLITS} to "
        "nnUNet_preprocessed/<dataset>: name it with --splits_json"
    )


def held_out(path: Path, folds: Sequence[int | str] | None = None) -> FoldCases:
    """Cases that each fold held out, by the fold's number; every case must be held out by one fold only.

    Args:
        path: nnU-Net's ``splits_final.json``: a list of ``{"train": [...], "val": [...]}``.
        folds: folds to take; None for all.

    Raises:
        StoreError: where the file is something else, or its folds are no cross-validation.
    """
    try:
        splits = [(set(map(str, split["train"])), sorted(map(str, split["val"]))) for split in read_json(path)]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise StoreError(f"{path} is not the {SPLITS} of nnU-Net v2 ({problem!r})") from problem
    known = [str(fold) for fold in range(len(splits))]
    wanted = known if folds is None else [str(fold) for fold in folds]
    if beyond := [fold for fold in wanted if fold not in known]:
        raise StoreError(
            f"{path} has the folds {', '.join(known)}, but not {', '.join(beyond)}: fold_all has seen every case, and "
            "folds beyond the file's are drawn at random; leave them out of --folds"
        )
    homes: dict[str, str] = {}
    for fold in wanted:
        train, val = splits[int(fold)]
        if seen := sorted(train.intersection(val)):
            raise StoreError(f"{path}: fold {fold} was trained on {_some(seen)} and validated on the same")
        for case_id in val:
            if homes.setdefault(case_id, fold) != fold:
                raise StoreError(
                    f"{path}: case {case_id} is in the validation of the folds {homes[case_id]} and {fold}; an "
                    "out-of-fold store takes each case from one network: choose folds that share no case with --folds"
                )
    return {fold: tuple(splits[int(fold)][1]) for fold in wanted}


def _refuse_missing(model: Path, cases: FoldCases) -> None:
    """All folds must have been trained; others must be left out in so many words."""
    if missing := [f"fold_{fold}" for fold in cases if not (model / f"fold_{fold}").is_dir()]:
        left = [int(fold) for fold in cases if f"fold_{fold}" not in missing]
        raise StoreError(
            f"{model} has no {', '.join(missing)}: train the missing folds"
            + (f", or take the cases of the others with --folds '{left}'" if left else "")
        )


def _validation(model: Path, targets: Path, cases: FoldCases, dataset_json: Path) -> dict[str, ProbabilityFolders]:
    """What the training of each fold has left of its cases."""
    found = {}
    for fold, wanted in cases.items():
        folder = model / f"fold_{fold}" / VALIDATION
        written = {path.stem for path in folder.glob("[!.]*.npz")}
        if not written:
            raise StoreError(
                f"{folder} has no probabilities (.npz): let nnU-Net write them with `nnUNetv2_train ... {fold} --val "
                "--npz`, or name --images (imagesTr) to predict the logits of each fold's cases anew"
            )
        if strange := sorted(written - set(wanted)):
            raise StoreError(
                f"{folder} holds {_some(strange)}, which fold {fold} did not hold out by {SPLITS}: the folder is of "
                "another split, and networks may have been trained on these cases"
            )
        _refuse_absent(folder, "probabilities", wanted, written)
        found[fold] = ProbabilityFolders([folder], targets, dataset_json)
    return found


def _refuse_absent(folder: Path, kind: str, wanted: Sequence[str] | Mapping[str, Any], found: Any) -> None:  # noqa: ANN401
    """Every case of the folds must be there."""
    if absent := sorted(set(wanted) - set(found)):
        raise StoreError(f"{folder} has no {kind} of {_some(absent)}")


def _some(case_ids: Sequence[str]) -> str:
    more = f" and {len(case_ids) - _LISTED} more" if len(case_ids) > _LISTED else ""
    return ", ".join(case_ids[:_LISTED]) + more
