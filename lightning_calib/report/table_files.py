"""The main table as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Iterator

from lightning_calib.calibrators.pipeline import PipelineName
from lightning_calib.report.columns import Column
from lightning_calib.report.numbers import MISSING
from lightning_calib.report.tables import BLOCK_TITLES, Cell, MainTable, Row

NOT_INVARIANT = "\N{MULTIPLICATION SIGN}"

_LATEX_CALIBRATORS = {
    "ms_c": r"MS$_c$",
    "cms_ap": r"CMS$_{ap}$",
    "cms_op": r"CMS$_{op}$",
    "lts_ti": "LTS",
}
_LATEX_POOLINGS = {"p0": r"$p_0$", "p": r"$\bar{p}$", "z": r"$\bar{z}$"}
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


def to_markdown(table: MainTable) -> str:
    """GitHub-flavoured Markdown: point estimates with the best in bold, then the same with intervals."""
    parts = [f"# Calibration of {_markdown_escape(table.dataset)}", _markdown_table(table, intervals=False)]
    parts.append(
        "Dice and flips in %. **Bold**: best value of a column. "
        f"{NOT_INVARIANT}: not translation invariant. {MISSING}: not applicable or not available."
    )
    notes = [f"- `{row.pipeline}`: {_markdown_escape(row.note)}" for row in table.rows if row.note and not row.again]
    parts += ["\n".join(["Incomplete:", "", *notes])] if notes else []
    parts += ["## With intervals", _markdown_table(table, intervals=True), _interval_legend(table)]
    return "\n\n".join(parts) + "\n"


def to_latex(table: MainTable, intervals: bool = False) -> str:
    r"""A LaTeX ``table`` that needs ``\usepackage{booktabs}`` and nothing else.

    Args:
        table: the main table.
        intervals: write ``value [low, high]`` in place of the value.
    """
    columns = " & ".join(rf"\textbf{{{latex_escape(c.heading)}}} {latex_escape(c.arrow)}" for c in table.columns)
    body = "\n\\midrule\n".join(
        "\n".join(_latex_block(table, letter, rows, intervals)) for letter, rows in table.blocks().items()
    )
    caption = (
        rf"Calibration of {latex_escape(table.dataset)}. Bold: best value of a column. "
        r"$\times$: not translation invariant. --: not applicable or not available."
    )
    caption += " " + latex_escape(_interval_legend(table)) if intervals else ""
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            r"\scriptsize" if intervals else r"\small",
            r"\setlength{\tabcolsep}{3pt}",
            rf"\begin{{tabular}}{{@{{}}l{'c' * len(table.columns)}@{{}}}}",
            r"\toprule",
            rf"\textbf{{Pipeline}} & {columns} \\",
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:calibration-{re.sub('[^a-z0-9]+', '-', table.dataset.lower())}}}",
            r"\end{table}",
            "",
        ]
    )


def to_csv(table: MainTable) -> str:
    """One line a pipeline: facts, every score and its bounds in full precision, and the note."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    scores = [f"{c.key}{suffix}" for c in table.columns for suffix in ("", "_low", "_high")]
    writer.writerow(["pipeline", "block", "translation_invariant", "preserves", *scores, "note"])
    for row in table.rows:
        if not row.again:
            cells = [row.cells[c.key] if row.shows(c) else Cell() for c in table.columns]
            numbers = [x for cell in cells for x in (cell.value, cell.low, cell.high)]
            facts = [row.pipeline, row.block, row.pipeline.translation_invariant, row.pipeline.preserves or ""]
            writer.writerow([*facts, *("" if x is None else repr(x) for x in numbers), row.note])
    return text.getvalue()


def latex_escape(text: str) -> str:
    r"""Text that LaTeX sets as it stands.

    Example:
        >>> latex_escape("a_b & 5 %")
        'a\\_b \\& 5 \\%'
    """
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def latex_name(pipeline: PipelineName) -> str:
    r"""A pipeline in the notation of the paper.

    Example:
        >>> print(latex_name(PipelineName.parse("cms_op(p)")), latex_name(PipelineName.parse("lts_ti(z)")))
        CMS$_{op}$($\bar{p}$) LTS($\log S(\bar{z})$)
    """
    pooling = _LATEX_POOLINGS[pipeline.pooling]
    if pipeline.calibrator == "identity":
        return pooling
    if pipeline.calibrator == "lts_ti":
        pooling = rf"$\log S({pooling.strip('$')})$"
    return f"{_LATEX_CALIBRATORS.get(pipeline.calibrator) or latex_escape(pipeline.calibrator.upper())}({pooling})"


def _latex_block(table: MainTable, letter: str, rows: list[Row], intervals: bool) -> Iterator[str]:
    title = latex_escape(BLOCK_TITLES[letter])
    yield rf"\multicolumn{{{len(table.columns) + 1}}}{{@{{}}l}}{{\textbf{{({letter}) {title}}}}} \\"
    for row in rows:
        mark = "" if row.pipeline.translation_invariant else r"\,$\times$"
        cells = [_latex_cell(table, row, column, intervals) for column in table.columns]
        yield " & ".join([latex_name(row.pipeline) + mark, *cells]) + r" \\"


def _latex_cell(table: MainTable, row: Row, column: Column, intervals: bool) -> str:
    value = latex_escape(table.text(row, column))
    value = rf"\textbf{{{value}}}" if row.cells[column.key].best else value
    bounds = latex_escape(table.interval(row, column)) if intervals else ""
    return f"{value} {bounds}".strip()


def _markdown_table(table: MainTable, intervals: bool) -> str:
    lines = [
        "| Pipeline | " + " | ".join(f"{column.heading} {column.arrow}" for column in table.columns) + " |",
        "|:--|" + "--:|" * len(table.columns),
    ]
    for letter, rows in table.blocks().items():
        lines.append(f"| **({letter}) {BLOCK_TITLES[letter]}** |" + " |" * len(table.columns))
        for row in rows:
            mark = "" if row.pipeline.translation_invariant else f" {NOT_INVARIANT}"
            cells = [_markdown_cell(table, row, column, intervals) for column in table.columns]
            lines.append(f"| `{row.pipeline}`{mark} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _markdown_cell(table: MainTable, row: Row, column: Column, intervals: bool) -> str:
    value = table.text(row, column)
    value = f"**{value}**" if row.cells[column.key].best else value
    return f"{value} {table.interval(row, column)}".strip() if intervals else value


def _interval_legend(table: MainTable) -> str:
    kinds: dict[str, list[str]] = {}
    for column in table.columns:
        kinds.setdefault(column.interval, []).append(column.label)
    return "; ".join(f"{', '.join(labels)}: {kind}" for kind, labels in kinds.items()) + "."


def _markdown_escape(text: str) -> str:
    """Text that Markdown shows as it stands, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))
