"""README and the pages of docs/: their fenced blocks, commands, tables and links; and how a page is read."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.command_line import ddptrace_says
from tests.launch import ROOT, environment

DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
EXAMPLES: Final = ROOT / "examples"
PROMPT: Final = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """The text between two fences. `line`: of its first line in the page."""

    page: Path
    line: int
    language: str
    text: str


def pages() -> list[Path]:
    return [README, ROOT / "CONTRIBUTING.md", EXAMPLES / "README.md", *sorted(DOCS.rglob("*.md"))]


def linked_pages() -> list[Path]:
    """Those, and the pages outside of docs/ that the site shows too."""
    folders = ("benchmarks", "dashboards", "ddptrace/bench")
    return [*pages(), ROOT / "CHANGELOG.md", *(ROOT / folder / "README.md" for folder in folders)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    found = re.finditer(r"^```(\S*)\n(.*?)^```$", text := page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(page, text.count("\n", 0, one.start()) + 2, one[1], one[2]) for one in found]


def links(page: Path) -> list[str]:
    """Links to something within the project."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [link for link in found if not link.startswith("https://")]


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file is there, and the heading in it. Headings that the site makes are the site's to check."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in anchors(target) or "<!-- made: " in target.read_text())


def anchors(page: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def table(page: Path, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    below = page.read_text(encoding="utf-8").split(f"# {heading}\n", 1)[1]
    found = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert found, f"no table under {heading}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.group().splitlines()[2:]]


def is_read(page: Path) -> bool:
    return any(block.language in ("python", "console") for block in blocks(page))


def records_by_itself(page: Path) -> bool:
    """Whether the page makes `run/`, which then must not be there before."""
    return 'trace("run/"' in page.read_text(encoding="utf-8")


def read(page: Path, folder: Path, names: dict[str, Any]) -> None:
    """Run its Python, in one namespace, and its commands, from top to bottom. Errors name page and line."""
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        elif block.language == "console":
            for line in typed(block):
                done = run_command(line, folder)
                assert done.returncode == 0, f"{page}:{block.line}: {line}\n{done.stderr}"


def typed(block: Block) -> list[str]:
    """The commands of a block; those of a console stand behind a `$`."""
    prompt = PROMPT if block.language == "console" else ""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.removeprefix(prompt) for line in lines if line.startswith(prompt)]


def run_command(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(line)
    if program == "ddptrace":
        with contextlib.chdir(folder):
            return ddptrace_says(*arguments)
    assert program == "torchrun", line
    argv = [sys.executable, "-m", "torch.distributed.run", *arguments]
    return subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240, check=False)


def commands(page: Path) -> Iterator[list[str]]:
    """Each whole command that the page tells to type, in words."""
    for block in blocks(page):
        if block.language in ("console", "sh"):
            for line in typed(block):
                yield shlex.split(line, comments=True)


def mentioned(page: Path) -> list[str]:
    """Commands between backticks in the text, which may leave out arguments."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`(ddptrace [a-z][^`]*)`", text)
