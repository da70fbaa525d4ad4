"""Folds of a cross-validation: which network scored a case that it was not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

MEMBER = "out of fold"  # the one member of a store whose cases were scored by different networks

NOTE = (
    "fitted out of fold: each case was scored by the one network of a cross-validation that was not trained on it. "
    "This is right for a single network. For the pooled ensemble of the folds it is a start only, because pooling "
    "lowers confidence"
)
SENTENCE = f"These calibrators are {NOTE}."


@dataclass(frozen=True)
class Fold:
    """A network of a cross-validation, and the cases that it was not trained on.

    Args:
        name: name of the network.
        cases: ids of its cases.
        checkpoint: file of its weights, where it is known.
        sha256: hash of that file.
    """

    name: str
    cases: tuple[str, ...]
    checkpoint: str = ""
    sha256: str = ""


def problems(folds: Sequence[Fold], num_members: int, case_ids: Sequence[str]) -> str:
    """What is wrong with the folds of a store; empty where nothing is.

    Example:
        >>> problems([Fold("0", ("a", "b")), Fold("1", ("b",))], 1, [])
        'case b is in the folds 0 and 1: each case is scored by the one network that was not trained on it'
    """
    if folds and num_members != 1:
        return f"an out-of-fold store has one member, whose network differs from case to case; got {num_members}"
    homes: dict[str, str] = {}
    for fold in folds:
        for case_id in fold.cases:
            if case_id in homes:
                return (
                    f"case {case_id} is in the folds {homes[case_id]} and {fold.name}: each case is scored by the one "
                    "network that was not trained on it"
                )
            homes[case_id] = fold.name
    homeless = [case_id for case_id in case_ids if folds and case_id not in homes]
    return f"{len(homeless)} case(s) are in no fold: {', '.join(homeless[:5])}" if homeless else ""
