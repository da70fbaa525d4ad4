"""A program that trains a tiny nnU-Net on a few volumes, and predicts with nnU-Net's own commands.

Run as its own process: nnU-Net takes its folders from the environment and prints a lot.
"""

import json
import os
import shutil
import sys
from pathlib import Path

DATASET = "Dataset004_Hippocampus"


def main(source: str, home: str, folds: str = "2") -> None:
    """Train folds on ``source/imagesTr``; predict ``imagesTs`` and ``imagesTr`` into ``home/<images>/fold_<k>``."""
    root = Path(home)
    for name in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{name}"] = str(root / name)
        (root / name).mkdir(parents=True)
    os.environ |= {"nnUNet_n_proc_DA": "1", "nnUNet_def_n_proc": "1", "nnUNet_compile": "f"}
    shutil.copytree(source, root / "raw" / DATASET)

    import torch
    from nnunetv2.experiment_planning.plan_and_preprocess_api import extract_fingerprints, plan_experiments, preprocess

    torch.set_num_threads(1)
    extract_fingerprints([4], num_processes=1)
    plan_experiments([4])
    shrink(root / "preprocessed" / DATASET / "nnUNetPlans.json")
    preprocess([4], configurations=("3d_fullres",), num_processes=(1,))
    os.environ |= {"nnUNet_n_proc_DA": "0"}  # no worker processes; planning needs one
    for fold in range(int(folds)):
        train(fold)
    (model,) = (root / "results" / DATASET).iterdir()
    for images in ("imagesTs", "imagesTr"):
        predict(model, root / "raw" / DATASET / images, root / images, int(folds))


def shrink(path: Path) -> None:
    """Make the planned network small; resampling, cropping and mirroring stay as planned."""
    plans = json.loads(path.read_text())
    full = plans["configurations"]["3d_fullres"]
    full["batch_size"], full["patch_size"] = 2, [16, 32, 16]
    full["spacing"] = [1.0, 1.5, 1.0]  # another one than the images': logits are resampled on their way back
    full["architecture"]["arch_kwargs"] |= {
        "n_stages": 3,  # with two, the weights of deep supervision are 0 / 0
        "features_per_stage": [8, 16, 16],
        "kernel_sizes": [[3, 3, 3]] * 3,
        "strides": [[1, 1, 1], [2, 2, 2], [2, 2, 2]],
        "n_conv_per_stage": [1, 1, 1],
        "n_conv_per_stage_decoder": [1, 1],
    }
    path.write_text(json.dumps(plans))


def train(fold: int) -> None:
    """One epoch of a few iterations."""
    import torch
    from nnunetv2.run.run_training import get_trainer_from_args

    trainer = get_trainer_from_args("4", "3d_fullres", fold, device=torch.device("cpu"))
    trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 1, 12, 1
    trainer.run_training()


def predict(model: Path, images: Path, destination: Path, folds: int) -> None:
    """Probabilities of each fold, as ``nnUNetv2_predict --save_probabilities`` writes them."""
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    for fold in range(folds):
        predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
        predictor.initialize_from_trained_model_folder(str(model), (fold,), "checkpoint_final.pth")
        folder = destination / f"fold_{fold}"
        folder.mkdir(parents=True)
        predictor.predict_from_files_sequential(str(images), str(folder), save_probabilities=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
