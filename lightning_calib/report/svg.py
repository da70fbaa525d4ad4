"""Figures as inline SVG that takes over the colours and the font of the page around it."""

import base64
import io
import re
from itertools import count
from urllib.parse import quote, unquote

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from lightning_calib.kit.style import BLUE, FAINT, INK, look

_PNG = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)")
_PAGE = {BLUE: "var(--good)", INK: "currentColor", FAINT: "var(--faint)"}  # colours that follow the page's
_HOT = "hot:"
# The marker that matplotlib draws for a hot place: its text, x and y.
_MARKER = re.compile(
    rf'<g id="{_HOT}([^"]*)">\s*(?:<defs>.*?</defs>\s*)?<g[^>]*>\s*<use [^>]*?x="([-\d.]+)" y="([-\d.]+)"[^>]*/>\s*</g>'
    r"\s*</g>",
    re.DOTALL,
)
_ROOT = re.compile(r"<svg[^>]*?viewBox=\"0 0 ([\d.]+) ([\d.]+)\"[^>]*>", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_FONT = re.compile(r"font-family: [^;\"]*;? ?|(?<=font: )([^;\"]*?px) [^;\"]*")


def hot(axes: Axes, x: float, y: float, text: str) -> None:
    """A place of a chart that tells its values when the pointer is on it; nothing is drawn.

    Args:
        axes: where.
        x: place.
        y: place.
        text: what it tells.
    """
    axes.plot([x], [y], marker="o", markersize=9, alpha=0, linestyle="", gid=f"{_HOT}{quote(text)}", zorder=9)


class SvgWriter:
    """Turns figures into SVG elements that can stand in one page: their ids do not meet.

    Example:
        >>> svg = SvgWriter().write(Figure(figsize=(2, 1)), label="an empty figure")
        >>> svg.startswith('<svg role="img" aria-label="an empty figure" viewBox="0 0 144 72"')
        True
    """

    def __init__(self) -> None:
        """Start counting figures."""
        self._numbers = count(1)

    def write(self, figure: Figure, label: str) -> str:
        """One figure as an ``<svg>`` element without a fixed size.

        Args:
            figure: what to draw.
            label: text for readers who cannot see it; anything, it is escaped.
        """
        text = io.StringIO()
        with look():
            figure.savefig(text, format="svg", metadata={"Date": None})
        svg = text.getvalue()
        root = _ROOT.search(svg)
        assert root is not None, "matplotlib writes a viewBox from the origin"
        body = _METADATA.sub("", svg[root.end() :])
        body = _MARKER.sub(_circle, body)
        body = _PNG.sub(_as_webp, _own_ids(body, f"f{next(self._numbers)}-"))
        body = _FONT.sub(lambda match: f"{match[1]} inherit" if match[1] else "", body)
        body = (
            body.replace(BLUE.lower(), "var(--good)")
            .replace(INK.lower(), "currentColor")
            .replace(FAINT.lower(), "var(--faint)")
        )
        width, height = (f"{float(size):g}" for size in root.groups())
        return f'<svg role="img" aria-label="{_attribute(label)}" viewBox="0 0 {width} {height}">{body.strip()}'


def _circle(marker: re.Match[str]) -> str:
    """A hot place as one short element."""
    text, x, y = marker.groups()
    return f'<circle class="hot" cx="{x}" cy="{y}" r="5" fill-opacity="0" data-tip="{_attribute(unquote(text))}"/>'


def _own_ids(svg: str, prefix: str) -> str:
    svg = re.sub(r"\bid=\"", f'id="{prefix}', svg)
    return re.sub(r"(url\(#|href=\"#)", rf"\1{prefix}", svg)


def _as_webp(match: re.Match[str]) -> str:
    """The same pixels as lossless WebP, where that is smaller."""
    png = base64.b64decode(match[1])
    packed = io.BytesIO()
    Image.open(io.BytesIO(png)).save(packed, "WEBP", lossless=True, quality=90, method=4)
    if packed.tell() >= len(png):
        return f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f"data:image/webp;base64,{base64.b64encode(packed.getvalue()).decode()}"


def _attribute(text: str) -> str:
    """Text fit for a quoted attribute."""
    for character, entity in {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}.items():
        text = text.replace(character, entity)
    return text
