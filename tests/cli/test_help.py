"""Short help, old names, corrected command lines, completion."""

import inspect
import shlex
import subprocess
from pathlib import Path

import pytest
from jsonargparse import auto_cli, capture_parser

from lightning_calib.__main__ import main as top
from lightning_calib.cli import calibrate, train
from lightning_calib.cli.commands import Family, load
from lightning_calib.cli.completion import main as completion
from lightning_calib.cli.parser import Parser
from lightning_calib.cli.signatures import parameters
from lightning_calib.cli.training import TrainCLI
from lightning_calib.experiment.plan import Experiment
from lightning_calib.outputs.stored import StoredOutputsDataModule
from tests.stores import write_store

ROOT = Path(__file__).parents[2]
FLAT = {
    name: entry
    for key, value in calibrate.COMMANDS.items()
    for name, entry in (
        {f"{key} {inner}": each for inner, each in value.members.items()}.items()
        if isinstance(value, Family)
        else [(key, value)]
    )
}
SHORT = {name: entry for name, entry in FLAT.items() if entry.examples}


def shown(capsys, program, *line):
    assert program([*line]) == 0
    return capsys.readouterr().out


def test_the_overview_has_groups_and_no_old_names(capsys):
    text = shown(capsys, calibrate.main, "--help")
    assert [line for line in text.splitlines() if line.endswith(":")] == ["Start:", "Inspect:", "Deploy:", "Research:"]
    assert all(f"\n  {name.split()[0]} " in text for name, entry in FLAT.items() if not entry.former)
    assert not any(f"\n  {name} " in text for name, entry in FLAT.items() if entry.former)


@pytest.mark.parametrize("name", SHORT)
def test_the_short_help_says_what_the_function_says(name, capsys):
    """The help reads the source; Python's own view of the signature is the oracle."""
    text = shown(capsys, calibrate.main, *name.split(), "--help")
    assert f"calibrate.py {name} --help-all lists every option." in text
    entry = SHORT[name]
    signature = inspect.signature(load(entry))
    for option, parameter in parameters(entry.place).items():
        default = signature.parameters[option].default
        assert parameter.required == (default is inspect.Parameter.empty)
        assert parameter.told, f"{option} is not explained"
    assert all(f"\n  --{option} " in text for option in entry.options)
    assert all(f"\n  calibrate.py {example}\n" in text for example in entry.examples)


@pytest.mark.parametrize("kind", [Experiment, StoredOutputsDataModule])
def test_classes_are_read_as_python_reads_them(kind):
    found = parameters(f"{kind.__module__}:{kind.__name__}")
    real = inspect.signature(kind).parameters
    defaults = {name: value.default for name, value in real.items() if value.default is not inspect.Parameter.empty}
    assert list(found) == list(real)
    assert {name for name, value in found.items() if not value.required} == set(defaults)
    for name in ("cal", "val", "seed"):
        assert found[name].default == repr(defaults[name])


def test_every_example_parses(monkeypatch):
    monkeypatch.chdir(ROOT)
    components = {name: load(entry) for name, entry in calibrate.COMMANDS.items() if not getattr(entry, "former", "")}
    parser = capture_parser(lambda: auto_cli(components, as_positional=False, parser_class=Parser, args=["--help"]))
    for entry in SHORT.values():
        for example in entry.examples:
            parser.parse_args(shlex.split(example))


def test_the_help_of_train_names_real_options(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    parser = capture_parser(lambda: TrainCLI(["--help"]))
    for name, entry in train.COMMANDS.items():
        words = shlex.split(entry.examples[0])
        parser.parse_args(words)
        text = shown(capsys, train.main, name, "--help")
        options = {f"--{key}" for key in parser.parse_args(words)[name].keys(branches=True)} | {"--config"}
        assert {option for option, _ in entry.told if "*" not in option} <= options
        assert "--help-all lists every option" in text


def test_the_full_help_has_every_option_and_no_types(capsys):
    with pytest.raises(SystemExit):
        calibrate.main(["run", "--help-all"])
    text = capsys.readouterr().out
    assert all(f"--{option}" in text for option in parameters(FLAT["run"].place) if option != "settings")
    assert "--trainer.accelerator" in text
    assert "(type:" not in text
    assert "Union[" not in text


@pytest.mark.parametrize(("old", "new"), [("verify", "doctor --hashes"), ("recommend", "show"), ("compare", "show")])
def test_an_old_name_works_and_says_so(old, new, tmp_path, capsys):
    option = "--outputs" if old == "verify" else "--calibration"
    assert calibrate.main([old, option, str(tmp_path)]) in (1, 2)  # nothing is there
    assert f"the new one is `calibrate.py {new}" in capsys.readouterr().err


def test_shares_fit_twenty_cases_and_numbers_are_corrected(tmp_path, capsys):
    store = write_store(tmp_path / "outputs", cases=20)
    assert [len(getattr(StoredOutputsDataModule(store).split, part)) for part in ("cal", "val", "test")] == [10, 4, 6]
    line = ["fit", f"--outputs={store.path}", "--pipeline", "ts(z)", "--cal", "50", "--val=4", "--doctor", "false"]
    assert calibrate.main(line) == 2
    tried = capsys.readouterr().err.splitlines()[-1]
    better = f"fit --outputs={store.path} --pipeline 'ts(z)' --doctor false --cal 0.5 --val 0.2 --test 0.3"
    assert tried == f"try: calibrate.py {better}"
    assert calibrate.main([*shlex.split(better), "--trainer.enable_progress_bar=false"]) == 0


@pytest.mark.parametrize(
    ("program", "line", "better"),
    [
        (calibrate.main, ["runn", "--outputs", "a b"], "calibrate.py run --outputs 'a b'"),
        (calibrate.main, ["recomend", "--calibration", "x"], "calibrate.py show --calibration x"),
        (top, ["trian", "fit"], "lightning-calib train fit"),
    ],
)
def test_a_wrong_command_is_printed_corrected(program, line, better, capsys):
    assert program(line) == 2
    assert f"\ntry: {better}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "better"),
    [
        (["run", "--outputs", "x", "--repeat", "3"], "try: calibrate.py run --outputs x --repeats 3"),
        (["run", "--outputs", "x", "--repeats", "many"], "  Expected a whole number. Got value: many"),
        (["run"], "error: --outputs must be given"),
        (["run"], "(calibrate.py run --help lists the options)"),
    ],
)
def test_a_wrong_option_is_told_without_types(line, better, capsys):
    with pytest.raises(SystemExit):
        calibrate.main(line)
    error = capsys.readouterr().err
    assert better in error.splitlines()
    assert "<class" not in error


def test_bash_completes_commands_and_options(tmp_path, capsys):
    script = tmp_path / "complete"
    script.write_text(shown(capsys, completion, "bash"))
    ask = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_lightning_calib; echo "${COMPREPLY[@]}"'

    def completed(*words):
        done = subprocess.run(["bash", "-c", ask, script, *words], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("lightning-calib", "calibrate", "ru") == ["run"]
    assert completed("lightning-calib", "calibrate", "run", "--pip") == ["--pipelines"]
    assert completed("lightning-calib", "calibrate", "study", "fli") == ["flips"]
    assert completed("lightning-calib", "train", "ensemble", "--mem") == ["--members"]


def test_completion_asks_for_a_shell(capsys):
    assert top(["completion"]) == 2
    assert "bash, zsh, tcsh" in capsys.readouterr().err
