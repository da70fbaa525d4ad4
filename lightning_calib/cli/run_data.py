"""Which cases a run trains on and predicts, once and for all: images that are added later do not change it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pytorch_lightning.utilities import rank_zero_warn

from lightning_calib.cli.run_folder import MemberFolder, RunError, RunFolder
from lightning_calib.datasets.base import SegmentationDataModule
from lightning_calib.datasets.cases import level_depth
from lightning_calib.datasets.content import Content, changes, contents, copies, listed
from lightning_calib.datasets.settled import Division, NewCases, moved, settle, training_side, without_copies

ChangedData = Literal["refuse", "accept"]


def settle_training(data: SegmentationDataModule, run: RunFolder, new: NewCases, write: bool) -> dict[str, Content]:
    """Divide the data as the run has begun with; the first call writes the division down.

    Args:
        data: the data; takes the division on.
        run: the run.
        new: part of the cases that were not there when the run began.
        write: whether this process writes.

    Returns:
        What the cases of training and validation are made of.
    """
    known = contents(data.splits.all)
    _settle(data, run, new)
    data.take(without_copies(data.splits, known))
    if not data.splits.pool:
        raise RunError(
            f"{data.where}: no case of the pool set is left, since all of them are images of the training side under "
            "other names; add others"
        )
    if write:
        _write(data, run)
    return {case.case_id: known[case.case_id] for case in training_side(data.splits)}


def settle_pool(
    data: SegmentationDataModule, run: RunFolder, trained: Mapping[str, Content], new: NewCases, write: bool
) -> dict[str, Content]:
    """Divide the data as the run has begun with, and leave out of the pool set what a member was trained on.

    Args:
        data: the data; takes the division on.
        run: the run.
        trained: what the members were trained on.
        new: part of the cases that were not there when the run began.
        write: whether this process writes.

    Returns:
        What the cases of the pool set are made of.
    """
    _settle(data, run, new)
    known = contents(data.splits.pool)
    twins = copies(known, trained)
    if twins:
        told = listed(name if name == twin else f"{name} (as {twin})" for name, twin in twins.items())
        rank_zero_warn(f"{len(twins)} cases of the pool set are left out, since members were trained on them: {told}")
    pool = [case for case in data.splits.pool if case.case_id not in twins]
    if not pool:
        raise RunError(f"{run.path}: no case of the pool set is left that no member was trained on")
    data.take(replace(data.splits, pool=pool))
    if write and run.split.is_file():
        _write(data, run)
    return {case.case_id: known[case.case_id] for case in pool}


def settle_out_of_fold(
    data: SegmentationDataModule, run: RunFolder, members: Sequence[MemberFolder], new: NewCases
) -> tuple[dict[str, int], dict[str, Content]]:
    """Divide the data as the run has begun with, and make the training side the pool set.

    Args:
        data: the data; takes the division on.
        run: the run.
        members: the member of each fold, in their order.
        new: part of the cases that were not there when the run began.

    Returns:
        Which member scores each case, and what the cases are made of.

    Raises:
        RunError: where a member was trained on a case of its fold, or does not say what it was trained on.
    """
    _settle(data, run, new)
    fold_of = data.out_of_fold()
    known = contents(data.splits.pool)
    for number, member in enumerate(members):
        seen = member.trained_on(("train",))
        held = {case_id: known[case_id] for case_id, fold in fold_of.items() if fold == number}
        if seen is None or (twins := copies(held, seen)):
            told = "did not write down its cases" if seen is None else f"was trained on {listed(twins)} of this fold"
            raise RunError(
                f"{member.path} is to score fold {number} of {len(members)}, but {told}: train all members on the same "
                "data with the same folds, and give copies of an image one group"
            )
    return fold_of, known


def trained_cases(members: Sequence[MemberFolder]) -> dict[str, Content]:
    """What the members were trained on; those of earlier versions, which did not write it down, are told."""
    found: dict[str, Content] = {}
    silent = [member.name for member in members if member.trained_on() is None]
    for member in members:
        found |= member.trained_on() or {}
    if silent:
        rank_zero_warn(
            f"member(s) {', '.join(silent)} were trained by a version that did not write down their cases: whether the "
            "pool set holds some of them cannot be told"
        )
    return found


def refuse_changed(run: RunFolder, now: Mapping[str, Content], changed: ChangedData) -> None:
    """Stop where members of the run were begun on other cases than there are now, unless that was asked for.

    Args:
        run: the run.
        now: what the cases of training and validation are made of.
        changed: what to do.
    """
    for member in run.begun():
        before = member.trained_on()
        if before is None or not (told := _told(before, now)):
            continue
        message = f"the training data have changed since member {member.name} was begun: {told}"
        if changed == "refuse":
            raise RunError(
                f"{message}. Members of one ensemble should know the same cases: bring the data back or begin another "
                "run (--name); --changed_data accept goes on with the data as they are"
            )
        rank_zero_warn(message)


def _told(before: Mapping[str, Content], now: Mapping[str, Content]) -> str:
    more, gone = [name for name in now if name not in before], [name for name in before if name not in now]
    told = [f"{len(names)} cases {how} ({listed(names)})" for names, how in ((more, "more"), (gone, "gone")) if names]
    return "; ".join(told + [f"the {what} of {name}" for name, what in list(changes(before, now).items())[:5]])


def _settle(data: SegmentationDataModule, run: RunFolder, new: NewCases) -> None:
    division = Division.load(run.split)
    if division is None:
        return
    if elsewhere := moved(data.splits, division):
        rank_zero_warn(
            f"{len(elsewhere)} cases ({listed(elsewhere)}) stay in the parts that {run.split} gives them, though the "
            "data would now be divided otherwise; another division is another run (--name)"
        )
    data.take(settle(data.splits, division, new, level_depth(data.group_levels, data.group_level)))


def _write(data: SegmentationDataModule, run: RunFolder) -> None:
    """Write the division down where it is new, or has grown."""
    earlier, now = Division.load(run.split), Division.settled(data.splits)
    if earlier is None or not set(now.parts) <= set(earlier.parts):
        now.merged(earlier).save(run.split)
