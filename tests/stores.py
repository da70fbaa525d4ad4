"""Output stores for tests: confused classes, miscalibrated in both directions, per-voxel offsets."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_calib.datasets.groups import Groups
from lightning_calib.kit.files import sha256
from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.regions import Region
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.views import write_views
from lightning_calib.outputs.writer import OutputWriter


def blocky_target(shape: tuple[int, ...], num_classes: int, generator: torch.Generator) -> Tensor:
    """Labels in blocks of about 4 voxels, so that there are boundaries and insides."""
    coarse = torch.randint(num_classes, [-(-size // 4) for size in shape], generator=generator)
    for axis in range(len(shape)):
        coarse = coarse.repeat_interleave(4, dim=axis).narrow(axis, 0, shape[axis])
    return coarse


def member_logits(target: Tensor, num_classes: int, members: int, generator: torch.Generator) -> Tensor:
    """``(M, C, *S)``: class 0 is overconfident, the others underconfident, neighbours in number are confused."""
    shape = (members, num_classes, *target.shape)
    logits = torch.randn(shape, generator=generator)
    signal = torch.where(target == 0, 1.0, 4.0)
    logits.scatter_add_(1, target.expand(members, 1, *target.shape), signal.expand(members, 1, *target.shape))
    confused = (target + 1) % num_classes
    logits.scatter_add_(1, confused.expand(members, 1, *target.shape), torch.full((members, 1, *target.shape), 1.5))
    logits[:, :, ...] *= torch.where(target == 0, 2.5, 0.6)
    return logits + torch.randn((members, 1, *target.shape), generator=generator)  # offsets that softmax cannot see


def write_store(
    path: Path,
    cases: int = 9,
    num_classes: int = 4,
    members: int = 2,
    shape: tuple[int, ...] = (16, 20),
    ignore_index: int | None = 255,
    background: int | None = None,
    groups: Groups | None = None,
    group_levels: list[str] | None = None,
    valid: bool = False,
    keep: str = "members",
    seed: int = 0,
) -> OutputStore:
    """Write a store of random cases ``case-00``, ``case-01``, ... and open it."""
    names = [f"class {i}" for i in range(num_classes)]
    writer = OutputWriter(
        path,
        "toy",
        names,
        len(shape),
        [Member(str(i)) for i in range(members)],
        background=background,
        ignore_index=ignore_index,
        keep=keep,
        groups=groups,
        group_levels=group_levels,
    )
    for number in range(cases):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        target = blocky_target(shape, num_classes, generator)
        logits = member_logits(target, num_classes, members, generator)
        if ignore_index is not None:
            target[torch.rand(shape, generator=generator) < 0.1] = ignore_index
        mask = None
        if valid:
            mask = torch.ones(shape, dtype=torch.bool)
            mask[: shape[0] // 4] = False
        writer.write(f"case-{number:02d}", logits, target, valid=mask)
    writer.finish()
    return OutputStore(path)


def with_changed(store: OutputStore, change: Callable[[str, dict[str, Tensor]], None]) -> OutputStore:
    """The same store after the arrays of each case were changed in place, and noted, as another program may do."""
    facts = json.loads((store.path / "manifest.json").read_text())
    for record in facts["cases"]:
        path = store[record["case_id"]].path
        arrays = {name: array.clone() for name, array in load_file(path).items()}
        change(record["case_id"], arrays)
        save_file({name: array.contiguous() for name, array in arrays.items()}, path)
        record["sha256"] = sha256(path)
    (store.path / "manifest.json").write_text(json.dumps(facts))
    (store.path / "checksums.json").unlink(missing_ok=True)  # on purpose
    return OutputStore(store.path)


REGIONS = {"Whole Tumor": [1, 2, 3], "core": [2, 3], "enhancing": [3]}


def region_logits(target: Tensor, members: int, generator: torch.Generator) -> Tensor:
    """``(M, 3, *S)``: noisy log-odds of the regions of labels 0 to 3, overconfident inside, not always nested."""
    inside = torch.stack([target >= least for least in (1, 2, 3)]).float()  # (3, *S)
    noise = torch.randn(members, *inside.shape, generator=generator)
    logits = 2 * inside - 1 + 1.2 * noise
    return torch.where(logits > 0, 3.0, 1.5) * logits


def write_region_store(
    path: Path,
    cases: int = 9,
    members: int = 2,
    shape: tuple[int, ...] = (16, 20),
    keep: str = "members",
    ignore_index: int | None = 255,
    regions: int = 3,
    seed: int = 0,
) -> Path:
    """Write a store of nested regions, the first so many of three, and their views."""
    names = ["background", "edema", "necrosis", "enhancing"]
    writer = OutputWriter(
        path,
        "toy",
        names,
        len(shape),
        [Member(str(i)) for i in range(members)],
        ignore_index=ignore_index,
        keep=keep,
        regions=Region.all_of(REGIONS)[:regions],
    )
    for number in range(cases):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        target = blocky_target(shape, 4, generator)
        logits = region_logits(target, members, generator)[:, :regions]
        if ignore_index is not None:
            target[0] = ignore_index
        writer.write(f"case-{number:02d}", logits, target)
    writer.finish()
    write_views(path)
    return path
