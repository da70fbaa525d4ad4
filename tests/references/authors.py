"""Fiducio, the library of the paper's authors, as an oracle."""

from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import fiducio
import torch

KINDS = {
    "ts": fiducio.TS,
    "ets": fiducio.ETS,
    "vs": fiducio.VS,
    "ms": fiducio.MS,
    "ms_c": fiducio.MSc,
    "dc": fiducio.DC,
    "cdc": fiducio.CDC,
    "cms_ap": fiducio.CMSap,
    "cms_op": fiducio.CMSop,
}
GAPS = ("cms_ap", "cms_op")


@contextmanager
def double_precision():
    """Fiducio computes in float64: in float32 a step that no longer changes the loss ends a fit some 1e-3 too early."""
    tight = partial(torch.optim.LBFGS, tolerance_change=1e-14, tolerance_grad=1e-9)
    with patch.object(torch.optim, "LBFGS", tight), patch.object(torch.Tensor, "float", torch.Tensor.double):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def fitted(name, logits, target, mask=None, max_iter=3000, **options):
    """Fiducio's fit by L-BFGS with a long budget, and its log-probabilities of the same logits."""
    with double_precision():
        calibrator = KINDS[name](optimizer="lbfgs", max_iter=max_iter, **options)
        calibrator.fit(logits, target, mask)
        return calibrator, calibrator.transform(logits).log()


def quickly_fitted(name, logits, target, **options):
    """A few of Fiducio's iterations: parameters away from the identity."""
    return KINDS[name](optimizer="lbfgs", max_iter=8, **options).fit(logits, target)


def penalty(calibrator, lam, mu):
    """Fiducio's regulariser of a fitted conditional calibrator."""
    num_classes, terms = calibrator.num_classes, []
    for expert in range(num_classes):
        weight = calibrator._positive(calibrator._raw_b[expert])
        bias = calibrator._positive(calibrator._raw_mu[expert])
        affine = calibrator._logit_affine(num_classes, expert, weight, bias)
        terms.append(calibrator._ms_regularization(*affine, lam, mu))
    return float(torch.stack(terms).mean())
