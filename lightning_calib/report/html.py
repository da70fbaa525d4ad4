"""The page: sections, style and behaviour in one file that needs nothing else."""

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lightning_calib.calibrators.registry import CALIBRATORS
from lightning_calib.report.columns import COLUMNS
from lightning_calib.report.glossary import TERMS
from lightning_calib.report.section import Picture, Section
from lightning_calib.report.svg import SvgWriter

_STYLES = ("page.css", "tables.css", "print.css")
_SCRIPTS = ("report.js",)


def render(title: str, sections: Sequence[Section]) -> str:
    """The whole page as one text; everything that is not markup of a template is escaped.

    Args:
        title: heading of the page.
        sections: in their order.

    Example:
        >>> page = render("A & B", [Section("a", "First", lead="1 < 2")])
        >>> "A &amp; B" in page, "1 &lt; 2" in page
        (True, True)
    """
    environment = Environment(
        loader=PackageLoader("lightning_calib.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    writer = SvgWriter()

    def draw(picture: Picture) -> Markup:
        return Markup(writer.write(picture.figure, picture.caption))  # our own SVG, label escaped

    def asset(names: Sequence[str]) -> Markup:
        loader = environment.loader
        assert loader is not None
        return Markup("\n".join(loader.get_source(environment, name)[0] for name in names))  # our files

    calibrators = {name: CALIBRATORS[name].description for name in CALIBRATORS}
    environment.globals |= {"draw": draw, "terms": TERMS, "columns": COLUMNS, "calibrators": calibrators}
    page = environment.get_template("page.html")
    return page.render(title=title, sections=sections, css=asset(_STYLES), script=asset(_SCRIPTS))
