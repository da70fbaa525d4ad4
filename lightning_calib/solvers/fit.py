"""Fitting in one call, and the choice of the solver."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_calib.calibrators import Calibrator, EnsembleTemperatureScaling, LinearCalibrator
from lightning_calib.calibrators.field import TemperatureField
from lightning_calib.functional.penalty import Reduction
from lightning_calib.functional.simplex import are_probabilities
from lightning_calib.solvers.adam import AdamSolver, adam_batches
from lightning_calib.solvers.base import Batch, BatchKind, Solver, SolverName
from lightning_calib.solvers.certificate import Certificate
from lightning_calib.solvers.collective import ALONE, Collective
from lightning_calib.solvers.epochs import EpochSolver
from lightning_calib.solvers.mixture import MixtureSolver
from lightning_calib.solvers.newton import NewtonSolver
from lightning_calib.solvers.objective import EPS, LAM, MU, mean_nll
from lightning_calib.solvers.sampled import SampledSolver
from lightning_calib.solvers.stream import Walk

SOLVERS: dict[str, type[Solver]] = {
    kind.name: kind for kind in (NewtonSolver, MixtureSolver, SampledSolver, AdamSolver)
}

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
    solver: SolverName = "auto",
    collective: Collective = ALONE,
    reduction: Reduction = "mean",
    **options: Any,
) -> Certificate:
    """Fit a calibrator in place on pooled logits and labels.

    Args:
        calibrator: any of the registry. TS, GS, VS, MS, MS_c, DC, CDC and CMS are solved to the optimum by Newton's
            method, ETS by SLSQP, LTS by L-BFGS on samples.
        logits: pooled logits ``(B, C, *S)`` or a list of voxels ``(N, C)``; or batches: a list, a ``DataLoader``
            or anything else that can be iterated over again and gives ``(logits, target)``,
            ``(logits, target, case_ids)`` or a mapping with ``"logits"``, ``"target"`` and perhaps ``"case_id"``
            and ``"features"``.
        target: labels ``(B, *S)`` or ``(N,)``; not with batches.
        ignore_index: label of voxels that do not count.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge.
        solver: ``"adam"`` fits any calibrator; the others those that they are made for.
        collective: the processes that share the data, each with batches of its own.
        reduction: ``mean`` or ``sum`` of the penalty over the experts of a conditional calibrator.
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
    if isinstance(logits, Tensor) and not logits.numel():
        raise ValueError(f"logits of shape {tuple(logits.shape)} hold no voxel to fit on")
    _warn_of_probabilities(logits)
    if not list(calibrator.parameters()):
        nll, count = mean_nll(calibrator, batches, ignore_index, collective)
        return Certificate("none", True, "nothing to fit", 1, nll, nll, nll, 0.0, count)
    options |= {"lam": lam, "mu": mu, "eps": eps, "ignore_index": ignore_index, "collective": collective}
    options["reduction"] = reduction
    certificate = make_solver(calibrator, kind, **options).solve(batches)
    for message in certificate.warnings:
        warnings.warn(message, stacklevel=2)
    return certificate


def _warn_of_probabilities(logits: Tensor | Iterable[AnyBatch]) -> None:
    """Say where the output of a softmax is taken for logits; a loader is not begun for it."""
    first = unpack(logits[0])[0] if isinstance(logits, list | tuple) and logits else logits
    if isinstance(first, Tensor) and are_probabilities(first):
        warnings.warn(
            "the logits lie in [0, 1] and sum to 1 over the classes, as probabilities after a softmax do; every "
            "confidence is then close to 1 / C: give the scores before the softmax, or the probabilities' logarithm",
            stacklevel=3,
        )


def choose_solver(calibrator: Calibrator) -> SolverName:
    """The solver that suits a calibrator.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> [choose_solver(build(name, 3)) for name in ("ms", "ets", "lts")]
        ['newton', 'slsqp', 'lbfgs']
    """
    if calibrator.solver == "stacking":
        raise ValueError(f"no solver fits {calibrator.name}: it is put together from calibrators that were fitted")
    return calibrator.solver


def takes_epochs(solver: str) -> bool:
    """Whether the fits of a solver are judged epoch by epoch.

    Example:
        >>> takes_epochs("lbfgs"), takes_epochs("newton")
        (True, False)
    """
    return issubclass(SOLVERS[solver], EpochSolver)


def batch_kind(calibrator: Calibrator, solver: SolverName = "auto") -> BatchKind:
    """What the data of a fit must come as."""
    kind = choose_solver(calibrator) if solver == "auto" else solver
    return adam_batches(calibrator) if kind == "adam" else "cases"


def make_solver(
    calibrator: Calibrator,
    solver: SolverName = "auto",
    *,
    lam: float = LAM,
    mu: float = MU,
    eps: float = EPS,
    ignore_index: int | None = None,
    collective: Collective = ALONE,
    walk: Walk | None = None,
    reduction: Reduction = "mean",
    **options: Any,
) -> Solver:
    """The object that owns a fit.

    Args:
        calibrator: fitted in place, from where it is.
        solver: ``newton``, ``slsqp``, ``lbfgs``, ``adam``, or ``auto`` for the one that suits the calibrator.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge.
        ignore_index: label of voxels that do not count.
        collective: the processes that share the data.
        walk: prepares voxels for newton.
        reduction: ``mean`` or ``sum`` of the penalty over the experts of a conditional calibrator.
        **options: further arguments of the solver's class.
    """
    suited = choose_solver(calibrator)
    kind = suited if solver == "auto" else solver
    if kind == "newton" and isinstance(calibrator, LinearCalibrator):
        shared: dict[str, Any] = {"ignore_index": ignore_index, "collective": collective}
        return NewtonSolver(calibrator, lam, mu, eps, **shared, walk=walk, reduction=reduction, **options)
    if kind == "slsqp" and isinstance(calibrator, EnsembleTemperatureScaling):
        return MixtureSolver(calibrator, ignore_index, collective, **options)
    if kind == "lbfgs" and isinstance(calibrator, TemperatureField):
        return SampledSolver(calibrator, ignore_index, collective, **options)
    if kind == "adam":
        return AdamSolver(calibrator, lam, mu, eps, ignore_index, collective, reduction=reduction, **options)
    raise ValueError(f"{kind} cannot fit {calibrator.name}; use {suited!r} or 'auto'")


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
        if not isinstance(self.logits, Tensor) or self.target is None:
            yield from map(unpack, self.logits)
        elif self.logits.ndim != 2 or self.voxels is None:
            yield self.logits, self.target, None
        else:
            parts = (torch.split(values, self.voxels) for values in (self.logits, self.target))
            yield from ((logits, target, None) for logits, target in zip(*parts, strict=True))


def unpack(batch: AnyBatch) -> Batch:
    """Logits, target, case ids and features of a batch in any of its forms."""
    if isinstance(batch, Mapping):
        return batch["logits"], batch["target"], batch.get("case_id"), batch.get("features")
    logits, target = batch[0], batch[1]
    case_ids: Sequence[str] | None = batch[2] if len(batch) > 2 else None
    return logits, target, case_ids, batch[3] if len(batch) > 3 else None
