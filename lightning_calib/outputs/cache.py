"""Maps derived from stored cases, computed once and kept on disk beside the store."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lightning_calib.functional.boundary import boundary_distance
from lightning_calib.functional.pooling import Pooling
from lightning_calib.kit.files import atomic_path
from lightning_calib.outputs.manifest import SUFFIX, StoreError
from lightning_calib.outputs.store import OutputStore, StoredCase

FOLDER = "cache"
DISTANCE: Literal["distance"] = "distance"
Kind = Pooling | Literal["distance"]

# Networks do not give two neighbours the same scores for every class; a fill does.
CONSTANT_SHARE = 0.05


class CaseCache:
    """Pooled logits and boundary distances of a store's cases.

    A map is computed when it is first asked for and written to ``<store>/cache/<kind>/<case_id>.safetensors``,
    whole or not at all, with the hash of the case that it came from: a case predicted anew gets new maps. Later
    reads map the file, so that memory does not grow with the number of cases. Several processes may share the
    folder: they write equal files. Where the folder cannot be written, maps are computed each time.

    Args:
        store: the cases.
        enabled: whether to keep maps on disk.
    """

    def __init__(self, store: OutputStore, enabled: bool = True) -> None:
        self.store = store
        self.enabled = enabled
        self._checked: set[tuple[str, str]] = set()
        self._warned = False

    def pooled(self, case_id: str, pooling: Pooling) -> Tensor:
        """Pooled logits ``(C, *S)``, float32, checked to be finite."""
        case, kind = self.store[case_id], self._kind(pooling)
        if kind is None:
            found, facts = case.pooled(pooling), {}
            if (case_id, pooling) not in self._checked:
                facts = _check(case, found)
        else:
            found, facts = self._get(case, kind, lambda: case.pooled(pooling), _check)
        self._warn_constant(case_id, pooling, float(facts.get("constant", 0)))
        return found

    def distance(self, case_id: str) -> Tensor:
        """Distance ``(*S)`` of each voxel to the target's boundary, float32; the full target counts."""
        case, ignore = self.store[case_id], self.store.manifest.ignore_index
        return self._get(case, DISTANCE, lambda: boundary_distance(case.target[None], ignore)[0])[0]

    def missing(self, kind: Kind, case_ids: Iterable[str]) -> list[str]:
        """Cases of which a map is to be kept and is not there yet."""
        place = DISTANCE if kind == DISTANCE else self._kind(kind)
        if place is None or not self.enabled:
            return []
        cases = [self.store[case_id] for case_id in case_ids]
        return [case.case_id for case in cases if _read(self._path(case, place), case.record.sha256) is None]

    def _kind(self, pooling: Pooling) -> str | None:
        """Folder of a pooling's maps; None where they are mapped from the cases themselves."""
        manifest = self.store.manifest
        if manifest.keep == "pooled" or pooling == "p0":
            return None
        smaller = manifest.num_members < self.store.stored_members
        return f"{pooling}-{manifest.num_members}" if smaller else pooling

    def _path(self, case: StoredCase, kind: str) -> Path:
        return self.store.path / FOLDER / kind / f"{case.case_id}{SUFFIX}"

    def _get(
        self,
        case: StoredCase,
        kind: str,
        compute: Callable[[], Tensor],
        check: Callable[[StoredCase, Tensor], dict[str, str]] | None = None,
    ) -> tuple[Tensor, dict[str, str]]:
        """A map and the facts stored with it, from the disk or computed."""
        path = self._path(case, kind)
        found = _read(path, case.record.sha256) if self.enabled else None
        if found is not None:
            return found
        made = compute().contiguous()
        facts = {"sha256": case.record.sha256, **(check(case, made) if check else {})}
        if self.enabled:
            self._write(path, made, facts)
        return made, facts

    def _write(self, path: Path, made: Tensor, facts: dict[str, str]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as aside:
                save_file({"map": made}, aside, metadata=facts)
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


def _read(path: Path, sha256: str) -> tuple[Tensor, dict[str, str]] | None:
    """A kept map, mapped from its file; None where there is none of this case's content."""
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, str] = file.metadata() or {}
            return (file.get_tensor("map"), facts) if facts.get("sha256") == sha256 else None
    except Exception:  # absent, or damaged in whatever way: safetensors has one class for all of it
        return None


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
