"""What a fit says about itself: whether it converged, how far it came and what was missing in the data."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Certificate:
    """Facts of a finished fit; plain types throughout, so that JSON holds it.

    Attributes:
        solver: ``"newton"``, ``"slsqp"`` or ``"adam"``.
        converged: whether the rule of the solver was met within its budget.
        reason: which rule ended the fit.
        passes: how often all voxels were read.
        objective: value at the result: mean NLL of the voxels (by their weights), regulariser and ridge.
        identity_objective: value at the identity; never below ``objective``.
        nll: mean ``-log q_y`` of the voxels at the result, without regulariser and ridge.
        gradient_norm: largest entry of the projected gradient at the result.
        num_voxels: voxels that counted.
        expert_voxels: how many of them each expert has.
        empty_cells: pairs ``(expert, target)`` without a voxel; with one expert, ``(0, target)``.
        missing_classes: classes without a voxel.
        identity_experts: experts that keep the identity, for want of voxels or of gain.
        hyperparameters: what the objective was built with.
        history: objective at the accepted point after each pass.
        warnings: what a user should know, in sentences.
    """

    solver: str
    converged: bool
    reason: str
    passes: int
    objective: float
    identity_objective: float
    nll: float
    gradient_norm: float
    num_voxels: int
    expert_voxels: list[int] = field(default_factory=list)
    empty_cells: list[tuple[int, int]] = field(default_factory=list)
    missing_classes: list[int] = field(default_factory=list)
    identity_experts: list[int] = field(default_factory=list)
    hyperparameters: dict[str, float | str] = field(default_factory=dict)
    history: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain types."""
        return asdict(self)

    def to_json(self) -> str:
        """The fields as JSON text."""
        return json.dumps(self.to_dict(), indent=2)


class ConvergenceError(RuntimeError):
    """The budget of passes ended above the tolerance, or the numbers broke down.

    Attributes:
        certificate: how far the fit came; ``None`` where not even that is known.
    """

    def __init__(self, message: str, certificate: Certificate | None = None) -> None:
        super().__init__(message)
        self.certificate = certificate
