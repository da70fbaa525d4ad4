"""What out-of-fold scores are good for."""

from lightning_calib.outputs.doctor.finding import Finding
from lightning_calib.outputs.folds import NOTE
from lightning_calib.outputs.manifest import Manifest


def out_of_fold(manifest: Manifest) -> Finding | None:
    """The finding on a store whose cases were scored by different networks; None for any other."""
    if not manifest.out_of_fold:
        return None
    return Finding(
        "out_of_fold",
        "warning",
        f"each case was scored by one of {len(manifest.folds)} networks, the one that was not trained on it",
        "the store was made of a cross-validation, because there were no other cases",
        f"a calibrator of this store is {NOTE}",
    )
