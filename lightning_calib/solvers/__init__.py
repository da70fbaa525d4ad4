"""Full-batch fitting of calibrators in plain torch."""

from lightning_calib.solvers.certificate import Certificate, ConvergenceError
from lightning_calib.solvers.newton import NewtonSolver
from lightning_calib.solvers.objective import nll_sum, regularization, ridge

__all__ = ["Certificate", "ConvergenceError", "NewtonSolver", "nll_sum", "regularization", "ridge"]
