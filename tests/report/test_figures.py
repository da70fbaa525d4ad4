"""Figures show the numbers that they are given, and leave no global state behind."""

import html
import re
import warnings

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lightning_calib.functional.binning import BinTable
from lightning_calib.kit.style import class_colours, new_figure
from lightning_calib.report.curves import ClassCurve, Risk, class_figure, risk_figure
from lightning_calib.report.figures import (
    BandProfile,
    Difference,
    Reliability,
    band_figure,
    difference_figure,
    reliability_figure,
    temperature_figure,
)
from lightning_calib.report.heatmaps import Matrix, matrix_figure, without_common_part
from lightning_calib.report.sections.curves import pooled_curve
from lightning_calib.report.svg import SvgWriter, hot

CURVE = Reliability("toy", np.array([np.nan, 0.5, 0.9]), np.array([np.nan, 0.4, 0.95]), np.array([0.0, 10, 90]))


def test_reliability_shows_filled_bins_only_and_shares_of_voxels():
    top, bottom = reliability_figure([CURVE]).axes
    line = next(line for line in top.lines if line.get_label() == "toy")
    assert line.get_xdata().tolist() == [0.5, 0.9]
    assert line.get_ydata().tolist() == [0.4, 0.95]
    shares = bottom.patches[0].get_data().values
    np.testing.assert_array_equal(shares, [np.nan, 0.1, 0.9])


def test_curves_of_repeats_are_pooled_voxel_by_voxel():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random((2, 500)), rng.random((2, 500)) < 0.6
    index = np.minimum((confidence * 5).astype(int), 4)
    tables = [
        BinTable.of(torch.from_numpy(k), torch.from_numpy(right), torch.from_numpy(p), 5)
        for k, right, p in zip(index, correct, confidence, strict=True)
    ]
    curve = pooled_curve("both", tables)
    for k in range(5):
        assert curve.accuracy[k] == pytest.approx(correct[index == k].mean())
        assert curve.confidence[k] == pytest.approx(confidence[index == k].mean())
        assert curve.count[k] == (index == k).sum()


def test_bands_show_uncertainty_minus_error():
    profile = BandProfile("toy", np.array([0.3, 0.1]), np.array([0.4, 0.05]))
    (axes,) = band_figure([profile], [0, 3, np.inf]).axes
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], [-0.1, 0.05])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0 to 3", "3 and more"]


def test_differences_are_drawn_with_their_intervals_top_down():
    rows = [Difference("a", 1.0, 0.5, 2.0, "better"), Difference("b", np.nan, np.nan, np.nan, "within noise")]
    (axes,) = difference_figure([("NLL", rows)]).axes
    drawn = [line.get_xdata() for line in axes.lines[1:]]
    assert list(drawn[0]) == [0.5, 2.0]
    assert list(drawn[1]) == [1.0]
    low, high = axes.get_ylim()
    assert low > high


@given(
    arrays(np.float64, (3, 4, 4), elements=st.floats(-5, 5)),
    arrays(np.float64, (3, 1, 4), elements=st.floats(-5, 5)),
    st.floats(-5, 5),
)
def test_matrices_that_softmax_cannot_tell_apart_look_the_same(weight, common, shift):
    bias = weight[:, 0]
    shown = without_common_part(weight, bias)
    same = without_common_part(weight + common, bias + shift)
    np.testing.assert_allclose(shown[0], same[0], atol=1e-9)
    np.testing.assert_allclose(shown[1], same[1], atol=1e-9)
    x = np.linspace(-1, 1, 4)
    gaps = weight[0] @ x - (weight[0] @ x)[0]
    np.testing.assert_allclose(shown[0][0] @ x - (shown[0][0] @ x)[0], gaps, atol=1e-9)


def test_figures_leave_no_global_state():
    before = dict(matplotlib.rcParams)
    matrix = Matrix("dc", np.eye(3), np.zeros(3), ("a", "b", "c"))
    for figure in (reliability_figure([CURVE]), matrix_figure([matrix] * 5), temperature_figure([("ts(z)", [2.0])])):
        SvgWriter().write(figure, "a figure")
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


def test_names_with_a_dollar_or_markup_are_shown_as_they_are():
    curve = Reliability("<b>$x_1$</b>", CURVE.confidence, CURVE.accuracy, CURVE.count)
    svg = SvgWriter().write(reliability_figure([curve]), '"quoted" <i>')
    assert "&lt;b&gt;$x_1$&lt;/b&gt;" in svg
    assert 'aria-label="&quot;quoted&quot; &lt;i&gt;"' in svg


def test_classes_keep_their_colours_and_differ():
    colours = class_colours(20, background=0)
    assert len({tuple(colour) for colour in colours}) == 20
    assert (colours[0].max() - colours[0].min()) < 0.05  # grey
    np.testing.assert_array_equal(colours[:5], class_colours(5, background=0))
    assert class_colours(60).shape == (60, 3)


def test_two_figures_in_a_page_share_no_id():
    writer = SvgWriter()
    pages = [writer.write(reliability_figure([CURVE]), "one") for _ in range(2)]
    ids = [set(part.split('"')[0] for part in page.split('id="')[1:]) for page in pages]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert pages[0].replace("f1-", "f2-") == pages[1]


def test_figures_take_over_the_colours_of_the_page():
    svg = SvgWriter().write(reliability_figure([CURVE]), "one")
    assert "currentColor" in svg
    assert "#20242b" not in svg.lower()
    assert "DejaVu" not in svg


def test_hot_places_tell_their_values_as_text():
    figure = new_figure(2, 2)
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    hot(axes, 0.5, 0.5, '"a" & <b>: 5 %')
    hot(axes, 0.25, 0.5, "next to it")
    svg = SvgWriter().write(figure, "hot")
    told = re.findall(
        r'<circle class="hot" cx="([\d.]+)" cy="([\d.]+)" r="5" fill-opacity="0" data-tip="([^"]*)"/>', svg
    )
    assert [html.unescape(text) for _, _, text in told] == ['"a" & <b>: 5 %', "next to it"]
    assert float(told[0][0]) > float(told[1][0])
    assert told[0][1] == told[1][1]
    assert "hot:" not in svg


def test_class_panels_and_risk_show_what_they_are_given():
    curve = ClassCurve(np.array([0.1, 0.9]), np.array([0.2, np.nan]))
    figure = class_figure({"road": {"identity(p)": curve}, "sky": {"identity(p)": curve}})
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["road", "sky"]
    np.testing.assert_array_equal(figure.axes[0].lines[1].get_xydata(), [[0.1, 0.2]])
    shown = risk_figure({"ts(p)": Risk(np.array([0.5, 1.0]), np.array([0.0, 0.2]))})
    assert shown.axes[0].lines[0].get_xydata()[-1].tolist() == [1.0, 0.2]


def test_a_matrix_of_zeros_can_be_drawn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SvgWriter().write(matrix_figure([Matrix("zero", np.zeros((2, 2)), np.zeros(2), ("a", "b"))]), "zeros")
