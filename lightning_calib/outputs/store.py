"""Reading of frozen ensemble outputs, case by case and lazily."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from lightning_calib.functional.pooling import POOLINGS, Pooling, pool
from lightning_calib.functional.regions import log_odds, two_classes
from lightning_calib.kit.files import sha256
from lightning_calib.outputs.manifest import (
    CASES,
    MANIFEST,
    SUFFIX,
    CaseRecord,
    Manifest,
    StoreError,
    case_path,
    read_header,
)
from lightning_calib.outputs.previews import Preview, read_preview
from lightning_calib.outputs.regions import Region
from lightning_calib.outputs.views import View, view_folder

_LISTED = 20  # problems that an error spells out; the rest is counted


@dataclass(frozen=True)
class StoredCase:
    """One case of a store; its arrays are mapped from the file when they are asked for.

    In the view of a region, ``channel`` is its number and the classes are outside and inside.
    """

    path: Path
    record: CaseRecord
    manifest: Manifest
    region: Region | None = None
    channel: int = 0

    @property
    def case_id(self) -> str:
        """Name of the case."""
        return self.record.case_id

    @property
    def group(self) -> str:
        """Patient, sequence or tile that the case belongs to; its own id where no group is known."""
        return self.manifest.group_of(self.record)

    @property
    def shape(self) -> tuple[int, ...]:
        """Spatial shape ``S``."""
        return self.record.shape

    @property
    def geometry(self) -> Mapping[str, Any] | None:
        """Spacing, affine and the like, where the data set has them."""
        return self.record.geometry

    @property
    def logits(self) -> Tensor | None:
        """Member logits ``(M, C, *S)`` in the stored precision; None where the store keeps pooled ones."""
        return self._scores("logits")[: self.manifest.num_members] if self.manifest.keep == "members" else None

    @property
    def target(self) -> Tensor:
        """Labels ``(*S)``, int64; a store without any is refused."""
        refuse_unlabelled(self.manifest, self.path.parent.parent)
        labels = self._read("target")
        return labels if self.region is None else self.region.target(labels, self.manifest.ignore_index)

    @property
    def valid(self) -> Tensor | None:
        """Where the networks predicted, bool ``(*S)``; None where that is everywhere."""
        return self._read("valid") if self.record.has_valid else None

    @property
    def preview(self) -> Preview | None:
        """A small picture of the image; None where the store has none."""
        return read_preview(self.path.parent.parent, self.case_id)

    def pooled(self, pooling: Pooling) -> Tensor:
        """Pooled logits ``(C, *S)`` in float32 (see :func:`lightning_calib.functional.pool`)."""
        if pooling not in POOLINGS:
            raise ValueError(f"unknown pooling {pooling!r}; choose one of {', '.join(POOLINGS)}")
        if self.manifest.keep == "pooled":
            return self._scores(pooling).float()
        pooled = pool(self._scores("logits")[None, : self.manifest.num_members], pooling)
        return pooled[0] if self.region is None else two_classes(log_odds(pooled), dim=1)[0]

    def _scores(self, name: str) -> Tensor:
        """Scores ``([M,] C, *S)``; of a region, those of its two classes."""
        scores, classes = self._read(name), -1 - len(self.shape)
        return scores if self.region is None else two_classes(scores.select(classes, self.channel), classes)

    def _read(self, name: str) -> Tensor:
        self._refuse_changed()
        try:
            with safe_open(self.path, framework="pt") as file:  # maps the file; nothing is copied
                tensor: Tensor = file.get_tensor(name)
        except Exception as problem:
            raise StoreError(f"{self.path}: cannot read {name!r} ({problem})") from problem
        return tensor

    def _refuse_changed(self) -> None:
        """Stop where the file is not what was predicted; a process looks once, and again where it was written anew."""
        try:
            facts = self.path.stat()
            found = _sha256(self.path, facts.st_size, facts.st_mtime_ns)
        except OSError as problem:
            raise StoreError(f"{self.path} cannot be read ({problem})") from problem
        if found != self.record.sha256:
            raise StoreError(_changed(self.path))


class OutputStore:
    """Frozen outputs of an ensemble: ``manifest.json`` and one safetensors file a case.

    Opening checks presence, sizes and headers of all files and names every one that is missing, truncated
    or foreign; :meth:`verify` checks the contents too. Cases are read when asked for, so that memory does
    not grow with their number; the content of a case's file is checked before a process reads it for the first time.

    Args:
        path: the folder, usually ``runs/<name>/outputs``.
        members: size of the ensemble: its first members count; None for all.

    Attributes:
        root: where the files are: ``path``, or the store of regions that ``path`` is a view of.
        stored: the manifest of ``root``; ``manifest`` is that of the view.
        channel: number of the view's region; None where the store is no view.

    Example:
        >>> import tempfile, torch
        >>> from lightning_calib.outputs.manifest import Member
        >>> from lightning_calib.outputs.writer import OutputWriter
        >>> folder = Path(tempfile.mkdtemp()) / "outputs"
        >>> writer = OutputWriter(folder, "toy", ["sky", "road"], 2, [Member("0"), Member("1")])
        >>> _ = writer.write("a", logits=torch.zeros(2, 2, 4, 4), target=torch.zeros(4, 4, dtype=torch.long))
        >>> _ = writer.finish()
        >>> store = OutputStore(folder)
        >>> len(store), store["a"].logits.shape, store["a"].pooled("p").shape
        (1, torch.Size([2, 2, 4, 4]), torch.Size([2, 4, 4]))
    """

    def __init__(self, path: str | Path, members: int | None = None) -> None:
        self.path = Path(path)
        view = View.read(self.path)
        self.root = self.path if view is None else view.root(self.path)
        self.stored = Manifest.load(_manifest_path(self.root))
        self.channel = None if view is None else view.channel(self.stored, self.path)
        self.manifest = self.stored if self.channel is None else self.stored.of_region(self.channel)
        if self.manifest.regions:
            listed = ", ".join(str(view_folder(self.path, region)) for region in self.manifest.regions)
            raise StoreError(f"{self.path} holds regions, which are no classes: name the view of one of them: {listed}")
        self._records = {case.case_id: case for case in self.manifest.cases}
        _refuse(self.path, [*self._problems(), *self._foreign()])
        self.stored_members = self.manifest.num_members
        if members is not None:
            self.manifest = self._first(members)

    def _first(self, members: int) -> Manifest:
        """The manifest of a smaller ensemble."""
        if not 1 <= members <= self.stored_members:
            raise StoreError(f"members = {members}: {self.path} has {self.stored_members}")
        if self.manifest.keep == "pooled" and members < self.stored_members:
            raise StoreError(
                f"{self.path} keeps pooled logits alone, so that smaller ensembles cannot be made of it; predict again "
                "with --outputs.keep members"
            )
        return replace(self.manifest, members=self.manifest.members[:members])

    @property
    def case_ids(self) -> tuple[str, ...]:
        """Ids of all cases, sorted."""
        return tuple(self._records)

    @property
    def groups(self) -> dict[str, str]:
        """Group of each case at the level that the data set keeps whole."""
        return self.groups_at(self.manifest.group_level)

    @property
    def group_levels(self) -> tuple[str, ...]:
        """Names of the levels of groups, coarsest first; empty where cases have none."""
        return self.manifest.group_levels

    def groups_at(self, level: str | int) -> dict[str, str]:
        """Group of each case at a level.

        Args:
            level: its name or number, from 0 for the coarsest; ``case`` for each case by itself.

        Returns:
            By case id the group's name; groups of finer levels are written ``coarse/fine``.
        """
        return {case_id: self.manifest.group_of(record, level) for case_id, record in self._records.items()}

    def __len__(self) -> int:
        """Number of cases."""
        return len(self._records)

    def __contains__(self, case_id: object) -> bool:
        """Whether the store holds a case."""
        return case_id in self._records

    def __iter__(self) -> Iterator[StoredCase]:
        """Go through the cases in the order of their ids."""
        return (self[case_id] for case_id in self._records)

    def __getitem__(self, case_id: str) -> StoredCase:
        """One case by its id."""
        if case_id not in self._records:
            some = ", ".join(list(self._records)[:5])
            raise KeyError(f"no case {case_id!r} in {self.path}; it holds {len(self)} cases: {some}, ...")
        path = case_path(self.root, case_id)
        if self.channel is None:
            return StoredCase(path, self._records[case_id], self.manifest)
        region = self.stored.regions[self.channel]
        return StoredCase(path, self._records[case_id], self.manifest, region, self.channel)

    def verify(self) -> None:
        """Check the hash of every file; all that differ are named in one error."""
        changed = [
            _changed(path)
            for case in self.manifest.cases
            if sha256(path := case_path(self.root, case.case_id)) != case.sha256
        ]
        _refuse(self.path, changed)

    def _problems(self) -> Iterator[str]:
        for case in self.stored.cases:
            path = case_path(self.root, case.case_id)
            if not path.is_file():
                yield f"{path} is missing"
            elif (size := path.stat().st_size) != case.size:
                yield f"{path} has {size:,} bytes, the manifest records {case.size:,}: truncated or changed"
            else:
                yield from _header_problem(path, self.stored.arrays(case))

    def _foreign(self) -> Iterator[str]:
        for path in sorted((self.root / CASES).glob(f"*{SUFFIX}")):
            if path.name.removesuffix(SUFFIX) not in self._records and not path.name.startswith("."):
                yield f"{path} is not in the manifest: a file of another run?"


def refuse_unlabelled(manifest: Manifest, place: Path) -> None:
    """Stop where a store has no targets."""
    if not manifest.labelled:
        raise StoreError(
            f"{place} holds no targets, since its images came without masks: `apply` and `monitor` take it, nothing "
            "that needs labels does"
        )


@cache
def _sha256(path: Path, size: int, changed: int) -> str:
    """Hash of a file as it is now."""
    return sha256(path)


def _changed(path: Path) -> str:
    return f"{path} does not have the content that the manifest records: predict this case again"


def _header_problem(path: Path, expected: dict[str, tuple[str, tuple[int, ...]]]) -> Iterator[str]:
    try:
        found = read_header(path)
    except StoreError as problem:
        yield str(problem)
        return
    if found != expected:
        yield f"{path} holds {found} where the manifest records {expected}"


def _manifest_path(root: Path) -> Path:
    path = root / MANIFEST
    if path.is_file():
        return path
    if not root.is_dir():
        raise StoreError(f"there is no output store at {root}: write one with `train.py predict`")
    written = len(list((root / CASES).glob(f"*{SUFFIX}")))
    if not written:
        inside = root / "outputs" / MANIFEST
        hint = (
            f"name {inside.parent}" if inside.is_file() else "name a folder that `train.py predict` or `import` wrote"
        )
        raise StoreError(f"{root} is no output store, {MANIFEST} is missing: {hint}")
    raise StoreError(
        f"{path} is missing and {written} case files are there: `predict` has not finished; "
        "run it again with the same config and it goes on where it stopped"
    )


def _refuse(root: Path, problems: list[str]) -> None:
    if not problems:
        return
    rest = [f"... and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else []
    listed = "\n  ".join(problems[:_LISTED] + rest)
    raise StoreError(f"{len(problems)} problem(s) in the output store {root}:\n  {listed}")
