"""Links of pages to files outside of docs/: the site shows those files too, under their place in the repository.

So a link works in a plain view of the repository as well as on the site. A page outside of docs/ is shown as a page, a
picture as it is, a folder as a list of its files, and any other file as text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
DOCS: Final = ROOT / "docs"
LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
PICTURES: Final = (".png", ".svg")
LANGUAGES: Final = {".py": "python", ".cpp": "cpp", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}
README: Final = ROOT / "README.md"
README_PLACE: Final = "readme.md"
"""MkDocs would take README.md for the first page of its folder, which is index.md."""


def outside_files() -> list[Path]:
    """Find the files outside of docs/ that a page shows, followed from page to page."""
    found: list[Path] = []
    pages = sorted(DOCS.rglob("*.md"))
    while pages:
        page = pages.pop()
        new = [file for file in targets(page) if DOCS not in file.parents and file not in found]
        found += dict.fromkeys(new)
        pages += [file for file in dict.fromkeys(new) if file.suffix == ".md"]
    return sorted(found)


def targets(page: Path) -> Iterator[Path]:
    """The files that a page links to."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        file = Path(os.path.normpath(page.parent / link))
        if file.exists():
            yield file


def place(file: Path) -> str:
    """Where the site has a file of the repository: its source path, as MkDocs names it."""
    if file == README:
        return README_PLACE
    if DOCS in file.parents:
        return file.relative_to(DOCS).as_posix()
    inside = file.relative_to(ROOT).as_posix()
    return inside if is_shown_as_it_is(file) else f"{inside}.md"


def is_shown_as_it_is(file: Path) -> bool:
    return file.suffix in (".md", *PICTURES)


def file_of(source: str) -> Path:
    """The file of the repository that the site has there."""
    if source == README_PLACE:
        return README
    return DOCS / source if (DOCS / source).is_file() else ROOT / source


def content(file: Path) -> str:
    """Write the page that shows a file, or a folder."""
    if file.is_dir():
        text, language = "\n".join(sorted(one.name for one in file.iterdir() if one.is_file())), "text"
    else:
        text, language = file.read_text(encoding="utf-8"), LANGUAGES.get(file.suffix, "text")
    return f"# {file.relative_to(ROOT).as_posix()}\n\n````{language}\n{text}\n````\n"


def relinked(text: str, source: str) -> str:
    """A page's text with links to where the site has those files; links that lead nowhere are left as they are."""
    here, folder = file_of(source).parent, PurePosixPath(source).parent

    def link(found: re.Match[str]) -> str:
        file = Path(os.path.normpath(here / found[1]))
        return os.path.relpath(place(file), folder) if file.exists() else found[1]

    return LINK.sub(link, text)
