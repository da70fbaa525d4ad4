"""How often `calibrate.py monitor` reports drift: on clean shapes, and on shapes with corrupted images.

    python benchmarks/drift_rates.py

Two small networks are trained on shapes, a temperature is fitted on 96 clean pool images, and many batches of new
images, clean or corrupted, are compared with these 96.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_lightning import Trainer, seed_everything
from scipy.ndimage import gaussian_filter

from lightning_calib.calibrators import Pipeline
from lightning_calib.datasets.shapes import Shapes
from lightning_calib.deployment import CalibratedEnsemble
from lightning_calib.deployment.monitor import monitor
from lightning_calib.deployment.statistics import scores_statistics
from lightning_calib.functional.pooling import pool
from lightning_calib.segmenters import AdamWCosine, ResidualEncoderUNet
from lightning_calib.solvers import fit
from lightning_calib.tasks.segmentation import SegmentationTask

SIZE, REFERENCE, POPULATION, NEW, DRAWS, RESAMPLES = (32, 48), 96, 300, 24, 200, 1000
Picture = NDArray[np.uint8]
Corruption = Callable[[Picture, np.random.Generator], NDArray[np.float64]]

CORRUPTIONS: dict[str, Corruption] = {
    "clean": lambda image, rng: image.astype(np.float64),
    "noise, sd 10": lambda image, rng: image + rng.normal(0, 10, image.shape),
    "noise, sd 40": lambda image, rng: image + rng.normal(0, 40, image.shape),
    "blur, 1 pixel": lambda image, rng: gaussian_filter(image.astype(np.float64), (1, 1, 0)),
    "blur, 3 pixels": lambda image, rng: gaussian_filter(image.astype(np.float64), (3, 3, 0)),
    "brightness +15": lambda image, rng: image + 15.0,
    "brightness +60": lambda image, rng: image + 60.0,
    "contrast x 0.8": lambda image, rng: 0.8 * image + 0.2 * image.mean(),
    "contrast x 0.3": lambda image, rng: 0.3 * image + 0.7 * image.mean(),
}


def shapes(num_pool: int, data_seed: int, name: str = "clean") -> Shapes:
    """Pool images of a data seed, corrupted."""
    rng = np.random.default_rng(data_seed)
    corrupt = CORRUPTIONS[name]

    def raw(image: Picture, case_id: str) -> Picture:
        return np.asarray(corrupt(image, rng).clip(0, 255).round().astype(np.uint8))

    return Shapes(64, 8, num_pool, SIZE, data_seed=data_seed, raw_transform=raw)


def trained(seed: int) -> SegmentationTask:
    """One member."""
    seed_everything(seed, verbose=False)
    data = shapes(1, data_seed=0)
    network = ResidualEncoderUNet([8, 16, 32], [1, 1, 1], deep_supervision=False)
    task = SegmentationTask(network, data.num_classes, 3, recipe=AdamWCosine(lr=3e-3))
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    Trainer(accelerator="cpu", max_epochs=12, limit_val_batches=0, **silent).fit(task, data.train_dataloader())
    return task.eval()


@torch.no_grad()
def outputs(members: list[SegmentationTask], data: Shapes) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Case id, member logits and target of every pool image."""
    found = []
    for batch in data.predict_dataloader():
        scores = torch.stack([member.score(batch["image"])[0] for member in members])
        found.append((batch["case_id"][0], scores, batch["target"]))
    return found


def main() -> None:
    members = [trained(seed) for seed in (0, 1)]
    clean = outputs(members, shapes(REFERENCE, data_seed=1))
    pipeline = Pipeline.parse("ts(p)", 4)
    fit(pipeline.calibrator, [(pool(scores[None], "p"), target) for _, scores, target in clean])
    ensemble = CalibratedEnsemble(pipeline)
    reference = [scores_statistics(case_id, case_id, scores, ensemble) for case_id, scores, _ in clean]
    for name in CORRUPTIONS:
        cases = outputs(members, shapes(POPULATION, data_seed=2, name=name))
        wrong = [(ensemble.calibrate(scores[None]).mask != target).float().mean() for _, scores, target in cases]
        population = [scores_statistics(case_id, case_id, scores, ensemble) for case_id, scores, _ in cases]
        rng = np.random.default_rng(0)
        draws = [rng.choice(POPULATION, NEW, replace=False) for _ in range(DRAWS)]
        verdicts = [monitor(reference, [population[i] for i in draw], resamples=RESAMPLES) for draw in draws]
        rate = np.mean([verdict.drift for verdict in verdicts])
        print(f"{name:<16} wrong pixels {np.mean(wrong):6.1%}, reported {rate:6.1%} of {DRAWS}", flush=True)


if __name__ == "__main__":
    main()
