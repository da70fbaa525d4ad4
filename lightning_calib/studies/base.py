"""What all studies share: where they read and write, which pipelines they look at, how their jobs are done."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.pipeline import PipelineName, expand_pipelines
from lightning_calib.executors.base import Executor
from lightning_calib.executors.local import LocalExecutor
from lightning_calib.experiment import layout
from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import Row, read_rows, write_rows
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.checksums import changed_files, note_checksums, write_done
from lightning_calib.kit.files import digest, plain, remove_leftovers, sha256
from lightning_calib.kit.progress import Display
from lightning_calib.outputs.manifest import MANIFEST
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored_cases import StoredCases
from lightning_calib.report.inputs import Inputs, spread
from lightning_calib.report.section import Section
from lightning_calib.report.studies import FACTS, STUDIES, study_folder

DIGITS = 10  # of what is summed up: beyond, sums over another number of threads differ

# "Representative" calibrators of the paper's sensitivity analyses.
PAPER_SUBSET = ("ts(z)", "ms(z)", "ms_c(z)", "lts(z)", "cdc(z)")

Job = TypeVar("Job")
Pipelines = str | list[str]


class StudyError(ValueError):
    """A study cannot be made; the message says what it lacks."""


class Study(ABC):
    """One study of a calibration run: its options, its computation, what it prints, its section of the report.

    Args:
        calibration: the run's folder; the study's files are in ``studies/<name>`` below it.
        outputs: the run's output store; None takes the folder that the run recorded.
        executor: does the jobs; None does them in this process.
        display: show progress.

    Attributes:
        name: what the command line calls it, and its folder.
        title: heading of its section.
        reproduced: whether ``reproduce`` makes it; then all options of ``run`` have defaults.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    reproduced: ClassVar[bool] = True

    def __init__(
        self, calibration: Path, outputs: Path | None = None, executor: Executor | None = None, display: bool = True
    ) -> None:
        self.calibration, self.outputs, self.display = calibration, outputs, display
        self.executor = executor

    @abstractmethod
    def run(self) -> dict[str, Any]:
        """Make the study. Its options are typed arguments, which the command line takes over with their docs.

        Returns:
            ``study.json``, as :meth:`write` hands it back.
        """

    def tell(self, facts: dict[str, Any]) -> list[str]:
        """What came out, as lines for a terminal."""
        return []

    def failed(self, facts: dict[str, Any]) -> bool:
        """Whether a command should end with exit code 1."""
        return bool(facts.get("broken") or facts.get("failures"))

    def section(self, inputs: Inputs, facts: dict[str, Any]) -> Section | None:
        """The study's section of the report; None where it has nothing to show."""
        return None

    @property
    def key(self) -> str:
        """Anchor of the section."""
        return f"study-{self.name.replace('_', '-')}"

    @cached_property
    def results(self) -> Results:
        """What ``calibrate.py run`` left."""
        return Results(self.calibration)

    @cached_property
    def store(self) -> OutputStore:
        """The run's frozen outputs."""
        return self.open_store(self.outputs or Path(self.results.settings["outputs"]))

    def open_store(self, path: Path) -> OutputStore:
        """A store as the run would see it: with as many of its members."""
        return OutputStore(path, self.results.settings.get("members"))

    @property
    def folder(self) -> Path:
        """Where the study writes."""
        return study_folder(self.calibration, self.name)

    @property
    def parts(self) -> Path:
        """Where passes over the cases leave what they find."""
        return self.folder / "parts"

    def __getstate__(self) -> dict[str, Any]:
        """What workers get: tables and stores are opened where they are needed."""
        return {"calibration": self.calibration, "outputs": self.outputs, "executor": None, "display": self.display}

    def names(self, pipelines: Pipelines | None, default: Sequence[str] = ()) -> tuple[str, ...]:
        """Pipelines to look at, in the order of the run.

        Args:
            pipelines: names, as a list or with commas in between; ``paper`` and ``all`` stand for theirs.
            default: taken where None are named, as far as the run has them; all of the run where empty.
        """
        held = [name for name in self.results.pipelines if self.fitted_repeats(name)]
        if pipelines is None:
            wanted = [name for name in default if name in held] or held
        else:
            wanted = [str(name) for name in expand_pipelines(pipelines)]
        if strange := [name for name in wanted if name not in held]:
            raise StudyError(
                f"{', '.join(strange)}: no fits in {self.calibration}; it has {', '.join(held) or 'none at all'}. "
                "Fit them with `calibrate.py run`"
            )
        if not wanted:
            raise StudyError(f"no pipeline of {self.calibration} was fitted; start `calibrate.py run` again")
        return tuple(name for name in held if name in wanted)

    def fitted_repeats(self, pipeline: str) -> list[int]:
        """Repeats in which a pipeline was fitted."""
        fits = ((r, self.results.fit(r, pipeline)) for r in self.results.repeats)
        return [r for r, fit in fits if fit is not None and fit.ok]

    def calibrator(self, repeat: int, pipeline: str) -> Calibrator:
        """A fitted calibrator."""
        found = self.results.calibrator(repeat, pipeline)
        if found is None:
            raise StudyError(f"{self.results.job_folder(repeat, pipeline)} has no calibrator; run `calibrate.py run`")
        return found.eval()

    def cases(self, pooling: Pooling, store: OutputStore | None = None) -> StoredCases:
        """Pooled cases as the run saw them."""
        return StoredCases(store or self.store, pooling, self.results.settings.get("outside", "exclude"))

    def by_pooling(self, names: Sequence[str], repeat: int) -> dict[Pooling, tuple[str, ...]]:
        """Fitted pipelines of a repeat by their pooling, so that each case is read once for all of them."""
        groups: dict[Pooling, list[str]] = {}
        for name in names:
            if repeat in self.fitted_repeats(name):
                groups.setdefault(PipelineName.parse(name).pooling, []).append(name)
        return {pooling: tuple(group) for pooling, group in groups.items()}

    def do(self, jobs: Sequence[Job], work: Callable[[Job], None], tell: Callable[[Job], str] = str) -> None:
        """Do all jobs by the executor; what failed is told once all others are done.

        Args:
            jobs: what is not done yet.
            work: does one of them and writes what came out; importable by name.
            tell: one line about a job.
        """
        failed: dict[str, str] = {}
        executor = self.executor or LocalExecutor(0, int(self.results.settings.get("threads", 1)))
        kinds, quiet = [self.name for _ in jobs], not self.display
        with executor, Display(kinds, executor.slots, quiet=quiet, doing=executor.doing) as shown:
            executor.check([self.calibration])
            started = time.perf_counter()
            for outcome in executor.run(jobs, work):
                text = tell(outcome.job)
                if outcome.error is not None:
                    failed[text] = outcome.error
                seconds, started = time.perf_counter() - started, time.perf_counter()
                shown.done(self.name, text if outcome.error is None else f"FAILED {text}", seconds)
        if failed:
            listed = "\n".join(f"  {text}: {error}" for text, error in failed.items())
            raise StudyError(f"{len(failed)} of {len(jobs)} parts of the study {self.name} failed:\n{listed}")

    def passes(
        self,
        names: Sequence[str],
        facts: Any = None,  # noqa: ANN401
        cases: int | None = None,
        parts: Sequence[str] = ("test",),
    ) -> "dict[Path, Pass]":
        """All passes over cases that some pipelines need, by the file that keeps what each finds.

        Args:
            names: the pipelines.
            facts: what else the content of the files depends on.
            cases: cases a repeat, evenly spread; None for all.
            parts: of each repeat: test cases by default.
        """
        found = {}
        for repeat in self.results.repeats:
            split = self.results.split(repeat)
            case_ids = spread(sorted(case for part in parts for case in split[part]), cases)
            for pooling, group in self.by_pooling(names, repeat).items():
                files = {name: self.results.job_folder(repeat, name) / layout.CALIBRATOR for name in group}
                known = {
                    "outputs": sha256(self.store.path / MANIFEST),
                    "calibrators": {name: sha256(path) for name, path in files.items()},
                    "outside": self.results.settings.get("outside"),
                    "cases": case_ids,
                    "facts": facts,
                }
                path = self.parts / f"{repeat}-{pooling}-{digest(known)}.csv"
                found[path] = Pass(repeat, pooling, group, case_ids)
        return found

    def tabulate(
        self,
        jobs: Mapping[Path, Job],
        compute: Callable[[Job], list[Row]],
        kind: type[Row],
        tell: Callable[[Job], str] = str,
    ) -> list[Row]:
        """Rows of all jobs, in their order; what an earlier call has left in its file is read.

        Args:
            jobs: by the file that keeps their rows.
            compute: rows of a job; importable by name.
            kind: class of the rows.
            tell: one line about a job.
        """
        folders = {path.parent for path in jobs}
        damaged = {folder / name for folder in folders for name in changed_files(folder)}
        pending = [(path, job) for path, job in jobs.items() if path in damaged or not path.is_file()]
        self.do(pending, partial(_write_part, compute, kind), lambda part: tell(part[1]))
        for folder in folders:
            note_checksums(folder, [path.name for path in jobs if path.parent == folder])
        return [row for path in jobs for row in read_rows(path, kind)]

    def save(self, name: str, rows: Iterable[Row], kind: type[Row]) -> None:
        """Write a table of the study."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_rows(self.folder / name, rows, kind)

    def read(self, name: str, kind: type[Row]) -> list[Row]:
        """Read a table of the study."""
        return read_rows(self.folder / name, kind)

    def write(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Write ``study.json``, which says that the study is whole, and hand it back as it reads."""
        rounded: dict[str, Any] = plain({"study": self.name, **facts}, DIGITS)
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder, self.parts)
        write_done(self.folder, FACTS, rounded, (path.name for path in self.folder.glob("*.csv")))
        return rounded


StudyType = TypeVar("StudyType", bound=type[Study])


def register_study(study: StudyType) -> StudyType:
    """Add a study of one's own, also as a decorator: the command line and the report have it from then on."""
    STUDIES.register(study.name, study)
    return study


@dataclass(frozen=True)
class Pass:
    """Fitted pipelines of one pooling, to be applied to test cases of one repeat."""

    repeat: int
    pooling: Pooling
    pipelines: tuple[str, ...]
    case_ids: tuple[str, ...]

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"{', '.join(self.pipelines)}, repeat {self.repeat}"


def _write_part(compute: Callable[[Job], list[Row]], kind: type[Row], part: tuple[Path, Job]) -> None:
    path, job = part
    rows = compute(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows, kind)
