"""The manifest of an output store: what was predicted, by whom, and which files hold it."""

import json
import struct
from collections import Counter
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from torch import Tensor

from lightning_calib.datasets.cases import CASE, group_name, level_depth
from lightning_calib.datasets.content import Content
from lightning_calib.datasets.groups import check_levels, unnamed
from lightning_calib.datasets.preprocessing import Preprocessing
from lightning_calib.functional.pooling import POOLINGS
from lightning_calib.kit.checksums import CHECKSUMS, changed_files, note_checksums
from lightning_calib.kit.files import FILE_NAMES, FileError, names_file, read_json, write_text
from lightning_calib.kit.typed import WrongTypeError, typed
from lightning_calib.outputs import folds, regions
from lightning_calib.outputs.folds import Fold
from lightning_calib.outputs.regions import Region

FORMAT_VERSION = 3
# Format versions that are read: stores of the first say nothing of the preprocessing, older ones than the third know
# one group a case; the fourth is that of stores of regions, the fifth that of out-of-fold stores: others know nothing
# of these. The sixth has no targets.
_READ = (1, 2, 3, 4, 5, 6)
_NESTED, REGIONS_VERSION, FOLDS_VERSION, UNLABELLED_VERSION = 3, 4, 5, 6
MANIFEST = "manifest.json"
CASES = "cases"
SUFFIX = ".safetensors"

Representation = Literal["logits", "log_probs"]
Keep = Literal["members", "pooled"]
StoreDtype = Literal["float32", "float16"]

_HEADER_DTYPES = {"float32": "F32", "float16": "F16"}


class StoreError(ValueError):
    """An output store is incomplete, damaged or not what it is taken for."""


@dataclass(frozen=True)
class Member:
    """One network of the ensemble, known by the hash of its checkpoint where there is one."""

    name: str
    checkpoint: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class CaseRecord:
    """What the manifest says about one case.

    ``changed_argmax`` counts, for each pooling, the voxels whose pooled argmax the stored precision changed,
    among the ``voxels`` that are valid and not ignored. ``groups`` are those of the manifest's levels. ``made_of``
    holds the hashes of the image and the mask, where they are known.
    """

    case_id: str
    shape: tuple[int, ...]
    size: int
    sha256: str
    groups: tuple[str, ...] = ()
    has_valid: bool = False
    voxels: int = 0
    changed_argmax: dict[str, int] = field(default_factory=dict)
    geometry: dict[str, Any] | None = None
    made_of: Content = field(default_factory=dict)

    @staticmethod
    def plain(facts: dict[str, Any]) -> dict[str, Any]:
        """The JSON form of today; an id that would lead out of the store is refused."""
        check_case_id(facts["case_id"])
        facts = dict(facts)
        groups = facts.pop("groups") if "groups" in facts else [facts.pop("group")]  # one before format version 3
        return facts | {"groups": groups}

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Self:
        """Read a record from its JSON form."""
        record: Self = typed(cls.plain(facts), cls)
        return record


@dataclass(frozen=True)
class Manifest:
    """Everything about a store but the arrays themselves (``manifest.json``).

    Args:
        dataset: name of the data set.
        class_names: one name a class; their number is the number of classes.
        background: index of the background class, where the data set names one.
        ignore_index: label of voxels that count nowhere, where there is one.
        spatial_dims: 2 or 3.
        members: the networks, in the order of the member axis.
        representation: ``logits`` or ``log_probs``.
        keep: ``members`` for ``logits (M, C, *S)``; ``pooled`` for ``z``, ``p`` and ``p0``, each ``(C, *S)``.
        dtype: ``float32`` or ``float16``.
        preprocessing: what turns a new image into the networks' input; None where it is not known.
        group_levels: names of the levels of groups, coarsest first.
        group_level: the level that the data set keeps whole; ``case`` where there is none.
        regions: what the channels of sigmoid networks stand for; empty where channels are classes that compete.
        folds: of an out-of-fold store, the networks and which cases each of them scored; empty elsewhere.
        labelled: whether cases have targets; those of new images have none.
        cases: one record a case, sorted by id.
        format_version: version of this format.
    """

    dataset: str
    class_names: tuple[str, ...]
    background: int | None
    ignore_index: int | None
    spatial_dims: int
    members: tuple[Member, ...]
    representation: Representation = "logits"
    keep: Keep = "members"
    dtype: StoreDtype = "float32"
    preprocessing: Preprocessing | None = None
    group_levels: tuple[str, ...] = ()
    group_level: str = CASE
    regions: tuple[Region, ...] = ()
    folds: tuple[Fold, ...] = ()
    labelled: bool = True
    cases: tuple[CaseRecord, ...] = ()
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        """Refuse facts that contradict each other."""
        for name, kind in (("representation", Representation), ("keep", Keep), ("dtype", StoreDtype)):
            if getattr(self, name) not in get_args(kind):
                raise StoreError(f"{name} {getattr(self, name)!r}: choose one of {', '.join(get_args(kind))}")
        for name in (self.dataset, *self.class_names, *(member.name for member in self.members)):
            if not name.isprintable():
                raise StoreError(f"the name {name!r} holds line breaks or control characters: give another one")
        if len(self.class_names) < 2:
            raise StoreError(f"an output store needs two or more classes, got {list(self.class_names)}")
        if not self.members:
            raise StoreError("an output store needs one member or more")
        if self.spatial_dims not in (2, 3):
            raise StoreError(f"spatial_dims is 2 or 3, got {self.spatial_dims}")
        if self.background is not None and not 0 <= self.background < self.num_classes:
            raise StoreError(f"background {self.background} is none of the {self.num_classes} classes")
        try:
            level_depth(check_levels(self.group_levels, "group_levels"), self.group_level)
        except ValueError as problem:
            raise StoreError(str(problem)) from problem
        if wrong := regions.problems(self.regions, self.num_classes):
            raise StoreError(wrong)
        if wrong := folds.problems(self.folds, self.num_members, [case.case_id for case in self.cases]):
            raise StoreError(wrong)
        if self.ignore_index is not None and 0 <= self.ignore_index < self.num_classes:
            raise StoreError(
                f"ignore_index {self.ignore_index} is also a class ({self.class_names[self.ignore_index]})"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def num_channels(self) -> int:
        """Score maps of a member: one a class, or one a region."""
        return len(self.regions) or self.num_classes

    @property
    def num_members(self) -> int:
        """Number of members M."""
        return len(self.members)

    @property
    def out_of_fold(self) -> bool:
        """Whether each case was scored by the one network of a cross-validation that was not trained on it."""
        return bool(self.folds)

    @property
    def array_names(self) -> tuple[str, ...]:
        """Names of the score arrays in each case's file."""
        return ("logits",) if self.keep == "members" else tuple(POOLINGS)

    def group_depth(self, level: str | int) -> int:
        """Number of a level of groups, from 1 for the coarsest; 0 for ``case``, where each case is its own group."""
        if isinstance(level, int) and not 0 <= level < len(self.group_levels):
            raise ValueError(f"there is no level {level} of groups; there are {len(self.group_levels)}, from 0")
        return level_depth(self.group_levels, self.group_levels[level] if isinstance(level, int) else level)

    def group_of(self, case: CaseRecord, level: str | int | None = None) -> str:
        """Group of a case at a level, by default the one that is kept whole; finer ones as ``coarse/fine``."""
        depth = self.group_depth(self.group_level if level is None else level)
        return group_name(case.groups, depth, case.case_id)

    def changed_argmax(self) -> dict[str, float]:
        """Share of voxels whose pooled argmax the stored precision changed, for each pooling."""
        voxels = max(sum(case.voxels for case in self.cases), 1)
        return {name: sum(case.changed_argmax.get(name, 0) for case in self.cases) / voxels for name in POOLINGS}

    def foreign(self, labels: Tensor) -> Tensor:
        """Which labels are neither a class nor ``ignore_index``."""
        foreign = (labels < 0) | (labels >= self.num_classes)
        return foreign if self.ignore_index is None else foreign & (labels != self.ignore_index)

    def with_one_level(self) -> Self:
        """An older manifest with its groups as a level, unless each case is its own."""
        if all(case.groups == (case.case_id,) for case in self.cases):
            return replace(self, cases=tuple(replace(case, groups=()) for case in self.cases))
        (level,) = unnamed(1)
        return replace(self, group_levels=(level,), group_level=level)

    def of_region(self, channel: int) -> Self:
        """The manifest of a region's view: outside and inside as two classes."""
        name = self.regions[channel].name
        classes = (regions.OUTSIDE, name)
        return replace(self, class_names=classes, background=0, regions=(), dataset=f"{self.dataset}: {name}")

    def header(self) -> Self:
        """The same manifest without its cases: what every case of one store has in common."""
        return replace(self, cases=())

    def arrays(self, case: CaseRecord) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Names, types and shapes that a case's file must hold, as a safetensors header writes them."""
        members = (self.num_members,) if self.keep == "members" else ()
        scores = (_HEADER_DTYPES[self.dtype], (*members, self.num_channels, *case.shape))
        held = dict.fromkeys(self.array_names, scores) | ({"target": ("I64", case.shape)} if self.labelled else {})
        return held | ({"valid": ("BOOL", case.shape)} if case.has_valid else {})

    def save(self, path: Path) -> None:
        """Write the manifest in one step, and note its hash beside it; equal manifests give equal bytes."""
        facts = asdict(self) | {
            "num_classes": self.num_classes,
            "num_members": self.num_members,
            "changed_argmax": self.changed_argmax(),
        }
        if self.regions:
            facts |= {"within": regions.within(self.regions)}
        else:  # stores of classes keep the bytes, and results their hash, of releases that knew no regions
            del facts["regions"]
        if not self.folds:
            del facts["folds"]
        if self.labelled:
            del facts["labelled"]
        for case in facts["cases"]:
            if not case["made_of"]:  # for the same reason
                del case["made_of"]
        (path.parent / CHECKSUMS).unlink(missing_ok=True)
        write_text(path, json.dumps(facts, indent=1, sort_keys=True) + "\n")
        if path.name == MANIFEST:
            note_checksums(path.parent, [MANIFEST])

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a manifest; anything else is refused with the reason."""
        if path.name == MANIFEST and changed_files(path.parent):
            raise StoreError(
                f"{path} has changed since it was written: bring it back or predict again; if you changed it on "
                f"purpose, remove {path.parent / CHECKSUMS}"
            )
        try:
            facts = typed(read_json(path, "predict again"), dict[str, Any])
            version = facts["format_version"]
            if version not in _READ:
                raise StoreError(
                    f"{path} has format version {version}, this release reads {' and '.join(map(str, _READ))}: "
                    "predict again, or use the release that wrote it"
                )
            known = {entry.name for entry in fields(cls)}
            facts = {name: value for name, value in facts.items() if name in known}
            if facts.get("preprocessing") is not None:
                facts["preprocessing"] = Preprocessing.from_dict(facts["preprocessing"]).to_dict()
            facts["cases"] = [CaseRecord.plain(case) for case in facts["cases"]]
            manifest: Self = typed(facts, cls)
            _refuse_twice([case.case_id for case in manifest.cases])
            return manifest if version >= _NESTED else manifest.with_one_level()
        except (KeyError, TypeError, AttributeError, WrongTypeError, FileError) as problem:
            raise StoreError(f"{path} is not the manifest of an output store: {problem}") from problem


def _refuse_twice(case_ids: list[str]) -> None:
    """Refuse two cases of one name."""
    if twice := [case_id for case_id, count in Counter(case_ids).items() if count > 1]:
        raise StoreError(f"case {', '.join(twice[:5])} is listed twice")


def check_case_id(case_id: str) -> None:
    """Refuse ids that cannot name a file of their own: they become parts of paths, here and in results."""
    if not isinstance(case_id, str) or not names_file(case_id):
        raise StoreError(f"case id {case_id!r} cannot name a file: {FILE_NAMES}")


def case_path(root: Path, case_id: str) -> Path:
    """File of a case."""
    return root / CASES / f"{case_id}{SUFFIX}"


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names, types and shapes of the arrays in a safetensors file, from its first bytes alone."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {name: (facts["dtype"], tuple(facts["shape"])) for name, facts in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise StoreError(f"{path} is not a safetensors file ({problem})") from problem
