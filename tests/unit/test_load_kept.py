"""A run whose ranks kept different stretches of their records: what is left is read right, and matched right."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.load.run import read_run
from ddptrace.load.tables import Run
from ddptrace.record import Recorder, directory
from ddptrace.schema import MANIFEST, SCHEMA_VERSION, Kind, StepEnd, rank_folder
from ddptrace.trace_options import LEAST_NBYTES, Keep
from tests.unit.kept_records import give_way

pytestmark = pytest.mark.long

STEPS = 9_000
LEAST_STEP_NS = 20_000
CALLS = 4  # all-reduces of group "0" in a step


def record(
    root: Path,
    rank: int,
    keep: Keep,
    *,
    steps: int = STEPS,
    every: int = 1,
    extra: int = 0,
    more_step: int | None = None,
) -> None:
    """`extra` sends a step make this rank let go earlier. Steps but each `every`-th leave only their mark, but for
    `more_step`, as if it had run under a profiler of this rank."""
    folder = root / rank_folder(rank)
    folder.mkdir(parents=True)
    directory.write_meta(folder, {"schema": SCHEMA_VERSION, "run_id": "r", "rank": rank, "host": "h", "pid": 1})
    recorder = Recorder(lambda: folder, keep=keep)
    group = {"name": "0", "ranks": [0, 1], "backend": "gloo", "threads": 2}
    recorder.describe(Kind.GROUP, json.dumps(group), begin=1)
    at, seq = time.perf_counter_ns(), 0
    for step in range(steps):
        whole = step % every == 0 or step == more_step
        seq = one_step(recorder, at, step, seq, rank, extra) if whole else seq
        end = max(time.perf_counter_ns(), at + LEAST_STEP_NS)
        recorder.event(Kind.STEP, StepEnd.OPTIMIZER, 0, at, end, step, not whole)
        at = end
        if step % 100 == 99:
            give_way(recorder)
    recorder.close()


def one_step(recorder: Recorder, at: int, step: int, seq: int, rank: int, extra: int) -> int:
    op, send, group = (recorder.intern(text) for text in ("all_reduce", "send", "0"))
    for k in range(CALLS):
        seq += 1
        launch = at + 1000 * k + 100 * rank
        # Every step has its own size: a pair of different steps would show.
        recorder.event(Kind.CALL, 0, op, launch, launch + 10, seq, 8 * (step + 1), 0, group)
        recorder.event(Kind.DONE, 0, 0, at + 1000 * k + 900, at + 1000 * k + 900, seq)
    for k in range(extra):  # only this rank sends: counts of calls differ between the ranks
        seq += 1
        recorder.event(Kind.CALL, 0, send, at + 10_000 + k, at + 10_001 + k, seq, 8, 0, group)
    return seq


def write_manifest(root: Path) -> None:
    directory.write_json(root / MANIFEST, {"schema": SCHEMA_VERSION, "run_id": "r", "zero_unix_ns": 0, "world_size": 2})


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Result]:
    root = tmp_path_factory.mktemp("uneven")
    record(root, 0, Keep(nbytes=LEAST_NBYTES))
    record(root, 1, Keep(nbytes=LEAST_NBYTES), extra=9)
    write_manifest(root)
    run = read_run(root)
    return run, analyze_run(run)


def test_ranks_that_let_go_at_different_steps_are_matched_step_by_step(uneven: tuple[Run, Result]) -> None:
    run, result = uneven
    first = [rank.steps[0].ordinal for rank in run.ranks]
    assert 0 < first[0] < first[1] - 500, "the ranks no longer let go at different steps"
    steps = {(row.rank, row.seq): row.step for row in result.collectives}
    assert len(result.matches) == CALLS * (STEPS - first[1])
    for row in result.matches:
        assert row.ranks == (0, 1)
        here, there = (steps[key] for key in zip(row.ranks, row.seqs, strict=True))
        assert here == there
        assert row.ordinal // CALLS == here  # counted from the first of the run
    assert "match-refused" not in {finding.code for finding in result.findings}


def test_ordinals_of_calls_count_from_the_first_of_the_run(uneven: tuple[Run, Result]) -> None:
    run, _ = uneven
    for rank, per_step in zip(run.ranks, (CALLS, CALLS + 9), strict=True):
        assert [call.ordinal for call in rank.calls] == list(range(rank.calls[0].ordinal, STEPS * per_step))
        assert rank.calls[0].ordinal == rank.steps[0].ordinal * per_step
        turns = [call.turn for call in rank.calls if call.turn is not None]
        assert turns == list(range(rank.steps[0].ordinal * CALLS, STEPS * CALLS))
        assert {call.op for call in rank.calls if call.turn is None} <= {"send"}


def test_only_whole_steps_are_in_the_tables(uneven: tuple[Run, Result]) -> None:
    run, result = uneven
    for rank in run.ranks:
        assert [step.ordinal for step in rank.steps] == list(range(rank.steps[0].ordinal, STEPS))
        assert all(call.launch_at_ns >= rank.steps[0].begin_at_ns for call in rank.calls)
    counts: dict[tuple[int, int | None], int] = {}
    for row in result.collectives:
        if row.op == "all_reduce" and row.part == 0:
            counts[row.rank, row.step] = counts.get((row.rank, row.step), 0) + 1
    assert set(counts.values()) == {CALLS}


def test_a_finding_says_since_which_step_the_records_are_there(uneven: tuple[Run, Result]) -> None:
    run, result = uneven
    (finding,) = [one for one in result.findings if one.code == "records-let-go"]
    for rank in run.ranks:
        said = f"rank {rank.rank} kept steps {rank.steps[0].ordinal} to {STEPS - 1} of {STEPS}"
        assert said in finding.message


def test_of_sampled_steps_only_the_recorded_ones_are_analysed(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path, rank, Keep(), every=100)
    write_manifest(tmp_path)
    result = analyze_run(read_run(tmp_path))
    whole = set(range(0, STEPS, 100))
    assert {row.step for row in result.steps if row.rank == 1} == whole
    assert {row.step for row in result.partial_steps if row.rank == 1} == set(range(STEPS)) - whole
    assert all(row.wall_ns >= LEAST_STEP_NS for row in result.partial_steps)
    assert {row.step for row in result.collectives} == whole
    assert len(result.matches) == CALLS * len(whole)
    (finding,) = [one for one in result.findings if one.code == "steps-not-recorded"]
    assert "90 were recorded, and 8910 only with their begin and end" in finding.message


def test_a_rank_that_recorded_a_step_more_than_the_others_is_matched_in_the_common_ones(tmp_path: Path) -> None:
    record(tmp_path, 0, Keep(), every=100)
    record(tmp_path, 1, Keep(), every=100, more_step=250)
    write_manifest(tmp_path)
    result = analyze_run(read_run(tmp_path))
    steps = {(row.rank, row.seq): row.step for row in result.collectives}
    pairs = [[steps[key] for key in zip(row.ranks, row.seqs, strict=True)] for row in result.matches]
    assert [one for one, _ in pairs] == [step for step in range(0, STEPS, 100) for _ in range(CALLS)]
    assert all(one == other for one, other in pairs)


def test_a_run_that_kept_everything_says_nothing_of_it(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path, rank, Keep(), steps=900)
    write_manifest(tmp_path)
    result = analyze_run(read_run(tmp_path))
    assert {one.code for one in result.findings} & {"records-let-go", "steps-not-recorded"} == set()
    assert len(result.steps) == 2 * 900
    assert not result.partial_steps
