"""Processor seconds of pooling and calibration on one image, beside the inference of the ensemble itself.

python benchmarks/application.py [--size '[512, 1024]'] [--pipelines '[ts(p), cms_op(p)]']

Five U-Nets with resnet18 encoders and random weights look at a random image; calibrators are away from the identity.
All of it is on one thread, and the parts take turns.
"""

import time
from collections.abc import Callable
from typing import Any

import segmentation_models_pytorch as smp
import torch
from _measure import markdown
from jsonargparse import auto_cli

from lightning_calib.calibrators import Pipeline
from lightning_calib.deployment.ensemble import CalibratedEnsemble

HEADER = ("", "processor seconds", "share of inference")


def away_from_identity(pipeline: Pipeline) -> Pipeline:
    """The same pipeline with parameters that calibrate something."""
    calibrator = pipeline.calibrator
    step = 5e-4 if calibrator.looks_at == "neighbourhood" else 0.02
    with torch.no_grad():
        for parameter in calibrator.parameters():
            parameter.add_(step * torch.rand(parameter.shape))
    calibrator.project_()
    return pipeline


def seconds(work: Callable[[], Any]) -> float:
    """Processor seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(
    pipelines: list[str] = ["identity(p)", "ts(p)", "cms_op(p)", "lts_ti(z)"],  # noqa: B006  # jsonargparse shows it
    size: list[int] = [512, 1024],  # noqa: B006
    classes: int = 20,
    members: int = 5,
    rounds: int = 3,
) -> None:
    """Measure inference, and what each pipeline adds to it: pooling, calibration, mask and confidence.

    Args:
        pipelines: which ones.
        size: height and width of the image.
        classes: its classes.
        members: networks of the ensemble.
        rounds: turns of each part; the fewest seconds count.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    networks = [smp.Unet("resnet18", encoder_weights=None, classes=classes).eval() for _ in range(members)]
    image = torch.randn(1, 3, *size)
    fitted = [away_from_identity(Pipeline.parse(text, num_classes=classes)) for text in pipelines]
    ensembles = dict(zip(pipelines, map(CalibratedEnsemble, fitted), strict=True))
    with torch.inference_mode():
        scores = torch.stack([network(image) for network in networks], dim=1)
        turns = []
        for _ in range(rounds):
            inference = seconds(lambda: [network(image) for network in networks])
            turns.append([inference, *(seconds(lambda e=each: e.calibrate(scores)) for each in ensembles.values())])  # type: ignore[misc]
    inference, *added = (min(column) for column in zip(*turns, strict=True))
    rows = [(f"inference of {members} U-Nets", f"{inference:.2f}", "")]
    rows += [(name, f"{each:.3f}", f"{each / inference:.1%}") for name, each in zip(pipelines, added, strict=True)]
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
