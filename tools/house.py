"""Prints figures of the source tree: its size, how files depend on each other, and how it is formatted.

`python -m tools.house [ROOT]`. The output is not kept in the repository.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = "ddptrace"
ONE: Final = re.compile(r"\bone\b")
SMALL_LINES: Final = 80
"""A file with one importer and fewer lines belongs into its importer, unless it is a seam of its own."""


def modules(root: Path, package: str = PACKAGE) -> dict[str, Path]:
    """Find the modules of a package, by their dotted names."""
    return {_name(path, root): path for path in sorted((root / package).rglob("*.py"))}


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(found: dict[str, Path]) -> dict[str, set[str]]:
    """Map each module to the modules that it imports, at the top, inside functions and for types alike."""
    return {name: set(_imported(name, path, found)) - {name} for name, path in found.items()}


def _imported(name: str, path: Path, found: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in found)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, name, is_package=path.name == "__init__.py")
            for alias in node.names:
                below = f"{base}.{alias.name}"
                yield from (one for one in (below, base) if one in found and (one == below or below not in found))


def _absolute(node: ast.ImportFrom, name: str, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    above = name.split(".")[: len(name.split(".")) - node.level + is_package]
    return ".".join([*above, node.module] if node.module else above)


def circles(needs: dict[str, set[str]]) -> list[set[str]]:
    """Find the groups of modules that import each other, directly or through others."""
    reached = {name: _reached(name, needs) for name in needs}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in needs}
    return [set(group) for group in sorted(groups, key=sorted) if group]


def _reached(name: str, needs: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [name]
    while ahead:
        fresh = needs[ahead.pop()] - found
        found |= fresh
        ahead += fresh
    return found


def figures(root: Path) -> Iterator[tuple[str, str]]:
    """List the figures, each as its name and its value."""
    found = modules(root)
    texts = {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    lines = {name: text.count("\n") for name, text in texts.items()}
    needs = imports(found)
    importers: dict[str, set[str]] = defaultdict(set)
    for name, others in needs.items():
        for other in others:
            importers[other].add(name)
    single = [name for name, path in found.items() if path.name != "__init__.py" and len(importers[name]) == 1]
    flat: dict[Path, int] = defaultdict(int)
    for path in found.values():
        flat[path.parent.relative_to(root)] += path.name != "__init__.py"
    biggest = max(flat, key=lambda folder: flat[folder])
    together = circles(needs)
    yield "files", f"{len(found)}"
    yield "lines", f"{sum(lines.values()):,}"
    yield "median lines of a file", f"{statistics.median(lines.values()):g}"
    yield "files with one importer", f"{len(single)}"
    yield f"  of these with fewer than {SMALL_LINES} lines", f"{sum(lines[name] < SMALL_LINES for name in single)}"
    yield "fmt: skip", f"{sum(text.count('# fmt: skip') for text in texts.values())}"
    yield "import circles", "; ".join([str(len(together)), *(", ".join(sorted(group)) for group in together)])
    yield "most files in one folder", f"{flat[biggest]} in {biggest}"
    yield "the word one", f"{sum(len(ONE.findall(text)) for text in texts.values()):,}"


def main() -> None:
    """Print the figures of a checkout."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    for name, value in figures(root):
        print(f"{name:<36} {value}")


if __name__ == "__main__":
    main()
