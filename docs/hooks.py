"""What MkDocs does not do by itself: notebooks as pages, result tables as CSV files, links to the code."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
# What a browser fetches by itself: scripts, pictures, frames, style sheets, fonts. Links that people follow are not.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon))[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:@import\s+|url\()["']?((?:https?:)?//[^"')\s]+)"""
)
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:lightning_calib|configs|benchmarks|tests)[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and a CSV file for each table of results."""
    notebooks = sorted(Path(config.docs_dir).glob("notebooks/*.ipynb"))
    pages = [page for notebook in notebooks for page in _notebook(notebook, files, config)]
    for entry in list(config.nav):
        if "Notebooks" in entry:
            entry["Notebooks"] = pages
            if not pages:
                config.nav.remove(entry)
    for page in Path(config.docs_dir).glob("results/*.md"):
        for number, table in enumerate(TABLE.findall(page.read_text(encoding="utf-8")), 1):
            name = f"results/tables/{page.stem}-{number}.csv"
            files.append(File.generated(config, name, content=as_csv(table)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Offer each table of results as a file; name files of the code, which are not part of the site."""
    markdown = OUTSIDE.sub(lambda found: found[1] if found[1].startswith("`") else f"`{found[1]}`", markdown)
    place = Path(page.file.src_uri)
    if place.parent.name != "results":
        return markdown
    numbers = iter(range(1, 1000))
    return TABLE.sub(
        lambda found: f"{found[0]}\n[this table as CSV](tables/{place.stem}-{next(numbers)}.csv){{ .csv }}\n", markdown
    )


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Refuse a site that fetches anything from another host when it is viewed."""
    pages = [path for path in Path(config.site_dir).rglob("*") if path.suffix in (".html", ".css")]
    asking = {path: [found[0] for found in FETCHED.finditer(path.read_text(encoding="utf-8"))] for path in pages}
    if found := [f"{path}: {', '.join(sorted(set(hosts)))}" for path, hosts in asking.items() if hosts]:
        raise PluginError("the site asks other hosts:\n" + "\n".join(found))


def as_csv(table: str) -> str:
    """A Markdown table as CSV, without marks of emphasis and code."""
    out = io.StringIO()
    rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in table.splitlines()]
    plain = [[re.sub(r"\*\*|`", "", cell).replace("\\|", "|").strip() for cell in row] for row in rows]
    csv.writer(out, lineterminator="\n").writerows(plain[:1] + plain[2:])
    return out.getvalue()


def _notebook(path: Path, files: Files, config: MkDocsConfig) -> list[dict[str, str]]:
    """Turn an executed notebook into a page with its pictures beside it."""
    body, resources = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4))
    place = f"notebooks/{path.stem}"
    for name, content in resources.get("outputs", {}).items():
        files.append(File.generated(config, f"{place}-{name}", content=content))
        body = body.replace(f"({name})", f"({path.stem}-{name})")
    files.append(File.generated(config, f"{place}.md", content=body))
    title = re.search(r"^# (.+)$", body, re.MULTILINE)
    return [{title[1] if title else path.stem: f"{place}.md"}]
