"""Where a run keeps what: members, checkpoints, outputs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from lightning_calib.datasets.registry import current_class_paths
from lightning_calib.kit.files import locked, sha256, write_json
from lightning_calib.outputs.manifest import Member

Checkpoint = Literal["last", "best"]

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
        return self.path / "config.yaml"

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
        return (self.path / "finished.json").is_file()

    def checkpoint(self, which: Checkpoint = "last") -> Path:
        """Checkpoint file of the last epoch or of the best one."""
        return self.path / "checkpoints" / f"{which}.ckpt"

    def mark_finished(self, facts: dict[str, Any]) -> None:
        """Leave the mark of a finished training."""
        write_json(self.path / "finished.json", facts)

    def refuse_other_config(self, config: dict[str, Any], parts: tuple[str, ...] = _COMPARED) -> None:
        """Stop where the member was begun with a config that gives another network.

        Args:
            config: options as they are now.
            parts: what of them is compared.
        """
        if not self.config.is_file():
            return
        theirs = _compared(yaml.safe_load(self.config.read_text(encoding="utf-8")), parts)
        ours = _compared(config, parts)
        differing = sorted(key for key in ours | theirs if ours.get(key) != theirs.get(key))
        if differing:
            told = "; ".join(f"{key}: {theirs.get(key)!r} there, {ours.get(key)!r} now" for key in differing[:5])
            raise RunError(
                f"member {self.name} in {self.path} was begun with another config ({told}): "
                "name another run, or remove the member's folder"
            )

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

    def member(self, seed: int | str) -> MemberFolder:
        """Folder of the member with a seed."""
        return MemberFolder(self.path / "members" / str(seed))

    def members(self, names: Sequence[int] | None = None) -> list[MemberFolder]:
        """The finished members, all or by name; others are named in the error."""
        found = sorted((self.path / "members").glob("[0-9]*"), key=lambda path: int(path.name))
        chosen = [MemberFolder(path) for path in found] if names is None else [self.member(n) for n in names]
        if not chosen:
            raise RunError(f"no members in {self.path / 'members'}: train them with `train.py ensemble`")
        if unfinished := [member.name for member in chosen if not member.finished]:
            raise RunError(
                f"member(s) {', '.join(unfinished)} of {self.path} have not finished: run `train.py ensemble` "
                "again, or choose others by --outputs.members"
            )
        return chosen

    def of_folds(self, members: Sequence[MemberFolder], count: int, config: dict[str, Any]) -> list[MemberFolder]:
        """The first member of each fold, in the order of the folds.

        Args:
            members: finished members.
            count: number of folds.
            config: options as they are now; a member that saw other data may have been trained on its fold.

        Raises:
            RunError: naming the folds that no member was trained without, or what differs.
        """
        for member in members:
            member.refuse_other_config(config, ("data",))
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


def _compared(config: dict[str, Any], parts: tuple[str, ...]) -> dict[str, Any]:
    flat = dict(_flatten(current_class_paths(config)))
    return {key: value for key, value in flat.items() if key.startswith(parts) and key not in _FREE}


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
