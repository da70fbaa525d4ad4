"""The whole protocol on made-up outputs of Cityscapes' size, and how time, memory and disk grow with the cases.

python benchmarks/street_scale.py --folder runs/street --cases '[8,16,32]' [--size '[1024,2048]'] [--workers 2]

A store that is there is not made again, a run that is done is not done again.
"""

from pathlib import Path

from _measure import markdown
from _results_journal import Journal
from _results_plan import Step
from _street_data import street_image
from jsonargparse import auto_cli

from lightning_calib.experiment.results import Results
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.report.numbers import format_seconds

CLASSES = 20
PIPELINES = "identity(p),ts(p),ms(p),dc(p),cdc(p),cms_ap(p),cms_op(p),lts_ti(p),fts_net(p)"
HEADER = (
    "cases",
    "voxels",
    "GB of outputs",
    "GB of maps",
    "wall clock",
    "processor time",
    "GiB, largest process",
    "searches and fits",
    "evaluation",
)


def make_store(folder: Path, cases: int, size: tuple[int, int]) -> None:
    """Pooled outputs of one network in float16, image by image; an interrupted store is continued."""
    names = [f"class {number}" for number in range(CLASSES)]
    writer = OutputWriter(folder, "street", names, 2, [Member("made up")], keep="pooled", dtype="float16")
    for number in range(cases):
        name = f"street{number:04d}"
        if name not in writer.done:
            logits, target = street_image(number, CLASSES, size)
            writer.write(name, logits[None], target)
    writer.finish()


def disk(folder: Path) -> float:
    """Gigabytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e9


def row(folder: Path, cases: int, journal: Journal) -> list[str]:
    """Figures of a finished run."""
    entry, results = journal.entries[f"run-{cases}"], Results(folder / "calibration")
    taken = [results.timing(0, name) or {} for name in results.pipelines]
    outputs = folder / "outputs"
    maps = disk(outputs / "cache") if (outputs / "cache").is_dir() else 0.0
    voxels = sum(case.record.voxels for case in OutputStore(outputs))
    return [
        str(cases),
        f"{voxels / 1e6:.0f}M",
        f"{disk(outputs) - maps:.1f}",
        f"{maps:.1f}",
        format_seconds(entry.seconds),
        format_seconds(entry.processor_seconds),
        f"{entry.gibibytes:.2f}",
        format_seconds(sum(each.get("fit", 0.0) for each in taken)),
        format_seconds(max(each.get("evaluation_pass", 0.0) for each in taken)),  # one pass over all pipelines
    ]


def main(
    folder: Path = Path("runs/street"),
    cases: list[int] = [8, 16, 32],  # noqa: B006
    size: tuple[int, int] = (1024, 2048),
    pipelines: str = PIPELINES,
    trials: int = 20,
    workers: int = 2,
) -> None:
    """Make the stores, run the protocol on each, and print the table.

    Args:
        folder: where stores and runs go, one folder a number of cases.
        cases: numbers of cases; a quarter of them are ``cal``, a quarter ``val``.
        size: height and width of an image.
        pipelines: what to calibrate with.
        trials: of each search.
        workers: processes at a time, one thread each.
    """
    journal, rows = Journal(folder / "runs"), []
    for number in cases:
        place = folder / str(number)
        make_store(place / "outputs", number, size)
        line = ["calibrate.py", "run", "--outputs", str(place / "outputs"), "--pipelines", pipelines, "--repeats", "1"]
        line += ["--cal", "0.25", "--val", "0.25", "--trials", str(trials), "--workers", str(workers)]
        line += ["--lts_trials", "4", "--selection", "paper", "--report", "false"]
        if journal.do(Step("scale", f"run-{number}", tuple(line))):
            rows.append(row(place, number, journal))
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
