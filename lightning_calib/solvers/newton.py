"""Full-batch fits of linear calibrators: one pass over the voxels gives one step of every expert."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lightning_calib.calibrators import LinearCalibrator
from lightning_calib.functional.penalty import Reduction, expert_share
from lightning_calib.solvers.base import Batch, PassSolver, SolverName, check_size, strengths
from lightning_calib.solvers.certificate import Certificate, ConvergenceError
from lightning_calib.solvers.collective import ALONE, Collective
from lightning_calib.solvers.coordinates import coordinates_of
from lightning_calib.solvers.expert import DENSE_CLASSES, ExpertFit, is_dense
from lightning_calib.solvers.model import Regularizer, SampleModel
from lightning_calib.solvers.objective import EPS, LAM, MU
from lightning_calib.solvers.sample import Sample
from lightning_calib.solvers.stream import Walk
from lightning_calib.solvers.sums import PassSums
from lightning_calib.solvers.survey import Counts, Survey
from lightning_calib.solvers.weights import CaseWeights

TOLERANCE = 1e-6

# The sample of an expert that it misled is drawn anew, up to so many times as large: one with fewer than so many voxels
# of a class that has more, or one whose step fell short.
RESAMPLE_FACTOR, FEW = 4, 5
MAX_PASSES = 200

# Voxels up to which an expert's sample holds them all: its model is then the objective itself.
WHOLE_VOXELS = 16_384

# Float64 values of the sample, over all predicted classes (64 MiB).
SAMPLE_VALUES = 2**23


class NewtonSolver(PassSolver):
    """Newton's method for calibrators that are linear in convex coordinates, as a machine that is fed with passes.

    Every pass over the data evaluates objective and gradient of each expert at its trial point, exactly; the
    curvature comes from a sample of voxels that the first pass collects. Voxels are streamed, not kept. Where a
    calibrator takes more from the data than its coordinates (the knots of splines), it does so from that sample, and
    the first pass is for nothing else.
    The fit starts from the calibrator as it is, and the calibrator always holds the best point so far.

    Args:
        calibrator: fitted in place.
        lam: strength of the penalty on off-diagonal weights.
        mu: strength of the penalty on biases.
        eps: strength of the ridge.
        ignore_index: label of voxels that do not count.
        max_passes: budget of passes; ending above the tolerance raises a ``ConvergenceError``.
        min_voxels: experts with fewer voxels keep the identity; by default 10 C, and 0 where there is a ``centre``.
        tolerance: largest entry of the projected gradient at which an expert is done.
        sample_size: voxels of each predicted class that give the curvature; by default all where they are few.
        collective: the processes that share the data.
        walk: prepares voxels; one that keeps them serves many fits.
        case_weights: what cases or their voxels count (:class:`CaseWeights`); by default every voxel counts the same.
        centre: where the ridge pulls to: a calibrator of the same class; the identity by default.
        known: an earlier fit of the same class on the same voxels with the same weights; what its first pass learned
            is taken over.
        reduction: ``mean`` or ``sum`` of the penalty over experts.
        tilt: a slope that is added to the objective ``(E, P)``, see :mod:`~lightning_calib.solvers.coreset`.

    Example:
        >>> from lightning_calib.calibrators import TemperatureScaling
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(1, 3, 256, 256, generator=generator)
        >>> target = (logits / 2 - torch.empty_like(logits).exponential_(generator=generator).log()).argmax(1)
        >>> solver = NewtonSolver(TemperatureScaling(3))
        >>> while not solver.done:
        ...     solver.accumulate(logits, target)
        ...     solver.end_pass()
        >>> round(solver.calibrator.temperature.item(), 1)
        2.0
    """

    name: ClassVar[SolverName] = "newton"
    calibrator: LinearCalibrator

    def __init__(
        self,
        calibrator: LinearCalibrator,
        lam: float = LAM,
        mu: float = MU,
        eps: float = EPS,
        ignore_index: int | None = None,
        max_passes: int = MAX_PASSES,
        min_voxels: int | None = None,
        tolerance: float = TOLERANCE,
        sample_size: int | None = None,
        collective: Collective = ALONE,
        walk: Walk | None = None,
        case_weights: Mapping[str, float | Tensor] | None = None,
        centre: LinearCalibrator | None = None,
        known: Self | None = None,
        reduction: Reduction = "mean",
        tilt: Tensor | None = None,
    ) -> None:
        super().__init__(calibrator, ignore_index, collective)
        self.hyperparameters, self.coordinates = strengths(lam, mu, eps, reduction), coordinates_of(calibrator)
        self.max_passes, self.tolerance = max_passes, tolerance
        usual = 10 * calibrator.num_classes if centre is None else 0
        self.min_voxels = usual if min_voxels is None else min_voxels
        self.weights = None if case_weights is None else CaseWeights(case_weights)
        self.walk = Walk(calibrator, ignore_index) if walk is None else walk
        self.whole = sample_size or WHOLE_VOXELS
        self.sample_size = sample_size or default_sample_size(
            self.coordinates.num_experts, self.coordinates.size, calibrator.num_classes, self.coordinates.values
        )
        start = self.coordinates.read().clamp(self.coordinates.lower, self.coordinates.upper)
        identity = self.coordinates.identity().expand_as(start)
        centres = identity if centre is None else coordinates_of(centre).read()
        share = expert_share(self.coordinates.num_experts, reduction)
        tilts = [None] * len(start) if tilt is None else list(tilt)
        build = partial(Regularizer.build, self.coordinates, share * lam, share * mu, eps)
        pulls = [build(point, slope) for point, slope in zip(centres, tilts, strict=True)]
        self.experts = [ExpertFit(theta, pull) for theta, pull in zip(start, pulls, strict=True)]
        self.counts: Counts | None = None
        self.survey: Survey | None = self._new_survey()
        self.samples: list[Sample] = []
        self.largest: list[Tensor] = []  # magnitudes of logits in this pass
        self.history: list[float] = []
        if known is not None:
            self._prepare(known._counts(), known.samples, known)
            self._look()
        self._begin_pass()

    @property
    def passes(self) -> int:
        """Passes taken so far."""
        return len(self.history)

    @property
    def objective(self) -> float:
        """Objective at the best point so far; infinite before the first pass."""
        return self.history[-1] if self.history else math.inf

    @property
    def gradient_norm(self) -> float:
        """Largest entry of the projected gradient at the best point so far."""
        return max(expert.best.norm for expert in self.experts)

    @torch.no_grad()
    def accumulate(
        self,
        logits: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        features: Tensor | None = None,
    ) -> None:
        """Add a batch to the sums of the current pass.

        Args:
            logits: pooled logits ``(B, C, *S)``, or a list of voxels ``(N, C)``.
            target: labels ``(B, *S)`` or ``(N,)``.
            case_ids: one for each image; they choose the voxels that give the curvature, so that the same cases
                in other batches give the same fit. Images are numbered where none are given.
            features: ``(B, F, *S)`` or ``(N, F)``, for calibrators that look at them.
        """
        if self.done:
            raise RuntimeError("the fit has ended; build a new solver for another one")
        if self.survey is not None and not self.walk.keeps(case_ids):
            self.calibrator.check_input(logits)
            if logits.numel():  # a process may have no voxel of a batch
                self.largest.append(logits.detach().abs().amax())
        first_index = 0
        if case_ids is None:
            case_ids, first_index = self._number(logits)
        only = None if self.survey is not None else self.sums.active
        for chunk in self.walk(logits, target, case_ids, features, first_index, only):
            self.sums.add(chunk)
            if self.survey is not None:
                self.survey.add(chunk)

    def learn(self, batches: Iterable[Batch]) -> Self:
        """Counts and sample at the start, by two passes and no step: other fits take them over as ``known``."""
        for _ in range(2):
            self._take_pass(batches)
            self._check_size()
            self._prepare(*self._surveyed())
            self.survey = self._new_survey()
            self._begin_pass()
        return self

    def told(self, counts: Counts, samples: list[Sample]) -> Self:
        """Counts and samples of the experts that are known already: other fits take them over as ``known``."""
        self._prepare(counts, samples)
        return self

    def _surveyed(self) -> tuple[Counts, list[Sample]]:
        """What the survey of this pass found."""
        assert self.survey is not None
        return self.survey.finish(self.collective)

    @torch.no_grad()
    def end_pass(self, val_nll: float | None = None) -> None:
        """Accept or reject each expert's trial point, propose the next."""
        first = self.counts is None
        self._check_size()
        if self.survey is not None:
            self._prepare(*self._surveyed())
        if first and self._look():
            self.history.append(self._start_value())
        else:
            self._step()
        if not any(expert.active for expert in self.experts) or self.passes >= self.max_passes:
            self._finish()
            return
        if self.calibrator.num_classes <= DENSE_CLASSES and any(self._misled()):
            self._resample()
        self._begin_pass()

    def _look(self) -> bool:
        """Let the calibrator see the sample; True where the gradient of this pass is then no longer its own."""
        sample = Sample.merge(self.samples)
        return self.calibrator.look(sample.features, sample.weight)

    def _start_value(self) -> float:
        """Objective at the start; what the calibrator looks at does not change it."""
        loss, _ = self.sums.total(self.collective)
        pulls = [float(expert.regularizer.value_and_gradient(expert.trial)[0]) for expert in self.experts]
        return float(loss.sum()) / self._counts().mass + sum(pulls)

    def _step(self) -> None:
        """Take the sums of a pass, and find where the next one looks."""
        mass = self._counts().mass
        loss, gradient = self.sums.total(self.collective)
        for number, expert in enumerate(self.experts):
            if expert.active:
                expert.receive(float(loss[number]) / mass, gradient[number] / mass)
        self.history.append(sum(expert.best.value for expert in self.experts))
        self._check_numbers()
        for expert in self.experts:
            expert.advance(self.tolerance, self.objective)
        if self.collective.size > 1:
            self._agree()
        self._write()

    def progress(self) -> dict[str, float]:
        """Objective and, once it is known, gradient at the best point; at the end also how long it took."""
        found = {"objective": self.objective}
        if math.isfinite(self.gradient_norm):
            found["gradient_norm"] = self.gradient_norm
        if self.certificate is not None:
            found |= {"passes": float(self.passes), "converged": float(self.certificate.converged)}
        return found

    def _write(self) -> None:
        """Give the calibrator the best points."""
        self.coordinates.write(torch.stack([expert.best.theta for expert in self.experts]))

    def _misled(self) -> list[bool]:
        """Which experts another sample may help: voxels were left out, and the last step fell short."""
        return [expert.misled and not expert.informed for expert in self.experts]

    def _resample(self) -> None:
        """Have the next pass draw another sample: a larger one, as far as its features take at most 64 MiB."""
        most = self._most_voxels()
        if len(self.experts) == 1:  # with few voxels, passes cost less than second derivatives
            most = min(most, self._counts().num_voxels // (16 * self.calibrator.num_classes))
        self.sample_size = max(self.sample_size, min(self.sample_size * RESAMPLE_FACTOR, most))
        self.survey = self._new_survey(self._misled())

    def _new_survey(self, wanted: list[bool] | None = None) -> Survey:
        """A survey for the next pass, with a sample of the experts that want one; by default of all."""
        known = None if self.counts is None else self.counts.cells
        shape = (len(self.experts), self.calibrator.num_classes)
        whole = min(self.whole, self._most_voxels()) if len(self.experts) > 1 else None
        strata = wanted if len(self.experts) > 1 else None
        draws: list[Any] = [self.sample_size, known, self.weights, self.coordinates.width, self._scores, whole, strata]
        return Survey(*shape, *draws)

    def _most_voxels(self) -> int:
        """Voxels of a predicted class that a sample can hold."""
        return SAMPLE_VALUES // (self.calibrator.num_classes * self.coordinates.values)

    def _scores(self, expert: int, features: Tensor) -> Tensor:
        """Scores of an expert at the point of this pass."""
        return self.coordinates.scores(self.coordinates.affine(self.experts[expert].trial).to(features), features)

    def _begin_pass(self) -> None:
        """Empty sums at the trial points."""
        trial = torch.stack([expert.trial for expert in self.experts])
        self.sums = PassSums(self.coordinates, trial, [expert.active for expert in self.experts], self.weights)
        self.images, self.voxels = 0, 0

    def _number(self, logits: Tensor) -> tuple[list[str], int]:
        """Names for images without one; lists of voxels go on where the last one ended."""
        if logits.ndim == 2:
            first, self.voxels = self.voxels, self.voxels + len(logits)
            return ["0"], first
        first, self.images = self.images, self.images + len(logits)
        return [str(number) for number in range(first, self.images)], 0

    def _counts(self) -> Counts:
        """Counts of the first pass."""
        assert self.counts is not None
        return self.counts

    def _prepare(self, counts: Counts, samples: list[Sample], known: Self | None = None) -> None:
        """Give each expert its model; one expert takes the voxels of all predicted classes."""
        first = self.counts is None
        wanted = None if self.survey is None or len(self.experts) == 1 else self.survey.wanted
        if wanted is not None:
            samples = [new if drawn else old for new, old, drawn in zip(samples, self.samples, wanted, strict=True)]
        self.survey, self.counts, self.samples = None, counts, samples
        if len(self.experts) == 1:
            samples = [Sample.merge(samples)]
        for number, (expert, sample) in enumerate(zip(self.experts, samples, strict=True)):
            voxels = int(counts.cells[number].sum())
            if expert.informed or not (wanted is None or wanted[number]):
                continue
            shared = None if known is None else known.experts[number].model
            if shared is None:
                complete = len(sample.weight) == voxels and is_dense(self.coordinates)
                model = SampleModel(sample, counts.mass, expert.regularizer, complete)
            else:
                model = shared.under(expert.regularizer)
            expert.take(model, self.tolerance, first and self._is_scarce(sample, counts.cells[number]))
            if voxels < self.min_voxels:
                expert.rest(float(counts.identity_loss[number]) / counts.mass)

    def _is_scarce(self, sample: Sample, voxels: Tensor) -> bool:
        """Whether a sample has too few voxels of a class for the parameters of that class.

        Args:
            sample: of an expert.
            voxels: how many the expert has of each class ``(C,)``.
        """
        if self.calibrator.preserves == "order":  # its parameters are of ranks
            return False
        drawn = torch.bincount(sample.position, minlength=len(voxels))
        return bool((drawn < voxels.clamp(max=FEW)).any())

    def _agree(self) -> None:
        """Make trial points and decisions the same bits in every process, whatever their processors round."""
        flags = [torch.tensor([expert.active, expert.misled]).double() for expert in self.experts]
        mine = torch.stack([torch.cat([e.best.theta, e.trial, on]) for e, on in zip(self.experts, flags, strict=True)])
        common = self.collective.sum(mine) / self.collective.size
        for expert, row in zip(self.experts, common, strict=True):
            theta, expert.trial, on = torch.split(row, [self.coordinates.size, self.coordinates.size, 2])
            expert.best, expert.misled = replace(expert.best, theta=theta), bool(on[1] > 0)
            expert.outcome = None if on[0] > 0 else expert.outcome

    def _check_size(self) -> None:
        """Refuse logits that leave float32 no room."""
        check_size(self.largest)
        self.largest = []

    def _check_numbers(self) -> None:
        """Refuse to go on with NaN."""
        if not math.isfinite(self.objective):
            raise ConvergenceError(
                f"the objective is {self.objective} after pass {self.passes}; look for NaN in the logits and for "
                f"parameters of the calibrator that are not finite"
            )

    def _finish(self) -> None:
        """Fall back to the identity where it is better, then certify."""
        counts = self._counts()
        for expert, loss in zip(self.experts, counts.identity_loss.tolist(), strict=True):
            expert.settle(loss / counts.mass)
        self._write()
        self.certificate = self._certify(counts)
        if not self.certificate.converged:
            raise ConvergenceError(
                f"{self.passes} passes ended at a projected gradient of {self.gradient_norm:.3g}, above the tolerance "
                f"{self.tolerance:.3g}; allow more with max_passes, or raise eps, lam or mu",
                self.certificate,
            )

    def _certify(self, counts: Counts) -> Certificate:
        """All that is known about the fit."""
        identity = self.coordinates.identity()
        warnings = counts.warnings()
        expert_voxels = counts.cells.sum(1).tolist()
        few = [number for number, count in enumerate(expert_voxels) if count < self.min_voxels]
        if few:
            warnings.append(f"experts {few} have fewer than {self.min_voxels} voxels and keep the identity")
        pulls = [float(expert.regularizer.value_and_gradient(identity)[0]) for expert in self.experts]
        return Certificate(
            solver="newton",
            converged=not any(expert.active for expert in self.experts),
            reason=", ".join(sorted({expert.outcome or "budget" for expert in self.experts})),
            passes=self.passes,
            objective=sum(expert.best.value for expert in self.experts),
            identity_objective=float(counts.identity_loss.sum()) / counts.mass + sum(pulls),
            nll=sum(expert.best.loss for expert in self.experts),
            gradient_norm=self.gradient_norm,
            num_voxels=counts.num_voxels,
            expert_voxels=expert_voxels,
            empty_cells=[(int(i), int(j)) for i, j in (counts.cells == 0).nonzero()],
            missing_classes=(counts.cells.sum(0) == 0).nonzero().flatten().tolist(),
            identity_experts=[n for n, expert in enumerate(self.experts) if torch.equal(expert.best.theta, identity)],
            hyperparameters=dict(self.hyperparameters),
            history=list(self.history),
            warnings=warnings,
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed fit needs, between two passes: tensors and plain types only."""
        return super().state_dict() | {
            "experts": [expert.state_dict() for expert in self.experts],
            "counts": None if self.counts is None else vars(self.counts).copy(),
            "samples": [vars(sample).copy() for sample in self.samples],
            "history": list(self.history),
            "sample_size": self.sample_size,
            "surveying": self.survey is not None,
            "seen": {name: value.clone() for name, value in self.calibrator.named_buffers()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, with a solver built by the same arguments."""
        super().load_state_dict(state)
        self.sample_size = state["sample_size"]
        if state["counts"] is not None:
            self._prepare(Counts(**state["counts"]), [Sample(**values) for values in state["samples"]])
        for expert, values in zip(self.experts, state["experts"], strict=True):
            expert.load_state_dict(values)
        self.survey = self._new_survey(self._misled() if self.counts else None) if state["surveying"] else None
        self.history = list(state["history"])
        for name, value in self.calibrator.named_buffers():
            value.copy_(state["seen"][name])
        self._write()
        self._begin_pass()


def default_sample_size(num_experts: int, size: int, num_classes: int, values: int | None = None) -> int:
    """Voxels of each predicted class in the sample: some times the coordinates, within 64 MiB of features.

    Args:
        num_experts: ``E``.
        size: coordinates of an expert.
        num_classes: ``C``.
        values: numbers of a voxel that a step works with; ``C`` by default.

    Example:
        >>> default_sample_size(1, 420, 20), default_sample_size(20, 420, 20), default_sample_size(118, 14042, 118)
        (819, 2048, 602)
    """
    wanted = max(16_384, 4 * size) // num_classes if num_experts == 1 else 2048
    return max(64, min(wanted, SAMPLE_VALUES // (num_classes * (values or num_classes))))
