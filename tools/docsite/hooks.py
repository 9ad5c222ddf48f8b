"""What MkDocs calls while it builds the site: pages made from the code, and links to files outside of docs/."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tools.docsite import commands, findings, json_schema, outside, tables, telemetry

MADE: Final = {
    "commands": commands.commands_page,
    "tables": tables.tables_page,
    "severities": findings.severities,
    "findings": findings.findings,
    "metrics": telemetry.metrics,
    "spans": telemetry.spans,
}
"""By the word in a page's line `<!-- made: word -->`, what the site has in its place."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that pages link to, and the JSON schema."""
    files.append(File.generated(config, json_schema.FILE, content=json_schema.schema_text()))
    for file in outside.outside_files():
        as_it_is = outside.is_shown_as_it_is(file)
        made = {"abs_src_path": str(file)} if as_it_is else {"content": outside.content(file)}
        files.append(File.generated(config, outside.place(file), inclusion=InclusionLevel.NOT_IN_NAV, **made))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is made from the code, and turn links to where the site has their files."""
    for word, make in MADE.items():
        marker = f"<!-- made: {word} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return outside.relinked(markdown, page.file.src_uri)
