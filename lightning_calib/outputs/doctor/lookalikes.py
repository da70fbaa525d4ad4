"""Cases of different groups that look alike: leaks that groups do not know of."""

import torch

from lightning_calib.outputs.doctor.finding import Finding
from lightning_calib.outputs.doctor.perceptual import PerceptualHash, agreement, alike_pairs, perceptual_hash
from lightning_calib.outputs.store import OutputStore, StoredCase

# Agreement of hashes from which two cases are near copies. Labels of different drives (CamVid), sites (nuclei) and
# tiles (roads) agree by at most 0.49, those of the most alike hippocampi by 0.78. A copy that is moved by two pixels
# keeps 0.8 in the median, some keep only 0.55; neighbouring frames of a video keep 0.6 to 0.9. Confidences fall along
# thin borders: a pixel's move takes more of their agreement.
LABELS_ALIKE, CONFIDENCES_ALIKE = 0.65, 0.6


class Lookalikes:
    """Near copies among the cases of a store.

    Args:
        store: the store; its groups say which cases may be alike.
    """

    def __init__(self, store: OutputStore) -> None:
        self.store = store
        self.hashes: dict[str, PerceptualHash] = {}

    def add(self, case: StoredCase) -> None:
        """Remember what a case looks like, unless there is nothing to see."""
        seen = perceptual_hash(case)
        if seen.has_content:
            self.hashes[case.case_id] = seen

    def pairs(self) -> list[tuple[str, str]]:
        """Cases of different groups whose labels and confidences are both alike; exact copies are told elsewhere."""
        groups, content = self.store.groups, {case.case_id: case.sha256 for case in self.store.manifest.cases}
        found = []
        for grid in sorted({seen.grid for seen in self.hashes.values()}):
            ids = [case_id for case_id, seen in self.hashes.items() if seen.grid == grid]
            target, confidence = (
                torch.stack([getattr(self.hashes[case_id], name) for case_id in ids])
                for name in ("target", "confidence")
            )
            pairs = alike_pairs(target, LABELS_ALIKE)
            pairs = pairs[agreement(confidence[pairs[:, 0]], confidence[pairs[:, 1]]) >= CONFIDENCES_ALIKE]
            found += [(ids[a], ids[b]) for a, b in pairs.tolist()]
        return [(a, b) for a, b in found if groups[a] != groups[b] and content[a] != content[b]]

    def finding(self) -> Finding | None:
        """The finding on near copies across groups, or None."""
        pairs, level = self.pairs(), self.store.manifest.group_level
        if not pairs:
            return None
        listed = "; ".join(f"{one} and {other}" for one, other in pairs[:5]) + ("; ..." if len(pairs) > 5 else "")
        return Finding(
            "near_copies",
            "warning",
            f"{len(pairs)} pair(s) of cases look alike and are of different groups (level: {level}): {listed}",
            "neighbouring frames or slices, crops of one image, or two visits of a patient, under names that do not "
            "show it; test cases are then no new ones, and every interval is too narrow",
            "put what belongs together into one group (--group_regex or --groups_csv of the import, group_regex or "
            "groups_csv of the data set) and divide by groups, or keep one of each",
            tuple(dict.fromkeys(case_id for pair in pairs for case_id in pair)),
        )
