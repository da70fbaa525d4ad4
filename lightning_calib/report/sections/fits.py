"""The section on the fits: what each solver says about its result, and how long it took."""

from collections.abc import Iterable

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.calibrators.registry import build
from lightning_calib.experiment.records import FitRecord
from lightning_calib.kit.tables import MISSING, Cell, Column, Row, Table
from lightning_calib.metrics.score import SCORES
from lightning_calib.report.glossary import TERMS
from lightning_calib.report.inputs import Inputs, MissingInput, first_line
from lightning_calib.report.numbers import format_count, format_scientific, format_score, format_seconds, plural
from lightning_calib.report.section import Section

_COLUMNS = (
    Column("pipeline", left=True),
    Column("parameters", tip="Numbers that the solver changes, and how many of them the probabilities can tell apart."),
    Column("solver", left=True),
    Column("converged", left=True, tip=TERMS["certificate"]),
    Column("passes"),
    Column("gradient", tip=TERMS["gradient"]),
    Column("chosen by the search", left=True),
    Column("val NLL before", tip=TERMS["val"]),
    Column("after"),
    Column("time"),
)


def certificates(inputs: Inputs) -> Section:
    """What each solver says about its fit, and how long it took."""
    results = inputs.results
    fits = {name: {r: fit for r in results.repeats if (fit := results.fit(r, name))} for name in results.pipelines}
    rows = tuple(_row(inputs, name, own) for name, own in fits.items() if own)
    if not rows:
        raise MissingInput(f"There is no fit in {results.folder}: the run has not started.")
    lead = "Every fit accounts for itself. Where a cell holds several values, they are those of the repeats."
    total = format_seconds(sum(row.cells[-1].value or 0.0 for row in rows))
    caption = (
        f"Time: search and fits of all repeats, on the machine that ran them; {total} in all, added up over processes."
    )
    return Section("fits", "Fits and timings", lead, tables=(Table("fits", caption, _COLUMNS, rows),))


def _row(inputs: Inputs, name: str, fits: dict[int, FitRecord]) -> Row:
    """A pipeline over all repeats; errors and the solver's notes below."""
    done = [fit for fit in fits.values() if fit.ok]
    certificates = [fit.certificate for fit in done]
    gradients = [c["gradient_norm"] for c in certificates if c.get("gradient_norm") is not None]
    times = (inputs.results.timing(r, name) or {} for r in fits)
    seconds = [own["fit"] for own in times if "fit" in own]
    calibrated = PipelineName.parse(name).calibrator != "identity"
    before = _joined(format_score(SCORES["nll"], fit.identity_val_nll) for fit in done)
    after = _joined(format_score(SCORES["nll"], fit.val_nll) for fit in done)
    cells = (
        Cell(name, style="code"),
        Cell(_parameters(inputs, name)),
        Cell(_joined(str(c["solver"]) for c in certificates if c.get("solver"))),
        _converged([bool(c["converged"]) for c in certificates if "converged" in c]),
        Cell(_joined(format_count(c["passes"]) for c in certificates if c.get("passes") is not None)),
        Cell(format_scientific(max(gradients, default=None))),
        Cell(_joined(_choice(fit, calibrated) for fit in done), style="words"),
        Cell(before),
        Cell(after),
        Cell(format_seconds(sum(seconds) if seconds else None), sum(seconds)),
    )
    details = [_failure(r, fit.error or "") for r, fit in fits.items() if not fit.ok]
    note = "; ".join(message for message, _ in details)
    if warnings := list(dict.fromkeys(w for c in certificates for w in c.get("warnings", ()))):
        details.append((f"{plural(len(warnings), 'note')} of the solver", "\n".join(warnings)))
    return Row(cells, note=note, details=tuple(details))


def _converged(found: list[bool]) -> Cell:
    if all(found):
        return Cell("✓", style="yes") if found else Cell()
    return Cell(f"in {sum(found)} of {len(found)}", style="no")


def _failure(repeat: int, error: str) -> tuple[str, str]:
    """An error, and its traceback where it has one."""
    message = first_line(error)
    return f"repeat {repeat}: {message}", error.strip().removeprefix(message).strip()


def _parameters(inputs: Inputs, name: str) -> str:
    """Optimised and identifiable parameters."""
    data = inputs.results.dataset
    calibrator = build(PipelineName.parse(name).calibrator, data["num_classes"], data["spatial_dims"])
    return f"{format_count(calibrator.num_optimized)} / {format_count(calibrator.num_identifiable)}"


def _choice(fit: FitRecord, calibrated: bool) -> str:
    """Hyperparameters, or that no trial was better than leaving the ensemble as it is."""
    if calibrated and fit.val_nll == fit.identity_val_nll:
        return "no trial was better than no calibration"
    values = fit.hyperparameters.items()
    return ", ".join(f"{k} {format_scientific(v) if isinstance(v, float) else v}" for k, v in values)


def _joined(texts: Iterable[str]) -> str:
    """Values of the repeats, each once if they agree."""
    listed = list(texts)
    return " · ".join(listed[:1] if len(set(listed)) == 1 else listed) or MISSING
