"""Calibrators with arbitrary parameters, and logits that hurt."""

import torch
from hypothesis import strategies as st

from lightning_calib.calibrators import CALIBRATORS
from tests.calibrators.strangers import STRANGERS
from tests.features import build

# Facts of a stack are its parts': see the strangers. Those on pooled features are others with fewer features.
OURS = [name for name in CALIBRATORS.ours if name != "stack" and not name.endswith("_pooled")]
CLASSES = {name: CALIBRATORS[name] for name in OURS} | STRANGERS
NAMES = tuple(CLASSES)
VOXELWISE = tuple(name for name, cls in CLASSES.items() if cls.looks_at == "voxel")
PRESERVING = tuple(name for name, cls in CLASSES.items() if cls.preserves)
ORDERED = tuple(name for name, cls in CLASSES.items() if cls.preserves == "order")
INVARIANT = tuple(name for name, cls in CLASSES.items() if cls.translation_invariant)
SENSITIVE = tuple(name for name in NAMES if name not in INVARIANT)

IMAGE = (4, 6)  # smaller than the padding of LTS in one direction


def randomized(name, num_classes, seed, scale=1.0, dtype=torch.float32, **options):
    """A calibrator whose parameters are anything, negative ones included."""
    calibrator = build(name, num_classes, **options).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_((scale * noise).to(dtype))
    return calibrator


def hard_logits(seed, kind, num_classes, dtype=torch.float32):
    """Logits (1, C, 4, 6) of a kind that breaks careless arithmetic."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, num_classes, *IMAGE)
    normal = torch.randn(shape, generator=generator)
    levels = torch.randint(-2, 3, shape, generator=generator).float()
    if kind == "ties":
        return levels.to(dtype)
    if kind == "equal":
        return normal[:, :1].expand(shape).to(dtype).contiguous()
    if kind == "huge":
        return (normal.sign() * 1e4 * torch.rand(shape, generator=generator).round()).to(dtype)
    if kind == "neighbours":  # one ulp apart
        base = (normal[:, :1] * 8).to(dtype).expand(shape)
        up = torch.nextafter(base.float(), torch.tensor(torch.inf)) if dtype == torch.float32 else base
        return torch.where(levels > 0, up.to(dtype), base)
    if kind == "saturated":  # softmax is 1.0 to the last bit
        return (levels * 200).to(dtype)
    return (normal * 5).to(dtype)


KINDS = ("ties", "equal", "huge", "neighbours", "saturated", "normal")

seeds = st.integers(0, 2**31 - 1)
kinds = st.sampled_from(KINDS)
class_counts = st.integers(2, 20)
input_dtypes = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
scales = st.sampled_from([0.1, 1.0, 10.0, 1e3])
