"""What is done with each data set of docs/results: commands in their order, by stage."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml

STAGES = ("train", "predict", "run", "study", "decide", "publish", "peers")

SCALE = "street"  # the data set that tests scale, not calibration

# The paper's pipelines, and what is beyond it; stacks of a run are fitted on groups of ``cal``.
PIPELINES = "paper,gs(p),fts(p),fts_net(p),case_ts(p),stack(p),stack(z)"
CHECKED = "cms_op(p)"  # what decisions are made on: it keeps every mask
MISLED = "identity(p),ts(p),cdc(p),cms_op(p)"  # for a partition that parts near copies
PEER_VOXELS = 400_000  # some of the other libraries take minutes for a million
QUICK = "ts(z),ms(z),cdc(z)"  # for studies that fit anew


@dataclass(frozen=True)
class DataSet:
    """A data set and what fits it.

    Attributes:
        name: of its config files, its run and its page.
        folder: of its images, below the folder of all data sets.
        structures: what decisions are made on.
        training: further options of ``train.py``.
        alpha: risk that ``control`` is asked to hold.
        control: further options of ``control``.
        level: probability that intervals of volumes are asked to hold.
        images: whether images can be corrupted, for the study of shifts.
        subsets: patterns of case ids, for the study of parts of the test cases.
        peers: further options of the fits of other libraries.
        near_copies: whether cases of a group are near copies, so that a partition at random is misled.
    """

    name: str
    folder: str
    structures: tuple[str, ...]
    training: tuple[str, ...] = ()
    alpha: float = 0.1
    control: tuple[str, ...] = ()
    level: float = 0.9
    images: bool = True
    subsets: dict[str, str] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    near_copies: bool = False


BF16 = ("--trainer.precision", "bf16-mixed")
DATASETS = (
    DataSet("hippocampus", "hippocampus", ("Anterior", "Posterior"), images=False),
    DataSet(
        "camvid",
        "camvid",
        ("car",),
        BF16,
        control=("--group_level", "case"),
        subsets={"0016E5": "0016E5*", "0001TP": "0001TP*", "Seq05VD": "Seq05VD*"},
        peers=("--fits", "[ts, ms, cms_ap]"),
        near_copies=True,
    ),
    DataSet("massroads_crops", "massroads", ("road",), BF16, 0.2, level=0.8),
    DataSet(
        "nuclei",
        "nuclei",
        ("nucleus", "rim"),
        control=("--group_level", "case", "--judge_by", "group"),
        level=0.75,  # four sites are held out
    ),
)


class Step(NamedTuple):
    """A command, the stage that it belongs to, and the name of the file that keeps what it prints."""

    stage: str
    name: str
    line: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where things are and how they are done.

    Attributes:
        data: folder of all data sets.
        runs: folder of all runs.
        members: networks of each ensemble.
        workers: processes at a time.
        executor: where jobs run.
        epochs: of each training; None for those of the config file.
        repeats: partitions of the pool set.
        trials: of each search.
        lts_trials: of each search of local temperatures, where there is a weight decay to find and nothing else.
    """

    data: Path
    runs: Path
    members: int = 5
    workers: int = 2
    executor: str = "local"
    epochs: int | None = None
    repeats: int = 3
    trials: int = 20
    lts_trials: int = 4

    def folder(self, dataset: DataSet, name: str) -> str:
        """A folder of a data set's run."""
        return str(self.runs / dataset.name / name)


Maker = Callable[[DataSet, Place], Iterator[tuple[str, Sequence[str]]]]


def steps(dataset: DataSet, place: Place, stages: Sequence[str]) -> list[Step]:
    """All commands of the asked stages."""
    return [
        Step(stage, name, tuple(line))
        for stage in STAGES
        if stage in stages
        for name, line in _MAKERS[stage](dataset, place)
    ]


def _training(dataset: DataSet, place: Place) -> list[str]:
    line = ["--config", f"configs/{dataset.name}.yaml", "--runs_dir", str(place.runs)]
    line += ["--data.init_args.root", str(place.data / dataset.folder), *dataset.training]
    return line + ([] if place.epochs is None else ["--trainer.max_epochs", str(place.epochs)])


def _jobs(place: Place) -> list[str]:
    return ["--executor", place.executor, "--workers", str(place.workers)]


def _train(dataset: DataSet, place: Place) -> Iterator[tuple[str, list[str]]]:
    many = ["--members", str(place.members), "--parallel", str(place.workers), "--executor", place.executor]
    yield "ensemble", ["train.py", "ensemble", *_training(dataset, place), *many]


def _predict(dataset: DataSet, place: Place) -> Iterator[tuple[str, list[str]]]:
    line = ["train.py", "predict", *_training(dataset, place)]
    yield "predict", line
    for severity in ("mild", "strong") if dataset.images else ():
        yield f"predict-{severity}", [*line, "--corruption", severity]


def _run(dataset: DataSet, place: Place) -> Iterator[tuple[str, list[str]]]:
    line = ["calibrate.py", "run", "--config", f"configs/calibrate/{dataset.name}.yaml"]
    line += ["--outputs", place.folder(dataset, "outputs"), "--pipelines", PIPELINES, "--selection", "groups"]
    line += ["--repeats", str(place.repeats), "--trials", str(place.trials), "--lts_trials", str(place.lts_trials)]
    yield "run", [*line, *_jobs(place)]
    yield "show", ["calibrate.py", "show", "--calibration", place.folder(dataset, "calibration")]
    if dataset.near_copies:
        where = place.folder(dataset, "random/calibration")
        line = ["calibrate.py", "run", "--config", f"configs/calibrate/{dataset.name}.yaml", "--group_aware", "false"]
        line += ["--outputs", place.folder(dataset, "outputs"), "--calibration", where, "--pipelines", MISLED]
        line += ["--selection", "paper", "--repeats", str(place.repeats), "--trials", str(place.trials), *_jobs(place)]
        yield "run-random", line
        yield "show-random", ["calibrate.py", "show", "--calibration", where]


def _study(dataset: DataSet, place: Place) -> Iterator[tuple[str, list[str]]]:
    options = {name: [] for name in ("claims", "selection", "reliability", "properties", "flips", "bins", "offsets")}
    options |= {"triage": [], "ensemble_size": ["--pipelines", "identity(z),ts(z)", "--members", _sizes(place.members)]}
    options["calibration_size"] = ["--pipelines", QUICK]
    options |= (
        {"shift": ["--pipelines", f"identity(p),identity(z),{QUICK},cms_op(z),lts_ti(z)"]} if dataset.images else {}
    )
    options |= {"subsets": ["--subsets", json.dumps(dataset.subsets)]} if dataset.subsets else {}
    where = ["--calibration", place.folder(dataset, "calibration"), "--report", "false", *_jobs(place)]
    for name, line in options.items():
        yield f"study-{name}", ["calibrate.py", "study", name, *where, *line]
    yield "report", ["calibrate.py", "report", "--calibration", place.folder(dataset, "calibration")]


def scale_step(place: Place, cases: Sequence[int]) -> Step:
    """The whole protocol on made-up outputs of Cityscapes' size."""
    line = ["benchmarks/street_scale.py", "--folder", str(place.runs / SCALE), "--cases", json.dumps(list(cases))]
    return Step("scale", "scale", (*line, "--workers", str(place.workers)))


def _sizes(members: int) -> str:
    """One network, about half of them, all."""
    return json.dumps(sorted({1, (members + 1) // 2, members}))


def _decide(dataset: DataSet, place: Place) -> Iterator[tuple[str, list[str]]]:
    checked, outputs = place.folder(dataset, "checked"), place.folder(dataset, "outputs")
    deploy = ["--pipeline", CHECKED, "--cases", "cal_val", "--repeat", "0", "--destination", checked]
    yield "deploy", ["calibrate.py", "deploy", "--calibration", place.folder(dataset, "calibration"), *deploy]
    where = ["--deployed", checked, "--outputs", outputs]
    for structure in dataset.structures:
        about = [*where, "--structure", structure]
        for risk in ("missed", "false"):
            line = ["calibrate.py", "control", *about, "--risk", risk, "--alpha", str(dataset.alpha), *dataset.control]
            yield f"control-{structure}-{risk}", line
        yield f"threshold-{structure}", ["calibrate.py", "threshold", *about, "--cost_fn", "5", "--cost_fp", "1"]
    yield "structures", ["calibrate.py", "structures", *where, "--level", str(dataset.level)]


def _publish(dataset: DataSet, place: Place) -> Iterator[tuple[str, list[str]]]:
    line = ["--outputs", place.folder(dataset, "outputs"), "--destination", place.folder(dataset, "published")]
    yield "publish", ["benchmarks/publish_outputs.py", *line]


def _peers(dataset: DataSet, place: Place) -> Iterator[tuple[str, list[str]]]:
    line = ["benchmarks/outputs.py", "--outputs", place.folder(dataset, "outputs"), "--threads", "1"]
    line += ["--voxels", str(PEER_VOXELS)]
    parts = yaml.safe_load(Path(f"configs/calibrate/{dataset.name}.yaml").read_text(encoding="utf-8"))
    sizes = [text for name, size in parts.items() for text in (f"--{name}", json.dumps(size))]
    yield "peers", [*line, *sizes, *dataset.peers]


_MAKERS: dict[str, Maker] = {
    "train": _train,
    "predict": _predict,
    "run": _run,
    "study": _study,
    "decide": _decide,
    "publish": _publish,
    "peers": _peers,
}
