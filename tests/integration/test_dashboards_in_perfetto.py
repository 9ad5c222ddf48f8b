"""The queries for Perfetto, in its real trace processor, on the trace of a real run: they say what the tables say."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.render.trace.chrome import write_trace
from ddptrace.view.site import queries
from tests.conftest import Record
from tests.grafana import path
from tests.perfetto import ask

MS = 1e6
US_IN_MS = 1e-3
ROUNDING = 5e-5
"""What the queries round: times to whole ns, ratios to four decimals."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`answers`: rows by the query's name."""

    result: Result
    answers: dict[str, list[list[Any]]]


@pytest.fixture(scope="module")
def asked(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("perfetto")
    result = ddptrace.analyze(record(folder / "run", "late.py", "data", "--steps", 20))
    trace = write_trace(result, folder / "trace.json.gz")
    commands = [*loaded("startup.json"), *(one for macro in loaded("macros.json") for one in macro["run"])]
    drawn = [one["args"][0] for one in commands if "Query" in one["id"] or "Debug" in one["id"]]
    told = {f"command {at}": query for at, query in enumerate(drawn)}
    return Asked(result, ask(trace, **queries(), **told))


def loaded(name: str) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(path("perfetto", name).read_text(encoding="utf-8"))
    return told


def rank_of(process: str) -> int:
    return int(process.rpartition(" ")[2].split("(")[0])


def test_every_query_and_every_command_finds_something(asked: Asked) -> None:
    assert [name for name, rows in asked.answers.items() if not rows] == []


def test_the_most_exposed_bucket_is_first_with_what_the_tables_charge_it(asked: Asked) -> None:
    exposed: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row in asked.result.buckets:
        if row.exec_start_at_ns is not None and row.exposed_charged_ns is not None:
            exposed[row.layout, row.index].append(row.exposed_charged_ns)
    rows = asked.answers["exposed_by_bucket"]
    assert {(row[1], row[2]): row[6] for row in rows} == pytest.approx(
        {bucket: sum(each) / len(each) / MS for bucket, each in exposed.items()}, abs=US_IN_MS
    )
    assert rows[0][6] * rows[0][4] == pytest.approx(max(map(sum, exposed.values())) / MS, abs=rows[0][4] * US_IN_MS)


def test_the_slowest_steps_are_those_of_the_tables_with_their_breakdown(asked: Asked) -> None:
    slowest = max(asked.result.steps, key=lambda row: row.wall_ns)
    rank, step, wall_ms, *parts, overlap = asked.answers["slowest_steps"][0]
    assert (rank_of(rank), step, wall_ms) == (
        slowest.rank,
        slowest.step,
        pytest.approx(slowest.wall_ns / MS, abs=US_IN_MS),
    )
    assert sum(parts) == pytest.approx(slowest.window_ns / MS, abs=len(parts) * US_IN_MS)
    assert overlap == pytest.approx(slowest.overlap_ratio, abs=ROUNDING)


def test_the_rank_that_sleeps_is_late_and_the_other_waits_for_it(asked: Asked) -> None:
    first = asked.answers["late_ranks"][0]
    assert rank_of(first[0]) == 1
    rank, what, *_ = asked.answers["peer_waits"][0]
    assert (rank_of(rank), what) == (0, "waits for rank 1")


def test_waits_of_the_host_add_up_to_those_of_the_tables(asked: Asked) -> None:
    waited = sum(row.wait_ns or 0 for row in asked.result.buckets if row.done_at_ns or row.exec_end_at_ns)
    buckets = [row for row in asked.answers["host_waits"] if "bucket" in row[1]]
    assert sum(row[3] for row in buckets) == pytest.approx(waited / MS, abs=len(buckets) * US_IN_MS)


def test_the_critical_path_is_whole_and_mostly_the_late_rank_s(asked: Asked) -> None:
    rows = asked.answers["critical_path"]
    assert sum(row[4] for row in rows) == pytest.approx(1, abs=len(rows) * ROUNDING)
    length_ns = sum(row.end_at_ns - row.begin_at_ns for row in asked.result.critical_path)
    assert sum(row[3] for row in rows) == pytest.approx(length_ns / MS, abs=len(rows) * US_IN_MS)
    assert (1, "data") in {(row[0], row[1]) for row in rows[:4]}


def test_the_largest_gaps_are_in_steps_and_phases(asked: Asked) -> None:
    rows = asked.answers["largest_gaps"]
    assert rows[0][2] == max(row[2] for row in rows)
    inside = [row for row in rows if row[3] is not None]
    assert inside and all(row[3].startswith("step ") and row[4] for row in inside)
