"""The benchmark of many ranks: replicas are the recorded ranks on other hosts, and costs are judged by the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ddptrace
from benchmarks.ranks import EXPERIMENT, AnalysisCost, Options, _nbytes, growth, judged
from benchmarks.ranks_replicate import called, records_nbytes, replicate
from ddptrace.errors import DdptraceError
from ddptrace.record import RecordReader, Records
from ddptrace.record.segment import Dropped, trailer
from ddptrace.schema import EVENT, GUARD, READY, SCHEMA_VERSION, STRING, CallFlag, Kind, Phase, StepEnd, rank_folder
from tests.sentences import facts

US, MS = 1_000, 1_000_000
BEGIN = 5_000 * MS
"""Of both ranks' clocks, which are one machine's."""
CALLS = 15
EVERY_NS, LENGTH_NS = 10 * MS, (4 * MS, 200 * US)
"""From one collective to the next, and of those that complete and those that are only waited for."""
HOST_NS = 8 * 37 * US


def record(folder: Path, rank: int, calls: int = CALLS, every_ns: int = EVERY_NS) -> None:
    """Collectives by turns asynchronous and synchronous; rank 1 calls each 50 us later, and learns 10 us later."""
    folder.mkdir(parents=True)
    later = 50 * US * rank
    texts = {
        1: "all_reduce",
        2: "0",
        3: "float32",
        1 << 20: json.dumps(
            {"name": "0", "ranks": [0, 1], "size": 2, "backend": "gloo", "threads": 2, "more": "x" * 60}
        ),
    }
    body = [
        STRING.pack(Kind.STRING, len(part), chunk, number, part, GUARD)
        for number, text in texts.items()
        for chunk, part in enumerate(text.encode()[at : at + 52] for at in range(0, len(text) + 1, 52))
    ]

    def event(kind: Kind, flags: int, name: int, *fields: int) -> None:
        body.append(EVENT.pack(kind, flags, 0, name, *fields, *[0] * (9 - len(fields)), GUARD))

    event(Kind.CLOCK, 0, 0, BEGIN, 0, 1_700_000_000 * 1000 * MS)
    event(Kind.GROUP, 0, 1 << 20, BEGIN)
    for k in range(calls):
        begin, is_sync = BEGIN + every_ns * (k + 1) + later, k % 2
        end = BEGIN + every_ns * (k + 1) + LENGTH_NS[is_sync] + 10 * US * rank
        body.append(READY.pack(Kind.READY, 1, 0, k, begin, *[0] * 7, *[0] * 7, 0, GUARD))
        event(Kind.CALL, CallFlag.SYNC * is_sync, 1, begin, end if is_sync else begin + US, k + 1, 64, 64, 2, 0, 0, 3)
        if is_sync:
            event(Kind.WAIT, 0, 0, begin, end, k + 1)
        else:
            event(Kind.DONE, 0, 0, end, 0, k + 1)
        event(Kind.PHASE, Phase.FORWARD, 0, begin - MS, begin)
        event(Kind.STEP, StepEnd.SAID, 0, begin - 2 * MS, begin + 8 * MS, k)
    whole = b"".join(body)
    (folder / "records-00000.bin").write_bytes(whole + trailer(whole, dropped=Dropped(), final=True))
    meta = {"schema": SCHEMA_VERSION, "rank": rank, "host": "here", "pid": 70, "boot_id": "b", "device": "cpu"}
    (folder / "meta.json").write_text(json.dumps(meta))


def manifest_of(run: Path) -> None:
    manifest = {"schema": SCHEMA_VERSION, "run_id": "ab" * 16, "world_size": 2, "zero_unix_ns": 1_700_000_000 * 10**9}
    (run / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("ranks") / "run"
    for rank in range(2):
        record(run / rank_folder(rank), rank)
    manifest_of(run)
    return run


@pytest.fixture(scope="module")
def replica(run: Path) -> Path:
    replicate(run, run.with_name("replica"), 20)
    return run.with_name("replica")


def read(run: Path, rank: int) -> Records:
    return RecordReader(run / rank_folder(rank)).read()


def of_kind(records: Records, kind: Kind) -> NDArray[np.void]:
    found: NDArray[np.void] = records.events[records.events["kind"] == kind]
    return found


def launches(records: Records) -> NDArray[np.int64]:
    begins: NDArray[np.int64] = of_kind(records, Kind.CALL)["begin"]
    return begins


def test_each_rank_has_the_records_of_a_recorded_one_and_a_place_of_its_own(run: Path, replica: Path) -> None:
    assert len(list(replica.glob("rank-*"))) == 20
    assert json.loads((replica / "manifest.json").read_text())["world_size"] == 20
    for rank in (0, 7, 8, 19):
        theirs, ours = read(run, rank % 2), read(replica, rank)
        assert (ours.closed, ours.damaged, ours.torn, ours.dropped) == (True, (), 0, 0)
        assert ours.events["kind"].tolist() == theirs.events["kind"].tolist()
        assert (
            of_kind(ours, Kind.CALL)[["a", "b", "c", "d"]].tolist()
            == of_kind(theirs, Kind.CALL)[["a", "b", "c", "d"]].tolist()
        )
        meta = json.loads((replica / rank_folder(rank) / "meta.json").read_text())
        place = rank, f"node{rank // 8}", f"b-{rank // 8}", 70 + rank
        assert (meta["rank"], meta["host"], meta["boot_id"], meta["pid"]) == place


def test_its_process_groups_are_of_all_ranks_and_are_otherwise_as_they_were(replica: Path) -> None:
    records = read(replica, 5)
    group = json.loads(records.strings[1 << 20])
    assert group == {
        "name": "0",
        "ranks": list(range(20)),
        "size": 20,
        "backend": "gloo",
        "threads": 2,
        "more": "x" * 60,
    }


def test_all_instants_of_a_host_read_as_much_more_as_its_clock(run: Path, replica: Path) -> None:
    for rank in (1, 9, 17):
        theirs, ours, more = read(run, 1), read(replica, rank), HOST_NS * (rank // 8)
        for kind, names in ((Kind.CLOCK, ("begin", "a")), (Kind.PHASE, ("begin", "end")), (Kind.DONE, ("begin",))):
            for name in names:
                assert (of_kind(ours, kind)[name] - of_kind(theirs, kind)[name]).tolist() == [more] * len(
                    of_kind(theirs, kind)
                )
        assert set((ours.ready["base"] - theirs.ready["base"]).tolist()) == {more}
        # AND an instant that was not set still is not
        assert set(of_kind(ours, Kind.DONE)["end"].tolist()) == {0}


def test_every_fifth_rank_is_late_at_a_collective_and_nobody_has_it_before_all_have_called(
    run: Path, replica: Path
) -> None:
    late = np.array([launches(read(replica, k)) - launches(read(run, k % 2)) - HOST_NS * (k // 8) for k in range(20)])
    rank, call = np.nonzero(late)
    assert set(((rank + call) % 5).tolist()) == {0} and len(rank) == CALLS * 20 / 5
    # AND by 1 ms at most, or half of what is left of it, where rank 1 called 50 us later; of both rank 5 or 19 six
    # sevenths
    assert late.max(axis=0).tolist()[:2] == [6 * MS // 7, 6 * 75 * US // 7]
    assert late.min() == 0
    # AND rank 6, of seven latenesses the last, has the whole of it, rank 0 a seventh
    assert (late[6, 4], late[0, 0]) == (1 * MS, 1 * MS // 7)


def test_a_wait_and_a_return_are_not_before_the_launch(replica: Path) -> None:
    for rank in range(20):
        records = read(replica, rank)
        calls, waits = of_kind(records, Kind.CALL), of_kind(records, Kind.WAIT)
        begin = dict(zip(calls["a"].tolist(), calls["begin"].tolist(), strict=True))
        assert (calls["end"] >= calls["begin"]).all()
        assert all(row["begin"] >= begin[int(row["a"])] for row in waits)


def test_no_late_call_overtakes_the_next_one(tmp_path: Path) -> None:
    # GIVEN calls 300 us apart, of which every second one takes 4 ms
    for rank in range(2):
        record(tmp_path / "run" / rank_folder(rank), rank, every_ns=300 * US)
    manifest_of(tmp_path / "run")
    replicate(tmp_path / "run", tmp_path / "more", 10)
    after = [np.diff(launches(read(tmp_path / "more", rank))) for rank in range(10)]
    assert min(row.min() for row in after) == 150 * US
    assert max(row.max() for row in after) > 300 * US


def test_analysis_takes_the_replica_as_a_run_of_so_many_ranks_and_finds_the_hosts_clocks(replica: Path) -> None:
    result = ddptrace.analyze(replica, jobs=1)
    assert len(result.ranks) == result.world_size == 20
    assert {finding.code for finding in result.findings} & {"rank-missing", "records-damaged", "desync"} == set()
    assert [match.ranks for match in result.matches] == [tuple(range(20))] * 8
    assert len(result.arrivals) == 8 * 20
    clocks = {row.rank: row for row in result.clocks}
    assert [clocks[rank].why for rank in (0, 7, 8, 16)] == ["same clock", "same clock", "fitted", "fitted"]
    for rank in (8, 16):
        sure = clocks[rank].uncertainty_ns
        assert sure is not None and abs(clocks[rank].offset_ns - HOST_NS * (rank // 8)) <= sure < HOST_NS


def test_what_is_counted_of_a_run_is_what_its_files_hold(run: Path, replica: Path) -> None:
    assert called(run) == called(replica) == CALLS
    assert records_nbytes(replica) == sum(file.stat().st_size for file in replica.rglob("records-*.bin"))


def test_ranks_that_called_differently_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path / "run" / rank_folder(rank), rank, CALLS + rank)
    with pytest.raises(DdptraceError, match="called different numbers of collectives; record it again"):
        replicate(tmp_path / "run", tmp_path / "more", 4)


def test_an_analysis_that_left_something_out_is_no_measurement(replica: Path) -> None:
    folder = replica / "analysis"
    folder.mkdir(exist_ok=True)
    for name in ("trace.json.gz", "report.html"):
        (folder / name).write_text("x" * len(name))
    tables = folder / "analysis.json"
    tables.write_text(json.dumps({"ranks": [{}] * 20, "collectives": [{}] * 20 * CALLS, "steps": []}))
    assert _nbytes(replica, 20) == {
        "records": records_nbytes(replica),
        "trace": 13,
        "report": 11,
        "tables": tables.stat().st_size,
    }
    tables.write_text(json.dumps({"ranks": [{}] * 20, "collectives": [{}] * (20 * CALLS - 1)}))
    with pytest.raises(DdptraceError, match=r"299 collectives of 20 ranks were analyzed instead of 300 of 20"):
        _nbytes(replica, 20)


def point(ranks: int, cpu_s: float, peak_mb: int | None = 100, records: int | None = None) -> dict[str, Any]:
    """Files of a size that goes with the ranks."""
    files = {"records": records or 1000 * ranks, "trace": 2000 * ranks, "report": 5_000_000, "tables": 10 * ranks}
    peak = None if peak_mb is None else peak_mb * 1_000_000
    return {
        "ranks": ranks,
        "nbytes": files,
        "cpu_s": [cpu_s, cpu_s, 9 * cpu_s],
        "wall_s": [2 * cpu_s] * 3,
        "peak_nbytes": [peak] * 3,
    }


def cpu(point: AnalysisCost) -> float:
    return point.cpu_s[0]


def test_growth_is_that_of_a_cost_over_the_records_each_time_that_these_double() -> None:
    def grown(*cpu_s: float, records: int | None = None) -> float | None:
        alone, few, many = (point(ranks, cost) for ranks, cost in zip((2, 4, 10), cpu_s, strict=True))
        many["nbytes"]["records"] = records or 10_000
        return growth(cpu, AnalysisCost.of(alone), AnalysisCost.of(few), AnalysisCost.of(many))

    # the records beyond those of the recorded run: 2000 and 8000, twice doubled
    assert grown(1.0, 2.0, 5.0) == pytest.approx(1.0)
    assert grown(1.0, 2.0, 17.0) == pytest.approx(2.0)
    assert grown(1.0, 2.0, 2.0) == pytest.approx(0.5)
    assert grown(1.0, 2.0, 5.0, records=18_000) == pytest.approx(0.5 ** (1 / 3))
    assert grown(1.0, 1.0, 5.0) is None


def test_growth_is_judged_from_a_fourth_of_the_ranks_on() -> None:
    points = [AnalysisCost.of(point(ranks, ranks)) for ranks in (32, 64, 128, 256)]
    assert judged(points) == (points[1], points[3])
    assert judged(points[2:]) == (points[2], points[3])
    assert judged(points[:1]) is None


def said(*points: dict[str, Any]) -> tuple[str, ...]:
    return EXPERIMENT.sheet(Options(), [{"setup": {"ranks": "2 on 1 host"}, "points": list(points)}]).words


def test_the_verdict_names_every_cost_and_falls_by_the_worst() -> None:
    told, verdict = said(point(2, 1.0, 50), point(64, 3.0, 100), point(256, 9.0, 250))
    assert facts(told) == "256 256 9.00 18.0 250 512 5.00", "ranks, records, s, wall s, memory, trace, report"
    assert verdict.startswith("From 64 to 256 ranks, ")
    assert verdict.endswith(
        "processor time 0.99, peak memory 0.99, trace 1.00, report -, tables 1.00. At most 1.15: met."
    )
    *_, verdict = said(point(2, 1.0, 50), point(64, 3.0, 100), point(256, 13.0, 250))
    assert "processor time 1.21" in verdict and verdict.endswith("At most 1.15: missed.")


def test_what_cannot_be_told_is_not() -> None:
    assert said(point(2, 1.0), point(64, 3.0))[1] == "A single number of ranks shows no growth."
    assert "peak memory -" in said(point(2, 1.0, None), point(64, 3.0, None), point(256, 9.0, None))[1]


def test_the_tables_have_a_row_for_each_number_and_a_column_for_each_span() -> None:
    points = [point(2, 1.0, 50), *(point(ranks, ranks / 32, ranks) for ranks in (32, 64, 128, 256))]
    made = EXPERIMENT.sheet(Options(), [{"setup": {}, "points": points}])
    costs, growing = made.grids
    assert [row[0] for row in costs.rows] == ["2", "32", "64", "128", "256"]
    assert costs.rows[-1][1:6] == ("256 kB", "8.00 (8.00 .. 72.0)", "31.2", "16.0 (16.0 .. 16.0)", "256 MB")
    assert growing.heads == ("what", "32 to 64", "64 to 128", "128 to 256", "64 to 256")
    assert len(made.charts) == 2 and made.charts[0].lines[0].x == (2, 32, 64, 128, 256)


def test_numbers_that_are_no_more_than_the_recorded_ranks_are_refused() -> None:
    with pytest.raises(DdptraceError, match=r"2 ranks are recorded, to be made more: give larger numbers \(--to\)"):
        Options(to=(2, 8))
