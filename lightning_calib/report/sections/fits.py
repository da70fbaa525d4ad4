"""The section on the fits: what each solver says about its result, and how long it took."""

from collections.abc import Iterable
from typing import Any

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.calibrators.registry import build
from lightning_calib.report.columns import COLUMN, format_metric
from lightning_calib.report.inputs import Inputs, MissingInput, first_line
from lightning_calib.report.numbers import format_count, format_scientific, format_seconds
from lightning_calib.report.section import Section


def certificates(inputs: Inputs) -> Section:
    """What each solver says about its fit, and how long it took."""
    rows = [row for name in inputs.results.pipelines if (row := _fit_row(inputs, name)) is not None]
    if not rows:
        raise MissingInput(f"There is no fit in {inputs.results.folder}: the run has not started.")
    lead = "Every fit accounts for itself. Where a cell holds several values, they are those of the repeats."
    total = sum(row["seconds"] for row in rows)
    return Section("fits", "Fits and timings", lead, "fits.html", data={"rows": rows, "total": format_seconds(total)})


def _fit_row(inputs: Inputs, name: str) -> dict[str, Any] | None:
    """One line of the table of fits: a pipeline over all repeats."""
    fits = [(r, fit) for r in inputs.results.repeats if (fit := inputs.results.fit(r, name)) is not None]
    if not fits:
        return None
    done = [fit for _, fit in fits if fit["status"] == "ok"]
    certificates = [fit.get("certificate") or {} for fit in done]
    warnings = list(dict.fromkeys(w for c in certificates for w in c.get("warnings", ())))
    gradients = [c["gradient_norm"] for c in certificates if c.get("gradient_norm") is not None]
    seconds = [times["fit"] for r, _ in fits if "fit" in (times := inputs.results.timing(r, name) or {})]
    return {
        "pipeline": name,
        "parameters": _parameters(inputs, name),
        "solver": _joined(str(c["solver"]) for c in certificates if c.get("solver")),
        "converged": [bool(c["converged"]) for c in certificates if "converged" in c],
        "passes": _joined(format_count(c["passes"]) for c in certificates if c.get("passes") is not None),
        "gradient": format_scientific(max(gradients, default=None)),
        "hyperparameters": _joined(_told(fit, calibrated=not name.startswith("identity")) for fit in done),
        "val": _joined(format_metric(COLUMN["nll"], fit.get("val_nll")) for fit in done),
        "identity": _joined(format_metric(COLUMN["nll"], fit.get("identity_val_nll")) for fit in done),
        "time": format_seconds(sum(seconds) if seconds else None),
        "seconds": sum(seconds),
        "warnings": warnings,
        "failures": [_failure(r, fit["error"]) for r, fit in fits if fit["status"] != "ok"],
    }


def _failure(repeat: int, error: str) -> dict[str, str]:
    """An error, and its traceback where it has one."""
    message = first_line(error)
    return {"message": f"repeat {repeat}: {message}", "traceback": error.strip().removeprefix(message).strip()}


def _parameters(inputs: Inputs, name: str) -> str:
    """Optimised and identifiable parameters."""
    data = inputs.results.dataset
    calibrator = build(PipelineName.parse(name).calibrator, data["num_classes"], data["spatial_dims"])
    return f"{format_count(calibrator.num_optimized)} / {format_count(calibrator.num_identifiable)}"


def _told(fit: dict[str, Any], calibrated: bool) -> str:
    """Hyperparameters, or that no trial was better than leaving the ensemble as it is."""
    if calibrated and fit.get("val_nll") is not None and fit["val_nll"] == fit.get("identity_val_nll"):
        return "no trial was better than no calibration"
    values = (fit.get("hyperparameters") or {}).items()
    return ", ".join(f"{k} {format_scientific(v) if isinstance(v, float) else v}" for k, v in values)


def _joined(texts: Iterable[str]) -> str:
    """Values of the repeats, each once if they agree."""
    listed = list(texts)
    return " · ".join(listed[:1] if len(set(listed)) == 1 else listed)
