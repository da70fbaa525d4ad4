"""``calibrate.py import``: outputs of other programs as an output store."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_calib.cli.doctor import table
from lightning_calib.datasets.groups import Grouping, find_groups
from lightning_calib.outputs.doctor import examine, has_errors, record_images
from lightning_calib.outputs.doctor.images import files_below
from lightning_calib.outputs.imports.folder import ArrayFolders
from lightning_calib.outputs.imports.loop import CaseSource, import_cases
from lightning_calib.outputs.imports.nnunet import BACKGROUND, DatasetFacts, image_files
from lightning_calib.outputs.imports.nnunet_folds import OutOfFold
from lightning_calib.outputs.imports.nnunet_model import FoldPredictor
from lightning_calib.outputs.imports.nnunet_probs import ProbabilityFolders
from lightning_calib.outputs.manifest import Keep, Manifest, Representation, StoreDtype, StoreError
from lightning_calib.outputs.regions import Region
from lightning_calib.outputs.views import view_folder, write_views
from lightning_calib.outputs.writer import OutputWriter


def import_folder(
    outputs: Path,
    class_names: list[str],
    background: int | None = None,
    ignore_index: int | None = None,
    dataset: str | None = None,
    group_regex: str | None = None,
    groups_csv: Path | None = None,
    group_level: str | None = None,
    keep: Keep = "members",
    dtype: StoreDtype = "float32",
    **files: Any,
) -> int:
    """Bring folders of arrays (.npy, .npz, .nii.gz) into an output store.

    Files of scores, labels and masks that belong together have the same name up to the ending, which becomes the
    case's id. Goes on where an earlier import stopped, and examines the result.

    Args:
        outputs: folder of the store to write, such as runs/mine/outputs.
        class_names: names of the labels, in their order and, unless there are regions, that of the class axis.
        background: number of the background class, where there is one.
        ignore_index: label of voxels that count nowhere.
        dataset: name of the data set; by default that of the folder around the store.
        group_regex: expression whose parentheses find in a case's name what must stay together, such as "^(p[0-9]+)_";
            several pairs for nested groups, coarsest first: "^(?P<site>[a-z]+)_(?P<patient>p[0-9]+)_".
        groups_csv: table of groups in place of the expression: columns case_id, then levels, coarsest first.
        group_level: level of groups that divisions keep whole by default; the coarsest where it is not named.
        keep: members, or pooled for z, p and p0 in place of the members.
        dtype: precision of the stored scores.
        **files: see ArrayFolders.

    Returns:
        0, or 1 where the examination finds an error.
    """
    source = ArrayFolders(**files)
    regions = Region.all_of(source.regions or {})
    facts = DatasetFacts(dataset or outputs.resolve().parent.name, class_names, ignore_index, "", regions)
    kept: Representation = "log_probs" if source.representation == "probs" and not regions else "logits"
    groups = _groups(source, group_regex, groups_csv, group_level)
    return write_store(outputs, source, facts, kept, background, None, groups, keep, dtype)


def import_nnunet(
    outputs: Path,
    targets: Path,
    predictions: list[Path] | None = None,
    model: Path | None = None,
    images: Path | None = None,
    trust_model_folder: bool = False,
    cross_validation: bool = False,
    splits_json: Path | None = None,
    training_images: Path | None = None,
    dataset_json: Path | None = None,
    group_regex: str | None = None,
    groups_csv: Path | None = None,
    group_level: str | None = None,
    keep: Keep = "members",
    dtype: StoreDtype = "float32",
    **prediction: Any,
) -> int:
    """Bring nnU-Net v2 results into an output store, with folds as members.

    Either from a trained model and images (true logits of each fold, by nnU-Net's own predictor), or from folders
    that nnUNetv2_predict --save_probabilities wrote, one a fold (log-probabilities). The cases must be ones that no
    fold was trained on. Of region-based models every region becomes a store of two classes beside the store.

    With --cross_validation the cases are those of the training, each from the one fold that was not trained on it: the
    probabilities in fold_k/validation or, with --images, logits predicted anew.

    Args:
        outputs: folder of the store to write, such as runs/mine/outputs.
        targets: folder of label files, such as labelsTs.
        predictions: folders of <case>.npz with the segmentations beside, one a fold.
        model: trained model, the folder with plans.json, dataset.json and fold_0, fold_1, ...
        images: folder of images named <case>_0000.nii.gz, such as imagesTs.
        trust_model_folder: say true to load checkpoints: nnU-Net unpickles them, which can run any program.
        cross_validation: take each training case from the fold that held it out, out of --model.
        splits_json: nnU-Net's splits_final.json; by default in --model or nnUNet_preprocessed/<dataset>.
        training_images: folder of the images that the folds were trained on, to look for ones that are also here.
        dataset_json: nnU-Net's facts on the data set; by default the one beside the predictions or the model.
        group_regex: expression whose parentheses find in a case's name what must stay together, such as "^(p[0-9]+)_";
            several pairs for nested groups, coarsest first: "^(?P<site>[a-z]+)_(?P<patient>p[0-9]+)_".
        groups_csv: table of groups in place of the expression: columns case_id, then levels, coarsest first.
        group_level: level of groups that divisions keep whole by default; the coarsest where it is not named.
        keep: members, or pooled for z, p and p0 in place of the members.
        dtype: precision of the stored scores.
        **prediction: see FoldPredictor.

    Returns:
        0, or 1 where the examination finds an error.
    """
    if (predictions is None) == (model is None):
        raise StoreError("name either --predictions (folders of probabilities) or --model and --images, not both")
    source: ProbabilityFolders | FoldPredictor | OutOfFold
    if cross_validation:
        if model is None or training_images is not None:
            raise StoreError(
                "--cross_validation takes the training cases of --model: no --predictions, no --training_images"
            )
        source = OutOfFold(
            model, targets, images, splits_json, dataset_json=dataset_json, trusted=trust_model_folder, **prediction
        )
    elif model is None:
        source = ProbabilityFolders(predictions or [], targets, dataset_json)
    elif images is None:
        raise StoreError("--model needs --images, the folder of images to predict")
    else:
        source = FoldPredictor(
            model, images, targets, dataset_json=dataset_json, trusted=trust_model_folder, **prediction
        )
    remembered = _images(source.case_ids, images, training_images, source.facts.file_ending)
    groups = _groups(source, group_regex, groups_csv, group_level)
    facts, kept = source.facts, source.representation
    return write_store(outputs, source, facts, kept, BACKGROUND, remembered, groups, keep, dtype)


def _groups(source: CaseSource, pattern: str | None, table: Path | None, level: str | None) -> Grouping:
    """Groups of all cases; cases without any are refused."""
    grouping, strange = find_groups(source.case_ids, pattern, table, level)
    if strange:
        raise StoreError("\n".join(strange))
    return grouping


Remembered = tuple[dict[str, list[Path]], list[Path]]


def _images(case_ids: Sequence[str], images: Path | None, training: Path | None, ending: str) -> Remembered | None:
    """Image files of pool set and training, where both are named."""
    if images is None or training is None:
        return None
    found = image_files(images, ending)
    return {case_id: found[case_id] for case_id in case_ids if case_id in found}, files_below(training)


def write_store(
    outputs: Path,
    source: CaseSource,
    facts: DatasetFacts,
    representation: Representation,
    background: int | None,
    images: Remembered | None,
    groups: Grouping,
    keep: Keep,
    dtype: StoreDtype,
) -> int:
    """Write a store, examine it, and say what came out.

    Args:
        outputs: folder of the store.
        source: where cases come from.
        facts: what is known of the data set.
        representation: what the source hands out.
        background: number of the background class.
        images: images behind the cases, and those of the training.
        groups: groups of the cases.
        keep: members, or pooled.
        dtype: precision of the stored scores.
    """
    writer = OutputWriter(
        outputs,
        facts.name,
        facts.class_names,
        source.spatial_dims,
        source.members(),
        background=background,
        ignore_index=facts.ignore_index,
        representation=representation,
        keep=keep,
        dtype=dtype,
        groups=groups.names or None,
        group_levels=groups.levels,
        group_level=groups.whole,
        regions=facts.regions,
        folds=source.fold_records(),
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        manifest = import_cases(writer, source.case_ids, source.load)
    for warning in told:
        print(f"warning: {warning.message}")
    if images is not None:
        record_images(outputs, *images)
    say_store(outputs, manifest)
    stores = write_views(outputs).values() if manifest.regions else [outputs]
    return max([_examine(store) for store in stores])


def say_store(outputs: Path, manifest: Manifest) -> None:
    """Print what a store holds, and where the views of its regions are."""
    size = sum(case.size for case in manifest.cases) / 1e6
    channels = f"{len(manifest.regions)} regions" if manifest.regions else f"{manifest.num_classes} classes"
    members = f"out of {len(manifest.folds)} folds" if manifest.out_of_fold else f"{manifest.num_members} members"
    print(f"{outputs}: {len(manifest.cases)} cases, {members}, {channels}, {size:,.1f} MB")
    for region in manifest.regions:
        print(f"  {region.name}: labels {', '.join(map(str, region.labels))} ({view_folder(outputs, region)})")


def _examine(outputs: Path) -> int:
    """Examine a store; 1 where there is an error."""
    findings = examine(outputs)
    if findings:
        print(table(findings))
    return 1 if has_errors(findings) else 0
