"""Calibrators in one safetensors file with a JSON header; no pickle."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.registry import named_in, registered_name
from lightning_calib.kit.tensors import write_tensors
from lightning_calib.kit.typed import typed

FORMAT_VERSION = 1
_HEADER = "lightning_calib"


@dataclass(frozen=True)
class _Header:
    """What every header holds."""

    format_version: int
    name: str
    num_classes: int
    spatial_dims: int
    options: dict[str, Any]


def save_calibrator(
    path: str | Path,
    calibrator: Calibrator,
    class_names: list[str] | None = None,
    fitted: dict[str, Any] | None = None,
) -> None:
    """Write a calibrator; the file appears whole or not at all.

    Args:
        path: file to write, by custom ``*.safetensors``.
        calibrator: what to store.
        class_names: names of its classes.
        fitted: how it was fitted; anything that JSON can hold.

    Example:
        >>> import tempfile
        >>> from lightning_calib.calibrators import build, load_calibrator
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_calibrator(f"{folder}/ts.safetensors", build("ts", 3), fitted={"voxels": 100})
        ...     load_calibrator(f"{folder}/ts.safetensors").name
        'ts'
    """
    if class_names is not None and len(class_names) != calibrator.num_classes:
        raise ValueError(f"{len(class_names)} class names for {calibrator.num_classes} classes")
    header = {
        "format_version": FORMAT_VERSION,
        "num_classes": calibrator.num_classes,
        "spatial_dims": calibrator.spatial_dims,
        **_described(calibrator),
        "class_names": class_names,
        "fitted": fitted,
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.detach().cpu() for key, value in calibrator.state_dict().items()}
    write_tensors(path, tensors, {_HEADER: json.dumps(header)})


def _described(calibrator: Calibrator) -> dict[str, Any]:
    """Name and options; options may be calibrators themselves, the parts of a stack."""
    options = {
        key: [_described(part) for part in value] if isinstance(value, list) else value
        for key, value in calibrator.options().items()
    }
    return {"name": registered_name(type(calibrator)), "options": options}


def _built(path: str | Path, facts: dict[str, Any], num_classes: int, spatial_dims: int) -> Calibrator:
    """Undo :func:`_described`, with parameters as they are at first."""

    def option(value: Any) -> Any:  # noqa: ANN401  # whatever JSON holds
        if isinstance(value, list):
            return [option(part) for part in value]
        return _built(path, value, num_classes, spatial_dims) if isinstance(value, dict) else value

    options = {key: option(value) for key, value in facts["options"].items()}
    return named_in(path, facts["name"])(num_classes, spatial_dims, **options)


def read_header(path: str | Path) -> dict[str, Any]:
    """The JSON header of a calibrator file: name, classes, options, how it was fitted."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no calibrator file at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); write it again") from error
    if _HEADER not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not one of a calibrator: its header lacks {_HEADER!r}")
    try:
        header: dict[str, Any] = typed(json.loads(metadata[_HEADER]), dict[str, Any])
        version = typed(header.get("format_version"), int, "format_version")
        if version <= FORMAT_VERSION:
            typed({key: value for key, value in header.items() if key in _Header.__annotations__}, _Header)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path}: its header does not describe a calibrator ({problem}); write it again") from problem
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version}, newer than this library's {FORMAT_VERSION}; "
            f"install a newer lightning-calib"
        )
    return header


def load_calibrator(path: str | Path) -> Calibrator:
    """Calibrator of a file that :func:`save_calibrator` wrote.

    Its class must be known: one of ours or of an installed package, registered, or named by the user before.
    """
    header = read_header(path)
    with safe_open(Path(path), framework="pt") as file:
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # not a dict
    if wrong := [key for key, value in state.items() if value.is_floating_point() and not value.isfinite().all()]:
        raise ValueError(f"{path}: {', '.join(wrong)} of the calibrator is NaN or infinite; fit it again")
    try:
        calibrator = _built(path, header, header["num_classes"], header["spatial_dims"])
        for key, value in (*calibrator.named_parameters(), *calibrator.named_buffers()):
            if key in state:
                value.data = value.data.to(state[key].dtype)  # a float64 fit stays float64
        calibrator.load_state_dict(state)
    except (TypeError, KeyError, RuntimeError, MemoryError) as problem:
        raise ValueError(f"{path} does not hold the calibrator that its header describes: {problem}") from problem
    return calibrator
