"""``calibrate.py study``: answer a further question from the files of a run; ``study --help`` lists the questions."""

import inspect
import json as json_format
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_calib.executors.base import Executor, make_executor
from lightning_calib.experiment.advice import Preserve
from lightning_calib.experiment.results import Results
from lightning_calib.kit.noise import quiet
from lightning_calib.report.build import build_report
from lightning_calib.report.studies import STUDIES
from lightning_calib.studies.base import Study


@dataclass(frozen=True)
class StudyOptions:
    """What all studies have in common.

    Args:
        calibration: folder that calibrate.py run wrote, such as runs/camvid/calibration.
        outputs: the frozen outputs behind it; by default the folder that the run recorded.
        workers: jobs at a time; by default one a core. Results do not depend on it.
        executor: where jobs run: local, ray, or the name of another executor.
        report: also write the report anew, with a section on the study.
        preserve: what the pipeline in the report's headline must keep of the ensemble's ranking of the classes.
        json: print what came out as JSON.
        trust: import classes of other packages that the run's folder names.
    """

    calibration: Path
    outputs: Path | None = None
    workers: int | None = None
    executor: str | dict[str, Any] = "local"
    report: bool = True
    preserve: Preserve = "order"
    json: bool = False
    trust: bool = False

    def make(self, kind: type[Study], **options: Any) -> int:
        """Make a study, and say what came out; 1 where the study says that something failed."""
        quiet()
        calibration = Results(self.calibration, self.trust).folder  # what that imports, the study and its workers need
        executor = study_executor(calibration, self.workers, self.executor)
        study = kind(calibration, self.outputs, executor, display=not self.json)
        facts = study.run(**options)
        lines = [*study.tell(facts), f"study:  {study.folder}"]
        if self.report:
            folder = calibration.resolve().parent / "report"
            lines.append(f"report: {build_report(calibration, self.outputs, folder, self.preserve)}")
        print(json_format.dumps(facts) if self.json else "\n".join(lines))
        return 1 if study.failed(facts) else 0


def study_executor(calibration: Path, workers: int | None, executor: str | dict[str, Any] = "local") -> Executor:
    """An executor whose jobs have as many threads as the run's had."""
    return make_executor(executor, workers, int(Results(calibration).settings.get("threads", 1)), quiet)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """``COMMANDS``, made when they are asked for: what is registered later is there, too."""
    if name != "COMMANDS":
        raise AttributeError(f"{__name__} has no {name}")
    told = "Answer a further question from the files of a run."
    return {"_help": told, **{name: command(STUDIES[name]) for name in STUDIES}}


def command(kind: type[Study]) -> Callable[..., int]:
    """A function that makes a study: its arguments are those of ``run``, then those that all studies have."""
    common, own = (inspect.signature(source, eval_str=True).parameters for source in (StudyOptions, kind.run))
    mine = [parameter for parameter in own.values() if parameter.name != "self"]

    def study(**options: Any) -> int:
        chosen = {parameter.name: options.pop(parameter.name) for parameter in mine}
        return StudyOptions(**options).make(kind, **chosen)

    keywords = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in (*mine, *common.values())]
    study.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    told, arguments = _docs(kind.run)
    study.__doc__ = f"{told}\n\nArgs:\n{arguments}{_docs(StudyOptions)[1]}"
    return study


def _docs(source: object) -> tuple[str, str]:
    """What a docstring says before its arguments, and the lines on them."""
    told, _, rest = (inspect.getdoc(source) or "").partition("\n\nArgs:\n")
    return told.partition("\n\nReturns:")[0], f"{rest.partition(chr(10) * 2)[0]}\n" if rest else ""
