"""Confidences against reality with their uncertainty: curves and ACE from resampled sums of cases."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_calib.experiment.results import Results
from lightning_calib.experiment.rows import CASE_BINS
from lightning_calib.experiment.statistics import (
    REPLICATES,
    Floats,
    clustered_bootstrap,
    clustered_means,
    mean_over,
    percentile_interval,
    point_estimate,
    ratio,
)


@dataclass(frozen=True)
class Curve:
    """Reliability over the test voxels of all repeats in 15 bins of confidence; NaN where a bin is empty.

    Attributes:
        confidence: mean confidence of each bin ``(15,)``.
        accuracy: share of right voxels ``(15,)``.
        low: lower end of its 95 % interval, cases drawn as wholes ``(15,)``.
        high: upper end.
        share: part of all voxels that a bin holds ``(15,)``.
        voxels: voxels of a bin over all repeats ``(15,)``.
    """

    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats
    share: Floats
    voxels: Floats


def reliability_curve(results: Results, pipeline: str) -> Curve | None:
    """The curve of a pipeline; None where the results are of a version that kept no sums of cases."""
    repeats = results.scored_repeats(pipeline)
    if (tables := _tables(results, [pipeline], repeats)) is None:
        return None
    drawn = clustered_bootstrap(tables, [results.clusters(r) for r in repeats], REPLICATES, _seed(results))
    count, confidence, correct = point_estimate(tables).reshape(3, CASE_BINS)
    draws = drawn.reshape(-1, 3, CASE_BINS)
    low, high = percentile_interval(ratio(draws[:, 2], draws[:, 0]))
    voxels = np.sum([table.sum(axis=0) for table in tables], axis=0).reshape(3, CASE_BINS)[0]
    return Curve(ratio(confidence, count), ratio(correct, count), low, high, count / count.sum(), voxels)


def ace_draws(results: Results, names: Sequence[str]) -> tuple[Floats, Floats] | None:
    """ACE of pipelines ``(n,)`` and its bootstrap replicates ``(B, n)``, mean over the repeats that all of them have.

    Cases are drawn as wholes. Noise in the bins adds to every gap, so that replicates lie too high by about what the
    estimate itself does; they are moved to have the estimate as their mean, those below 0 up to 0.

    Returns:
        None where the results are of a version that kept no sums of cases.
    """
    repeats = [r for r in results.repeats if all(results.cases_of(r, name) for name in names)]
    if not repeats or (tables := _tables(results, names, repeats)) is None:
        return None
    means = clustered_means(tables, [results.clusters(r) for r in repeats], REPLICATES, _seed(results))
    own = mean_over(np.stack([_ace(table.mean(axis=0), len(names)) for table in tables]))
    drawn = mean_over(_ace(means, len(names)))
    return own, np.maximum(drawn - np.nanmean(drawn, axis=0) + own, 0)


def _seed(results: Results) -> int:
    return int(results.settings["seed"])


def _tables(results: Results, names: Sequence[str], repeats: Sequence[int]) -> list[Floats] | None:
    """For each repeat the sums of its cases ``(cases, pipelines * 3 * 15)``; None where any is missing."""
    tables = []
    for repeat in repeats:
        found = [results.case_bins(repeat, name) for name in names]
        held = [sums.reshape(len(sums), -1) for sums in found if sums is not None]
        if len(held) < len(found):
            return None
        tables.append(np.concatenate(held, axis=1))
    return tables or None


def _ace(sums: Floats, pipelines: int) -> Floats:
    """Mean gap over the bins that hold voxels ``(..., n)``, from sums ``(..., n * 3 * 15)``."""
    count, confidence, correct = np.moveaxis(sums.reshape(*sums.shape[:-1], pipelines, 3, CASE_BINS), -2, 0)
    return mean_over(np.moveaxis(np.abs(ratio(correct - confidence, count)), -1, 0))
