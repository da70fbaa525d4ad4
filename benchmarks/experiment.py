"""Processor time and memory of `calibrate.py run` on street-sized outputs, side by side with other checkouts.

python benchmarks/experiment.py --against '[../old_checkout]'
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from _measure import markdown
from jsonargparse import auto_cli
from torch import Tensor

import lightning_calib as lc

ROOT = Path(__file__).parents[1]
HEADER = ("checkout", "processor seconds", "peak MiB", "NLL of cms_op(p)")
CLASSES, SIZE, MEMBERS, IGNORED = 11, (240, 320), 5, 11
PIPELINES = (
    "identity(p0),identity(p),identity(z),ms(z),dc(z),ms_c(z),cdc(p),cms_ap(p),cms_op(p),cdc(z),cms_ap(z),cms_op(z),"
    "ts(p),ts(z),ets(p),ets(z),dc(p)"
)


def case(number: int) -> tuple[Tensor, Tensor]:
    """Logits ``(M, C, H, W)`` and target of a made-up scene: smooth regions, members that err together and apart."""
    generator = torch.Generator().manual_seed(number)

    def field(height: int, width: int) -> Tensor:
        noise = torch.randn(1, CLASSES, height, width, generator=generator)
        return torch.nn.functional.interpolate(noise, size=SIZE, mode="bicubic", align_corners=False)

    prior = torch.linspace(1.5, -2.0, CLASSES).view(1, CLASSES, 1, 1)
    truth = 2.0 * field(15, 20) + 1.2 * field(60, 80) + prior
    target = truth.argmax(1)[0]
    members = [truth + 0.9 * field(30, 40) + 0.5 * field(120, 160) for _ in range(MEMBERS)]
    offsets = 0.7 * torch.randn(MEMBERS, 1, *SIZE, generator=generator)  # what softmax does not see
    target[torch.rand(SIZE, generator=generator) < 0.03] = IGNORED
    return 2.2 * torch.cat(members) + offsets, target


def run(checkout: Path, outputs: Path, folder: Path, trials: int, sizes: list[int]) -> tuple[float, float]:
    """Processor seconds and peak MiB of a run by one worker with one thread."""
    options = dict(zip(("--cal", "--val", "--test"), map(str, sizes), strict=True))
    options |= {"--outputs": str(outputs), "--calibration": str(folder / "calibration"), "--pipelines": PIPELINES}
    options |= {"--repeats": "1", "--trials": str(trials), "--workers": "1", "--report": "false", "--doctor": "false"}
    line = [sys.executable, "calibrate.py", "run", *(text for pair in options.items() for text in pair)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    subprocess.run(line, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, after.ru_maxrss / 1024


def main(
    against: list[Path] = [],  # noqa: B006  # jsonargparse shows it
    cases: int = 40,
    trials: int = 20,
    sizes: list[int] = [12, 8, 20],  # noqa: B006
) -> None:
    """Run the paper's pipelines but LTS on the same outputs by every checkout, and compare.

    Args:
        against: other checkouts; they run before this one.
        cases: made-up cases of 11 x 240 x 320 and five members.
        trials: trials of each search.
        sizes: cases of cal, val and test.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = {f"case-{number:03d}": case(number) for number in range(cases)}
        scores, labels = ({name: pair[i] for name, pair in made.items()} for i in (0, 1))
        outputs = Path(folder) / "outputs"
        lc.from_arrays(outputs, scores, labels, ignore_index=IGNORED, dataset="street")
        rows = []
        for number, checkout in enumerate([*against, ROOT]):
            place = Path(folder) / str(number)
            seconds, memory = run(checkout.resolve(), outputs, place, trials, sizes)
            nll = lc.load_results(place).table().set_index("pipeline").nll["cms_op(p)"]
            rows.append((checkout.resolve().name, f"{seconds:.0f}", f"{memory:.0f}", f"{nll:.10f}"))
        print(markdown(HEADER, rows))


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
