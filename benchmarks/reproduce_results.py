"""Everything behind docs/results, from images to pages.

python benchmarks/reproduce_results.py --data ../data                                   # all of it
python benchmarks/reproduce_results.py --data ../data --datasets '[hippocampus]' --stages '[run,study]'
python benchmarks/reproduce_results.py --data ../data --pages docs/results --stages '[]'  # only the pages

Each command is shown before it runs, and its output kept in ``<runs>/<name>/results/`` with what it took. What is done
is not done again; a command that failed or was interrupted goes on with the next call. ``--executor ray`` does the work
on a cluster.
"""

import sys
from pathlib import Path
from typing import Literal

from _results_journal import Journal
from _results_pages import beside_the_paper, claim_rows, dataset_blocks, summary_rows, table_in, write_page
from _results_plan import DATASETS, SCALE, STAGES, DataSet, Place, scale_step, steps
from jsonargparse import auto_cli

Name = Literal["hippocampus", "camvid", "massroads_crops", "nuclei"]
Stage = Literal["train", "predict", "run", "study", "decide", "publish", "peers", "scale"]
PAGES = {"massroads_crops": "massroads"}  # pages with names of their own


def work(dataset: DataSet, place: Place, stages: list[Stage]) -> list[str]:
    """Do what is left of a data set; names of the commands that failed. Nothing follows a failed training or run."""
    journal = Journal(place.runs / dataset.name / "results")
    failed: list[str] = []
    for step in steps(dataset, place, stages):
        if not journal.do(step):
            failed.append(f"{dataset.name}: {step.name}")
            if step.stage in ("train", "predict", "run"):
                break
    return failed


def fill_pages(pages: Path, runs: Path, datasets: list[DataSet]) -> list[str]:
    """Write the blocks of the pages of data sets that are done, and of the index over all that are; what failed."""
    done = {dataset.name: runs / dataset.name for dataset in DATASETS if (runs / dataset.name / "report").is_dir()}
    wanted = {}
    for dataset in (dataset for dataset in datasets if dataset.name in done):
        page = pages / f"{PAGES.get(dataset.name, dataset.name)}.md"
        run, pictures = done[dataset.name], pages.parent / "images" / page.stem
        wanted[page] = lambda d=dataset, r=run, to=pictures: dataset_blocks(d, r, Journal(r / "results"), to)
    if done:
        wanted[pages / "index.md"] = lambda: index_blocks(done, Journal(runs / SCALE / "results"))
    failed = []
    for page, blocks in wanted.items():
        try:
            write_page(page, blocks)
            print(f"wrote {page}")
        except ValueError as error:
            failed.append(str(error))
    return failed


def index_blocks(done: dict[str, Path], scale: Journal) -> dict[str, str]:
    """All blocks of the index; the table of scale where it is there."""
    index = {"summary": summary_rows(done), "claims": claim_rows(done), "paper": beside_the_paper(done)}
    table = table_in(scale.text("scale"))
    return index | ({"scale": table} if table else {})


def main(
    data: Path,
    runs: Path = Path("runs"),
    datasets: list[Name] = [dataset.name for dataset in DATASETS],  # noqa: B006
    stages: list[Stage] = [*STAGES, "scale"],  # noqa: B006
    members: int = 5,
    epochs: int | None = None,
    repeats: int = 3,
    trials: int = 20,
    lts_trials: int = 4,
    scale_cases: list[int] = [8, 16, 32],  # noqa: B006
    workers: int = 2,
    executor: str = "local",
    pages: Path | None = None,
) -> None:
    """Do what is not done yet, data set by data set; exit code 1 where something failed.

    Args:
        data: folder of the data sets.
        runs: folder of all runs.
        datasets: which of them.
        stages: what to do.
        members: networks of each ensemble.
        epochs: of each training; by default those of its config file.
        repeats: partitions of each pool set.
        trials: of each search.
        lts_trials: of each search of local temperatures.
        scale_cases: numbers of images of Cityscapes' size that the protocol is tried on, besides the data sets.
        workers: processes at a time, in training and after it.
        executor: where jobs run.
        pages: folder of the pages whose blocks are written anew; none by default.
    """
    chosen = [dataset for dataset in DATASETS if dataset.name in datasets]
    place = Place(data.resolve(), runs.resolve(), members, workers, executor, epochs, repeats, trials, lts_trials)
    failed = [text for dataset in chosen for text in work(dataset, place, stages)]
    if "scale" in stages and not Journal(place.runs / SCALE / "results").do(scale_step(place, scale_cases)):
        failed.append(f"{SCALE}: scale")
    if pages is not None:
        failed += fill_pages(pages, place.runs, chosen)
    for text in failed:
        print(f"failed: {text}", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
