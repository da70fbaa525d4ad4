"""One table for every place: Markdown, LaTeX, CSV and terminals; the report's template draws it as HTML."""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_calib.kit.files import csv_lines

Form = Literal["markdown", "latex", "csv", "text", "html"]

MISSING = "\N{EN DASH}"
_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "∞": r"$\infty$",
    "\N{MINUS SIGN}": "$-$",
    MISSING: "--",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        heading: what stands above it, unit included.
        key: its name in CSV files; the heading where it has none.
        arrow: points to better values.
        left: whether cells are words, which start at the left; numbers end at the right.
        tip: explains the heading on the page.
        bounds: whether CSV files hold two more columns, ``<key>_low`` and ``<key>_high``.
        only: forms of the table that show it; all where there are none.
    """

    heading: str
    key: str = ""
    arrow: str = ""
    left: bool = False
    tip: str = ""
    bounds: bool = False
    only: tuple[Form, ...] = ()

    @property
    def title(self) -> str:
        """Heading and arrow."""
        return f"{self.heading} {self.arrow}".strip()


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: as readers see it.
        value: the same in full precision, for CSV files and for sorting.
        bounds: lower and upper bound in full precision.
        interval: ``[low, high]`` as readers see it.
        best: whether it is the best of its column.
        style: ``code`` for names; on the page also ``yes``, ``no``, ``words`` or a kind of ``badge``.
        mark: sign behind the text where there is no page to show it otherwise.
        latex: what LaTeX sets in place of the text.
        tip: explains the cell on the page.
    """

    text: str = MISSING
    value: Any = None
    bounds: tuple[float | None, float | None] = (None, None)
    interval: str = ""
    best: bool = False
    style: str = ""
    mark: str = ""
    latex: str = ""
    tip: str = ""


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        cells: one a column.
        block: heading of the rows that it belongs to.
        note: what is wrong with the row as a whole.
        again: whether the same row stands in an earlier block.
        style: how the page sets it: ``mine``, ``recommended``, ``same``.
        details: further lines below it on the page, with what is folded away behind each.
    """

    cells: tuple[Cell, ...]
    block: str = ""
    note: str = ""
    again: bool = False
    style: str = ""
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """Columns and rows.

    Attributes:
        name: of its files.
        caption: what it shows.
        columns: the first one names the rows.
        rows: in their order, blocks together.
        sortable: whether readers of the page may sort it, and have intervals shown on demand; such tables are dense.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    sortable: bool = False

    @classmethod
    def of(cls, name: str, caption: str, head: Sequence[str | Column], rows: Sequence[Sequence[str | Cell]]) -> "Table":
        """A table of texts; the first column holds words, the others numbers.

        Example:
            >>> print(Table.of("t", "Toy.", ("a", "b"), [["x", Cell("1", best=True)]]).to_markdown())
            | a | b |
            |:--|--:|
            | x | **1** |
            <BLANKLINE>
            Toy.
            <BLANKLINE>
        """
        columns = (Column(text, left=not n) if isinstance(text, str) else text for n, text in enumerate(head))
        cells = (tuple(Cell(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
        return cls(name, caption, tuple(columns), tuple(Row(row) for row in cells))

    def shown(self, form: Form) -> list[int]:
        """Places of the columns that a form shows."""
        return [n for n, column in enumerate(self.columns) if not column.only or form in column.only]

    def grid(self, intervals: bool = False) -> str:
        """The Markdown table alone.

        Args:
            intervals: write ``value [low, high]`` in place of the value.
        """
        columns = [self.columns[n] for n in self.shown("markdown")]
        lines = [_line(column.title for column in columns), "|:--|" + "--:|" * (len(columns) - 1)]
        for block, row in self._walk():
            if block:
                lines.append(f"| **{block}** |" + " |" * (len(columns) - 1))
            lines.append(_line(_markdown(row.cells[n], intervals) for n in self.shown("markdown")))
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """GitHub-flavoured Markdown with the caption below."""
        return f"{self.grid()}\n\n{self.caption}\n"

    def to_latex(self, intervals: bool = False, legend: str = "") -> str:
        r"""A LaTeX ``table`` that needs ``\usepackage{booktabs}`` and nothing else.

        Args:
            intervals: write ``value [low, high]`` in place of the value.
            legend: what the caption says of the intervals.
        """
        places = self.shown("latex")
        heads = (self.columns[n] for n in places)
        body: list[str] = []
        for block, row in self._walk():
            if block:
                heading = rf"\multicolumn{{{len(places)}}}{{@{{}}l}}{{\textbf{{{latex_escape(block)}}}}} \\"
                body += [r"\midrule", heading] if body else [heading]
            body.append(" & ".join(_latex(row.cells[n], intervals) for n in places) + r" \\")
        return "\n".join(
            [
                r"\begin{table}[t]",
                r"\centering",
                r"\scriptsize" if intervals else r"\small",
                *([r"\setlength{\tabcolsep}{3pt}"] if self.sortable else []),
                rf"\begin{{tabular}}{{@{{}}l{'c' * (len(places) - 1)}@{{}}}}",
                r"\toprule",
                " & ".join(f"\\textbf{{{latex_escape(c.heading)}}} {latex_escape(c.arrow)}".strip() for c in heads)
                + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                rf"\caption{{{latex_escape(f'{self.caption} {legend}'.strip())}}}",
                rf"\label{{tab:{self.name}}}",
                r"\end{table}",
                "",
            ]
        )

    def to_csv(self) -> str:
        """One line a row, every value and its bounds in full precision; rows that stand there again are left out."""
        columns = [(n, self.columns[n]) for n in self.shown("csv")]
        lines: list[list[Any]] = [
            [f"{c.key or c.heading}{end}" for _, c in columns for end in (("", "_low", "_high") if c.bounds else ("",))]
        ]
        for row in self.rows:
            if not row.again:
                cells = ((row.cells[n], c.bounds) for n, c in columns)
                lines.append([x for cell, bounds in cells for x in (cell.value, *(cell.bounds if bounds else ()))])
        return csv_lines(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows; the page of the report has a template of its own."""
        places = self.shown("markdown")
        heads = "".join(f"<th>{html.escape(self.columns[n].title)}</th>" for n in places)
        body: list[str] = []
        for block, row in self._walk():
            if block:
                heading = f'<th colspan="{len(places)}" style="text-align: left">{html.escape(block)}</th>'
                body.append(f"<tr>{heading}</tr>")
            sides = ("left" if self.columns[n].left else "right" for n in places)
            cells = (_html(row.cells[n], side) for n, side in zip(places, sides, strict=True))
            body.append(f"<tr>{''.join(cells)}</tr>")
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        return f"{table}<p>{html.escape(self.caption)}</p>"

    def to_text(self) -> str:
        """Lines for a terminal; ``*`` marks the best of a column.

        Example:
            >>> print(Table.of("t", "*: best", ("a", "b"), [["x", Cell("1", best=True)], ["y", "20"]]).to_text())
            a   b
            x   1*
            y  20
            *: best
        """
        places = self.shown("text")
        rows = [[f"{self.columns[n].title} " for n in places]]
        rows += [[_plain(row.cells[n]) for n in places] for row in self.rows]
        sides = ["<" if self.columns[n].left else ">" for n in places]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for cells, (block, _) in zip(rows, [("", None), *self._walk()], strict=True):
            aligned = [f"{text:{side}{width}}" for text, side, width in zip(cells, sides, widths, strict=True)]
            lines += [*([block] if block else []), " ".join(aligned).rstrip()]
        return "\n".join([*lines, self.caption])

    def _walk(self) -> Iterator[tuple[str, Row]]:
        """Rows, each with the heading of its block where that begins."""
        before = ""
        for row in self.rows:
            yield ("" if row.block == before else row.block), row
            before = row.block


def latex_escape(text: str) -> str:
    r"""Text that LaTeX sets as it stands.

    Example:
        >>> latex_escape("a_b & 5 %")
        'a\\_b \\& 5 \\%'
    """
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def markdown_escape(text: str) -> str:
    """Text that Markdown shows as it stands, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))


def _line(cells: Iterator[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(cell: Cell, intervals: bool) -> str:
    text = cell.text.replace("|", r"\|")
    text = f"`{text}`" if cell.style == "code" else f"**{text}**" if cell.best else text
    return " ".join(part for part in (text, cell.mark, cell.interval if intervals else "") if part)


def _html(cell: Cell, side: str) -> str:
    text = html.escape(" ".join(part for part in (cell.text, cell.mark) if part))
    shown = f"<code>{text}</code>" if cell.style == "code" else f"<b>{text}</b>" if cell.best else text
    return f'<td style="text-align: {side}">{shown}</td>'


def _latex(cell: Cell, intervals: bool) -> str:
    text = cell.latex or latex_escape(cell.text)
    text = rf"\textbf{{{text}}}" if cell.best else text
    marked = rf"{text}\,{latex_escape(cell.mark)}" if cell.mark else text
    return f"{marked} {latex_escape(cell.interval) if intervals else ''}".strip()


def _plain(cell: Cell) -> str:
    return " ".join(part for part in (cell.text, cell.mark) if part) + ("*" if cell.best else " ")
