"""Writing of frozen ensemble outputs, one atomic file a case."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_calib.datasets.cases import CASE
from lightning_calib.datasets.content import Content, changes
from lightning_calib.datasets.groups import Groups, check_names, nested
from lightning_calib.datasets.preprocessing import Preprocessing
from lightning_calib.functional.pooling import POOLINGS, Pooling, pool
from lightning_calib.functional.regions import pool_one_channel
from lightning_calib.kit.files import plain, read_json, remove_leftovers, sha256, write_text
from lightning_calib.kit.nested import differences
from lightning_calib.kit.tensors import write_tensors
from lightning_calib.outputs.case_check import check_case
from lightning_calib.outputs.folds import Fold
from lightning_calib.outputs.manifest import (
    CASES,
    FOLDS_VERSION,
    FORMAT_VERSION,
    MANIFEST,
    REGIONS_VERSION,
    UNLABELLED_VERSION,
    CaseRecord,
    Keep,
    Manifest,
    Member,
    Representation,
    StoreDtype,
    StoreError,
    case_path,
)
from lightning_calib.outputs.previews import PREVIEWS, write_preview
from lightning_calib.outputs.regions import Region

_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "float16": torch.float16}
_HEADER = ".header.json"  # no case id starts with a dot
_UNFINISHED = "unfinished"  # folder of the facts about written cases until the manifest has them
_PREPROCESSED = 2  # format version from which stores know of preprocessing
_HEADER_BYTES = 1024  # of a safetensors file, rounded up


class OutputWriter:
    """Write an output store; an interrupted one is continued.

    Each case becomes ``cases/<case_id>.safetensors`` and, until :meth:`finish`, a small JSON file of facts
    beside the folder of cases. Several processes may write different cases of one store; one of them
    finishes it once all have written.

    Args:
        path: folder of the store; a store of the same members and options is continued, any other refused.
        dataset: name of the data set.
        class_names: one name a class.
        spatial_dims: 2 or 3.
        members: the networks in the order of the member axis.
        background: index of the background class, where there is one.
        ignore_index: label of voxels that count nowhere, where there is one.
        representation: whether the scores are ``logits`` or ``log_probs``.
        keep: ``members``, or ``pooled`` for ``z``, ``p`` and ``p0`` in place of the members.
        dtype: precision of the stored scores.
        groups: group of each case or, for nested ones, its groups, coarsest first; a case that is absent is a group
            of its own. None keeps what an earlier run wrote.
        group_levels: names of the levels of groups, coarsest first; ``group`` by default.
        group_level: level that divisions of the store keep whole by default; None for the coarsest.
        preprocessing: what turns a new image into the networks' input, where it is known.
        regions: what the channels of sigmoid networks stand for; their scores are then log-odds ``(M, R, *S)``.
        folds: of an out-of-fold store, the networks and the cases that each of them scores.
        labelled: whether cases have targets; those of new images have none.
        made_of: by id the hashes of the files of every case that the store is to hold; a stored case made of others is
            written again, and one that is not among them leaves the store. None where that is not known.

    Attributes:
        outdated: what was found to be of another state of the data and will be written again, a line each.
    """

    def __init__(
        self,
        path: str | Path,
        dataset: str,
        class_names: Sequence[str],
        spatial_dims: int,
        members: Sequence[Member],
        background: int | None = None,
        ignore_index: int | None = None,
        representation: Representation = "logits",
        keep: Keep = "members",
        dtype: StoreDtype = "float32",
        groups: Groups | None = None,
        group_levels: Sequence[str] | None = None,
        group_level: str | None = None,
        preprocessing: Preprocessing | None = None,
        regions: Sequence[Region] = (),
        folds: Sequence[Fold] = (),
        made_of: Mapping[str, Content] | None = None,
        labelled: bool = True,
    ) -> None:
        self.path = Path(path)
        self.groups, levels = nested(groups, group_levels)
        self.manifest = Manifest(
            dataset=dataset,
            class_names=tuple(class_names),
            background=background,
            ignore_index=ignore_index,
            spatial_dims=spatial_dims,
            members=tuple(members),
            representation=representation,
            keep=keep,
            dtype=dtype,
            preprocessing=preprocessing,
            group_levels=levels,
            group_level=group_level or next(iter(levels), CASE),
            regions=tuple(regions),
            folds=tuple(folds),
            labelled=labelled,
            format_version=_version(bool(folds), bool(regions), labelled),
        )
        self._facts = self.path / _UNFINISHED
        finished = self._continue(self.path / MANIFEST)
        earlier = finished or self._continue(self._facts / _HEADER)
        if earlier and groups is None:
            self.manifest = replace(self.manifest, group_levels=earlier.group_levels, group_level=earlier.group_level)
        self._finished = {case.case_id: case for case in finished.cases} if finished else {}
        if not earlier:
            _refuse_unknown_files(self.path)
            self._facts.mkdir(parents=True, exist_ok=True)
            self.manifest.save(self._facts / _HEADER)
        (self.path / CASES).mkdir(parents=True, exist_ok=True)
        self.made_of = dict(made_of or {})
        self.outdated = [] if made_of is None else self._forget_outdated()

    def _forget_outdated(self) -> list[str]:
        """Take the cases out that are no more what they were made of; the store is unfinished where there are any."""
        stored = {case_id: self._record(case_id).made_of for case_id in self._known}
        changed = changes(stored, self.made_of)
        gone = sorted(set(stored) - set(self.made_of))
        if not changed and not gone:
            return []
        self._facts.mkdir(parents=True, exist_ok=True)
        for case_id, record in self._finished.items():
            if case_id not in changed and case_id in self.made_of:
                self._note(record)
        self.manifest.save(self._facts / _HEADER)
        (self.path / MANIFEST).unlink(missing_ok=True)  # from here on nobody takes the store for a whole one
        for case_id in (*changed, *gone):
            (self._facts / f"{case_id}.json").unlink(missing_ok=True)
            case_path(self.path, case_id).unlink(missing_ok=True)
        self._finished = {}
        told = [f"the {what} of {case_id} has changed since it was predicted" for case_id, what in changed.items()]
        return told + [f"{case_id} is not in the pool set any more" for case_id in gone]

    def _continue(self, path: Path) -> Manifest | None:
        """The manifest of an earlier run, refused where it is of other members or options."""
        if not path.is_file():
            return None
        earlier = Manifest.load(path)
        ours, theirs = asdict(self.manifest), asdict(earlier.header())
        theirs |= {name: ours[name] for name in ("format_version", "group_levels", "group_level")}  # brought up to date
        if earlier.format_version < _PREPROCESSED:
            theirs["preprocessing"] = ours["preprocessing"]
        if told := differences(plain(theirs), plain(ours)):
            raise StoreError(
                f"{self.path} holds outputs of another run ({told}): remove the folder or name another one"
            )
        return earlier

    @property
    def done(self) -> set[str]:
        """Ids of the cases that are already written."""
        return {
            case_id
            for case_id in self._known
            if case_path(self.path, case_id).is_file()
            and case_path(self.path, case_id).stat().st_size == self._record(case_id).size
        }

    @property
    def _known(self) -> set[str]:
        """Ids of the cases that something is noted of."""
        return {path.stem for path in self._facts.glob("*.json") if path.name != _HEADER} | set(self._finished)

    def case_bytes(self, shape: Sequence[int]) -> int:
        """Size of one case of spatial shape ``shape`` in bytes, header included."""
        maps = self.manifest.num_members if self.manifest.keep == "members" else len(POOLINGS)
        voxel = maps * self.manifest.num_channels * _DTYPES[self.manifest.dtype].itemsize + 8 + 1
        return prod(shape) * voxel + _HEADER_BYTES

    def reserve(self, num_cases: int, shape: Sequence[int]) -> int:
        """Size of ``num_cases`` more cases of spatial shape ``shape``; refused where the disk cannot hold it.

        Returns:
            The size in bytes.
        """
        needed, free = num_cases * self.case_bytes(shape), shutil.disk_usage(self.path).free
        if needed > free:
            raise StoreError(
                f"{num_cases} cases of {'x'.join(map(str, shape))} voxels need {needed / 1e9:.2f} GB in "
                f"{self.path}, where {free / 1e9:.2f} GB are free: choose another folder, keep: pooled "
                "or dtype: float16"
            )
        return needed

    def write(
        self,
        case_id: str,
        logits: Tensor,
        target: Tensor | None,
        valid: Tensor | None = None,
        geometry: dict[str, Any] | None = None,
        image: Tensor | None = None,
    ) -> CaseRecord:
        """Write one case.

        Args:
            case_id: its name, fit for a file name.
            logits: member scores ``(M, C, *S)``, finite; of regions, log-odds ``(M, R, *S)``.
            target: labels ``(*S)``; None in a store without targets.
            valid: where the networks predicted, ``(*S)``; None for everywhere.
            geometry: spacing, affine and the like; JSON.
            image: ``(channels, *S)`` for a preview (:mod:`lightning_calib.outputs.previews`), where it is at hand.

        Returns:
            What the manifest will say about the case.
        """
        check_case(self.manifest, case_id, logits, target, valid)
        shape = tuple(logits.shape[2:])
        self.reserve(1, shape)
        logits = logits.detach().cpu()
        valid = None if valid is None else valid.detach().cpu().bool()
        labels = torch.zeros(shape, dtype=torch.long) if target is None else target.detach().cpu().long()
        arrays = self._scores(case_id, logits) | ({} if target is None else {"target": labels})
        arrays |= {} if valid is None else {"valid": valid}
        path = case_path(self.path, case_id)
        write_tensors(path, arrays)
        write_preview(self.path, case_id, image, labels, self.manifest.background, self.manifest.ignore_index)
        counted = _counted(labels, valid, self.manifest.ignore_index)
        record = CaseRecord(
            case_id=case_id,
            shape=shape,
            size=path.stat().st_size,
            sha256=sha256(path),
            groups=self._names(case_id),
            has_valid=valid is not None,
            voxels=int(counted.sum()),
            changed_argmax=self._changed(logits, arrays, counted),
            geometry=geometry,
            made_of=self.made_of.get(case_id, {}),
        )
        self._note(record)
        return record

    def _note(self, record: CaseRecord) -> None:
        """Keep the facts on a case until the manifest has them."""
        self._facts.mkdir(parents=True, exist_ok=True)
        write_text(self._facts / f"{record.case_id}.json", json.dumps(asdict(record)))

    def finish(self, case_ids: Iterable[str] | None = None) -> Manifest:
        """Write ``manifest.json`` over all written cases.

        Args:
            case_ids: the cases that must be there; the ones that are not are named in the error.
        """
        done = self.done
        if missing := sorted(set(case_ids or ()) - done):
            raise StoreError(f"{self.path}: {len(missing)} case(s) are not written: {', '.join(missing[:20])}")
        if not done:
            raise StoreError(f"{self.path}: no case was written")
        found = [self._record(case_id) for case_id in sorted(done)]
        records = tuple(replace(case, groups=self._names(case.case_id, case.groups)) for case in found)
        manifest = replace(self.manifest, cases=records)
        manifest.save(self.path / MANIFEST)
        shutil.rmtree(self._facts, ignore_errors=True)
        remove_leftovers(self.path)
        for leftover in (
            path for folder in (CASES, PREVIEWS) for path in (self.path / folder).glob(".*")
        ):  # of processes that were killed while they wrote
            leftover.unlink(missing_ok=True)
        self._finished = {case.case_id: case for case in records}
        return manifest

    def _names(self, case_id: str, earlier: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Groups of a case: those that are given now, those of an earlier run, or itself at each level."""
        levels = self.manifest.group_levels
        known = earlier if len(earlier) == len(levels) else (case_id,) * len(levels)
        return check_names(case_id, self.groups.get(case_id, known), levels)

    def _record(self, case_id: str) -> CaseRecord:
        path = self._facts / f"{case_id}.json"
        if path.is_file():
            return CaseRecord.from_dict(read_json(path))
        return self._finished[case_id]

    def _scores(self, case_id: str, logits: Tensor) -> dict[str, Tensor]:
        """The score arrays to store, in the stored precision."""
        pooled = self.manifest.keep == "pooled"
        scores = {name: self._pool(logits, name) for name in POOLINGS} if pooled else {"logits": logits}
        scores = {name: array.to(_DTYPES[self.manifest.dtype]) for name, array in scores.items()}
        if not all(array.isfinite().all() for array in scores.values()):
            raise StoreError(f"case {case_id}: scores are beyond the range of float16; store float32")
        return scores

    def _changed(self, logits: Tensor, stored: dict[str, Tensor], counted: Tensor) -> dict[str, int]:
        """Voxels whose pooled argmax the stored precision changed, for each pooling."""
        if self.manifest.dtype == "float32":
            return {}
        changed: dict[str, int] = {}
        for name in POOLINGS:
            after = stored[name].float() if name in stored else self._pool(stored["logits"], name)
            differs = self._decisions(self._pool(logits, name)) != self._decisions(after)
            changed[name] = int((differs.any(0) & counted).sum())
        return changed

    def _pool(self, logits: Tensor, pooling: Pooling) -> Tensor:
        """Pooled scores ``(C, *S)`` of members ``(M, C, *S)``."""
        regions = self.manifest.regions  # in place of a batch
        return pool_one_channel(logits.movedim(0, 1), pooling) if regions else pool(logits[None], pooling)[0]

    def _decisions(self, pooled: Tensor) -> Tensor:
        """The predicted class ``(1, *S)``, or whether a voxel lies in each region ``(R, *S)``."""
        return pooled > 0 if self.manifest.regions else pooled.argmax(0, keepdim=True)


def _counted(target: Tensor, valid: Tensor | None, ignore_index: int | None) -> Tensor:
    """Voxels that count: valid and not ignored."""
    counted = torch.ones_like(target, dtype=torch.bool) if ignore_index is None else target != ignore_index
    return counted if valid is None else counted & valid


def _version(folds: bool, regions: bool, labelled: bool) -> int:
    """The oldest format version that knows of what a store has."""
    if not labelled:
        return UNLABELLED_VERSION
    return FOLDS_VERSION if folds else REGIONS_VERSION if regions else FORMAT_VERSION


def _refuse_unknown_files(root: Path) -> None:
    """A folder with case files and no manifest at all was not written by an :class:`OutputWriter`."""
    if unknown := sorted(path.name for path in (root / CASES).glob("[!.]*")):
        raise StoreError(
            f"{root / CASES} holds {len(unknown)} file(s) of unknown origin ({', '.join(unknown[:3])}, ...): "
            "remove the folder or name another one"
        )
