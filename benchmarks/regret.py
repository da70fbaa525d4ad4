"""What it costs to choose a calibrator: gain and regret of ways to select one, on groups that had no say.

sh benchmarks/regret_outputs.sh
python benchmarks/regret.py --runs runs --datasets '[hippocampus, camvid, massroads_crops, nuclei]'

Every data set is divided many times by whole groups into cal, val and test. Methods see cal and val only: the store
that they work on does not hold the test cases. A division that was done is not done again.
"""

import shutil
import time
import warnings
from pathlib import Path

import pandas as pd
import torch
from _regret_data import Small, divide, fitting_data, shrink
from _regret_methods import FLIPPING, METHODS, PIPELINES, Options, guarded, judge
from _regret_summary import NOTHING, PAPER, Figures, draw, page, with_selections
from jsonargparse import auto_cli

from lightning_calib.experiment.advice import Preserve
from lightning_calib.kit.files import digest, read_json, write_json, write_text

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
PICTURE = (
    "![NLL of every division above or below that of identity(p), by method, a panel a data set](images/regret.png)"
)


def settle(small: Small, number: int, method: str, options: Options, folder: Path) -> None:
    """Let a method choose in one division, judge it on the test groups and write both; done ones are passed over."""
    split = divide(small.store.groups, number, options.seed)
    settings = {"method": method, "options": vars(options), "store": small.store.path.name, "test": split.test}
    path, key = folder / f"{number:03d}" / method, digest(settings)
    if path.with_suffix(".json").is_file() and read_json(path.with_suffix(".json"))["hash"] == key:
        return
    started = time.process_time()
    data = fitting_data(small, split)
    assert not set(split.test) & set(data.store.case_ids), "a method must not see test cases"
    chosen = list(guarded(data, list(METHODS[method](data, options))))
    seconds = time.process_time() - started
    rows = [{"dataset": folder.name, "division": number} | row for row in judge(small, split.test, chosen)]
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path.with_suffix(".csv"), index=False)
    write_json(path.with_suffix(".json"), {"hash": key, "seconds": seconds, "split": vars(split)})


def read(results: Path, datasets: list[str], divisions: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All rows, and the mean processor seconds of each step by data set."""
    done = [p for name in datasets for n in range(divisions) for p in (results / name / f"{n:03d}").glob("*.json")]
    rows = pd.concat([pd.read_csv(path.with_suffix(".csv")) for path in done], ignore_index=True)
    spent = [(path.stem, path.parts[-3], read_json(path)["seconds"]) for path in done]
    seconds = pd.DataFrame(spent, columns=["step", "dataset", "seconds"])
    return rows, seconds.pivot_table(index="step", columns="dataset", values="seconds")


def report(results: Path, datasets: list[str], divisions: int, preserve: Preserve, gains: list[str]) -> str:
    """Tables of everything that is there, as Markdown; the picture and the rows of methods beside them."""
    rows, seconds = read(results, datasets, divisions)
    rows = with_selections(rows, preserve)
    rows.to_csv(results / "rows.csv", index=False)
    figures = [Figures.of(rows, name) for name in datasets]
    judged = [method for method in figures[0].methods if method not in (NOTHING, PAPER)]
    draw(figures, results / "regret.png")
    return page(figures, judged, gains, seconds)


def main(
    runs: Path = Path("runs"),
    datasets: list[str] = ["hippocampus", "camvid", "massroads_crops", "nuclei"],  # noqa: B006
    methods: list[str] = list(METHODS),  # noqa: B006
    divisions: int = 20,
    voxels: int = 5_000,
    trials: int = 6,
    preserve: Preserve = "order",
    seed: int = 0,
    gains: list[str] = ["hippocampus", "massroads_crops"],  # noqa: B006
    results: Path | None = None,
    document: Path | None = None,
) -> None:
    """Run what is not done yet, and print tables and bars.

    Args:
        runs: folder of the runs; each has outputs in ``<name>/outputs``.
        datasets: names of the runs.
        methods: what to run; the figures are of everything that was run.
        divisions: divisions of each data set by whole groups.
        voxels: voxels of a case that take part, in fits and in scores.
        trials: trials of each search of the paper's protocol.
        preserve: what a calibrator must keep of the ranking: order, argmax or none.
        seed: seed of divisions and searches.
        gains: data sets on which the second bar is judged.
        results: where results go; ``<runs>/regret`` by default.
        document: a page that gets the figures between its two marks, and the picture in its folder ``images``.
    """
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*exactly the logits of their neighbour.*")
    results = results or runs / "regret"
    pipelines = PIPELINES if preserve == "order" else PIPELINES + FLIPPING
    options = Options(pipelines, trials, seed)
    for name in datasets:
        small = shrink(runs / name / "outputs", results / "small" / name, voxels)
        for number in range(divisions):
            for method in methods:
                settle(small, number, method, options, results / name)
            print(f"{name}: division {number + 1} of {divisions}", flush=True)
    text = report(results, datasets, divisions, preserve, gains)
    print(text)
    write_text(results / "figures.md", text)
    if document is not None:
        before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
        write_text(document, f"{before}{BEGIN}\n{PICTURE}\n\n{text}\n{END}{rest.partition(END)[2]}")
        (document.parent / "images").mkdir(exist_ok=True)
        shutil.copyfile(results / "regret.png", document.parent / "images" / "regret.png")


if __name__ == "__main__":
    auto_cli(main)
