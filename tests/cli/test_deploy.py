"""What calibrate.py deploy says about its choice."""

from types import SimpleNamespace

from lightning_calib.cli import deploy


def said(monkeypatch, pipeline, within_noise, fit=None, recommended=None):
    advice = SimpleNamespace(pipeline=recommended or pipeline, within_noise=within_noise)
    monkeypatch.setattr(deploy, "stored_advice", lambda calibration, preserve: (advice, 3))
    written = SimpleNamespace(pipeline=pipeline, num_classes=3, fit=fit or {})
    return deploy.simpler("calibration", "order", written)


def test_simpler_pipelines_within_noise_are_named_with_the_reason(monkeypatch):
    told = said(monkeypatch, "cms_op(p)", ["ts(z)", "cms_op(z)", "identity(p)"])
    assert "identity(p) (0), ts(z) (1); cms_op(p) has 18" in told  # C^2 (C - 1) parameters
    assert 'test has no say in the choice: --pipeline "identity(p)" does' in told
    assert "cms_op(z)" not in told


def test_nothing_is_said_where_there_is_no_simpler_one(monkeypatch):
    assert said(monkeypatch, "ts(p)", ["cms_op(p)", "ts(z)"]) is None
    assert said(monkeypatch, "cms_op(p)", ["ts(p)"], fit={"selection": {}}) is None
    assert said(monkeypatch, "cms_op(p)", ["ts(p)"], recommended="cms_ap(p)") is None
