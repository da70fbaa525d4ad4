"""``calibrate.py``: fit calibrators on stored outputs and judge them.

A command is a typed function: its signature is the schema of its options, its docstring their help.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial

from lightning_calib.cli.commands import Command, Commands, Family, answered, full_help, load
from lightning_calib.cli.configs import with_packaged
from lightning_calib.cli.errors import guarded
from lightning_calib.kit.program import named

_EXPERIMENT = "lightning_calib.experiment.plan:Experiment"
_DATA = "lightning_calib.outputs.stored:StoredOutputsDataModule"
_TRAINER = ("--trainer.*", "options of Lightning's Trainer, such as --trainer.accelerator gpu")
_START, _INSPECT, _DEPLOY, _RESEARCH = "Start", "Inspect", "Deploy", "Research"
_OUTPUTS, _CALIBRATION = "--outputs runs/camvid/outputs", "--calibration runs/camvid/calibration"

# One entry adds a command: a function that returns its exit code, or None for 0.
COMMANDS: Commands = {
    "import": Family(
        "Store the outputs of other programs.",
        {
            "folder": Command(
                "lightning_calib.cli.import_outputs:import_folder",
                options=(
                    *("outputs", "class_names", "scores", "representation", "targets"),
                    *("background", "ignore_index", "group_regex"),
                ),
                rest="lightning_calib.outputs.imports.folder:ArrayFolders",
                examples=(
                    "import folder --scores '[first, second]' --representation logits --targets labels "
                    "--class_names '[sky, road]' --outputs runs/mine/outputs",
                ),
            ),
            "nnunet": Command(
                "lightning_calib.cli.import_outputs:import_nnunet",
                options=(
                    *("outputs", "targets", "model", "images", "predictions", "cross_validation"),
                    *("trust_model_folder", "group_regex"),
                ),
                examples=(
                    "import nnunet --model MODEL --images imagesTs --targets labelsTs --outputs runs/mine/outputs "
                    "--trust_model_folder",
                ),
            ),
        },
        _START,
    ),
    "doctor": Command(
        "lightning_calib.cli.doctor:doctor",
        _START,
        ("outputs", "hashes", "pool_images", "training_images", "json"),
        examples=(f"doctor {_OUTPUTS}", f"doctor {_OUTPUTS} --hashes"),
    ),
    "run": Command(
        "lightning_calib.cli.run:run",
        _START,
        (
            *("outputs", "pipelines", "cal", "val", "test", "repeats", "trials", "selection", "preserve"),
            *("workers", "executor", "logger", "dry_run"),
        ),
        _EXPERIMENT,
        (("--config", "file with options, such as configs/calibrate/camvid.yaml"), _TRAINER),
        (
            f"run {_OUTPUTS}",
            f'run {_OUTPUTS} --pipelines "ts(p),cms_op(p)" --cal 0.5 --val 0.2',
            f"run {_OUTPUTS} --config configs/calibrate/camvid.yaml --dry_run",
        ),
    ),
    "show": Command(
        "lightning_calib.cli.show:show",
        _START,
        ("calibration", "preserve", "candidates", "reference", "json"),
        examples=(f"show {_CALIBRATION}", f'show {_CALIBRATION} --candidates "ts(p),cms_op(p)" --reference "ms(p)"'),
    ),
    "report": Command(
        "lightning_calib.cli.report:report",
        _INSPECT,
        ("calibration", "outputs", "destination", "preserve"),
        examples=(f"report {_CALIBRATION}",),
    ),
    "dashboard": Command(
        "lightning_calib.cli.dashboard:dashboard",
        _INSPECT,
        ("entity", "project"),
        examples=("dashboard --entity ENTITY --project PROJECT",),
    ),
    "evaluate": Command(
        "lightning_calib.cli.evaluate:evaluate",
        _INSPECT,
        ("outputs", "calibrator", "part", "json"),
        told=(_TRAINER,),
        examples=(f"evaluate {_OUTPUTS} --calibrator runs/camvid/fits/ts-p-0/calibrator.safetensors",),
    ),
    "audit": Command(
        "lightning_calib.cli.audit:audit",
        _INSPECT,
        ("calibrator", "outputs", "cases", "json"),
        examples=(f"audit {_OUTPUTS} --calibrator runs/camvid/fits/ts-p-0/calibrator.safetensors",),
    ),
    "deploy": Command(
        "lightning_calib.cli.deploy:deploy",
        _DEPLOY,
        ("calibration", "pipeline", "preserve", "destination", "cases"),
        examples=(f"deploy {_CALIBRATION}", f'deploy {_CALIBRATION} --pipeline "cms_op(p)"'),
    ),
    "apply": Command(
        "lightning_calib.cli.apply:apply",
        _DEPLOY,
        ("deployed", "destination", "images", "outputs", "device", "trust"),
        examples=(
            "apply --deployed runs/camvid/deployed --images new --destination maps",
            f"apply --deployed runs/camvid/deployed {_OUTPUTS} --destination maps",
        ),
    ),
    "control": Command(
        "lightning_calib.cli.control:control",
        _DEPLOY,
        ("deployed", "outputs", "structure", "risk", "alpha", "method", "group_level"),
        examples=(
            f"control --deployed runs/camvid/deployed {_OUTPUTS} --structure pedestrian --alpha 0.1",
            f"control --deployed runs/camvid/deployed {_OUTPUTS} --structure pedestrian --risk false --alpha 0.2",
        ),
    ),
    "threshold": Command(
        "lightning_calib.cli.threshold:threshold",
        _DEPLOY,
        ("deployed", "outputs", "structure", "cost_fn", "cost_fp", "dice", "false_per_case"),
        examples=(
            f"threshold --deployed runs/camvid/deployed {_OUTPUTS} --structure pedestrian --cost_fn 5 --cost_fp 1",
            f"threshold --deployed runs/camvid/deployed {_OUTPUTS} --structure pedestrian --false_per_case 1",
        ),
    ),
    "structures": Command(
        "lightning_calib.cli.structures:structures",
        _DEPLOY,
        ("deployed", "outputs", "level", "scale", "group_level"),
        examples=(f"structures --deployed runs/camvid/deployed {_OUTPUTS}",),
    ),
    "export": Command(
        "lightning_calib.cli.export:export",
        _DEPLOY,
        ("deployed", "format", "pooling", "destination"),
        examples=("export --deployed runs/camvid/deployed",),
    ),
    "monitor": Command(
        "lightning_calib.cli.monitor:monitor",
        _DEPLOY,
        ("deployed", "outputs", "images", "alpha", "json"),
        examples=(
            "monitor --deployed runs/camvid/deployed --outputs runs/june/outputs",
            "monitor --deployed runs/camvid/deployed --images pictures/june",
        ),
    ),
    "push": Command(
        "lightning_calib.cli.hub:push",
        _DEPLOY,
        ("deployed", "repo", "private", "networks"),
        examples=("push --deployed runs/camvid/deployed --repo OWNER/NAME",),
    ),
    "pull": Command(
        "lightning_calib.cli.hub:pull",
        _DEPLOY,
        ("repo", "destination", "revision"),
        examples=("pull --repo OWNER/NAME --destination runs/camvid/deployed",),
    ),
    "study": Command("lightning_calib.cli.study:COMMANDS", _RESEARCH),
    "reproduce": Command(
        "lightning_calib.cli.reproduce:reproduce",
        _RESEARCH,
        ("outputs", "pipelines", "cal", "val", "test", "repeats", "studies", "workers", "executor"),
        _EXPERIMENT,
        examples=(f"reproduce {_OUTPUTS} --config configs/calibrate/camvid.yaml",),
    ),
    "fit": Command(
        "lightning_calib.cli.fit:fit",
        _RESEARCH,
        ("outputs", "pipeline", "cal", "val", "repeat", "solver", "lam", "mu", "destination"),
        _DATA,
        (_TRAINER,),
        (f'fit {_OUTPUTS} --pipeline "cms_op(p)"',),
    ),
    "search": Command(
        "lightning_calib.cli.search:search",
        _RESEARCH,
        ("outputs", "pipeline", "trials", "cal", "val", "repeat", "storage", "destination"),
        _DATA,
        examples=(f'search {_OUTPUTS} --pipeline "cms_op(p)" --trials 20',),
    ),
    "verify": Command("lightning_calib.cli.doctor:verify", former="doctor --hashes"),
    "recommend": Command("lightning_calib.cli.recommend:recommend", former="show"),
    "compare": Command("lightning_calib.cli.compare:compare", former="show --candidates"),
}


def main(args: Sequence[str] | None = None) -> int:
    """Fit, compare and deploy calibrators on stored outputs.

    Args:
        args: the command line without the program's name; None takes it from the system.

    Returns:
        The exit code. Bad input gives 2 and a message without a traceback; the environment variable
        ``LIGHTNING_CALIB_TRACEBACK=1`` brings the traceback back.
    """
    line = with_packaged(sys.argv[1:] if args is None else args, "calibrate")
    return guarded(partial(_run, line), ["calibrate.py", *line])


def _run(line: list[str]) -> int | None:
    completing = "_ARGCOMPLETE" in os.environ
    if not completing and answered("calibrate.py", str(main.__doc__).partition("\n")[0], COMMANDS, line):
        return 0
    # The parser of one command is quick to build; options before the command, and completion, need them all.
    one = not completing and line[0] in COMMANDS
    names = [line[0]] if one else [name for name, entry in COMMANDS.items() if not getattr(entry, "former", "")]
    components = {name: load(COMMANDS[name]) for name in names}
    from jsonargparse import auto_cli, set_parsing_settings

    from lightning_calib.cli.parser import Parser
    from lightning_calib.kit.noise import silence

    silence()
    if "pytorch_lightning" in sys.modules:
        from pytorch_lightning import Trainer

        from lightning_calib.cli.trainer import TrainerOptions

        set_parsing_settings(subclasses_disabled=[Trainer, TrainerOptions])  # --trainer.devices, not a class path
    code: int | None = auto_cli(
        components, args=full_help(line), as_positional=False, parser_class=Parser, prog=named("calibrate.py")
    )
    return code
