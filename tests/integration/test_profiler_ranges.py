"""The way from a span to the profiler's own file: a collective's range there has the name that its span tells."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import ddptrace
from ddptrace.schema import RANGE_PREFIX
from ddptrace.telemetry.rows import of_result
from ddptrace.telemetry.spans.trees import Node, trees
from tests.launch import torchrun


def names_in_file(folder: Path) -> set[str]:
    (file,) = folder.glob("kineto-*.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return {event["name"] for event in events if str(event.get("name", "")).startswith(RANGE_PREFIX)}


def names_in_spans(roots: list[Node]) -> dict[str, int]:
    """Names of ranges, and the seq of the collective."""
    for node in roots:  # grows as it goes
        roots.extend(node.children)
    told = [node.attributes for node in roots if "ddptrace.profiler.range" in node.attributes]
    return {str(one["ddptrace.profiler.range"]): int(one["ddptrace.collective.seq"]) for one in told}


def test_spans_of_a_profiled_collective_tell_the_name_of_its_range_and_no_others_do(tmp_path: Path) -> None:
    torchrun("linked.py", tmp_path / "run")
    result = ddptrace.analyze(tmp_path / "run")
    for rows in of_result(result):
        found = names_in_spans([root for tree in trees(rows) for root in tree.roots])
        in_file = names_in_file(tmp_path / "run" / f"rank-{rows.rank:05d}")
        assert in_file
        assert set(found) == in_file
        assert len(found) < len({row.seq for row in rows.collectives})
        profiled = {row.seq for row in rows.collectives if row.evidence and row.evidence.value == "backend"}
        assert set(found.values()) == profiled
