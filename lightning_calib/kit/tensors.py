"""Tensors in safetensors files that appear whole or not at all."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lightning_calib.kit.files import atomic_path


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and a header of texts in one step.

    Args:
        path: the file to appear.
        tensors: by their names.
        metadata: texts by their names.

    Raises:
        OSError: where the disk is full or the folder cannot be written; safetensors has a class of its own for that.
    """
    found = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as aside:
        try:
            save_file(found, aside, metadata=None if metadata is None else dict(metadata))
        except SafetensorError as problem:
            raise OSError(f"cannot write {path}: {problem}") from problem


def tensor_checksum(tensor: Tensor, facts: Mapping[str, str]) -> str:
    """Checksum of a tensor's type, shape and bytes, and of facts about it: finds damage, not forgery.

    Example:
        >>> import torch
        >>> tensor_checksum(torch.zeros(2), {}) == tensor_checksum(torch.zeros(2), {"a": "b"})
        False
    """
    head = json.dumps([str(tensor.dtype), list(tensor.shape), sorted(facts.items())]).encode()
    return f"{zlib.crc32(tensor.contiguous().numpy().data.cast('B'), zlib.crc32(head)):08x}"
