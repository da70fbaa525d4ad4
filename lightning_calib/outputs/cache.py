"""Maps derived from stored cases, computed once and kept on disk beside the store."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from torch import Tensor

from lightning_calib.functional.boundary import boundary_distance
from lightning_calib.functional.features import FEATURES, NEED_MEMBERS, OF_CASE, VERSION, make_features
from lightning_calib.functional.pooling import POOLINGS, Pooling
from lightning_calib.kit.tensors import tensor_checksum, write_tensors
from lightning_calib.outputs.manifest import SUFFIX, Manifest, StoreError
from lightning_calib.outputs.store import OutputStore, StoredCase

FOLDER = "cache"
DISTANCE: Literal["distance"] = "distance"
FeatureKind = Literal["features-z", "features-p", "features-p0"]
Kind = Pooling | Literal["distance"] | FeatureKind
FEATURES_OF: dict[Pooling, FeatureKind] = {"z": "features-z", "p": "features-p", "p0": "features-p0"}

# Networks do not give two neighbours the same scores for every class; a fill does.
CONSTANT_SHARE = 0.05
_CHECKSUM = "checksum"


class CaseCache:
    """Pooled logits, features and boundary distances of a store's cases.

    A map is computed when it is first asked for and written to ``<store>/cache/<kind>/<case_id>.safetensors``,
    whole or not at all, with the hash of the case that it came from: a case predicted anew gets new maps. Later
    reads map the file, so that memory does not grow with the number of cases; the first of a process compares it
    with its checksum, and a damaged map is made anew. Several processes may share the folder: they write equal
    files. Where the folder cannot be written, or the disk is full, maps are computed each time.

    Args:
        store: the cases.
        enabled: whether to keep maps on disk.
    """

    def __init__(self, store: OutputStore, enabled: bool = True) -> None:
        self.store = store
        self.enabled = enabled
        self._checked: set[tuple[str, str]] = set()
        self._whole: set[Path] = set()  # files whose checksum was right
        self._warned = False

    def pooled(self, case_id: str, pooling: Pooling) -> Tensor:
        """Pooled logits ``(C, *S)``, float32, checked to be finite."""
        case, kind = self.store[case_id], self.place(pooling)
        if kind is None:
            found, facts = case.pooled(pooling), {}
            if (case_id, pooling) not in self._checked:
                facts = _check(case, found)
        else:
            found, facts = self._get(case, kind, lambda: _make_pooled(case, pooling))
        self._warn_constant(case_id, pooling, float(facts.get("constant", 0)))
        return found

    def features(self, case_id: str, pooling: Pooling) -> dict[str, Tensor]:
        """All features that the store allows, by name: maps ``(*S)``, float32; those of the case are expanded."""
        case, place = self.store[case_id], self.place(FEATURES_OF[pooling])
        of_voxels, of_case = features_of(self.store.manifest)
        assert place is not None  # no store holds features itself
        maps, facts = self._get(case, place, lambda: _make_features(case, pooling))
        found = dict(zip(of_voxels, maps, strict=True))
        return found | {name: torch.tensor(float(facts[name])).expand(case.shape) for name in of_case}

    def distance(self, case_id: str) -> Tensor:
        """Distance ``(*S)`` of each voxel to the target's boundary, float32; the full target counts."""
        case, ignore = self.store[case_id], self.store.manifest.ignore_index
        return self._get(case, DISTANCE, lambda: (boundary_distance(case.target[None], ignore)[0], {}))[0]

    def missing(self, kind: Kind, case_ids: Iterable[str]) -> list[str]:
        """Cases of which a map is to be kept and is not there yet."""
        place = self.place(kind)
        if place is None or not self.enabled:
            return []
        cases = [self.store[case_id] for case_id in case_ids]
        return [case.case_id for case in cases if self._read(case, place) is None]

    def make(self, kind: Kind, case_id: str) -> None:
        """Have a map kept."""
        pooling = next((pooling for pooling, own in FEATURES_OF.items() if own == kind), None)
        if pooling is not None:
            self.features(case_id, pooling)
        elif kind == DISTANCE:
            self.distance(case_id)
        else:
            self.pooled(case_id, kind)  # type: ignore[arg-type]  # what is left are poolings

    def place(self, kind: Kind) -> str | None:
        """Folder of a kind of maps; None where they are mapped from the cases themselves."""
        manifest = self.store.manifest
        if kind == DISTANCE:
            return kind
        mapped = kind == "p0" or manifest.keep == "pooled"
        if kind in POOLINGS and mapped:
            return None
        version = "" if kind in POOLINGS else f"-{VERSION}"
        fewer = manifest.num_members < self.store.stored_members
        return f"{kind}{version}-{manifest.num_members}" if fewer else f"{kind}{version}"

    def _path(self, case: StoredCase, kind: str) -> Path:
        return self.store.path / FOLDER / kind / f"{case.case_id}{SUFFIX}"

    def _get(
        self, case: StoredCase, kind: str, compute: Callable[[], tuple[Tensor, dict[str, str]]]
    ) -> tuple[Tensor, dict[str, str]]:
        """A map and the facts stored with it, from the disk or computed."""
        found = self._read(case, kind) if self.enabled else None
        if found is not None:
            return found
        made, facts = compute()
        made, facts = made.contiguous(), {"sha256": case.record.sha256, **facts}
        if self.enabled:
            self._write(self._path(case, kind), made, facts | {_CHECKSUM: tensor_checksum(made, facts)})
        return made, facts

    def _read(self, case: StoredCase, kind: str) -> tuple[Tensor, dict[str, str]] | None:
        """A kept map, mapped from its file; None where there is none of this case's content, or a damaged one."""
        path = self._path(case, kind)
        found = _read(path, case.record.sha256, check=path not in self._whole)
        if found is not None:
            self._whole.add(path)
        return found

    def _write(self, path: Path, made: Tensor, facts: dict[str, str]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, {"map": made}, facts)
        except OSError as problem:
            self.enabled = False
            warnings.warn(f"cannot keep pooled maps in {path.parent} ({problem}); computing them anew", stacklevel=2)

    def _warn_constant(self, case_id: str, pooling: Pooling, share: float) -> None:
        seen = (case_id, pooling) in self._checked
        self._checked.add((case_id, pooling))
        if share < CONSTANT_SHARE or seen or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"case {case_id}: {share:.0%} of the predicted voxels have exactly the logits of their neighbour, as a "
            "fill of a cropped region has; mark such voxels as not valid when you write the store, or their "
            "confidences will be fitted and measured (further cases are not named)",
            stacklevel=2,
        )


def features_of(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Names of the features of voxels and of cases that a store allows: without members, those of the pooled map."""
    allowed = [name for name in FEATURES if manifest.keep == "members" or name not in NEED_MEMBERS]
    return [name for name in allowed if name not in OF_CASE], [name for name in allowed if name in OF_CASE]


def _make_features(case: StoredCase, pooling: Pooling) -> tuple[Tensor, dict[str, str]]:
    """Maps ``(F, *S)`` of the features of voxels; those of the case are single numbers, and facts."""
    of_voxels, of_case = features_of(case.manifest)
    members = case.logits
    batch = None if members is None else members[None]
    made = make_features([*of_voxels, *of_case], case.pooled(pooling)[None], batch)[0]
    numbers = made[len(of_voxels) :].flatten(1)[:, 0].tolist()
    return made[: len(of_voxels)], {name: repr(number) for name, number in zip(of_case, numbers, strict=True)}


def _make_pooled(case: StoredCase, pooling: Pooling) -> tuple[Tensor, dict[str, str]]:
    made = case.pooled(pooling)
    return made, _check(case, made)


def _read(path: Path, sha256: str, check: bool) -> tuple[Tensor, dict[str, str]] | None:
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, str] = file.metadata() or {}
            found, checksum = file.get_tensor("map"), facts.pop(_CHECKSUM, "")
    except Exception:  # absent, or damaged in whatever way: safetensors has one class for all of it
        return None
    right = facts.get("sha256") == sha256 and (not check or checksum == tensor_checksum(found, facts))
    return (found, facts) if right else None


def _check(case: StoredCase, pooled: Tensor) -> dict[str, str]:
    """Refuse scores that are not finite; say how much of the case is a constant fill."""
    low, high = torch.aminmax(pooled)
    if not (torch.isfinite(low) and torch.isfinite(high)):
        bad = int((~torch.isfinite(pooled)).sum())
        raise StoreError(
            f"case {case.case_id} ({case.path}): {bad:,} pooled scores are NaN or infinite; predict it again, or leave "
            "it out of the store"
        )
    return {"constant": f"{constant_share(pooled, case.valid):.4f}"}


def constant_share(pooled: Tensor, valid: Tensor | None = None) -> float:
    """Share of voxels whose scores equal those of their neighbour on the last axis, in every class.

    Args:
        pooled: ``(C, *S)``.
        valid: which voxels to look at, ``(*S)``; None for all.

    Example:
        >>> constant_share(torch.tensor([[[1.0, 1.0, 1.0, 2.0]], [[0.0, 0.0, 0.0, 5.0]]]))
        0.5
    """
    same = (pooled[..., 1:] == pooled[..., :-1]).all(dim=0)
    if valid is not None:
        same &= valid[..., 1:] & valid[..., :-1]
    considered = pooled[0].numel() if valid is None else int(valid.sum())
    return int(same.sum()) / max(considered, 1)
