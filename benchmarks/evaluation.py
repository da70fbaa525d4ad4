"""Processor seconds of the evaluation of the paper's pipelines on one street-sized image, beside other checkouts.

python benchmarks/evaluation.py --against '[../old_checkout]' [--size '[512,1024]']

Every checkout maps and scores the same image by the same calibrators, on one thread, in a process of its own; the
checkouts take turns. What torchmetrics takes for its scores of the same pipelines stands beside it.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _measure import markdown
from jsonargparse import auto_cli
from metrics import make_image, ours_at_once, torchmetrics_set
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_calib.calibrators import PAPER_PIPELINES, PipelineName, build, load_calibrator, save_calibrator
from lightning_calib.functional.boundary import boundary_distance
from lightning_calib.tasks.evaluation import EvaluationTask

ROOT = Path(__file__).parents[1]
HEADER = ("checkout", "processor seconds", "times this", "peak MiB above the image", "largest difference of a score")


def make(folder: Path, size: list[int], classes: int) -> None:
    """An image, its distances, and calibrators away from the identity."""
    torch.manual_seed(0)
    log_probs, target, _ = make_image(tuple(size), classes)
    tensors = {"logits": 1.7 * log_probs, "target": target, "distance": boundary_distance(target)}
    save_file(tensors, folder / "image.safetensors")
    for text in PAPER_PIPELINES:
        calibrator = build(PipelineName.parse(text).calibrator, classes)
        with torch.no_grad():
            for parameter in calibrator.parameters():
                parameter.add_((5e-4 if calibrator.looks_at == "neighbourhood" else 0.02) * torch.rand(parameter.shape))
        calibrator.project_()
        save_calibrator(folder / f"{text}.safetensors", calibrator)


def judge(folder: Path) -> dict[str, Any]:
    """Seconds and scores of all pipelines, each pooling a pass as in a run."""
    torch.set_num_threads(1)
    batch = {**load_file(folder / "image.safetensors"), "case_id": ["a"]}
    poolings: dict[str, dict[str, Any]] = {}
    for text in PAPER_PIPELINES:
        fitted = load_calibrator(folder / f"{text}.safetensors").eval()
        poolings.setdefault(PipelineName.parse(text).pooling, {})[text] = fitted
    tasks = [EvaluationTask(calibrators) for calibrators in poolings.values()]
    small = {name: value[..., :64, :64] if torch.is_tensor(value) else value for name, value in batch.items()}
    for calibrators in poolings.values():
        EvaluationTask(calibrators).test_step(small, 0)  # what is loaded at the first call
    memory, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with torch.inference_mode():
        for task in tasks:
            task.test_step(batch, 0)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    figures = {name: value for task in tasks for name, value in task.conclude().items()}
    return {"seconds": seconds, "memory": peak / 1024, "figures": figures}


def common_set(folder: Path, scores: Callable[[Tensor, Tensor, Tensor], float]) -> float:
    """Processor seconds of ECE, MCE, NLL, Dice and flips of one map, by a library."""
    torch.set_num_threads(1)
    image = load_file(folder / "image.safetensors")
    log_probs, target = image["logits"].log_softmax(1), image["target"]
    reference = log_probs.argmax(1)
    scores(log_probs[..., :256, :256], target[..., :256, :256], reference[..., :256, :256])  # what is loaded
    start = time.process_time()
    scores(log_probs, target, reference)
    return time.process_time() - start


def by(checkout: Path, folder: Path) -> dict[str, Any]:
    """What :func:`judge` says with the package of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, __file__, "--judged", str(folder)]
    found: dict[str, Any] = json.loads(subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main(
    against: list[Path] = [],  # noqa: B006  # jsonargparse shows it
    size: list[int] = [1024, 2048],  # noqa: B006
    classes: int = 20,
    rounds: int = 2,
    judged: Path | None = None,
) -> None:
    """Compare checkouts.

    Args:
        against: other checkouts.
        size: height and width of the image.
        classes: its classes.
        rounds: turns of each checkout; the fewest seconds count.
        judged: only judge what this folder holds, and print it as JSON.
    """
    if judged is not None:
        print(json.dumps(judge(judged)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder, checkouts = Path(place), [*(path.resolve() for path in against), ROOT]
        make(folder, size, classes)
        turns = [[by(checkout, folder) for checkout in checkouts] for _ in range(rounds)]
        common = [[common_set(folder, each) for each in (torchmetrics_set, ours_at_once)] for _ in range(rounds)]
        theirs, own = (min(column) for column in zip(*common, strict=True))
    ours = turns[0][-1]
    rows = []
    for number, checkout in enumerate(checkouts):
        seconds = min(turn[number]["seconds"] for turn in turns)
        least = min(turn[-1]["seconds"] for turn in turns)
        pairs = [(value, ours["figures"][name]) for name, value in turns[0][number]["figures"].items()]
        furthest = max(abs(a - b) for a, b in pairs if a == a)
        memory = max(turn[number]["memory"] for turn in turns)
        rows.append((checkout.name, f"{seconds:.2f}", f"{seconds / least:.2f}", f"{memory:.0f}", f"{furthest:.1e}"))
    print(markdown(HEADER, rows))
    total = theirs * len(PAPER_PIPELINES)
    print(f"torchmetrics, ECE MCE NLL Dice flips of one map: {theirs:.2f} s; of all, without maps: {total:.1f} s")
    print(f"lightning_calib, the same: {own:.3f} s, {theirs / own:.1f} times as fast")


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
