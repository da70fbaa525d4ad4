"""How often a 95 % interval holds the truth, by simulation.

python benchmarks/bootstrap_coverage.py [--pool 14] [--test 7]

A pool of cases is drawn from a population; each repeat partitions it anew and tests on the same share of it, so
that cases recur. The score of case i in repeat r is ``mu + c_i + f_r + e_ri``: the case's difficulty, skewed like
a real NLL; the luck of the repeat's fit; and their interaction. The truth is ``mu``, the mean over new cases and
new fits. Two questions are asked: of a score itself, and of a paired difference, in which difficulty cancels for
the most part.
"""

import time

import numpy as np
from jsonargparse import auto_cli

from lightning_calib.experiment.statistics import clustered_bootstrap, percentile_interval, two_level_bootstrap

REPLICATES = 1000
SITUATIONS = {  # deviations of case difficulty, luck of the fit, interaction
    "score, fits alike": (1.0, 0.05, 0.1),
    "score, fits differ": (1.0, 0.3, 0.1),
    "difference, fits alike": (0.2, 0.05, 0.2),
    "difference, fits differ": (0.2, 0.3, 0.2),
}


def simulate(
    rng: np.random.Generator, pool: int, test: int, repeats: int, deviations: tuple[float, float, float]
) -> tuple:
    """Scores and case names of all repeats; the truth is 0."""
    case, fit, interaction = deviations
    difficulty = case * (rng.standard_gamma(2.0, pool) - 2.0) / np.sqrt(2.0)
    tables, names = [], []
    for _ in range(repeats):
        chosen = np.sort(rng.permutation(pool)[:test])
        noise = interaction * rng.standard_normal(test)
        tables.append((difficulty[chosen] + fit * rng.standard_normal() + noise)[:, None])
        names.append([str(n) for n in chosen])
    return tables, names


def coverage(
    pool: int, test: int, repeats: int, deviations: tuple[float, float, float], simulations: int
) -> tuple[float, ...]:
    """Shares of the intervals that hold the truth: two-level, by case, by case and repeat."""
    rng = np.random.default_rng(0)
    held = np.zeros(3)
    for seed in range(simulations):
        tables, names = simulate(rng, pool, test, repeats, deviations)
        for n, replicates in enumerate(
            (
                two_level_bootstrap(tables, REPLICATES, seed),
                clustered_bootstrap(tables, names, REPLICATES, seed, draw_repeats=False),
                clustered_bootstrap(tables, names, REPLICATES, seed),
            )
        ):
            low, high = percentile_interval(replicates)
            held[n] += low[0] <= 0 <= high[0]
    return tuple(held / simulations)


def main(
    pool: int = 96,
    test: int = 58,
    repeats: list[int] = [1, 3, 5, 10],  # noqa: B006  # jsonargparse shows it
    simulations: int = 400,
) -> None:
    """Print the table.

    Args:
        pool: cases of the pool set, or groups of them where groups are drawn as wholes.
        test: how many of them a repeat tests on.
        repeats: numbers of repeats.
        simulations: simulated experiments of each kind.
    """
    started = time.perf_counter()
    error = 100 * np.sqrt(0.95 * 0.05 / simulations)
    print(f"coverage of nominal 95 % intervals, {simulations} simulations each (standard error {error:.1f} points)")
    print(f"{'situation':28s}{'R':>4s}{'two-level':>12s}{'by case':>12s}{'by case and repeat':>22s}")
    for name, deviations in SITUATIONS.items():
        for count in repeats:
            shares = coverage(pool, test, count, deviations, simulations)
            two_level, by_case, crossed = (100 * share for share in shares)
            print(f"{name:28s}{count:4d}{two_level:10.1f} %{by_case:10.1f} %{crossed:20.1f} %", flush=True)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
