"""Silence for messages of libraries about what is intended here, or what users cannot mend."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_WARNINGS = (
    r".*treespec, LeafSpec",  # Lightning uses a part of torch that torch is about to rename
    r".*does not have many workers",  # the data decide: small images need none
    r"Checkpoint directory .* exists and is not empty",  # a resumed member overwrites its own checkpoints
    r"Be aware that when using `ckpt_path`, callbacks",  # validation needs none of the training's callbacks
    r"Experiment logs directory .* exists and is not empty",
)
_LOGGERS = ("pytorch_lightning", "lightning_fabric")
_UNWANTED = ("litlogger", "litmodels", "Seed set to")  # advertisements; what the config says


def silence() -> None:
    """Ignore such messages from now on; everything else is shown as before."""
    for message in _WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for logger in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.seed"):
        logging.getLogger(logger).addFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    return not any(words in record.getMessage() for words in _UNWANTED)


def quiet() -> None:
    """Keep libraries from talking into a progress display; also in worker processes."""
    import pytorch_lightning  # noqa: F401  # it sets the level of its logger when it is imported

    silence()
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def hushed() -> Iterator[None]:
    """As :func:`quiet`, for work in a process that is not ours, such as a notebook; afterwards it is as before."""
    import pytorch_lightning  # noqa: F401

    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    with warnings.catch_warnings():
        quiet()
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
