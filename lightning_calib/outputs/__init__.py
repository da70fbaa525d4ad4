"""Frozen ensemble outputs: their store, their division, and how fits see them."""
