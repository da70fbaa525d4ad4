"""Text can be read on its background, on light and on dark pages."""

import re
from importlib.resources import files

import pytest

PAIRS = [("ink", "paper"), ("ink", "raised"), ("ink", "good-soft"), ("ink", "bad-soft"), ("ink", "mine")]
PAIRS += [("muted", "paper"), ("muted", "raised"), ("muted", "good-soft"), ("accent", "paper")]
PAIRS += [("good", "paper"), ("good", "good-soft"), ("bad", "paper"), ("bad", "bad-soft")]


def themes() -> list[dict[str, str]]:
    css = (files("lightning_calib.report") / "assets" / "page.css").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"\{([^{}]*)\}", css) if "--paper:" in block]
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks]


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_contrast_reaches_the_level_aa(text, ground):
    for theme in themes():
        light, dark = sorted((luminance(theme[text]), luminance(theme[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (theme[text], theme[ground])


def test_both_ways_to_the_dark_page_have_the_same_colours():
    light, dark, chosen = themes()
    assert dark == chosen != light
    assert light.keys() == dark.keys()
