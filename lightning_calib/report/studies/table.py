"""A table of a study, and its forms on the page, in Markdown and in LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_calib.report.table_files import latex_escape
from lightning_calib.report.tables import MainTable, main_table
from lightning_calib.studies.scores import ScoreRow


@dataclass(frozen=True)
class StudyTable:
    """A table as readers see it.

    Attributes:
        name: of its files.
        caption: what it shows.
        head: headings; the first column names the rows.
        rows: cells as text.
        bold: row and column of the cells to stress.
    """

    name: str
    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of_scores(cls, name: str, caption: str, table: MainTable) -> "StudyTable":
        """The point estimates of a main table, best cells stressed."""
        kept = [row for row in table.rows if not row.again]
        rows = [[str(row.pipeline), *(table.text(row, column) for column in table.columns)] for row in kept]
        bold = {
            (i, 1 + j)
            for i, row in enumerate(kept)
            for j, column in enumerate(table.columns)
            if row.cells[column.key].best
        }
        head = ("pipeline", *(f"{column.heading} {column.arrow}" for column in table.columns))
        return cls(name, caption, head, rows, frozenset(bold))

    def to_markdown(self) -> str:
        """GitHub-flavoured Markdown.

        Example:
            >>> print(StudyTable("t", "Toy.", ("a", "b"), [["x", "1"]], frozenset({(0, 1)})).to_markdown())
            | a | b |
            |:--|--:|
            | x | **1** |
            <BLANKLINE>
            Toy.
            <BLANKLINE>
        """
        lines = ["| " + " | ".join(self.head) + " |", "|:--|" + "--:|" * (len(self.head) - 1)]
        for i, row in enumerate(self.rows):
            cells = (f"**{text}**" if (i, j) in self.bold else text.replace("|", r"\|") for j, text in enumerate(row))
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", self.caption, ""])

    def to_latex(self) -> str:
        r"""A LaTeX ``table`` that needs ``\usepackage{booktabs}`` and nothing else."""
        body = []
        for i, row in enumerate(self.rows):
            cells = [latex_escape(text) for text in row]
            stressed = (rf"\textbf{{{text}}}" if (i, j) in self.bold else text for j, text in enumerate(cells))
            body.append(" & ".join(stressed) + r" \\")
        return "\n".join(
            [
                r"\begin{table}[t]",
                r"\centering",
                r"\small",
                rf"\begin{{tabular}}{{@{{}}l{'c' * (len(self.head) - 1)}@{{}}}}",
                r"\toprule",
                " & ".join(rf"\textbf{{{latex_escape(text)}}}" for text in self.head) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                rf"\caption{{{latex_escape(self.caption)}}}",
                rf"\label{{tab:{self.name}}}",
                r"\end{table}",
                "",
            ]
        )


def score_table(
    dataset: str, rows: Sequence[ScoreRow], names: Sequence[str], setting: str, file: str, told: str
) -> StudyTable:
    """All scores of pipelines under one setting of a study.

    Args:
        dataset: its name.
        rows: scores under all settings.
        names: the pipelines.
        setting: which setting.
        file: name of the table's files.
        told: the setting in words.
    """
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row.setting == setting:
            scores.setdefault(row.pipeline, {})[row.metric] = {"mean": row.mean, "low": row.low, "high": row.high}
    table = main_table(f"{dataset} ({told})", list(names), scores)
    return StudyTable.of_scores(file, f"Scores on {dataset}, {told}. Bold: best of a column.", table)
