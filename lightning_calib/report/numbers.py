"""How the report writes numbers: one way for each kind, wherever they stand."""

import math
from collections.abc import Iterable

from lightning_calib.kit.tables import MISSING
from lightning_calib.metrics.score import Score

MINUS = "\N{MINUS SIGN}"  # as wide as a plus: columns of signed numbers line up
_MAX_EXTRA_DECIMALS = 2


def format_number(value: float | None, decimals: int, signed: bool = False) -> str:
    """The one way in which the report writes a measured number.

    An exact zero is written ``0``, so that it differs from a small number that rounds to zero.

    Args:
        value: the number; None and NaN become a dash.
        decimals: digits after the point.
        signed: write a plus sign, too.

    Example:
        >>> [format_number(x, 3) for x in (0.0421, 0.0, 0.0001, None, -0.5)]
        ['0.042', '0', '<0.001', '–', '−0.500']
        >>> format_number(0.25, 1, signed=True)
        '+0.2'
    """
    if value is None or math.isnan(value):
        return MISSING
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    text = f"{abs(value):.{decimals}f}"
    sign = MINUS if value < 0 else "+" if signed else ""
    if float(text) == 0:  # too small for the decimals: say so instead of writing a zero
        text = f"{10.0**-decimals:.{decimals}f}"
        return f"<{text}" if value > 0 else f">{MINUS}{text}"
    return sign + text


def format_scientific(value: float | None, digits: int = 2) -> str:
    """A number of unknown size, such as a gradient norm, with few significant digits.

    Example:
        >>> format_scientific(3.21e-7), format_scientific(0.0), format_scientific(1.5)
        ('3.2e−7', '0', '1.5')
    """
    if value is None or math.isnan(value):
        return MISSING
    text = f"{value:.{digits}g}"
    mantissa, _, exponent = text.partition("e")
    return (f"{mantissa}e{int(exponent)}" if exponent else mantissa).replace("-", MINUS)


def format_count(value: float | None) -> str:
    r"""A whole number with thin spaces between thousands.

    Example:
        >>> format_count(1234567)
        '1\u202f234\u202f567'
    """
    return MISSING if value is None else f"{round(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def plural(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> plural(1, "repeat"), plural(3, "repeat")
        ('1 repeat', '3 repeats')
    """
    return f"{format_count(number)} {noun}{'' if number == 1 else 's'}"


def format_seconds(value: float | None) -> str:
    """A duration in the unit that suits it.

    Example:
        >>> [format_seconds(x) for x in (0.0123, 4.5, 754, 7320)]
        ['12 ms', '4.5 s', '12 min 34 s', '2 h 2 min']
    """
    if value is None or math.isnan(value):
        return MISSING
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def choose_decimals(score: Score, values: Iterable[float]) -> int:
    """Decimals for a column of values: its digits of the smallest one, within reason.

    Args:
        score: what the column shows.
        values: in the unit of the result files; NaN and 0 are passed over.

    Example:
        >>> from lightning_calib.metrics.score import SCORES
        >>> choose_decimals(SCORES["ece"], [0.34, 0.0042]), choose_decimals(SCORES["nll"], [0.041, 0.52])
        (4, 4)
    """
    sizes = [abs(score.shown(value)) for value in values if math.isfinite(value) and value != 0]
    if not sizes:
        return score.decimals
    needed = score.digits - 1 - math.floor(math.log10(min(sizes)))
    return min(max(needed, score.decimals), score.decimals + _MAX_EXTRA_DECIMALS)


def format_score(score: Score, value: float | None, decimals: int | None = None, signed: bool = False) -> str:
    """A score in its unit and precision.

    Example:
        >>> from lightning_calib.metrics.score import SCORES
        >>> format_score(SCORES["dice"], 0.7671), format_score(SCORES["flip"], 0.0)
        ('76.7', '0')
    """
    digits = score.decimals if decimals is None else decimals
    return format_number(None if value is None else score.shown(value), digits, signed)


def format_interval(
    score: Score, low: float | None, high: float | None, decimals: int | None = None, signed: bool = False
) -> str:
    """``[low, high]`` in the unit and precision of a score."""
    return f"[{', '.join(format_score(score, bound, decimals, signed) for bound in (low, high))}]"
