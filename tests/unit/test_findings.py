"""Every kind of finding is declared once, made somewhere, and made through its kind alone."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ddptrace import findings
from ddptrace.findings import (
    JITTER,
    KINDS,
    LAUNCH_BOUND,
    MESSAGES_DIFFER,
    RECORDS_TORN,
    SEVERITIES,
    SYNCHRONISED_NEVER,
    TAP_FAILED,
    UNKNOWN,
    Chapter,
    Finding,
    FindingKind,
    gravest_first,
    without_silenced,
)
from tests.launch import ROOT
from tools.docsite.findings import findings as page

PACKAGE: Final = ROOT / "ddptrace"
DECLARATIONS: Final = PACKAGE / "findings.py"
READS_NOTES: Final = PACKAGE / "load" / "records" / "rank_run.py"
"""Makes findings from the codes of notes, which the rank recorded from kinds."""
NAMES: Final = {
    name: kind for name, kind in vars(findings).items() if isinstance(kind, FindingKind) and kind != UNKNOWN
}


@functools.cache
def sources() -> list[tuple[Path, ast.Module]]:
    files = sorted(path for path in PACKAGE.rglob("*.py") if path != DECLARATIONS)
    return [(file, ast.parse(file.read_text(encoding="utf-8"))) for file in files]


def calls() -> Iterator[tuple[str, ast.Call]]:
    """All calls in the package, with where they stand."""
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_codes_differ_and_are_the_names_of_their_kinds() -> None:
    assert len(NAMES) == len(KINDS)
    assert {name: name.lower().replace("_", "-") for name in NAMES} == {name: kind.code for name, kind in NAMES.items()}


def test_every_kind_is_made_somewhere() -> None:
    used = {node.id for _, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not NAMES.keys() - used


def test_whatever_writes_findings_is_called_where_a_result_is_put_together() -> None:
    room = PACKAGE / "analysis" / "findings"
    trees = [tree for file, tree in sources() if file.parent == room]
    made = {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    writers = {name for name in made if name.endswith("_findings") and not name.startswith("_")}
    used = {node.id for _, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert len(writers) > 15 and writers - used <= {"run_findings"}


def test_every_finding_is_made_from_its_kind() -> None:
    loose = [where for where, call in calls() if called(call) == "Finding"]
    assert [where for where in loose if READS_NOTES.name not in where] == []
    notes = [(where, call.args[0]) for where, call in calls() if called(call) in ("note", "_note") and call.args]
    assert len(notes) > 15
    assert [where for where, kind in notes if getattr(kind, "id", "") not in NAMES] == []


def test_no_file_names_a_code() -> None:
    """A fact is read from the tables. Codes of one word are other things too, and so is the heading of a column."""
    codes = {code for code in KINDS if "-" in code} - {LAUNCH_BOUND.code}
    texts = (
        (file, node)
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    assert [f"{file}:{node.lineno}: {node.value}" for file, node in texts if node.value in codes] == []


def test_a_severity_that_is_not_the_usual_one_is_declared() -> None:
    told = [(where, call) for where, call in calls() if called(call) in NAMES and len(call.args) > 2]
    for where, call in told:
        written = {node.value for node in ast.walk(call.args[2]) if isinstance(node, ast.Constant)} & SEVERITIES.keys()
        kind = NAMES[called(call)]
        assert written <= {kind.severity, *kind.also}, where
    assert len(told) >= 3


def test_sentences_are_imported_only_where_a_result_is_put_together() -> None:
    """Numbers do not depend on sentences."""
    importers = {
        file.relative_to(PACKAGE).as_posix()
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddptrace.analysis.findings")
    }
    assert {file for file in importers if not file.startswith("analysis/findings/")} == {"analysis/analyze.py"}


def test_every_kind_is_in_the_reference() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == sorted(KINDS)
    assert all(row.count(" | ") == 3 and "| |" not in row for row in rows)
    assert {kind.chapter for kind in KINDS.values()} == set(Chapter)


def test_findings_are_sorted_by_severity_and_keep_their_order() -> None:
    found = [Finding(str(place), severity, "run", "") for place, severity in enumerate(("info", "x", "error", "info"))]
    assert [finding.code for finding in gravest_first(found)] == ["2", "0", "3", "1"]


def test_a_kind_silences_others_wherever_they_stand() -> None:
    never, torn, jitter = SYNCHRONISED_NEVER("reducer 0", ""), RECORDS_TORN("rank 0", ""), JITTER("rank 0", "")
    differ, tap = MESSAGES_DIFFER("run", ""), TAP_FAILED("rank 0", "")
    assert without_silenced([never, jitter, differ]) == [never, jitter, differ]
    assert without_silenced([tap, never, jitter, differ]) == [tap, jitter, differ]
    assert without_silenced([never, differ, torn]) == [never, torn]


@pytest.mark.parametrize("code", ["note", "of-a-newer-version"])
def test_a_note_of_another_version_has_the_unknown_kind(code: str) -> None:
    assert Finding(code, "warning", "rank 0", "").kind is UNKNOWN
