"""Checks on one case's arrays before they enter an output store."""

from torch import Tensor

from lightning_calib.outputs.manifest import Manifest, StoreError, check_case_id


def check_case(
    manifest: Manifest, case_id: str, logits: Tensor, target: Tensor | None, valid: Tensor | None = None
) -> None:
    """Refuse a case that could not be read back, or would spoil what is computed from it.

    Args:
        manifest: facts of the store.
        case_id: name of the case, to become a file name.
        logits: member scores ``(M, C, *S)``.
        target: labels ``(*S)``; None in a store without targets.
        valid: where the networks predicted, ``(*S)``.
    """
    check_case_id(case_id)
    if manifest.labelled != (target is not None):
        raise StoreError(f"case {case_id}: a target where the store has none, or none where it has targets")
    _check_shapes(manifest, case_id, logits, logits[0, 0] if target is None else target, valid)
    if not logits.is_floating_point() or not logits.isfinite().all():
        raise StoreError(f"case {case_id}: scores hold NaN, infinity or integers; did the training diverge?")
    if target is not None and (wrong := manifest.foreign(target)).any():
        raise StoreError(
            f"case {case_id}: labels {sorted(set(target[wrong].tolist()))[:10]} are neither one of "
            f"{manifest.num_classes} classes nor the ignore_index {manifest.ignore_index}: name all classes, or the "
            "ignore_index where these count nowhere"
        )


def _check_shapes(manifest: Manifest, case_id: str, logits: Tensor, target: Tensor, valid: Tensor | None) -> None:
    shape = tuple(target.shape)
    if target.ndim != manifest.spatial_dims:
        raise StoreError(f"case {case_id}: target of shape {shape} in a {manifest.spatial_dims}D store")
    expected = (manifest.num_members, manifest.num_channels, *shape)
    if tuple(logits.shape) != expected:
        raise StoreError(
            f"case {case_id}: scores of shape {tuple(logits.shape)} where {expected} "
            "(members, classes or regions, shape of the target) are expected"
        )
    if valid is not None and tuple(valid.shape) != shape:
        raise StoreError(f"case {case_id}: valid has the shape {tuple(valid.shape)}, target {shape}")
