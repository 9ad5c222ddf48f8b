"""The pages of docs/, taken apart: their fenced blocks, their tables, their links."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.launch import ROOT, environment

DOCS: Final = ROOT / "docs"
PROMPT: Final = "$ "


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two fences. `line`: of its first line in the page."""

    page: Path
    line: int
    language: str
    text: str


def pages() -> list[Path]:
    return sorted(DOCS.glob("*.md"))


def blocks(page: Path) -> list[Block]:
    found = re.finditer(r"^```(\S*)\n(.*?)^```$", text := page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(page, text.count("\n", 0, one.start()) + 2, one[1], one[2]) for one in found]


def links(page: Path) -> list[str]:
    """Where it points to within the project."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    return [link for link in found if not link.startswith("https://")]


def leads_somewhere(page: Path, link: str) -> bool:
    """To a file, and where it names one, to a heading in it."""
    name, _, anchor = link.partition("#")
    target = page.parent / name
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> list[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def table(page: Path, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    below = page.read_text(encoding="utf-8").split(f"# {heading}\n", 1)[1]
    found = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert found, f"no table under {heading}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found.group().splitlines()[2:]]


def run_python(page: Path, names: dict[str, Any]) -> None:
    """All its Python, from top to bottom, in one namespace; errors tell the page and the line."""
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)


def commands(page: Path) -> list[str]:
    """What it says to type, in order."""
    lines = [line for block in blocks(page) if block.language == "console" for line in block.text.splitlines()]
    return [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]


def run_command(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(line)
    assert program == "ddptrace", line
    argv = [sys.executable, "-m", "ddptrace", *arguments]
    return subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False)
