"""``train.py predict --executor``: shards of the pool set as jobs, which write cases of one store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_calib.callbacks.outputs import say_outdated
from lightning_calib.cli.run_folder import RunError
from lightning_calib.executors.base import Executor
from lightning_calib.kit.progress import Display
from lightning_calib.outputs.manifest import Manifest
from lightning_calib.outputs.writer import OutputWriter

SHARD_CASES = 8  # enough that loading the members does not count, few enough that no worker is left waiting


@dataclass(frozen=True)
class PredictionJob:
    """Some cases of a prediction.

    Attributes:
        config: file with the options of the command.
        case_ids: the cases.
    """

    config: Path
    case_ids: tuple[str, ...]

    def __str__(self) -> str:
        """One line for the progress display."""
        return f"{len(self.case_ids)} cases from {self.case_ids[0]}"


def predict_shard(job: PredictionJob) -> None:
    """Predict some cases and write them; the store is left unfinished."""
    from lightning_calib.cli.training import TrainCLI

    TrainCLI(["predict", "--config", str(job.config)], cases=job.case_ids)


def predict_by(
    executor: Executor, open_writer: Callable[[], OutputWriter], case_ids: Sequence[str], config: Path
) -> Manifest:
    """Have an executor predict the cases that are not written yet, and finish the store.

    Args:
        executor: where shards are predicted.
        open_writer: opens the store.
        case_ids: the cases that it must hold in the end.
        config: file with the options of the command.

    Raises:
        RunError: where shards failed, once all others are written.
    """
    writer = open_writer()
    say_outdated(writer)
    waiting = [case_id for case_id in case_ids if case_id not in writer.done]
    groups = [tuple(waiting[start : start + SHARD_CASES]) for start in range(0, len(waiting), SHARD_CASES)]
    jobs, failed = [PredictionJob(config, group) for group in groups], {}
    with executor, Display(["shard" for _ in jobs], executor.slots, doing=executor.doing) as shown:
        executor.check([config.parent, writer.path])
        for outcome in executor.run(jobs, predict_shard):
            verb = "predicted" if outcome.error is None else "FAILED"
            shown.done("shard", f"{verb} {outcome.job}")
            if outcome.error is not None:
                failed[str(outcome.job)] = outcome.error
    if failed:
        told = "\n".join(f"  {name}: {error}" for name, error in failed.items())
        raise RunError(f"{len(failed)} of {len(jobs)} shards failed; run it again to go on:\n{told}")
    return writer.finish(case_ids)
