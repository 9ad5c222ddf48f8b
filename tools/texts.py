"""Lists every text of the package that a user may read, with its file and line, so that none is missed in a review.

`python -m tools.texts [--dialect] [ROOM ...]`: a room is a folder or module of ddptrace, all of them by default;
`--dialect` lists only the texts that use a phrase of `DIALECT`. The output is not kept in the repository.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parent.parent / "ddptrace"

DIALECT: Final = re.compile(
    r"\btold\b|\btells? of\b|\bof (?:its|their|your) own\b|\bso many\b|\bso long\b(?! as\b)|\bwhat was seen\b"
    r"|\bwhere (?:it|there) is none\b|(?<!there )\bis none\b|\bby lot\b|\bo'clock\b|\bin the hand\b"
    r"|\b(?:is|are|be) (?:not )?said\b"
    r"|\bcannot be had\b|\bis there already\b|\bthan is known\b|\bas (?:fast|long|much|many)\.$|\bthe like of\b"
    r"|\bgiven up on\b|\bfor want of\b|\blet go\b|\bof no \w+ it is\b|\bas it stands\b|\bmend it\b",
    re.IGNORECASE,
)
"""Phrases that have to be read twice."""

PROSE: Final = re.compile(r"[A-Za-z]{2,}[,;:]? [A-Za-z({0-9]")
"""At least two words; anything else is a key, a name or a format."""
SAID_BY: Final = {"say": "echo", "echo": "echo", "print": "echo", "secho": "echo", "write": "echo"}
WARNED_BY: Final = {"warn", "warning", "error", "exception", "info"}
HELP_KEYWORDS: Final = {"help", "short_help", "epilog", "description", "metavar", "label"}
COMMAND_DECORATORS: Final = {"command", "group"}


@dataclass(frozen=True, slots=True)
class Text:
    """One text.

    `kind`: command, help, error, warning, echo, query, docstring (of the public API) or text (any other).
    """

    path: Path
    line: int
    kind: str
    words: str


def texts(*rooms: str) -> list[Text]:
    """List the texts of these rooms, or of the whole package, in the order of their files."""
    public = public_names()
    paths = sorted(path for path in PACKAGE.rglob("*.*") if path.suffix in (".py", ".sql"))
    return [
        text
        for path in paths
        if not rooms or room_of(path) in rooms
        for text in (texts_of(path, public) if path.suffix == ".py" else comments_of(path))
    ]


def room_of(path: Path) -> str:
    """Return the folder or module of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def public_names() -> set[str]:
    """What `ddptrace` and `ddptrace.figures` export."""
    names: set[str] = set()
    for path in (PACKAGE / "__init__.py", PACKAGE / "figures" / "__init__.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names |= set(ast.literal_eval(node.value))
    return names


def texts_of(path: Path, public: set[str]) -> Iterator[Text]:
    """List the texts of one file. A literal with values in it is one text, each value written as {…}."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = _docstrings(tree)
    for owner, docstring, is_public in _documented(tree, public):
        if is_public:
            kind = "command" if _is_command(owner) else "docstring"
            yield Text(path, docstring.lineno, kind, _one_line(ast.literal_eval(docstring)))
    for node, kind in _literals(tree, "text"):
        words = _one_line(_words(node))
        if id(node) not in skipped and (PROSE.search(words) or (kind == "help" and words)):
            yield Text(path, node.lineno, kind, words)


def comments_of(path: Path) -> Iterator[Text]:
    """List the comment at the start of a query, which the Perfetto UI shows."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = list(itertools.takewhile(lambda line: line.startswith("--"), lines))
    yield Text(path, 1, "query", _one_line(" ".join(line.removeprefix("--") for line in comment)))


def _literals(node: ast.AST, kind: str) -> Iterator[tuple[ast.expr, str]]:
    """Every string literal under `node`, with the kind that its place gives it."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node, kind
    if isinstance(node, ast.Raise):
        kind = "error"
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        kind = "warning" if name in WARNED_BY else SAID_BY.get(name, "error" if name.endswith("Error") else kind)
    elif isinstance(node, ast.keyword) and node.arg in HELP_KEYWORDS:
        kind = "help"
    parts = ast.iter_child_nodes(node)
    for part in _values_in(node) if isinstance(node, ast.JoinedStr) else parts:
        yield from _literals(part, kind)


def _values_in(literal: ast.JoinedStr) -> Iterator[ast.AST]:
    for part in literal.values:
        if isinstance(part, ast.FormattedValue):
            yield part.value


def _words(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    return str(ast.literal_eval(node))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _docstrings(tree: ast.Module) -> set[int]:
    """Strings that are statements: docstrings, and those below a constant."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def _documented(
    tree: ast.Module | ast.ClassDef, public: set[str], inherited: bool = False
) -> Iterator[tuple[ast.AST, ast.expr, bool]]:
    """Functions and classes with their docstring, and whether a user may read it."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            continue
        is_public = node.name in public or (inherited and not node.name.startswith("_")) or _is_command(node)
        if ast.get_docstring(node) is not None and isinstance(node.body[0], ast.Expr):
            yield node, node.body[0].value, is_public
        if isinstance(node, ast.ClassDef):
            yield from _documented(node, set(), inherited=is_public)


def _is_command(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    called = (each.func if isinstance(each, ast.Call) else each for each in decorators)
    return any(isinstance(each, ast.Attribute) and each.attr in COMMAND_DECORATORS for each in called)


def main() -> None:
    """Print the texts and how many there are of each kind."""
    parser = argparse.ArgumentParser(prog="python -m tools.texts", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM")
    parser.add_argument("--dialect", action="store_true", help="only texts with a phrase that has to be read twice")
    asked = parser.parse_args()
    found = [text for text in texts(*asked.rooms) if not asked.dialect or DIALECT.search(text.words)]
    for text in found:
        print(f"{text.path.relative_to(PACKAGE.parent)}:{text.line}: {text.kind}: {text.words}")
    for title, counts in (("kind", Counter(t.kind for t in found)), ("room", Counter(room_of(t.path) for t in found))):
        print(f"by {title}: {', '.join(f'{name} {count}' for name, count in counts.most_common())}")


if __name__ == "__main__":
    main()
