"""The library in Python: one calibrator on arrays, whole experiments, their results, the calibrated model."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lightning_calib.calibrators import Calibrator, Identity, build
from lightning_calib.calibrators.base import features_of, seen_by
from lightning_calib.experiment import plan, results
from lightning_calib.experiment.advice import GroupAdvice, Preserve, Recommendation, selected_advice
from lightning_calib.experiment.comparisons import compared
from lightning_calib.experiment.recommend import recommend
from lightning_calib.experiment.summary import paired_comparisons
from lightning_calib.functional.regions import two_classes
from lightning_calib.functional.scores import reliability_table
from lightning_calib.kit.style import look, new_figure
from lightning_calib.kit.tables import Table
from lightning_calib.metrics.plots import draw_reliability
from lightning_calib.metrics.score import SCORES
from lightning_calib.outputs.manifest import Member, Representation
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.views import has_regions, write_views
from lightning_calib.outputs.writer import OutputWriter
from lightning_calib.solvers import Certificate, fit
from lightning_calib.tasks.evaluation import Evaluated, EvaluationTask

if TYPE_CHECKING:
    import pandas as pd

    from lightning_calib.deployment import CalibratedEnsemble
    from lightning_calib.report.slider import TemperatureSlider

Array = Tensor | np.ndarray


@dataclass(frozen=True, repr=False)
class Calibration:
    """A fitted calibrator, and what it did to the scores.

    Attributes:
        calibrator: fitted; call it on pooled logits ``(B, C, *S)``.
        certificate: what the solver says about the fit.
        before: figures without calibration, by the key of the score.
        after: figures with it.
        log_probs: calibrated log-probabilities of the logits that were given.
    """

    calibrator: Calibrator
    certificate: Certificate
    before: dict[str, float]
    after: dict[str, float]
    log_probs: Tensor
    _logits: Tensor
    _target: Tensor
    _ignore_index: int | None

    def __repr__(self) -> str:
        """The change of two scores."""
        changes = (f"{key} {self.before[key]:.4f} -> {self.after[key]:.4f}" for key in ("nll", "ece"))
        return f"Calibration({self.calibrator.name}: {', '.join(changes)})"

    def __call__(self, logits: Tensor, members: Tensor | None = None) -> Tensor:
        """Calibrated log-probabilities of pooled logits ``(B, C, *S)``; some features need members' logits, too."""
        with torch.no_grad():
            features = features_of(self.calibrator, logits, members)
            found: Tensor = self.calibrator(logits, *seen_by(self.calibrator, features))
        return found

    def table(self) -> "pd.DataFrame":
        """Scores before and after; those of the fitted data are a little better than those of new ones."""
        import pandas as pd

        index = [SCORES[key].title for key in self.after]
        return pd.DataFrame({"before": self.before.values(), "after": self.after.values()}, index=index)

    def figure(self, bins: int = 15) -> Figure:
        """Reliability diagrams before and after, all voxels together."""
        without = self._logits.log_softmax(dim=1)
        titles = ("without calibration", f"with {self.calibrator.name}")
        with look():
            figure = new_figure(8, 4.6)
            for axes, log_probs, title in zip(figure.subplots(1, 2), (without, self.log_probs), titles, strict=True):
                table = reliability_table(log_probs, self._target, bins, self._ignore_index)
                error = table.expected_error().item()
                draw_reliability(table, axes, f"{title}\nECE {error:.3f} ({bins} bins, all voxels pooled)")
        return figure

    def slider(self, bins: int = 15) -> "TemperatureSlider":
        """What each temperature makes of the logits that were given, to be moved by hand in a notebook.

        Args:
            bins: equal bins of the reliability curve.
        """
        from lightning_calib.report.slider import TemperatureSlider

        return TemperatureSlider.of(self._logits, self._target, bins, self._ignore_index)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        table = self.table().to_html(float_format="%.4f")
        ended = "the fit has converged" if self.certificate.converged else "the fit has not converged"
        return f"<p><b>{self.calibrator.name}</b>: {ended} ({html.escape(self.certificate.reason)})</p>{table}"


def calibrate(
    logits: Array,
    target: Array,
    calibrator: str | Calibrator = "ts",
    ignore_index: int | None = None,
    background: int | None = None,
    members: Array | None = None,
    **options: Any,
) -> Calibration:
    """Fit a calibrator on logits of a network or a pooled ensemble, and score it.

    Args:
        logits: ``(B, C, *S)``, or a list of voxels ``(N, C)``.
        target: labels ``(B, *S)`` or ``(N,)``.
        calibrator: name such as ``cms_op``, or a calibrator of one's own.
        ignore_index: label of voxels that count nowhere.
        background: class that overlap scores leave out.
        members: members' logits ``(B, M, C, *S)``, for calibrators that look at features of them, such as ``fts``.
        **options: further arguments of :func:`lightning_calib.solvers.fit`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = 4 * torch.randn(2, 3, 32, 32, generator=generator)
        >>> target = (logits / 3).softmax(1).movedim(1, -1).flatten(0, 2).multinomial(1, generator=generator)
        >>> result = calibrate(logits, target.view(2, 32, 32), "ts")
        >>> result.after["nll"] < result.before["nll"], result.certificate.converged
        (True, True)
    """
    scores, labels = torch.as_tensor(logits), torch.as_tensor(target)
    if isinstance(calibrator, str):
        calibrator = build(calibrator, scores.shape[1], min(max(scores.ndim - 2, 2), 3))
    features = features_of(calibrator, scores, None if members is None else torch.as_tensor(members))
    if features is None:
        certificate = fit(calibrator, scores, labels, ignore_index=ignore_index, **options)
    else:
        batch = {"logits": scores, "target": labels, "features": features}
        certificate = fit(calibrator, [batch], ignore_index=ignore_index, **options)
    calibrator.eval().requires_grad_(False)
    with torch.no_grad():
        log_probs = calibrator(scores, *seen_by(calibrator, features))
    named = {"before": Identity(calibrator.num_classes), "after": calibrator}
    evaluated = _evaluate(named, scores, labels, ignore_index, background, features)
    figures = {label: each.figures() for label, each in evaluated.items()}
    return Calibration(
        calibrator, certificate, figures["before"], figures["after"], log_probs, scores, labels, ignore_index
    )


def _evaluate(
    calibrators: Mapping[str, Calibrator],
    logits: Tensor,
    target: Tensor,
    ignore_index: int | None,
    background: int | None,
    features: Tensor | None = None,
) -> dict[str, Evaluated]:
    """Scores of calibrators on arrays, image by image; a list of voxels is one image without borders."""
    voxels = logits.ndim == 2
    spatial = {"bands", "smoothed"}
    flat = [score.key for score in SCORES.values() if score.metric is None and not spatial & set(score.needs)]
    task = EvaluationTask(calibrators, ignore_index, background, flat if voxels else None)
    with torch.inference_mode():
        for number in range(1 if voxels else len(logits)):
            part = slice(None) if voxels else slice(number, number + 1)
            batch = {"logits": logits[part], "target": target[part], "case_id": [str(number)]}
            batch["features"] = None if features is None else features[part]
            task.test_step(batch, number)
    task.conclude()
    return task.evaluated


class Results(results.Results):
    """Results of an experiment in a notebook: DataFrames, comparisons, the recommendation, the model to deploy."""

    def compare(self, reference: str, candidate: str, scores: Sequence[str] | None = None) -> "pd.DataFrame":
        """One pipeline against another, case by case, with intervals, corrected p-values and verdicts.

        Args:
            reference: the pipeline to compare with.
            candidate: the pipeline in question.
            scores: which ones; by default those of the matched comparisons.
        """
        import pandas as pd

        for name in (reference, candidate):
            if name not in self.scored:
                raise ValueError(f"{name} has no scores in {self.folder}; there are {', '.join(self.scored)}")
        keys = [("compared", reference, candidate, score) for score in scores or compared()]
        found = [vars(each) for each in paired_comparisons(self, keys)]
        rows = [
            {
                "score": each["metric"],
                "difference": each["difference"].mean,
                "low": each["difference"].low,
                "high": each["difference"].high,
                "p_holm": each["p_holm"],
                "verdict": each["verdict"],
            }
            for each in found
        ]
        return pd.DataFrame(rows)

    def recommend(
        self, preserve: Preserve = "order", translation_invariant: bool = True
    ) -> Recommendation | GroupAdvice:
        """Which pipeline to deploy: chosen on ``val``, or by groups where the run selected so; judged on ``test``."""
        return selected_advice(self.summary, preserve) or recommend(self, preserve, translation_invariant)

    @property
    def store(self) -> OutputStore:
        """The frozen outputs that the results come from."""
        return OutputStore(self.settings["outputs"], self.settings.get("members"))

    def report(self, preserve: Preserve = "order") -> Path:
        """Write the report beside the results; the path of its page."""
        from lightning_calib.report.build import build_report

        return build_report(self.folder, None, self.folder.resolve().parent / "report", preserve)

    def deploy(self, pipeline: str | None, folder: str | Path | None = None, **options: Any) -> "CalibratedEnsemble":
        """Fit a pipeline for the last time, write the deployed folder and load it.

        Args:
            pipeline: name such as ``ts(p)``; None for the recommended one.
            folder: where to; by default ``deployed`` beside the results.
            **options: further arguments of :func:`lightning_calib.deployment.deploy.deploy`.
        """
        from lightning_calib.deployment.deploy import deploy

        place = Path(folder) if folder is not None else self.folder.resolve().parent / "deployed"
        deploy(self, self.store, place, pipeline, **options)
        return load_model(place)

    def paper_table(self) -> Table:
        """The main table in the blocks of the paper; it has ``to_latex()``, ``to_markdown()`` and ``to_csv()``."""
        from lightning_calib.report.inputs import Inputs

        return Inputs.open(self.folder, None).table

    def _repr_html_(self) -> str:
        """The main table, as a notebook shows it."""
        return (
            f"<p>{html.escape(self.dataset['name'])}, {len(self.repeats)} repeats</p>{self.paper_table()._repr_html_()}"
        )


class Experiment(plan.Experiment):
    """Pipelines x repeats on one store: :class:`~lightning_calib.experiment.plan.Experiment`, for notebooks."""

    def run(self, **options: Any) -> Results:
        """Run it or go on with it.

        Args:
            **options: those of :func:`~lightning_calib.experiment.run.run_experiment`: ``executor``, ``workers``,
                ``logger``, ``trainer`` and so on.
        """
        return Results(super().run(**options).folder)


def load_results(folder: str | Path) -> Results:
    """Results of an earlier run: its folder, or that of its calibration."""
    return Results(folder)


def load_model(folder: str | Path, **options: Any) -> "CalibratedEnsemble":
    """The calibrated model of a deployed folder, or of one on the Hugging Face hub.

    A folder of regions is loaded by ``lightning_calib.deployment.RegionEnsemble.load``.

    Args:
        folder: a folder on this machine, ``hf://owner/name``, or ``hf://owner/name@revision``.
        **options: those of ``CalibratedEnsemble.load``.
    """
    from lightning_calib.deployment import CalibratedEnsemble
    from lightning_calib.deployment.hub import local

    return CalibratedEnsemble.load(local(folder), **options)


def open_regions(outputs: str | Path, members: int | None = None) -> dict[str, OutputStore]:
    """Every region of a store of sigmoid outputs as a store of two classes, by its name.

    Args:
        outputs: folder of the store of regions.
        members: size of the ensemble: its first members count; None for all.
    """
    return {name: OutputStore(folder, members) for name, folder in write_views(Path(outputs)).items()}


def from_arrays(
    outputs: str | Path,
    logits: Mapping[str, Array],
    target: Mapping[str, Array],
    class_names: Sequence[str] | None = None,
    representation: Representation = "logits",
    ignore_index: int | None = None,
    background: int | None = None,
    groups: Mapping[str, str | Sequence[str]] | None = None,
    group_levels: Sequence[str] | None = None,
    dataset: str | None = None,
    images: Mapping[str, Array] | None = None,
) -> OutputStore:
    """Write a store of frozen outputs from arrays.

    Args:
        outputs: folder of the store, such as ``runs/mine/outputs``.
        logits: by case id the members' scores ``(M, C, *S)``; one channel is the logit of the second of two classes.
        target: by case id the labels ``(*S)``.
        class_names: one name a class; by default their numbers.
        representation: whether the scores are ``logits`` or ``log_probs``; never guessed from the values.
        ignore_index: label of voxels that count nowhere.
        background: number of the background class.
        groups: group of each case, such as its patient, or its groups, coarsest first: ``("utrecht", "p7")``.
        group_levels: names of the levels of groups, coarsest first; the coarsest stays whole in group-aware divisions
            unless these choose another.
        dataset: name of the data set; by default that of the folder around the store.
        images: by case id the image ``(channels, *S)``, for the report to show.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "toy" / "outputs"
        >>> logits = {case: torch.randn(2, 3, 8, 8) for case in "abc"}
        >>> store = from_arrays(folder, logits, {case: scores[0].argmax(0) for case, scores in logits.items()})
        >>> store.case_ids, store.manifest.num_members
        (('a', 'b', 'c'), 2)
    """
    if sorted(logits) != sorted(target):
        differing = sorted(set(logits) ^ set(target))
        raise ValueError(f"logits and target must have the same cases; {', '.join(differing[:10])} are in one only")
    if not logits:
        raise ValueError("no cases: give logits and target by case id")
    scored = {case_id: _classes(torch.as_tensor(scores), representation) for case_id, scores in logits.items()}
    first, path = next(iter(scored.values())), Path(outputs)
    writer = OutputWriter(
        path,
        dataset or path.resolve().parent.name,
        list(class_names) if class_names else [str(number) for number in range(first.shape[1])],
        first.ndim - 2,
        [Member(str(number)) for number in range(len(first))],
        background=background,
        ignore_index=ignore_index,
        representation=representation,
        groups=groups,
        group_levels=group_levels,
    )
    for case_id, scores in scored.items():
        if case_id not in writer.done:
            image = None if images is None or case_id not in images else torch.as_tensor(images[case_id])
            writer.write(case_id, scores, torch.as_tensor(target[case_id]).long(), image=image)
    writer.finish(list(logits))
    return OutputStore(path)


def _classes(scores: Tensor, representation: Representation) -> Tensor:
    """Scores ``(M, C, *S)`` of two classes or more, also of one channel."""
    if scores.ndim < 3 or scores.shape[1] != 1:
        return scores
    if representation != "logits":
        raise ValueError("one channel of log_probs: give the logits of the sigmoid, or both log(1 - p) and log p")
    return two_classes(scores[:, 0], dim=1)


def import_nnunet(outputs: str | Path, targets: str | Path, **options: Any) -> OutputStore | dict[str, OutputStore]:
    """Results of nnU-Net v2 as a store, of region-based models as a store a region, by its name.

    The options are those of ``calibrate.py import nnunet``.
    """
    from lightning_calib.cli.import_outputs import import_nnunet as command

    if command(outputs=Path(outputs), targets=Path(targets), **options):
        raise ValueError(f"the examination of {outputs} found an error; see above")
    return open_regions(outputs) if has_regions(Path(outputs)) else OutputStore(outputs)
