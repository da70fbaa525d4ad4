"""BraTS: brain tumours in four MRI sequences."""

from pathlib import Path
from typing import Any

from lightning_calib.datasets.cases import Case, Splits, pick
from lightning_calib.datasets.splits import by_group
from lightning_calib.datasets.volume_reader import VolumeReader
from lightning_calib.datasets.volumes import VolumeFileModule

CHANNELS = ("t1n", "t1c", "t2w", "t2f")
# Non-enhancing tumour core, surrounding non-enhancing FLAIR hyperintensity, enhancing tissue, resection cavity.
CLASSES = ["background", "NETC", "SNFH", "ET", "RC"]


def patient(case_id: str) -> str:
    """Patient of a case: the name without the number of the visit.

    Example:
        >>> patient("BraTS-GLI-00005-101")
        'BraTS-GLI-00005'
    """
    return case_id.rsplit("-", 1)[0]


def find_cases(root: Path) -> tuple[list[Case], list[str]]:
    """Cases ``<root>/BraTS-GLI-*/BraTS-GLI-*-{t1n,t1c,t2w,t2f,seg}.nii.gz``, and one line a missing file."""
    folders = sorted(p for p in root.glob("BraTS-*") if p.is_dir())
    if not folders:
        return [], [f"{root}: no folders BraTS-GLI-*; root is the folder that holds one folder a case"]
    cases, problems = [], []
    for folder in folders:
        paths = [folder / f"{folder.name}-{kind}.nii.gz" for kind in (*CHANNELS, "seg")]
        missing = [path for path in paths if not path.is_file()]
        problems += [f"{path}: no such file" for path in missing]
        if not missing:
            cases.append(Case(folder.name, tuple(paths[:-1]), paths[-1], (patient(folder.name),)))
    return cases, problems


class BraTS(VolumeFileModule):
    """BraTS GLI 2024 in the official layout: 4 channels, 5 classes.

    Each channel is normalised to mean 0 and deviation 1 within the brain; volumes are cut to the brain's box.
    Targets of the pool set keep the full grid: outside the box logits are zero and ``valid`` is False.
    Visits of a patient stay together.

    References:
        de Verdier et al.: The 2024 Brain Tumor Segmentation (BraTS) challenge: glioma segmentation on
        post-treatment MRI. arXiv 2405.18368.

    Args:
        root: folder of the training cases, one folder a case.
        pool_root: folder of the pool set (the paper's additional release); None draws it from ``root``.
        pool_fraction: share of the cases that form the pool set where ``pool_root`` is None.
        options: those of :class:`~lightning_calib.datasets.volumes.VolumeDataModule`.
    """

    name = "brats"
    in_channels = 4
    group_levels = ("patient",)
    group_level = "patient"

    def __init__(
        self,
        root: Path | str = "data/brats/training_data1_v2",
        pool_root: Path | str | None = None,
        pool_fraction: float = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root, self.class_names = Path(root), list(CLASSES)
        self.volume_reader = VolumeReader(content_only=True)
        cases, problems = find_cases(self.root)
        if pool_root is None:
            rest, pool = self._hold_out(cases, pool_fraction)
        else:
            pool, wrong = find_cases(Path(pool_root))
            problems += wrong
            seen = {case.groups for case in pool}
            rest = [case for case in cases if case.groups not in seen]
        used = {case.case_id for case in (*rest, *pool)}
        left_out = {c.case_id: "a visit of a patient of the pool set" for c in cases if c.case_id not in used}
        train, val = self._hold_out(rest, self.val_fraction)
        self.adopt(Splits(train, val, pool, left_out), problems)

    def _hold_out(self, cases: list[Case], fraction: float) -> tuple[list[Case], list[Case]]:
        kept, held = by_group({case.case_id: case.group(1) for case in cases}, fraction, self.split_seed)
        return pick(cases, kept), pick(cases, held)
