"""Cost of experiments: the model against real runs, Ray against local, the paper's data sets on 1 to 1000 workers.

python benchmarks/scaling.py                                  everything (about half an hour on two cores)
python benchmarks/scaling.py --parts '[paper]' --folder out   the tables, the CSV and the figure of docs/scaling.md
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from _measure import markdown
from _scaling_data import PAPER, DataSet, made_up_store
from jsonargparse import auto_cli
from matplotlib.figure import Figure

from lightning_calib.experiment.cost.estimate import Cost, cost_of, modelled
from lightning_calib.experiment.cost.rates import measure
from lightning_calib.experiment.cost.schedule import finish_time
from lightning_calib.experiment.cost.workload import STAGES, Model
from lightning_calib.experiment.plan import Experiment
from lightning_calib.kit.files import write_csv
from lightning_calib.kit.noise import quiet

ROOT = Path(__file__).parents[1]
MACHINES = {"2 cores": 2, "32 cores": 32, "8 x 32 cores": 256}
WORKERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]
GAIN = 1.1  # twice the workers that bring less than this have stopped to help
HOUR, GIGABYTE = 3600, 1e9
Part = Literal["check", "overhead", "paper"]


def check(folder: Path) -> None:
    """Processor seconds of two real runs beside those of the model."""
    rows = []
    for cases, shape, trials, names in (
        (12, (96, 128), 6, "identity(z),ts(z),ets(z),ms(z),cms_op(p),lts_ti(z)"),
        (20, (160, 200), 12, "identity(p),ms(z),dc(p),cdc(p),cms_ap(p)"),
    ):
        place = folder / f"check-{cases}"
        store = made_up_store(place, cases, 8, shape)
        third = cases // 3
        experiment = Experiment(
            store, names, 1, trials, third, third, calibration=place / "calibration", lts_trials=2, lts_epochs=8
        )
        predicted = cost_of(experiment).seconds
        begin = time.process_time()
        experiment.run(workers=0, display=False, logger=None)
        taken = time.process_time() - begin
        rows.append((f"{cases} x {shape}, {names}", f"{predicted:.0f}", f"{taken:.0f}", f"{predicted / taken:.2f}"))
        print(*rows[-1], flush=True)
    print(markdown(("run", "model, processor s", "real, processor s", "model / real"), rows))


def overhead(folder: Path, rounds: int = 1) -> None:
    """The same experiment by local processes and by Ray, in turns: wall clock and processor seconds."""
    made_up_store(folder / "overhead", 16, 8, (160, 200))
    rows = []
    for number in range(rounds):
        for executor in ("local", "ray"):
            seconds, busy = _command(folder / "overhead" / "outputs", folder / f"{executor}-{number}", executor)
            rows.append((executor, f"{seconds:.0f}", f"{busy:.0f}"))
            print(*rows[-1], flush=True)
    print(markdown(("executor, 2 workers", "seconds", "processor seconds"), rows))


def _command(outputs: Path, folder: Path, executor: str) -> tuple[float, float]:
    """Seconds of `calibrate.py run`, and processor seconds of the processes that it started."""
    options = {"--outputs": outputs, "--calibration": folder / "calibration", "--executor": executor, "--workers": 2}
    options |= {"--pipelines": "identity(p),ts(p),ms(z),ms_c(z),dc(p),cms_op(p)", "--repeats": 2, "--trials": 10}
    options |= {"--cal": 6, "--val": 4, "--report": "false", "--doctor": "false", "--logger": "none"}
    line = [sys.executable, "calibrate.py", "run", *(str(text) for pair in options.items() for text in pair)]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(line, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begin, busy


def paper_cost(data: DataSet, folder: Path) -> Cost:
    """The paper's experiment on a data set at full size, with figures measured on small cases of as many classes."""
    store = made_up_store(folder / data.name.replace(" ", "-"), 6, data.classes, data.small)
    small = Experiment(store, "paper", cal=4, val=1, test=1)
    full = replace(small, cal=data.parts[0], val=data.parts[1], test=data.parts[2])
    return modelled(Model(full, data.extent, measure(small)), full.jobs, full.jobs)


def paper(folder: Path) -> None:
    """Tables, CSV and figure: the paper's data sets at full size on many machines."""
    costs = {data: paper_cost(data, folder) for data in PAPER}
    rows = [_row(data, cost) for data, cost in costs.items()]
    machines = [f"hours, {name}" for name in MACHINES]
    print(markdown(("data set", "processor hours", *machines, "GB of outputs", "GB of maps", "GB a worker"), rows))
    print()
    stages = [
        (data.name, *(f"{_hours(sum(p.seconds for p in cost.pieces if p.stage == s))}" for s in STAGES), _most(cost))
        for data, cost in costs.items()
    ]
    print(markdown(("data set", *(f"{stage}, processor hours" for stage in STAGES), "most"), stages))
    print()
    lines = [(data.name, w, whole(cost, w), cost.wall(w)) for data, cost in costs.items() for w in WORKERS]
    write_csv(folder / "scaling.csv", ("data set", "workers", "whole jobs, seconds", "as run, seconds"), lines)
    table = [(name, workers, _hours(one), _hours(cut), f"{one / cut:.1f}") for name, workers, one, cut in lines]
    print(markdown(("data set", "workers", "hours, whole jobs", "hours, as `run` cuts them", "ratio"), table))
    for data, cost in costs.items():
        print(f"{data.name}: {limit(cost)}")
    draw(lines).savefig(folder / "scaling.png", dpi=120)


def _row(data: DataSet, cost: Cost) -> tuple[str, ...]:
    hours = [_hours(cost.wall(workers)) for workers in MACHINES.values()]
    sizes = (f"{size / GIGABYTE:.0f}" for size in (data.store_bytes, cost.disk))
    return (data.name, _hours(cost.seconds), *hours, *sizes, f"{cost.memory / GIGABYTE:.1f}")


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:.3g}"


def _most(cost: Cost) -> str:
    """The three kinds of jobs that take most."""
    work = {" ".join(kind): sum(piece.seconds for piece in jobs) for kind, jobs in cost.kinds().items()}
    top = sorted(work, key=lambda kind: -work[kind])[:3]
    return ", ".join(f"{kind} {work[kind] / cost.seconds:.0%}" for kind in top)


def whole(cost: Cost, workers: int) -> float:
    """Seconds where no job is cut."""
    stages = [[piece.seconds for piece in cost.pieces if piece.stage == stage] for stage in STAGES]
    return cost.start + sum(finish_time(stage, workers) for stage in stages)


def limit(cost: Cost) -> str:
    """Where more workers stop to help, with whole jobs and with jobs as they are cut, and what is then left."""
    found = []
    for name, seconds in (("whole jobs", whole), ("as run cuts them", Cost.wall)):
        ends = next((w for w in WORKERS if seconds(cost, w) < GAIN * seconds(cost, 2 * w)), WORKERS[-1])
        found.append(f"{name}: stops at {ends} workers, {_hours(seconds(cost, ends))} h")
    longest = cost.longest
    least = sum(max(step) for step in cost.steps(10**6) if step)
    return "; ".join(
        [*found, f"longest job {longest.name}: {_hours(longest.seconds)} h; without end of workers {_hours(least)} h"]
    )


def draw(lines: list[tuple[str, int, float, float]]) -> Figure:
    """Hours against workers, both scales logarithmic, of the rows of ``scaling.csv``."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(dict.fromkeys(line[0] for line in lines)):
        rows = [(workers, one / HOUR, cut / HOUR) for other, workers, one, cut in lines if other == name]
        workers, ones, cuts = zip(*rows, strict=True)
        axes.plot(workers, cuts, "o-", color=f"C{number}", label=name)
        axes.plot(workers, ones, ":", color=f"C{number}")
        axes.plot(workers, [cuts[0] / count for count in workers], "-", color=f"C{number}", alpha=0.25)
    for style, text in (({"ls": ":"}, "if no job were cut"), ({"alpha": 0.25}, "if nobody waited")):
        axes.plot([], [], color="black", label=text, **style)
    axes.set(xscale="log", yscale="log", xlabel="workers of one core", ylabel="hours")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("The paper's experiment at full size, by the model")
    axes.grid(alpha=0.2)
    axes.legend()
    return figure


def main(parts: list[Part] = ["check", "overhead", "paper"], folder: Path | None = None) -> None:  # noqa: B006
    """Print tables; write scaling.csv and scaling.png.

    Args:
        parts: ``check`` runs two experiments and compares the model with them, ``overhead`` compares Ray with local
            processes, ``paper`` computes the paper's data sets at full size.
        folder: where files go; by default one that is deleted.
    """
    quiet()
    with tempfile.TemporaryDirectory() as made:
        place = folder or Path(made)
        place.mkdir(parents=True, exist_ok=True)
        for part in parts:
            {"check": check, "overhead": overhead, "paper": paper}[part](place)


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
