"""Fitting in one call: chooses the solver by the calibrator."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_calib.calibrators import AffineCalibrator, Calibrator, EnsembleTemperatureScaling, Identity
from lightning_calib.solvers.adam import fit_adam, mean_nll
from lightning_calib.solvers.certificate import Certificate
from lightning_calib.solvers.mixture import fit_mixture
from lightning_calib.solvers.newton import Batch, NewtonSolver, alone, run_newton
from lightning_calib.solvers.objective import EPS, LAM, MU
from lightning_calib.solvers.sums import Reduce

Solver = Literal["auto", "newton", "slsqp", "adam"]
AnyBatch = tuple[Tensor, Tensor] | Batch | Mapping[str, Any]

# Voxels in a step of Adam where the data are a list of voxels.
ADAM_VOXELS = 65_536


def fit(
    calibrator: Calibrator,
    logits: Tensor | Iterable[AnyBatch],
    target: Tensor | None = None,
    ignore_index: int | None = None,
    lam: float = LAM,
    mu: float = MU,
    eps: float = EPS,
    solver: Solver = "auto",
    reduce: Reduce = alone,
    **options: Any,
) -> Certificate:
    """Fit a calibrator in place on pooled logits and labels.

    Args:
        calibrator: any of the registry. TS, VS, MS, MS_c, DC, CDC and CMS are solved to the optimum by Newton's
            method, ETS by SLSQP, LTS trained by Adam.
        logits: pooled logits ``(B, C, *S)`` or a list of voxels ``(N, C)``; or batches: a list, a ``DataLoader``
            or anything else that can be iterated over again and gives ``(logits, target)``,
            ``(logits, target, case_ids)`` or a mapping with ``"logits"``, ``"target"`` and perhaps ``"case_id"``.
        target: labels ``(B, *S)`` or ``(N,)``; not with batches.
        ignore_index: label of voxels that do not count.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge.
        solver: ``"adam"`` fits any calibrator; the others those that they are made for.
        reduce: sums a float64 tensor over processes (not with Adam, which runs under Lightning there).
        **options: further arguments of the solver, such as ``max_passes`` (newton) or ``lr`` (adam).

    Returns:
        What is known about the fit.

    Example:
        >>> import torch
        >>> from lightning_calib.calibrators import build
        >>> logits = 4 * torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
        >>> target = logits.roll(1, dims=-1).argmax(1)
        >>> calibrator = build("cms_op", num_classes=3)
        >>> certificate = fit(calibrator, logits, target)
        >>> certificate.converged, certificate.objective < certificate.identity_objective
        (True, True)
    """
    kind = choose_solver(calibrator) if solver == "auto" else solver
    batches = Batches(logits, target, ADAM_VOXELS if kind == "adam" else None)
    certificate = _run(kind, calibrator, batches, ignore_index, (lam, mu, eps), reduce, options)
    for message in certificate.warnings:
        warnings.warn(message, stacklevel=2)
    return certificate


def choose_solver(calibrator: Calibrator) -> Solver:
    """The solver that suits a calibrator.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> [choose_solver(build(name, 3)) for name in ("ms", "ets", "lts")]
        ['newton', 'slsqp', 'adam']
    """
    return calibrator.solver


class Batches:
    """Logits, target and case ids, as often as they are iterated over.

    Args:
        logits: a tensor, or a re-iterable of batches.
        target: labels where ``logits`` is a tensor.
        voxels: how many voxels of a list ``(N, C)`` make a batch; all of them by default.
    """

    def __init__(self, logits: Tensor | Iterable[AnyBatch], target: Tensor | None, voxels: int | None = None) -> None:
        if isinstance(logits, Tensor) != (target is not None):
            raise TypeError("give fit() logits and target as tensors, or batches without a target")
        if isinstance(logits, Iterator):
            raise TypeError(
                "the data are read several times, but an iterator or generator can be read once; "
                "pass a list, a DataLoader or an object with __iter__"
            )
        self.logits, self.target, self.voxels = logits, target, voxels

    def __iter__(self) -> Iterator[Batch]:
        """The batches in order."""
        if isinstance(self.logits, Tensor) and self.target is not None:
            yield from self._parts(self.logits, self.target)
            return
        for batch in self.logits:
            yield unpack(batch)

    def _parts(self, logits: Tensor, target: Tensor) -> Iterator[Batch]:
        """One batch, or several of a list of voxels."""
        if logits.ndim != 2 or self.voxels is None:
            yield logits, target, None
            return
        for part, labels in zip(torch.split(logits, self.voxels), torch.split(target, self.voxels), strict=True):
            yield part, labels, None


def unpack(batch: AnyBatch) -> Batch:
    """Logits, target and case ids of a batch in any of its forms."""
    if isinstance(batch, Mapping):
        return batch["logits"], batch["target"], batch.get("case_id")
    logits, target = batch[0], batch[1]
    case_ids: Sequence[str] | None = batch[2] if len(batch) > 2 else None
    return logits, target, case_ids


def _run(
    kind: Solver,
    calibrator: Calibrator,
    batches: Batches,
    ignore_index: int | None,
    strengths: tuple[float, float, float],
    reduce: Reduce,
    options: dict[str, Any],
) -> Certificate:
    """Hand over to the solver."""
    if isinstance(calibrator, Identity):
        nll, count = mean_nll(calibrator, batches, ignore_index)
        return Certificate("none", True, "nothing to fit", 1, nll, nll, nll, 0.0, count)
    if kind == "adam":
        return fit_adam(calibrator, batches, None, ignore_index, *strengths, **options)
    if kind == "slsqp" and isinstance(calibrator, EnsembleTemperatureScaling):
        return fit_mixture(calibrator, batches, ignore_index, reduce, **options)
    if kind == "newton" and isinstance(calibrator, AffineCalibrator):
        return run_newton(NewtonSolver(calibrator, *strengths, ignore_index, **options), batches, reduce)
    raise ValueError(f"{kind} cannot fit {calibrator.name}; use {choose_solver(calibrator)!r} or 'auto'")
