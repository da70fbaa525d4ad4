"""Diagrams show the tables that they are given."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from lightning_calib import functional as F
from lightning_calib import metrics as M


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, 3, 20, 20, generator=g)
    return (2 * logits).log_softmax(1), torch.randint(0, 3, (2, 20, 20), generator=g)


def test_reliability_diagram_draws_accuracies_and_gaps(batch):
    metric = M.ReliabilityDiagram(num_bins=10)
    metric.update(*batch)
    figure, axes = metric.plot()
    table = F.reliability_table(*batch, num_bins=10)
    heights = np.array([bar.get_height() for bar in axes.containers[0]])
    np.testing.assert_allclose(heights, table.accuracy().numpy())
    gaps = np.array([bar.get_height() for bar in axes.containers[1]])
    np.testing.assert_allclose(gaps, table.gaps().numpy())
    assert [bar.get_height() for bar in axes.child_axes[0].containers[0]] == table.voxels.tolist()
    assert axes.get_title() == f"ECE {metric.compute().item():.3f} (10 bins, all voxels pooled)"
    figure.savefig("/dev/null", format="png")


def test_diagram_draws_into_given_axes(batch):
    axes = Figure().subplots()
    _, used = M.draw_reliability(F.reliability_table(*batch), ax=axes, title="before")
    assert used is axes
    assert axes.get_title() == "before"


def test_classwise_diagram_has_a_line_a_class(batch):
    metric = M.ClasswiseCalibrationError(num_bins=10, class_names=["road", "car", "sky"])
    metric.update(*batch)
    figure, axes = metric.diagram()
    labels = axes.get_legend_handles_labels()[1]
    assert [label.split()[0] for label in labels] == ["road", "car", "sky"]
    assert metric.table().expected_error().mean().item() == pytest.approx(
        F.classwise_calibration_error(*batch, num_bins=10, average="pool").item()
    )
    figure.savefig("/dev/null", format="png")
    with pytest.raises(ValueError, match="2 class names for 3 classes"):
        M.draw_classwise_reliability(metric.table(), ["road", "car"])


def test_values_plot_as_torchmetrics_users_expect(batch):
    metric = M.ExpectedCalibrationError()
    metric.update(*batch)
    _, axes = metric.plot()
    assert axes.get_ylim()[0] <= 0
    _, axes = metric.plot([metric.compute(), metric.compute()])
    assert len(axes.lines) >= 1
    import matplotlib.pyplot as plt

    plt.close("all")


def test_an_empty_diagram_is_refused():
    with pytest.raises(ValueError, match="update"):
        M.ReliabilityDiagram().plot()
    with pytest.raises(ValueError, match="update"):
        M.ClasswiseCalibrationError().diagram()
