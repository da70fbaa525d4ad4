"""Fits of temperatures of voxels on samples: every pass has its own, and L-BFGS takes steps on it in memory."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_calib.calibrators import TemperatureScaling
from lightning_calib.calibrators.field import TemperatureField
from lightning_calib.functional.experts import winning_class
from lightning_calib.solvers.base import Batch, SolverName, check_size
from lightning_calib.solvers.collective import ALONE, Collective
from lightning_calib.solvers.epochs import EpochSolver, check_rates
from lightning_calib.solvers.sample import Sample, Sampler
from lightning_calib.solvers.sample_model import FieldModel
from lightning_calib.solvers.stream import Chunk, Walk

# Voxels of a sample: so many for each parameter, within these bounds, and as far as their rows take at most 64 MiB.
PARAMETER_VOXELS, FIRST_VOXELS, MOST_VOXELS, SAMPLE_VALUES = 256, 2**15, 2**17, 2**24

# Passes that one reading of the data serves at most, as far as their samples take these 64 MiB together.
SERVED = 8

# How often a voxel is drawn: by the slope of its -log q_y in log T, at a temperature at which certain voxels have
# doubts; those without any slope may get one.
DOUBTFUL, FLOOR = 2.0, 0.02

# Steps of L-BFGS on a sample, twice as many in every pass up to the last: few at first, since few cases are soon
# overfitted and only the ends of passes are judged.
FIRST_STEPS, STEPS = 5, 40

MAX_EPOCHS, PATIENCE = 30, 2

# A pass that lowers the NLL by a smaller share counts as none for the end of a fit: samples differ by as much.
GAIN = 2e-3


class SampledSolver(EpochSolver):
    """L-BFGS on another sample of voxels in every pass; the best pass wins by the NLL of ``val``.

    Voxels are drawn by a hash of case, voxel and draw: uncertain and wrong ones more often, as many of each predicted
    class, with weights that make sums over the sample unbiased. What the temperature of a voxel depends on is gathered
    for these voxels only, so that a step costs a product of small matrices. Where rows are short, the samples of
    several passes are drawn at once, and only the first of these passes looks at the data. The first pass starts at
    the best single temperature.

    Args:
        calibrator: fitted in place, from where it is.
        ignore_index: label of voxels that do not count.
        collective: the processes that share the data; all take the same steps on the same sample.
        weight_decay: l2 regularisation.
        patience: passes without a better one before the end.
        max_epochs: passes at most; None leaves the end to whoever reads the data, who then calls :meth:`finish`.
        epochs: passes to take without judging them.
        sample_size: voxels of a sample, over all predicted classes.
        steps: steps of L-BFGS on a sample, at most.

    Example:
        >>> from lightning_calib.calibrators import build
        >>> logits = 4 * torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> solver = SampledSolver(build("lts_ti", 3), max_epochs=2)
        >>> certificate = solver.solve([(logits, logits.roll(1, -1).argmax(1), ["a"])])
        >>> certificate.solver, certificate.objective < certificate.identity_objective
        ('lbfgs', True)
    """

    name: ClassVar[SolverName] = "lbfgs"
    calibrator: TemperatureField
    drawn: list[Sample] | None  # by predicted class, once the data were read
    voxels: int

    def __init__(
        self,
        calibrator: TemperatureField,
        ignore_index: int | None = None,
        collective: Collective = ALONE,
        weight_decay: float = 0.0,
        patience: int = PATIENCE,
        max_epochs: int | None = MAX_EPOCHS,
        epochs: int | None = None,
        sample_size: int | None = None,
        steps: int = STEPS,
    ) -> None:
        check_rates(patience, weight_decay)
        super().__init__(
            calibrator,
            ignore_index=ignore_index,
            collective=collective,
            weight_decay=weight_decay,
            patience=patience,
            max_epochs=max_epochs,
            epochs=epochs,
        )
        self.width = calibrator.num_classes + calibrator.num_inputs + 1
        wanted = min(max(PARAMETER_VOXELS * calibrator.num_optimized, FIRST_VOXELS), MOST_VOXELS)
        self.sample_size = sample_size or min(wanted, SAMPLE_VALUES // self.width)
        self.served = min(SERVED, SAMPLE_VALUES // (self.width * self.sample_size)) or 1
        self.steps, self.dtype = steps, calibrator.compute_dtype(torch.zeros(()))
        self.hyperparameters = {"weight_decay": weight_decay}
        self.loss = math.nan
        self.walk = Walk(TemperatureScaling(calibrator.num_classes), ignore_index)
        self._begin_draw()

    @torch.no_grad()
    def accumulate(
        self,
        logits: Tensor,
        target: Tensor,
        case_ids: Sequence[str] | None = None,
        features: Tensor | None = None,
    ) -> None:
        """Offer the voxels of a batch to the draw; nothing where this pass has its sample."""
        if self.drawn is not None:
            return
        if self.epoch == 0:  # later passes see the same values
            self.calibrator.check_input(logits)
            check_size([logits])
        if logits.ndim == 2:  # a list of voxels is one image
            logits, target = logits.T.unsqueeze(0), target.unsqueeze(0)
            features = None if features is None else features.T.unsqueeze(0)
        first = self.images
        self.images += len(logits)
        names = [str(number) for number in range(first, self.images)] if case_ids is None else case_ids
        for number, name in enumerate(names):
            one = slice(number, number + 1)
            seen = None if features is None else features[number]
            for chunk in self.walk(logits[one], target[one], [f"{name} {self.epoch // self.served}"]):
                self._offer(chunk, logits[number], seen)

    @torch.no_grad()
    def move(self) -> None:
        """Take steps on the sample of this pass."""
        if self.drawn is None:
            self.voxels = int(self.collective.sum(torch.tensor(self.voxels, dtype=torch.float64)))
            self.drawn = self.sampler.finish(self.collective)
        if self.voxels == 0:
            raise ValueError("no valid voxels to fit on: every target is ignore_index, or there are no batches")
        model = FieldModel(self.calibrator, self._sample(self.drawn), self.voxels, self.weight_decay)
        if self.epoch == 0 and model.uniform:
            self.calibrator.start_at_(model.best_temperature())
        self.loss = model.descend(min(self.steps, FIRST_STEPS << self._doublings), self.collective)

    def progress(self) -> dict[str, float]:
        """Objective on the last sample, before its steps ended."""
        return {"loss": self.loss}

    def _take_pass(self, batches: Iterable[Batch]) -> None:
        super()._take_pass(batches if self.drawn is None else ())

    def _sample(self, drawn: Sequence[Sample]) -> Sample:
        """Voxels of this pass."""
        size = max(1, self._size() // self.calibrator.num_classes)
        return Sample.merge([redrawn(each, size, self.epoch) for each in drawn])

    def _offer(self, chunk: Chunk, image: Tensor, features: Tensor | None) -> None:
        """Offer the voxels of a chunk, with a way to gather what is kept of those that are drawn."""
        scores = chunk.features
        mean = ((scores / DOUBTFUL).softmax(0) * scores).sum(0)
        weight = (scores.gather(0, chunk.target.unsqueeze(0))[0] - mean).abs() / DOUBTFUL + FLOOR
        stratum = winning_class(chunk.features.unsqueeze(0))[0]
        self.voxels += len(chunk.index)
        self.sampler.add(chunk, stratum, weight, rows=partial(self._rows, chunk, image, features, weight))

    def _rows(self, chunk: Chunk, image: Tensor, features: Tensor | None, weight: Tensor, place: Tensor) -> Tensor:
        """Scores, inputs and how often each is drawn ``(k, C + R + 1)``, of voxels of a chunk."""
        inputs = self.calibrator.inputs_at(image, chunk.index[place], features).to(chunk.features)
        return torch.cat([chunk.features.index_select(1, place).T, inputs, weight[place].unsqueeze(1)], dim=1)

    def _size(self) -> int:
        """Voxels of this pass's sample: twice as many in every pass, up to the size asked for."""
        return min(self.sample_size, FIRST_VOXELS << self._doublings)

    @property
    def _doublings(self) -> int:
        """How often sample and steps doubled before this pass."""
        return min(self.epoch, 20)

    def _judge(self, score: float, seen: float) -> None:
        super()._judge(score, seen if seen < (1 - GAIN) * self.lowest else max(seen, self.lowest))

    def _end_epoch(self) -> None:
        super()._end_epoch()
        if self.epoch % self.served == 0:
            self._begin_draw()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken; the sample of a pass depends on its number."""
        super().load_state_dict(state)
        self._begin_draw()

    def _begin_draw(self) -> None:
        """Forget what was drawn; the next pass draws anew."""
        classes = self.calibrator.num_classes
        size = max(1, self.sample_size // classes)
        self.sampler = Sampler(classes, self.served * size, self.width, dtype=self.dtype)
        self.drawn = None
        self.voxels, self.images = 0, 0


def redrawn(drawn: Sample, size: int, seed: int) -> Sample:
    r"""At most ``size`` voxels out of a larger draw, as they would have been drawn from all voxels.

    A voxel was drawn with probability :math:`\pi_1 = \min(1, \tau_1 w)`. Of those that were, the ones with the smallest
    :math:`u \pi_1 / w` up to a threshold :math:`\tau_2` are kept, so that it comes through both with probability
    :math:`\min(\pi_1, \tau_2 w)`.

    Args:
        drawn: voxels of one predicted class; the last row of their features is ``w``.
        size: how many.
        seed: of ``u``.
    """
    features, often = drawn.features[:-1], drawn.features[-1].double() * drawn.weight
    if len(often) <= size:
        return Sample(features, drawn.position, drawn.weight)
    uniform = torch.rand(len(often), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = (uniform / often).topk(size + 1, largest=False)
    place, threshold = found.indices[:-1], found.values[-1]
    weight = drawn.weight[place] / (threshold * often[place]).clamp(max=1)
    return Sample(features[:, place], drawn.position[place], weight)
