"""Stored outputs in a form small enough to be handed on: pooled logits in float16.

python benchmarks/publish_outputs.py --outputs runs/hippocampus/outputs --destination runs/hippocampus/published
"""

from pathlib import Path

from jsonargparse import auto_cli

from lightning_calib.functional.pooling import POOLINGS
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter


def main(outputs: Path, destination: Path) -> None:
    """Write the pooled store, and say its size and what it changed.

    Args:
        outputs: store with members.
        destination: folder of the new store; an interrupted one is continued.
    """
    store = OutputStore(outputs)
    m = store.manifest
    facts = (m.dataset, m.class_names, m.spatial_dims, m.members, m.background, m.ignore_index, m.representation)
    groups = {case.case_id: case.record.groups for case in store} if m.group_levels else None
    writer = OutputWriter(
        destination, *facts, "pooled", "float16", groups, m.group_levels or None, m.group_level or None, m.preprocessing
    )
    for case in store:
        if case.case_id not in writer.done:
            writer.write(case.case_id, case.logits, case.target, case.valid, case.geometry)
    manifest = writer.finish(store.case_ids)
    before, after = (sum(path.stat().st_size for path in folder.rglob("cases/*")) for folder in (outputs, destination))
    voxels = sum(case.voxels for case in manifest.cases)
    print(f"{after / 1e6:.0f} MB in place of {before / 1e6:.0f} MB, {len(manifest.cases)} cases, {voxels:,} voxels")
    for pooling in POOLINGS:
        changed = sum(case.changed_argmax[pooling] for case in manifest.cases)
        print(f"{pooling}: float16 changed the class of {changed:,} voxels")


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
