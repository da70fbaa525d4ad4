"""A store in which a temperature for all voxels is wrong: where members disagree, their logits are too large."""

from pathlib import Path

import torch

from lightning_calib.outputs.manifest import Member
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter

SHAPE, CLASSES = (16, 16), ["rest", "disc", "rod"]


def write_featured(path: Path, cases: int = 12, keep: str = "members") -> OutputStore:
    """Two members; in the right half of each image they differ and are four times too sure."""
    groups = {f"case-{number:02d}": (f"site-{number:02d}",) for number in range(cases)}
    how = {"background": 0, "groups": groups, "group_levels": ("site",), "keep": keep}
    writer = OutputWriter(path, "featured", CLASSES, 2, [Member("0"), Member("1")], **how)
    for number, case_id in enumerate(groups):
        generator = torch.Generator().manual_seed(number)
        truth = 1.5 * torch.randn(3, *SHAPE, generator=generator)
        noise = -torch.empty(truth.shape).exponential_(generator=generator).log()
        doubtful = torch.arange(SHAPE[1]) >= SHAPE[1] // 2
        own = torch.randn(2, *truth.shape, generator=generator) * torch.where(doubtful, 2.0, 0.02)
        writer.write(case_id, truth * torch.where(doubtful, 4.0, 1.0) + own, (truth + noise).argmax(0))
    writer.finish()
    return OutputStore(path)
