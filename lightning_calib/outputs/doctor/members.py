"""Members of an ensemble that are one and the same network."""

from itertools import combinations

from lightning_calib.outputs.doctor.finding import Finding
from lightning_calib.outputs.doctor.sample import Sample
from lightning_calib.outputs.manifest import Manifest


class Twins:
    """Pairs of members that agreed in every voxel so far.

    Args:
        manifest: facts of the store.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        known = [member.sha256 for member in manifest.members]
        pairs = list(combinations(range(manifest.num_members), 2))
        self.checkpoints = {(a, b) for a, b in pairs if known[a] and known[a] == known[b]}
        self.equal = set(pairs) if manifest.keep == "members" else set()
        self.voxels = 0

    def add(self, sample: Sample) -> None:
        """Compare the members on one more case."""
        self.voxels += int(sample.valid.sum())
        scores = sample.scores[..., sample.valid]
        self.equal = {(a, b) for a, b in self.equal if scores.shape[-1] == 0 or bool((scores[a] == scores[b]).all())}

    def finding(self) -> Finding | None:
        """The finding on members that are equal, or None."""
        equal = self.equal if self.voxels else set()
        pairs = sorted(equal | self.checkpoints)
        if not pairs:
            return None
        names = [member.name for member in self.manifest.members]
        listed = ", ".join(f"{names[a]} = {names[b]}" for a, b in pairs[:5]) + (", ..." if len(pairs) > 5 else "")
        how = f"the same scores in all {self.voxels:,} voxels" if equal else "checkpoints of the same hash"
        return Finding(
            "identical_members",
            "error",
            f"{len(pairs)} pair(s) of members have {how}: {listed}",
            "one checkpoint was loaded for several members, or they were trained with the same seed",
            "name a checkpoint of its own for each member, trained with its own seed, and predict again",
        )
