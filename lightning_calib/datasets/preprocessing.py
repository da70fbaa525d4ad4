"""The way from an image file to what the networks see, and back, in plain facts that a file can keep."""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.georeference import georeference
from lightning_calib.datasets.readers import PICTURES, VOLUME_INPUTS, stem, suffix
from lightning_calib.datasets.registry import READERS
from lightning_calib.kit.files import plain

Recorded = dict[str, Any]  # {"name": ..., "options": {...}} of a reader


# Of a reader's options that came later: written down where they are not the default, so that stores of earlier versions
# are those of readers of now.
LATER = {"later": True}


class PreprocessingError(ValueError):
    """A reader cannot be recorded, or may not be imported; the message says what to do."""


@dataclass(frozen=True)
class LoadedImage:
    """An image as the networks see it, and the way back.

    Attributes:
        image: ``(channels, *S_in)``, normalised.
        restore: brings logits ``(C, *S_in)`` to the file's grid ``(C, *S)``.
        valid: where the networks predict, bool ``(*S)``; None for everywhere.
        geometry: where the voxels are: affine, spacing and order of axes of a volume, place of a GeoTIFF image.
    """

    image: Tensor
    restore: Callable[[Tensor], Tensor]
    valid: Tensor | None = None
    geometry: dict[str, Any] | None = None


@dataclass(frozen=True)
class Preprocessing:
    """What happens to an image file before the networks see it, and to their scores after.

    Attributes:
        kind: ``image`` for 2D, ``volume`` for 3D.
        in_channels: channels of an image.
        reader: name and options of what reads a case, a volume's normalisation and voxel size included; it gets a
            case without a mask and may return any target of the image's size.
        normalization: how 2D images are scaled.
        image_size: size that 2D images are resized to; logits are resized back. None keeps the file's.
        raw_transform: name and options of what changes raw 2D images first; None for nothing.
        inference: options of :class:`~lightning_calib.segmenters.Inference`; None for images in one piece.
    """

    kind: Literal["image", "volume"]
    in_channels: int
    reader: Recorded
    normalization: Literal["imagenet", "image"] = "imagenet"
    image_size: tuple[int, int] | None = None
    raw_transform: Recorded | None = None
    inference: dict[str, Any] | None = None

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> Self:
        """Read from the JSON form, also that of deployments of format version 1."""
        facts = dict(facts)
        if "reader" not in facts:
            options = {key: facts.pop(key) for key in ("content_only", "spacing")}
            is_image = facts["kind"] == "image"
            facts["reader"] = (
                {"name": "pictures", "options": {}} if is_image else {"name": "volumes", "options": options}
            )
        size = facts.get("image_size")
        return cls(**{**facts, "image_size": None if size is None else tuple(size)})

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        facts: dict[str, Any] = plain(asdict(self))
        return facts

    @property
    def mask_values(self) -> tuple[int, ...] | None:
        """What the masks of the training data hold for class 0, 1, ...; None for the class numbers."""
        values = self.reader["options"].get("mask_values")
        return None if values is None else tuple(int(value) for value in values)

    def loader(self, trust: bool = False) -> "Loader":
        """What reads new images; a reader that is neither ours nor registered is imported only with ``trust``."""
        transform = None if self.raw_transform is None else build(self.raw_transform, trust)
        return Loader(self, build(self.reader, trust), transform)


class Loader:
    """Reads new images.

    Args:
        facts: what happens to them.
        read: the reader.
        raw_transform: what changes raw images first.
    """

    def __init__(
        self, facts: Preprocessing, read: Callable[..., Any], raw_transform: Callable[..., Any] | None = None
    ) -> None:
        self.facts, self.read, self.raw_transform = facts, read, raw_transform

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of files that can be read."""
        usual = (*PICTURES, ".npy") if self.facts.kind == "image" else VOLUME_INPUTS
        return tuple(getattr(self.read, "endings", usual))

    def __call__(self, files: Sequence[Path]) -> LoadedImage:
        """Read one case of one file, or of one file a channel."""
        case = Case(stem(files[0]), tuple(files))
        loaded = self._picture(case) if self.facts.kind == "image" else self._volume(case)
        if len(loaded.image) != self.facts.in_channels:
            raise ValueError(
                f"{files[0]}: {len(loaded.image)} channels, the networks were trained on {self.facts.in_channels}"
                + ("; name one file a channel <case>_0000, <case>_0001, ..." if self.facts.kind == "volume" else "")
            )
        return loaded

    def _picture(self, case: Case) -> LoadedImage:
        from lightning_calib.datasets.transforms import ImageTransform  # albumentations takes a second to import

        raw, normalization = self.read(case)[0], self.facts.normalization
        if self.raw_transform is not None:
            raw = self.raw_transform(raw, case.case_id)
        if normalization == "imagenet" and (raw.dtype != np.uint8 or raw.shape[2] != 3):
            raise ValueError(f"{case.images[0]}: {raw.dtype} with {raw.shape[2]} channels; the networks take 8-bit RGB")
        size = raw.shape[:2]
        transform = ImageTransform(image_size=self.facts.image_size, normalization=normalization)
        image, _ = transform(raw, np.zeros(size, np.uint8), np.random.default_rng(0))
        tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return LoadedImage(tensor, partial(_resize, size), geometry=georeference(case.images[0], size))

    def _volume(self, case: Case) -> LoadedImage:
        volume = self.read(case, True)
        image = torch.from_numpy(np.ascontiguousarray(volume.image))
        valid = None if volume.valid is None else torch.from_numpy(volume.valid)
        restore = _as_is if volume.grid is None else volume.grid.restore
        return LoadedImage(image, restore, valid, None if suffix(case.images[0]) == ".npy" else volume.geometry)


def record(reader: Callable[..., Any]) -> Recorded:
    """Name and options of a reader: a function of a module, or an instance of a dataclass of plain options.

    Raises:
        PreprocessingError: where it is something else.

    Example:
        >>> from lightning_calib.datasets.volume_reader import VolumeReader
        >>> record(VolumeReader(content_only=True))
        {'name': 'volumes', 'options': {'content_only': True, 'spacing': None}}
    """
    made = not inspect.isfunction(reader)
    cls = type(reader) if made else reader
    place = f"{cls.__module__}.{cls.__qualname__}"
    try:
        options = _options(reader) if is_dataclass(reader) else {}
        if "<" in place or (made and not is_dataclass(reader)):
            raise TypeError("it is no function of a module and no dataclass")
        return {"name": READERS.name_of(cls) or place, "options": json.loads(json.dumps(plain(options)))}
    except TypeError as problem:
        raise PreprocessingError(
            f"{place} cannot be written down ({problem}), so that new images could not be read as these were: make it "
            "a dataclass of plain options, or a function, at the top of a module"
        ) from problem


def _options(reader: Any) -> dict[str, Any]:  # noqa: ANN401
    values = {f.name: (f, getattr(reader, f.name)) for f in fields(reader)}
    return {name: value for name, (f, value) in values.items() if not f.metadata.get("later") or value != f.default}


def build(recorded: Recorded, trust: bool = False) -> Callable[..., Any]:
    """The reader that :func:`record` described.

    Raises:
        PreprocessingError: for one that is neither ours nor registered, unless the file that names it is trusted.
    """
    name, options = str(recorded["name"]), recorded["options"]
    if name not in READERS and not trust:
        raise PreprocessingError(
            f"images are read by {name}, which is neither one of this library's readers ({', '.join(READERS)}) nor "
            "registered: importing it runs code of its package. Where you trust the file that names it, give --trust "
            "(in Python trust=True); a package registers its reader by an entry point of lightning_calib.readers"
        )
    found = READERS[name]
    built: Callable[..., Any] = found if inspect.isfunction(found) else found(**options)
    return built


def _as_is(logits: Tensor) -> Tensor:
    return logits


def _resize(size: tuple[int, ...], logits: Tensor) -> Tensor:
    """Bilinear resizing of ``(C, H, W)``; nothing where the size is right."""
    if logits.shape[1:] == size:
        return logits
    return interpolate(logits[None], size=size, mode="bilinear", align_corners=False)[0]
