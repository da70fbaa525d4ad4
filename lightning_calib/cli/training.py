"""The commands of train.py: fit, validate, test, predict, ensemble."""

import os
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
import yaml
from jsonargparse import Namespace
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities import rank_zero_info, rank_zero_warn

from lightning_calib.callbacks.member import AtomicCheckpoints, ProgressFile, StopWithParent
from lightning_calib.callbacks.outputs import StoreOutputs, say_finished
from lightning_calib.callbacks.overlays import SampleOverlays
from lightning_calib.cli.corrupted import corrupted
from lightning_calib.cli.ensemble import Job, train_members
from lightning_calib.cli.new_images import options_of, predict_images
from lightning_calib.cli.parser import BriefErrors
from lightning_calib.cli.prediction import predict_by
from lightning_calib.cli.run_data import (
    ChangedData,
    refuse_changed,
    settle_out_of_fold,
    settle_pool,
    settle_training,
    trained_cases,
)
from lightning_calib.cli.run_folder import Checkpoint, MemberFolder, RunError, RunFolder
from lightning_calib.cli.trainer import (
    LOGGERS,
    MemberTrainer,
    OutputOptions,
    SaveConfig,
    finish_loggers,
    name_loggers,
    place_loggers,
    precision_note,
)
from lightning_calib.datasets.base import SegmentationDataModule
from lightning_calib.datasets.corruptions import Severity
from lightning_calib.datasets.look import describe, save_sheet
from lightning_calib.datasets.preprocessing import Preprocessing, PreprocessingError
from lightning_calib.datasets.registry import DATASETS
from lightning_calib.datasets.settled import NewCases
from lightning_calib.executors.base import make_executor
from lightning_calib.executors.local import available_cores, visible_gpus
from lightning_calib.kit.files import FILE_NAMES, names_file, plain, remove_leftovers, write_text
from lightning_calib.kit.noise import quiet
from lightning_calib.kit.program import named
from lightning_calib.outputs.doctor.images import remember_images
from lightning_calib.outputs.folds import MEMBER as OUT_OF_FOLD
from lightning_calib.outputs.folds import Fold
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.tasks.prediction import EnsemblePrediction
from lightning_calib.tasks.segmentation import SegmentationTask

_NOT_OF_MEMBERS = ("members", "parallel", "executor", "ckpt_path")
_FACTS = ("num_classes", "in_channels", "spatial_dims", "ignore_index", "background")


class TrainParser(BriefErrors, LightningArgumentParser):
    """LightningCLI's parser with brief errors."""


class TrainCLI(LightningCLI):
    """LightningCLI with run folders, ensembles and output stores."""

    def __init__(self, args: ArgsType = None, cases: Collection[str] | None = None) -> None:
        self.cases = cases  # of the pool set, where others predict the rest
        super().__init__(
            model_class=SegmentationTask,
            datamodule_class=SegmentationDataModule,
            subclass_mode_data=True,
            trainer_class=MemberTrainer,
            trainer_defaults={"logger": LOGGERS, "log_every_n_steps": 1},
            save_config_callback=SaveConfig,
            save_config_kwargs={"save_to_log_dir": False},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_class=TrainParser,
            parser_kwargs={"prog": named("train.py")},
            args=args,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The commands, and which arguments of the Trainer's methods are not options."""
        common = {"model", "dataloaders", "datamodule", "weights_only"}
        return {
            "fit": common | {"train_dataloaders", "val_dataloaders"},
            "validate": common,
            "test": common,
            "predict": common | {"return_predictions", "ckpt_path"},
            "ensemble": common,
            "check": common,
        }

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Name the run, and hand the facts of the data to the model."""
        DATASETS.values()  # imported: a config may name a data set by its class alone
        parser.add_argument("--name", type=str, required=True, help="Name of the run.")
        parser.add_argument("--runs_dir", type=str, default="runs", help="Folder of all runs.")
        parser.add_argument(
            "--new_cases", type=NewCases, default="leave_out", help="Part of the cases that the run did not begin with."
        )
        parser.add_argument(
            "--changed_data", type=ChangedData, default="refuse", help="Whether members may know other cases."
        )
        parser.add_class_arguments(OutputOptions, "outputs")
        parser.add_lightning_class_args(SampleOverlays, "overlays")
        for fact in _FACTS:
            parser.link_arguments(f"data.{fact}", f"model.{fact}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse; unlike Lightning's, without a warning where ``args`` are given."""
        parsed = parser.parse_object(args) if isinstance(args, (dict, Namespace)) else parser.parse_args(args)
        self.config = parsed

    @property
    def options(self) -> Namespace:
        """Parsed options of the command that runs."""
        chosen: Namespace = self.config[self.subcommand]
        return chosen

    @property
    def run(self) -> RunFolder:
        """Folder of the run."""
        parts = Path(self.options.name).parts
        if not parts or not all(map(names_file, parts)):
            raise RunError(
                f"--name {self.options.name!r} cannot name a folder in {self.options.runs_dir}: {FILE_NAMES}"
            )
        return RunFolder(Path(self.options.runs_dir) / self.options.name)

    @property
    def member(self) -> MemberFolder:
        """Folder of the member that the seed names."""
        return self.run.member(int(self.options.seed_everything))

    def before_instantiate_classes(self) -> None:
        """Direct what the Trainer writes into the member's folder."""
        self.given = self._plain_options()  # before what follows: members get the options as they were given
        self.options.trainer.default_root_dir = str(self.member.path)
        if self.subcommand == "fit":
            self.member.refuse_other_config(self.given)
        else:
            self.options.trainer.enable_checkpointing = False
        if self.subcommand in ("predict", "ensemble"):
            self.options.trainer.logger = False
        else:
            place_loggers(self.options.trainer.logger, self.member.path)
        if self.subcommand == "fit":
            name_loggers(self.options.trainer.logger, self.member, self.run.path.name)

    def instantiate_classes(self) -> None:
        """Make data, network and Trainer; to look at the data, the data alone; for new images, nothing yet."""
        of_images = self.subcommand == "predict" and self.options.images is not None
        if self.subcommand != "check" and not of_images:
            super().instantiate_classes()
            return
        self.config_init, self.model, self.trainer = self.config, None, MemberTrainer(logger=False, devices=1)
        self.datamodule = None if of_images else self._read_data()

    def _read_data(self) -> SegmentationDataModule:
        """The data set of the config, without a network."""
        parser = TrainParser(exit_on_error=False)
        parser.add_subclass_arguments(SegmentationDataModule, "data")
        data: SegmentationDataModule = parser.instantiate_classes(
            parser.parse_object({"data": self.given["data"]})
        ).data
        return data

    def check(self, model: None, datamodule: SegmentationDataModule, cases: int, sheet: bool) -> None:
        """Say what the data look like, as the run divides them."""
        settle_training(datamodule, self.run, self.options.new_cases, write=False)
        print("\n  ".join([datamodule.summary(), *describe(datamodule, cases)]))
        if sheet:
            save_sheet(datamodule, self.run.path / "check.png")
            print(self.run.path / "check.png")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add checkpoints, progress and atomic files to what the config asks for."""
        chosen = self._get(self.config_init, "trainer")
        callbacks = chosen.callbacks if isinstance(chosen.callbacks, list) else [chosen.callbacks]
        plugins = chosen.plugins if isinstance(chosen.plugins, list) else [chosen.plugins]
        kwargs["callbacks"] = [callback for callback in callbacks if callback] + self._member_callbacks()
        kwargs["plugins"] = [plugin for plugin in plugins if plugin] + [AtomicCheckpoints()]
        return super().instantiate_trainer(**kwargs)

    def _member_callbacks(self) -> list[Callback]:
        folder = self.member.checkpoint().parent
        if self.subcommand != "fit":
            return []
        last = ModelCheckpoint(folder, "last", save_on_train_epoch_end=True, enable_version_counter=False)
        found: list[Callback] = [last, ProgressFile(self.member.progress), StopWithParent()]
        if self.datamodule.val_dataloader():
            best = ModelCheckpoint(folder, "best", "val/dice", mode="max", enable_version_counter=False)
            found.insert(0, best)  # before the last one, which holds its state
        return found

    def fit(self, model: SegmentationTask, datamodule: SegmentationDataModule, ckpt_path: str | None) -> None:
        """Train one member; goes on from its last epoch where it was interrupted."""
        with self.member.locked() if _first_process() else nullcontext():
            remove_leftovers(self.run.path, self.member.path, self.member.checkpoint().parent)
            self.member.refuse_damaged()
            if self.member.finished:
                rank_zero_info(f"member {self.member.name} in {self.member.path} is finished")
                return
            known = settle_training(datamodule, self.run, self.options.new_cases, _first_process())
            if _first_process():
                refuse_changed(self.run, known, self.options.changed_data)
                self.member.write_training(datamodule.parts, known)
            rank_zero_info(datamodule.summary())
            last = self.member.checkpoint("last")
            resume = ckpt_path or (str(last) if last.is_file() else None)
            self.trainer.fit(model, datamodule=datamodule, ckpt_path=resume, weights_only=True)
            if self.trainer.is_global_zero and last.is_file():
                steps = {"epochs": self.trainer.current_epoch, "steps": self.trainer.global_step}
                self.member.mark_finished({"seed": int(self.options.seed_everything), **steps})
            finish_loggers(self.trainer, {name: self.member.checkpoint(name) for name in get_args(Checkpoint)})

    def validate(self, model: SegmentationTask, datamodule: SegmentationDataModule, **options: Any) -> None:
        """Score the member on the validation cases."""
        settle_training(datamodule, self.run, self.options.new_cases, write=False)
        self.trainer.validate(model, datamodule=datamodule, **self._with_checkpoint(options))

    def test(self, model: SegmentationTask, datamodule: SegmentationDataModule, **options: Any) -> None:
        """Score the member on the pool set."""
        settle_pool(datamodule, self.run, trained_cases([self.member]), self.options.new_cases, write=False)
        datamodule.test_dataloader = datamodule.predict_dataloader  # type: ignore[method-assign]
        self.trainer.test(model, datamodule=datamodule, **self._with_checkpoint(options))

    def predict(
        self,
        model: SegmentationTask | None = None,
        datamodule: SegmentationDataModule | None = None,
        images: Path | None = None,
        corruption: Severity | None = None,
        corruption_seed: int = 0,
        out_of_fold: bool = False,
        executor: str | dict[str, Any] | None = None,
        parallel: int | None = None,
    ) -> None:
        """Write the outputs of all members for the pool set or for new images; goes on where an earlier run stopped."""
        if images is not None:
            if corruption is not None or out_of_fold or executor is not None:
                raise RunError("--images goes without --corruption, --out_of_fold and --executor")
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            stored = options_of(self.options.outputs)
            say_finished(*predict_images(self.run, images, stored, self.given["model"], self._read_data, device))
            return
        assert model is not None
        assert datamodule is not None
        preprocessing = self._preprocessing(model, datamodule)  # of clean images
        options: OutputOptions = self._get(self.config_init, "outputs")
        outputs = self.run.out_of_fold if out_of_fold else self.run.outputs
        outputs = outputs if options.folder is None else self.run.path / options.folder
        place = corrupted(datamodule, outputs, corruption, corruption_seed)
        members, fold_of = self.run.members(options.members), None
        if out_of_fold:
            members = self.run.of_folds(members, _folds(datamodule))
            fold_of, made_of = settle_out_of_fold(datamodule, self.run, members, self.options.new_cases)
            trained = {}  # every image was in the training of the other networks
        else:
            driver, trained = _first_process() and self.cases is None, trained_cases(members)
            made_of = settle_pool(datamodule, self.run, trained, self.options.new_cases, write=driver)
        rank_zero_info(f"{datamodule.summary()}\n{len(members)} members of {self.run.path}")
        if note := precision_note(self.trainer.precision):
            rank_zero_warn(note)
        open_writer = partial(
            OutputWriter,
            place.outputs,
            dataset=place.dataset,
            class_names=datamodule.class_names,
            spatial_dims=datamodule.spatial_dims,
            **_networks(self.run.records(members, options.checkpoint), fold_of),
            background=datamodule.background,
            ignore_index=datamodule.ignore_index,
            keep=options.keep,
            dtype=options.dtype,
            groups={case.case_id: case.groups for case in datamodule.splits.pool},
            group_levels=datamodule.group_levels,
            group_level=datamodule.group_level,
            preprocessing=preprocessing,
            made_of=made_of,
        )
        if executor is None:
            checkpoints = {member.name: member.checkpoint(options.checkpoint) for member in members}
            self._predict_here(EnsemblePrediction.load(model, checkpoints, fold_of), datamodule, open_writer)
        else:
            config = self._keep_options("predict.yaml")
            chosen = make_executor(executor, parallel, int(os.environ.get("OMP_NUM_THREADS") or 1), quiet)
            say_finished(place.outputs, predict_by(chosen, open_writer, datamodule.pool_ids, config))
        if self.trainer.is_global_zero and self.cases is None:
            place.describe(datamodule)
            remember_images(place.outputs, made_of, trained)

    def _predict_here(
        self, ensemble: EnsemblePrediction, data: SegmentationDataModule, open_writer: Callable[[], OutputWriter]
    ) -> None:
        """Predict under the Trainer: all cases of the pool set, or those that are this process's."""
        if self.cases is not None:
            data.splits = replace(data.splits, pool=[case for case in data.splits.pool if case.case_id in self.cases])
        store = StoreOutputs(open_writer, data.pool_ids, finish=self.cases is None)
        self.trainer.callbacks.append(store)  # type: ignore[attr-defined]
        self.trainer.predict(ensemble, datamodule=data, return_predictions=False)

    def _keep_options(self, name: str) -> Path:
        """Write the options for the processes that do the work; they see the folder of the run."""
        path = self.run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, yaml.safe_dump(self.given, sort_keys=False))
        return path

    @staticmethod
    def _preprocessing(model: SegmentationTask, datamodule: SegmentationDataModule) -> Preprocessing | None:
        """What turns a new image into the networks' input; None, with the reason, where it cannot be written down."""
        try:
            return replace(datamodule.preprocessing, inference=plain(asdict(model.inference)))
        except (NotImplementedError, PreprocessingError) as problem:
            rank_zero_warn(f"deployments of these outputs will take no images: {problem}")
            return None

    def ensemble(
        self,
        model: SegmentationTask,
        datamodule: SegmentationDataModule,
        members: int,
        parallel: int | None,
        executor: str | dict[str, Any],
    ) -> None:
        """Train the members that are not finished, each as a process of its own."""
        first = int(self.options.seed_everything)
        remove_leftovers(self.run.path)
        folders = [self.run.member(seed) for seed in range(first, first + members)]
        for folder in folders:
            folder.refuse_other_config(self.given)
            folder.refuse_damaged()
        known = settle_training(datamodule, self.run, self.options.new_cases, write=True)
        refuse_changed(self.run, known, self.options.changed_data)
        rank_zero_info(datamodule.summary())
        path = self._keep_options("ensemble.yaml")
        gpus = visible_gpus(os.environ) if torch.cuda.is_available() else []
        jobs = [member_job(folder, path, one_gpu=bool(gpus)) for folder in folders if not folder.finished]
        rank_zero_info(f"{len(folders) - len(jobs)} of {len(folders)} members are finished")
        places, threads = members_room(executor, parallel, len(gpus))
        chosen = make_executor(executor, slots=places, threads=threads)
        chosen.check([self.run.path])
        failures = train_members(jobs, chosen)
        if failures:
            told = "\n".join(f"  member {name}: {why}" for name, why in failures.items())
            sys.exit(f"{len(failures)} of {len(folders)} members failed; run it again to go on:\n{told}")

    def _with_checkpoint(self, options: dict[str, Any]) -> dict[str, Any]:
        """The last checkpoint of the member where none is named."""
        last = self.member.checkpoint("last")
        if options.get("ckpt_path") is None:
            if not last.is_file():
                raise RunError(f"{last} does not exist: train the member first, or give --ckpt_path")
            options["ckpt_path"] = str(last)
        return options | {"weights_only": True}

    def _plain_options(self) -> dict[str, Any]:
        """The parsed options of a member, as a config file holds them."""
        plain: dict[str, Any] = yaml.safe_load(self._parser(self.subcommand).dump(self.options, skip_none=False))
        return {key: value for key, value in plain.items() if key not in _NOT_OF_MEMBERS}


def members_room(executor: str | dict[str, Any], parallel: int | None, gpus: int) -> tuple[int | None, int]:
    """Members that train at a time (None leaves it to the executor), and threads of each.

    Example:
        >>> members_room({"name": "ray", "cpus": 8}, None, gpus=0)[0] is None
        True
    """
    options: dict[str, Any] = {"name": executor} if isinstance(executor, str) else executor
    given = os.environ.get("OMP_NUM_THREADS")
    if options.get("name", "local") != "local":
        return parallel, int(given or options.get("cpus", 1))
    places = parallel or max(gpus, 1)
    return places, int(given or max(1, available_cores() // places))


def _folds(data: SegmentationDataModule) -> int:
    """Number of folds of the data."""
    if data.folds is None:
        raise RunError(f"{data.where} has no folds: train the members with data.init_args.folds")
    return data.folds


def _networks(records: list[Member], fold_of: Mapping[str, int] | None) -> dict[str, Any]:
    """The networks of a store: all of them as members, or each one's fold of the cases."""
    if fold_of is None:
        return {"members": records}
    cases = [tuple(case for case, fold in fold_of.items() if fold == number) for number in range(len(records))]
    found = [Fold(m.name, own, m.checkpoint, m.sha256) for m, own in zip(records, cases, strict=True)]
    return {"members": [Member(OUT_OF_FOLD)], "folds": found}


def _first_process() -> bool:
    """Whether this is the process that was started by hand, and not by another one's strategy."""
    return all(os.environ.get(rank, "0") == "0" for rank in ("LOCAL_RANK", "NODE_RANK", "SLURM_PROCID"))


def member_job(folder: MemberFolder, config: Path, one_gpu: bool) -> Job:
    """The process that trains a member."""
    command = [sys.executable, "-m", "lightning_calib", "train", "fit", "--config", str(config)]
    command += ["--seed_everything", folder.name]
    command += ["--trainer.devices", "1"] if one_gpu else []
    return Job(folder.name, command, folder.log, folder.progress)
