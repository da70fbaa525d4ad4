"""Calibrators from and to Fiducio, the library of the paper's authors: the same maps in other parameters.

Both directions go through Fiducio's own file format (version 1): tensors and plain types, read with
``weights_only=True``, so that no class of a file is ever imported. Reading a file does not need Fiducio.
"""

import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lightning_calib.calibrators.affine import ConstrainedMatrixScaling, MatrixScaling, VectorScaling
from lightning_calib.calibrators.base import Calibrator
from lightning_calib.calibrators.conditional import ConditionalDirichletCalibration, ConeScaling
from lightning_calib.calibrators.registry import build
from lightning_calib.calibrators.temperature import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    EnsembleTemperatureScaling,
    TemperatureScaling,
)
from lightning_calib.functional.cones import Cone

if TYPE_CHECKING:
    import fiducio

FORMAT, FORMAT_VERSION = "fiducio-calibrator", 1
_FIELDS = ("calibrator_id", "config", "num_classes", "fitted", "state")

# Their weights are softplus of what is stored, which never is 0: smaller ones count as 0 in float32.
SMALLEST = 1e-30

State = dict[str, Tensor]
Written = dict[str, Tensor | None]


def from_fiducio(calibrator: "fiducio.Calibrator | str | Path") -> Calibrator:
    """The calibrator of a fitted one of Fiducio, or of a file that it saved: same outputs, no refit.

    It takes logits, as all calibrators here. One that was fitted with ``input_type="probs"`` takes log-probabilities:
    call it on ``probs.log()``.

    Args:
        calibrator: fitted, or the path of its file.

    Example:
        >>> import fiducio
        >>> logits, target = torch.randn(50, 3), torch.arange(50) % 3
        >>> theirs = fiducio.CMSop(max_iter=5).fit(logits, target)
        >>> ours = from_fiducio(theirs)
        >>> ours.name, bool(torch.allclose(ours(logits).exp(), theirs.transform(logits), atol=1e-5))
        ('cms_op', True)
    """
    if isinstance(calibrator, str | Path):
        return _built(_payload(Path(calibrator)), str(calibrator))
    if not hasattr(calibrator, "calibrator_id"):
        raise TypeError(f"expected a calibrator of Fiducio or the path of its file, got {type(calibrator).__name__}")
    with tempfile.TemporaryDirectory() as folder:
        calibrator.save(path := Path(folder) / "calibrator.pt")
        return _built(_payload(path), f"this {type(calibrator).__name__}")


def to_fiducio(calibrator: Calibrator) -> "fiducio.Calibrator":
    """The fitted calibrator of Fiducio with the same outputs; takes logits.

    Args:
        calibrator: one of ts, ets, vs, ms, ms_c, dc, cdc, cms_ap and cms_op.

    Example:
        >>> to_fiducio(build("ts", 3))
        TemperatureScaling(temperature=1.0000, device=cpu)
    """
    try:
        import fiducio
    except ImportError as error:
        raise ImportError("to_fiducio makes a calibrator of the library fiducio: pip install fiducio") from error
    if calibrator.name not in _KINDS:
        raise ValueError(f"Fiducio has no counterpart of {calibrator.name}; it has those of {', '.join(_KINDS)}")
    identifier, _, write = _KINDS[calibrator.name]
    with torch.no_grad():
        state = {name: None if value is None else value.cpu().float() for name, value in write(calibrator).items()}
    payload = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "fiducio_version": fiducio.__version__,
        "calibrator_id": identifier,
        "config": {"input_type": "logits"},
        "num_classes": calibrator.num_classes,
        "fitted": True,
        "state": state,
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.save(payload, path := Path(folder) / "calibrator.pt")
        return fiducio.load_calibrator(path)


def _built(facts: dict[str, Any], where: str) -> Calibrator:
    """The calibrator that a payload describes."""
    kinds = {identifier: (name, read) for name, (identifier, read, _) in _KINDS.items()}
    if facts["calibrator_id"] not in kinds:
        raise ValueError(f"{where} is of the kind {facts['calibrator_id']!r}, which is none of {', '.join(kinds)}")
    if not facts["fitted"]:
        raise ValueError(f"{where} has not been fitted: call its fit() first")
    name, read = kinds[facts["calibrator_id"]]
    try:
        calibrator = build(name, facts["num_classes"])
        state = read(facts["state"])
        if not all(value.isfinite().all() for value in state.values()):
            raise ValueError("its parameters are not finite")
        calibrator.load_state_dict(calibrator.state_dict() | state)
    except KeyError as error:
        raise ValueError(f"{where} lacks the parameter {error}; save it again with Fiducio") from error
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{where} cannot be taken over: {error}") from error
    return calibrator


def _payload(path: Path) -> dict[str, Any]:
    """What a file of Fiducio holds: tensors and plain types."""
    if not path.is_file():
        raise FileNotFoundError(f"no file of a Fiducio calibrator at {path}")
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than tensors and plain types, or is no file of torch.save; loading it could run code "
            f"of its own, so it is refused. Save the calibrator again with Fiducio's save()"
        ) from error
    except (EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is not a whole file of torch.save ({error}); write it again") from error
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise ValueError(f"{path} is not a file of a Fiducio calibrator")
    if payload.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has Fiducio's format version {payload.get('format_version')}, this release reads "
            f"{FORMAT_VERSION}; install a newer lightning-calib"
        )
    if missing := [name for name in _FIELDS if name not in payload]:
        raise ValueError(f"{path} lacks {', '.join(missing)}; write it again with Fiducio's save()")
    return payload


def _read_temperature(state: State) -> State:
    temperature = float(state["temperature"])
    if not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ValueError(
            f"its temperature {temperature:.3g} is outside of [{MIN_TEMPERATURE:g}, {MAX_TEMPERATURE:g}], where those "
            f"of this library stay; the fit ran away, look at its data"
        )
    weights = {"weights": state["weights"]} if "weights" in state else {}
    return {"log_temperature": state["temperature"].log(), **weights}


def _write_temperature(calibrator: TemperatureScaling | EnsembleTemperatureScaling) -> Written:
    weights = {"weights": calibrator.mixture()} if isinstance(calibrator, EnsembleTemperatureScaling) else {}
    return {"temperature": calibrator.temperature, **weights}


def _read_scales(state: State) -> State:
    return {"scale": state["weight"], "bias": state["bias"]}


def _write_scales(calibrator: VectorScaling) -> Written:
    return {"weight": calibrator.scale, "bias": calibrator.bias, "row_sum": None}


def _read_matrix(state: State) -> State:
    return {"weight": state["weight"], "bias": state["bias"]}


def _write_matrix(calibrator: MatrixScaling) -> Written:
    return {"weight": calibrator.weight, "bias": calibrator.bias, "row_sum": None}


def _read_constrained(state: State) -> State:
    if state.get("row_sum") is not None:
        return {"free": state["weight"], "row_sum": state["row_sum"], "bias": state["bias"]}
    centred = state["weight"] - state["weight"].mean(1, keepdim=True)  # files before their first release
    return {"free": centred[:, :-1], "row_sum": torch.zeros(()), "bias": state["bias"]}


def _write_constrained(calibrator: ConstrainedMatrixScaling) -> Written:
    return {"weight": calibrator.free, "row_sum": calibrator.row_sum, "bias": calibrator.bias}


def _read_experts(state: State) -> State:
    """Theirs multiply rows by the matrix, ours the matrix by columns."""
    return {"weight": state["raw_b"].mT, "bias": state["raw_mu"]}


def _write_experts(calibrator: ConditionalDirichletCalibration) -> Written:
    return {"raw_b": calibrator.weight.mT, "raw_mu": calibrator.bias}


def _read_gaps(cone: Cone, state: State) -> State:
    inner, bias = (softplus(state[name]) for name in ("raw_b", "raw_mu"))
    places = competitors(len(bias), cone)
    return {"inner": _reordered(inner, places), "bias_gaps": bias.gather(1, places)}


def _write_gaps(calibrator: ConeScaling) -> Written:
    inner, bias = (calibrator.non_negative(value) for value in (calibrator.inner, calibrator.bias_gaps))
    places = competitors(calibrator.num_classes, calibrator.cone).argsort(1).to(bias.device)
    return {
        "raw_b": _inverse_softplus(_reordered(inner, places)),
        "raw_mu": _inverse_softplus(bias.gather(1, places)),
    }


def competitors(num_classes: int, cone: Cone) -> Tensor:
    """Places of our gaps among theirs ``(E, C - 1)``.

    For the order there is no difference. For the argmax, theirs follow the losing classes by number; ours have class 0
    in the winner's place.

    Example:
        >>> competitors(4, "argmax")[2]
        tensor([1, 0, 2])
    """
    places = torch.arange(num_classes - 1).repeat(num_classes, 1)
    if cone == "argmax":
        for winner in range(1, num_classes):
            losers = [label for label in range(num_classes) if label != winner]
            ours = [0 if label == winner else label for label in range(1, num_classes)]
            places[winner] = torch.tensor([losers.index(label) for label in ours])
    return places


def _reordered(inner: Tensor, places: Tensor) -> Tensor:
    """Rows and columns of each expert's matrix in another order."""
    rows = inner.gather(1, places.unsqueeze(2).expand_as(inner))
    return rows.gather(2, places.unsqueeze(1).expand_as(inner))


def _inverse_softplus(value: Tensor) -> Tensor:
    wide = value.double().clamp(min=SMALLEST)
    return wide + (-torch.expm1(-wide)).log()


# By our name: their identifier, the way from their state, the way to it.
_KINDS: dict[str, tuple[str, Callable[[State], State], Callable[[Any], Written]]] = {
    "ts": ("temperature_scaling", _read_temperature, _write_temperature),
    "ets": ("ensemble_temperature_scaling", _read_temperature, _write_temperature),
    "vs": ("vector_scaling", _read_scales, _write_scales),
    "ms": ("matrix_scaling", _read_matrix, _write_matrix),
    "ms_c": ("translation_invariant_matrix_scaling", _read_constrained, _write_constrained),
    "dc": ("dirichlet_calibration", _read_matrix, _write_matrix),
    "cdc": ("class_conditional_matrix_scaling", _read_experts, _write_experts),
    "cms_ap": ("argmax_preserving_matrix_scaling", partial(_read_gaps, "argmax"), _write_gaps),
    "cms_op": ("order_preserving_matrix_scaling", partial(_read_gaps, "order"), _write_gaps),
}
