"""Where a run keeps what: members, checkpoints, outputs."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning_calib.datasets.cases import Splits
from lightning_calib.datasets.content import TRAINED_ON, TRAINING_SIDE, Content, load_training, save_training
from lightning_calib.datasets.registry import current_class_paths
from lightning_calib.kit.checksums import refuse_changed, write_done
from lightning_calib.kit.files import locked, read_yaml, sha256
from lightning_calib.kit.nested import differences, leaves
from lightning_calib.outputs.manifest import Member

Checkpoint = Literal["last", "best"]
CONFIG, CHECKPOINTS, FINISHED = "config.yaml", "checkpoints", "finished.json"  # in a member's folder

_LOCK_SECONDS = 60.0
# Differences that do not make another member: speed and place.
_FREE = ("data.init_args.num_workers", "data.init_args.root", "data.init_args.check")
_COMPARED = ("model", "data", "trainer.max_epochs", "trainer.max_steps", "trainer.accumulate_grad_batches")


class RunError(ValueError):
    """A run folder does not hold what a command needs."""


@dataclass(frozen=True)
class MemberFolder:
    """Folder of one member: ``runs/<name>/members/<k>``."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the member: its seed."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The config that it is trained with."""
        return self.path / CONFIG

    @property
    def progress(self) -> Path:
        """Epoch and scores, renewed after each epoch."""
        return self.path / "progress.json"

    @property
    def log(self) -> Path:
        """What its process printed."""
        return self.path / "train.log"

    @property
    def finished(self) -> bool:
        """Whether the training went to its end."""
        return (self.path / FINISHED).is_file()

    def checkpoint(self, which: Checkpoint = "last") -> Path:
        """Checkpoint file of the last epoch or of the best one."""
        return self.path / CHECKPOINTS / f"{which}.ckpt"

    def mark_finished(self, facts: dict[str, Any]) -> None:
        """Leave the mark of a finished training, and the hashes of what it has left."""
        networks = [f"{CHECKPOINTS}/{path.name}" for path in (self.path / CHECKPOINTS).glob("*.ckpt")]
        write_done(self.path, FINISHED, facts, [CONFIG, TRAINED_ON, *networks])

    def refuse_damaged(self) -> None:
        """Stop where a finished member is not what its training has left."""
        if self.finished:
            refuse_changed(self.path, "bring it back, or remove the folder of the member and train it again")

    def refuse_other_config(self, config: dict[str, Any]) -> None:
        """Stop where the member was begun with a config that gives another network."""
        if not self.config.is_file():
            return
        kept = read_yaml(self.config, "bring it back, or remove it if the config is the same as then")
        theirs, ours = _compared(kept), _compared(config)
        unset = {key: value for key, value in ours.items() if not value}  # as is what an earlier version did not know
        if told := differences(unset | theirs, ours):
            raise RunError(
                f"member {self.name} in {self.path} was begun with another config ({told}): "
                "name another run, or remove the member's folder"
            )

    def trained_on(self, parts: Sequence[str] = TRAINING_SIDE) -> dict[str, Content] | None:
        """Cases of training and validation, and what they are made of; None where that was not written down."""
        return load_training(self.path / TRAINED_ON, parts)

    def write_training(self, splits: Splits, known: Mapping[str, Content]) -> None:
        """Write down what the member is trained on."""
        train, val = ({case.case_id: known[case.case_id] for case in part} for part in (splits.train, splits.val))
        save_training(self.path / TRAINED_ON, train, val)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from training the member; the last words of one that is ending are waited for."""
        return locked(self.path, f"member {self.name} in", _LOCK_SECONDS)


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run: ``runs/<name>``."""

    path: Path

    @property
    def outputs(self) -> Path:
        """The output store."""
        return self.path / "outputs"

    @property
    def out_of_fold(self) -> Path:
        """The output store of the training side, each case scored by the network that was not trained on it."""
        return self.path / "out_of_fold"

    @property
    def split(self) -> Path:
        """Which cases are in which part, as the run has begun with."""
        return self.path / "split.json"

    def begun(self) -> list[MemberFolder]:
        """Members whose training has begun, in order of their seeds."""
        found = sorted((self.path / "members").glob("[0-9]*"), key=lambda path: int(path.name))
        return [MemberFolder(path) for path in found]

    def member(self, seed: int | str) -> MemberFolder:
        """Folder of the member with a seed."""
        return MemberFolder(self.path / "members" / str(seed))

    def members(self, names: Sequence[int] | None = None) -> list[MemberFolder]:
        """The finished members, all or by name; others are named in the error."""
        chosen = self.begun() if names is None else [self.member(n) for n in names]
        if not chosen:
            raise RunError(f"no members in {self.path / 'members'}: train them with `train.py ensemble`")
        if unfinished := [member.name for member in chosen if not member.finished]:
            raise RunError(
                f"member(s) {', '.join(unfinished)} of {self.path} have not finished: run `train.py ensemble` "
                "again, or choose others by --outputs.members"
            )
        for member in chosen:
            member.refuse_damaged()
        return chosen

    def of_folds(self, members: Sequence[MemberFolder], count: int) -> list[MemberFolder]:
        """The first member of each fold, in the order of the folds.

        Raises:
            RunError: naming the folds that no member was trained without.
        """
        found: dict[int, MemberFolder] = {}
        for member in members:
            found.setdefault(int(member.name) % count, member)
        if missing := [str(fold) for fold in range(count) if fold not in found]:
            raise RunError(
                f"no finished member of {self.path} was trained without fold {', '.join(missing)} of {count}: train "
                f"{count} members with `train.py ensemble`"
            )
        return [found[fold] for fold in range(count)]

    def records(self, members: Sequence[MemberFolder], which: Checkpoint) -> list[Member]:
        """What an output store says about members: name, checkpoint and its hash."""
        return [
            Member(m.name, os.path.relpath(m.checkpoint(which), self.path), sha256(m.checkpoint(which)))
            for m in members
        ]


def _compared(config: dict[str, Any]) -> dict[str, Any]:
    flat = dict(leaves(current_class_paths(config)))
    return {key: value for key, value in flat.items() if key.startswith(_COMPARED) and key not in _FREE}
