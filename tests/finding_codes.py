"""The codes of all findings and their severities, read from the source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.launch import ROOT

PACKAGE: Final = ROOT / "ddptrace"
CODE: Final = re.compile(r"[a-z]+(-[a-z]+)*")
NOT_OF_A_RUN: Final = {"bench", "render"}
"""Rooms whose findings are of a benchmark, or of a screen alone."""
SEVERITIES: Final = ("info", "warning", "error")
NOTE: Final = ("note", "_note")
"""What notes a finding while training goes on; it is a warning for the reader."""


def declared() -> dict[str, set[str]]:
    """By code, the severities that it is given somewhere; none where a variable has it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted(PACKAGE.rglob("*.py")):
        if not NOT_OF_A_RUN & set(file.parts):
            for code, severity in in_file(file):
                found[code] |= {severity} - {""}
    return dict(found)


def in_file(file: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for scope in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        for call in [node for node in ast.walk(scope) if isinstance(node, ast.Call)]:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name == "Finding" and call.args:
                yield from _of_finding(call, scope, names)
            elif name in NOTE and call.args and isinstance(call.args[0], ast.Constant):
                yield str(call.args[0].value), "warning"


def _of_finding(call: ast.Call, scope: ast.FunctionDef, names: dict[str, ast.expr]) -> Iterator[tuple[str, str]]:
    """Its code stands there, in a constant of the module, or in a tuple of the function that it is taken from."""
    first, second = call.args[0], call.args[1]
    code = names.get(first.id, first) if isinstance(first, ast.Name) else first
    severity = str(second.value) if isinstance(second, ast.Constant) else ""
    if isinstance(code, ast.Constant):
        yield str(code.value), severity
    elif isinstance(code, ast.Name):
        yield from _in_tuples(scope, severity)


def _in_tuples(scope: ast.FunctionDef, severity: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Tuple):
            texts = [str(one.value) for one in node.elts if isinstance(one, ast.Constant)]
            codes = [text for text in texts if CODE.fullmatch(text) and text not in SEVERITIES]
            told = [text for text in texts if text in SEVERITIES]
            if codes and len(node.elts) > 2:
                yield codes[0], severity or next(iter(told), "")
