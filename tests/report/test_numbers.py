"""Numbers are written in one way, and the way can be read back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.kit.tables import MISSING
from lightning_calib.metrics.score import SCORES, main_scores
from lightning_calib.report.numbers import (
    MINUS,
    choose_decimals,
    format_count,
    format_number,
    format_scientific,
    format_score,
)

numbers = st.floats(-1e6, 1e6, allow_nan=False)


def read_back(text: str) -> float:
    return float(text.replace(MINUS, "-"))


@given(numbers, st.integers(0, 5))
def test_a_written_number_is_within_half_a_unit(value, decimals):
    text = format_number(value, decimals)
    if text[0] in "<>":
        assert 0 < abs(value) <= 0.5 * 10.0**-decimals * (1 + 1e-9)
        assert (text[0] == "<") == (value > 0)
    else:
        assert abs(read_back(text) - value) <= 0.5 * 10.0**-decimals + 1e-9


@given(numbers.filter(lambda x: x != 0), st.integers(0, 5))
def test_only_an_exact_zero_is_written_as_zero(value, decimals):
    assert format_number(value, decimals) != "0"
    assert format_number(0.0, decimals) == format_number(-0.0, decimals) == "0"


@pytest.mark.parametrize("absent", [None, math.nan])
def test_absent_numbers_are_a_dash(absent):
    assert format_number(absent, 3) == format_scientific(absent) == MISSING
    assert format_count(None) == MISSING


@pytest.mark.parametrize(("value", "text"), [(0.76715, "76.7"), (1.0, "100.0"), (0.0, "0"), (0.0001, "<0.1")])
def test_dice_is_written_in_percent(value, text):
    assert format_score(SCORES["dice"], value) == text


def test_signs_are_shown_on_request():
    assert format_number(0.5, 2, signed=True) == "+0.50"
    assert format_number(-0.5, 2, signed=True) == f"{MINUS}0.50"


@pytest.mark.parametrize("column", main_scores(), ids=lambda column: column.key)
def test_small_values_get_more_decimals_within_reason(column):
    assert choose_decimals(column, []) == column.decimals
    assert choose_decimals(column, [math.nan, 0.0]) == column.decimals
    assert choose_decimals(column, [1e-9]) == column.decimals + 2


def test_every_column_is_explained_in_a_sentence():
    for column in main_scores():
        assert column.explanation.endswith(".")
        assert column.arrow == ("↑" if column.key == "dice" else "↓")
