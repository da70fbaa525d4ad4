"""Fitting of calibrators in plain torch: one object owns a fit from its start to its certificate."""

from lightning_calib.solvers.adam import AdamSolver
from lightning_calib.solvers.base import PassSolver, Solver, SolverName
from lightning_calib.solvers.certificate import Certificate, ConvergenceError
from lightning_calib.solvers.collective import ALONE, Collective, TorchCollective
from lightning_calib.solvers.epochs import EpochSolver
from lightning_calib.solvers.fit import choose_solver, fit, make_solver
from lightning_calib.solvers.mixture import MixtureSolver
from lightning_calib.solvers.newton import NewtonSolver
from lightning_calib.solvers.objective import mean_nll, nll_sum, regularization, ridge
from lightning_calib.solvers.sampled import SampledSolver

__all__ = [
    "ALONE",
    "AdamSolver",
    "Certificate",
    "Collective",
    "ConvergenceError",
    "EpochSolver",
    "MixtureSolver",
    "NewtonSolver",
    "PassSolver",
    "SampledSolver",
    "Solver",
    "SolverName",
    "TorchCollective",
    "choose_solver",
    "fit",
    "make_solver",
    "mean_nll",
    "nll_sum",
    "regularization",
    "ridge",
]
