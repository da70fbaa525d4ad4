"""A protocol small enough for tests that has every kind of fit."""

from lightning_calib.experiment.plan import Protocol

NAMES = ["identity(p0)", "identity(z)", "ms(z)", "dc(z)", "lts_ti(z)", "cms_op(p)", "cdc(p)", "ts(z)", "ets(p)"]


def small_protocol(outputs, **changes) -> Protocol:
    """Two repeats, two trials, one epoch of LTS."""
    settings = {"pipelines": NAMES, "repeats": 2, "trials": 2, "cal": 4, "val": 3, "lts_trials": 1, "lts_epochs": 1}
    return Protocol(str(outputs), **(settings | changes))
