"""A section of the page: words, figures, tables, and what to say when its inputs are missing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from lightning_calib.kit.tables import Table
from lightning_calib.report.inputs import Inputs, MissingInput


@dataclass(frozen=True)
class Picture:
    """A figure of the report.

    Attributes:
        name: file name without its ending.
        figure: what is drawn.
        caption: what to see in it; also the text for readers who cannot.
        wide: whether it needs the width of the page, and scrolls on a phone.
    """

    name: str
    figure: Figure
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        key: anchor.
        title: heading.
        lead: what the section answers.
        pictures: its figures.
        tables: its tables.
        notices: what is missing, and why.
        template: how it is laid out.
        data: what the template shows beyond that.
        folded: whether only its heading is open, since it is for researchers.
    """

    key: str
    title: str
    lead: str = ""
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    notices: tuple[str, ...] = ()
    template: str = "section.html"
    data: Mapping[str, Any] = field(default_factory=dict)
    folded: bool = False


def attempt(key: str, title: str, make: Callable[[Inputs], Section | None], inputs: Inputs) -> Section | None:
    """The section, or a notice in its place that says what is missing; None where there is nothing to say.

    A report is read when something went wrong, too: unreadable files (``OSError``), files that hold something
    else (``ValueError``, ``KeyError``) and inputs that are not there cost a section, never the page.
    """
    try:
        return make(inputs)
    except (MissingInput, OSError) as problem:
        return Section(key, title, notices=(str(problem),))
    except (ValueError, KeyError) as problem:
        return Section(key, title, notices=(f"The results could not be read: {problem!r}",))
