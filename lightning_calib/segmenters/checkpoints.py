"""Checkpoints of networks: read only where they are whole."""

import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

_DAMAGED = (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error, struct.error)


def refuse_damaged(path: Path, remedy: str) -> None:
    """Stop where a checkpoint is not whole by the checksums in it: torch itself does not compare them.

    Args:
        path: a file that ``torch.save`` wrote.
        remedy: what to do then.

    Raises:
        ValueError: with the file and the remedy.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except _DAMAGED as problem:
        raise ValueError(f"{path} is not a whole checkpoint ({problem}); {remedy}") from problem
    if damaged is not None:
        raise ValueError(f"{path} is damaged (in {damaged}); {remedy}")


def read_weights(path: Path, remedy: str) -> dict[str, Any]:
    """The weights in a checkpoint of a training, on the CPU."""
    refuse_damaged(path, remedy)
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except (pickle.UnpicklingError, KeyError, TypeError, RuntimeError) as problem:
        raise ValueError(f"{path} is no checkpoint of a training ({problem}); {remedy}") from problem
    return found
