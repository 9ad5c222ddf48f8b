"""Limits of a comparison as a JUnit file, which CI systems show as tests: one test for each limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from ddptrace.analysis.diff.tables import Change, Diff
from ddptrace.errors import printable
from ddptrace.render.diff.words import basis, exceeded_words, headline, sides
from ddptrace.render.whole_file import whole_file


def write_junit(diff: Diff, exceeded: Mapping[str, Sequence[Change]], path: Path) -> None:
    """Write `path` whole or not at all. `exceeded`: by limit, what exceeds it; nothing where nothing does."""
    with whole_file(path) as file:
        file.write(ET.tostring(junit(diff, exceeded), encoding="utf-8", xml_declaration=True))


def junit(diff: Diff, exceeded: Mapping[str, Sequence[Change]]) -> ET.Element:
    failures = sum(map(bool, exceeded.values()))
    counts = {"name": "ddptrace diff", "tests": str(len(exceeded)), "failures": str(failures), "errors": "0"}
    suite = ET.Element("testsuite", counts)
    for limit, rows in exceeded.items():
        case = ET.SubElement(suite, "testcase", {"classname": "ddptrace diff", "name": printable(limit)})
        if rows:
            failure = ET.SubElement(case, "failure", {"message": exceeded_words(limit, rows)})
            failure.text = printable(f"{headline(diff)} {basis(diff)}")
    ET.SubElement(suite, "system-out").text = printable(f"{sides(diff)}: {headline(diff)}")
    return suite
