"""Full-batch fitting of calibrators in plain torch."""

from lightning_calib.solvers.adam import fit_adam, mean_nll
from lightning_calib.solvers.certificate import Certificate, ConvergenceError
from lightning_calib.solvers.fit import choose_solver, fit
from lightning_calib.solvers.mixture import fit_mixture
from lightning_calib.solvers.newton import NewtonSolver, run_newton
from lightning_calib.solvers.objective import nll_sum, regularization, ridge

__all__ = [
    "Certificate",
    "ConvergenceError",
    "NewtonSolver",
    "choose_solver",
    "fit",
    "fit_adam",
    "fit_mixture",
    "mean_nll",
    "nll_sum",
    "regularization",
    "ridge",
    "run_newton",
]
