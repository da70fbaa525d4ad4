"""Pure tensor functions: the arithmetic that metrics and calibrators share."""

from lightning_calib.functional.pooling import POOLINGS, Pooling, pool

__all__ = ["POOLINGS", "Pooling", "pool"]
