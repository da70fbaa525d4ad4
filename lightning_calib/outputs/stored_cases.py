"""Stored cases as a fit sees them: pooled, with everything that does not count marked as ignored."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from lightning_calib.functional.features import NEED_MEMBERS, check_features, make_features
from lightning_calib.functional.pooling import Pooling, pool
from lightning_calib.outputs.cache import CaseCache
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.store import OutputStore, StoredCase

Outside = Literal["exclude", "background_certain", "one_hot_logits"]

# Logit of the background over the others where it is certain: float32 still tells e^-100 from 0.
CERTAIN = 100.0


class StoredCases:
    """Pooled logits and targets of a store, case by case.

    Where part of an image was never predicted (``valid`` is False), ``outside`` says what it counts as:

    - ``exclude``: nothing; its target becomes ``ignore_index``.
    - ``background_certain``: a prediction of background with certainty.
    - ``one_hot_logits``: logits 1 for the background and 0 for the rest, which is what comes out where a one-hot
      fill of *probabilities* is taken for logits. At 5 classes it is a confidence of 0.405 in every such voxel.

    Args:
        store: the cases.
        pooling: how members become one map.
        outside: what voxels outside the predicted region count as.
        cache: keep pooled maps and distances on disk beside the store.

    Attributes:
        ignore_index: label of voxels that count nowhere; -1 where the data set has no such label.
    """

    def __init__(
        self, store: OutputStore, pooling: Pooling = "p", outside: Outside = "exclude", cache: bool = True
    ) -> None:
        if outside not in get_args(Outside):
            raise ValueError(f"outside = {outside!r}; choose one of {', '.join(get_args(Outside))}")
        if outside != "exclude" and store.manifest.background is None:
            raise ValueError(
                f"outside = {outside!r} needs a background class, but {store.path} names none: use exclude"
            )
        self.store, self.pooling, self.outside = store, pooling, outside
        self.cache = CaseCache(store, cache)
        ignore = store.manifest.ignore_index
        self.ignore_index = -1 if ignore is None else ignore

    def read(self, case_id: str) -> tuple[Tensor, Tensor]:
        """Pooled logits ``(C, *S)`` in float32 and target ``(*S)`` of a case."""
        return self.pooled(case_id), self.target(case_id)

    def pooled(self, case_id: str, pooling: Pooling | None = None) -> Tensor:
        """Pooled logits ``(C, *S)`` of a case in float32, without its target; also of another pooling."""
        case, pooling = self.store[case_id], pooling or self.pooling
        logits, valid = self.cache.pooled(case_id, pooling), case.valid
        if valid is None or self.outside == "exclude":
            return logits
        return torch.where(valid, logits, self._fill(case, pooling))

    def features(self, case_id: str, names: Sequence[str], pooling: Pooling | None = None) -> Tensor | None:
        """Features ``(F, *S)`` of a case in float32, see :mod:`lightning_calib.functional.features`.

        Args:
            case_id: the case.
            names: which features, in this order; None comes back where there are none.
            pooling: another pooling than the usual one.
        """
        if not names:
            return None
        self._refuse_lacking(names)
        case, pooling = self.store[case_id], pooling or self.pooling
        filled = case.valid is not None and self.outside != "exclude"
        if filled or not self.cache.enabled:
            return self._made_features(case, names, pooling)
        found = self.cache.features(case_id, pooling)
        return torch.stack([found[name] for name in names])

    def feature_batch(self, case_id: str, names: Sequence[str]) -> Tensor | None:
        """The same with a batch axis ``(1, F, *S)``."""
        found = self.features(case_id, names)
        return None if found is None else found[None]

    def target(self, case_id: str) -> Tensor:
        """Target ``(*S)`` of a case, without its logits."""
        case = self.store[case_id]
        if case.valid is None or self.outside != "exclude":
            return case.target
        return case.target.where(case.valid, self.ignore_index)

    def distance(self, case_id: str) -> Tensor:
        """Distance ``(*S)`` of each voxel to the boundary of the full target."""
        return self.cache.distance(case_id)

    def counted(self, case_id: str) -> Tensor:
        """Flat indices of the voxels that count."""
        return (self.target(case_id).flatten() != self.ignore_index).nonzero().squeeze(1)

    def _made_features(self, case: StoredCase, names: Sequence[str], pooling: Pooling) -> Tensor:
        """Features that are not kept; voxels outside are filled in all members."""
        members, valid = case.logits, case.valid
        if members is not None and valid is not None and self.outside != "exclude":
            members = torch.where(valid, members.float(), self._fill(case, "z"))
        return make_features(
            names, self.pooled(case.case_id, pooling)[None], None if members is None else members[None]
        )[0]

    def _refuse_lacking(self, names: Sequence[str]) -> None:
        if self.store.manifest.keep == "members":
            check_features(names)
            return
        if lacking := [name for name in check_features(names) if name in NEED_MEMBERS]:
            raise StoreError(
                f"{self.store.path} keeps pooled maps alone, but {', '.join(lacking)} need the members' scores: "
                "predict again with --outputs.keep members, or use fts_pooled or case_ts_pooled, which do without"
            )

    def _fill(self, case: StoredCase, pooling: Pooling) -> Tensor:
        """Pooled logits ``(C, 1, ...)`` of every voxel outside."""
        fill = torch.zeros(self.store.manifest.num_classes)
        background = self.store.manifest.background
        assert background is not None  # the constructor has made sure
        fill[background] = CERTAIN if self.outside == "background_certain" else 1.0
        return pool(fill[None, None], pooling)[0].view(-1, *(1 for _ in case.shape))
