"""The last of a rank's records, as the real recorder wrote them, and whether its process is still there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ddptrace.analysis.diagnosis.diagnose import diagnose
from ddptrace.errors import RunDirectoryError
from ddptrace.load.alive import STARTED, process_of
from ddptrace.load.diagnosis import job as states
from ddptrace.load.diagnosis.job import newest_attempt, read_job
from ddptrace.load.diagnosis.rank_state import rank_state
from ddptrace.load.diagnosis.tables import JobState, RankState
from ddptrace.load.records.rank_events import Clock
from ddptrace.record import RecordReader
from ddptrace.record.directory import write_meta
from ddptrace.schema import RECORD_NBYTES, SCHEMA_VERSION, CallFlag, Kind, Origin, Phase, StepEnd
from tests.unit.kept_records import PER_STEP, describe, recorder_in, settled, train
from tests.unit.telemetry_records import CALLS, MS, RUN_ID, STEP_NS, Rank, write_manifest


def only(root: Path) -> RankState:
    (state,) = read_job(root).ranks
    return state


def open_rank(tmp_path: Path) -> Rank:
    write_manifest(tmp_path)
    one = Rank(tmp_path)
    one.steps(0, 3)
    return one


def test_a_call_without_an_end_is_what_the_rank_is_in(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    event, intern = one.recorder.event, one.recorder.intern
    at = one.begin + 3 * STEP_NS
    event(Kind.ORIGIN, Origin.PROGRAM, intern("train.py:42 in main"), at, at, 99)
    event(Kind.CALL, CallFlag.SYNC, intern("broadcast"), at, at + MS, 99, 64, 64, intern("0"))
    state = only(tmp_path)
    assert (state.step, state.step_ns, state.closed, state.counted) == (3, STEP_NS, False, True)
    assert state.pending is not None and state.pending_group == "0"
    assert (state.pending.op, state.pending.site, state.pending.turn) == ("broadcast", "train.py:42 in main", 3 * CALLS)
    event(Kind.WAIT, 0, 0, at + MS, at + 9 * MS, 99)
    assert only(tmp_path).pending is None
    one.recorder.close()
    assert only(tmp_path).closed


def test_a_call_that_failed_is_what_the_rank_was_in(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    event, intern = one.recorder.event, one.recorder.intern
    at = one.begin + 3 * STEP_NS
    event(Kind.CALL, CallFlag.SYNC, intern("barrier"), at, at + MS, 99, 0, 0, intern("0"))
    event(Kind.WAIT, 0, 0, at + MS, at + 9 * MS, 99)
    event(Kind.DONE, 1, intern("Connection closed by peer"), at + 9 * MS, at + 9 * MS, 99)
    state = only(tmp_path)
    one.recorder.close()
    assert state.failure == "barrier failed: Connection closed by peer"
    assert state.pending is not None and (state.pending.op, state.pending.done) == ("barrier", False)


def begin_call(one: Rank, at: int, seq: int) -> None:
    """What is written before a collective is issued, and is all there is where the backend ends the process in it."""
    intern = one.recorder.intern
    one.recorder.event(
        Kind.ORIGIN, Origin.PROGRAM, intern("train.py:42 in main"), at, at, seq, 64, 128, 0, 0,
        intern("all_gather"), intern("0"),
    )  # fmt: skip


def test_a_call_that_a_rank_did_not_come_back_from_is_what_it_is_in(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    begin_call(one, one.begin + 3 * STEP_NS, 99)
    state = only(tmp_path)
    one.recorder.close()
    assert state.pending is not None and state.pending_group == "0"
    call = state.pending
    assert (call.op, call.site, call.nbytes, call.done) == ("all_gather", "train.py:42 in main", 128, False)
    assert (call.turn, call.dtype, state.groups[0].turns) == (3 * CALLS, "", 3 * CALLS + 1)


def test_a_call_on_a_device_is_neither_over_nor_waited_for_when_the_host_goes_on(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    event, intern = one.recorder.event, one.recorder.intern
    at = one.begin + 3 * STEP_NS
    event(Kind.CALL, CallFlag.SYNC | CallFlag.DEVICE, intern("broadcast"), at, at + MS, 99, 64, 64, intern("0"))
    event(Kind.WAIT, 0, 0, at + MS, at + MS + 10, 99)
    event(Kind.STEP, StepEnd.OPTIMIZER, 0, at, at + 2 * MS, 3)
    state = only(tmp_path)
    (group,) = [group for group in state.groups if group.name == "0"]
    assert (group.calls[-1].op, group.calls[-1].done) == ("broadcast", None)
    assert state.pending is None
    one.recorder.close()


def test_a_call_that_could_not_be_issued_and_that_the_program_got_over_is_none(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    at = one.begin + 3 * STEP_NS
    begin_call(one, at, 99)
    one.recorder.event(Kind.PHASE, Phase.FORWARD, 0, at + MS, at + 2 * MS)
    state = only(tmp_path)
    one.recorder.close()
    assert (state.pending, state.groups[0].turns) == (None, 3 * CALLS)


def test_a_bucket_that_is_not_done_is_of_a_backward(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    at = one.begin + 3 * STEP_NS
    op, group, dtype = (one.recorder.intern(text) for text in ("all_reduce", "0", "float32"))
    one.recorder.event(Kind.CALL, CallFlag.NATIVE, op, at, at + MS, 99, 2000, 2000, group, 0, 1, dtype)
    state = only(tmp_path)
    one.recorder.close()
    assert state.phase is Phase.BACKWARD
    assert state.pending is not None and state.pending.bucket_of == "DistributedDataParallel"


def test_gradients_that_are_ready_before_any_bucket_is_are_of_a_backward_too(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    assert only(tmp_path).phase is None
    one.recorder.ready(0, 3, one.begin + 3 * STEP_NS, [5 * MS], [3])
    state = only(tmp_path)
    one.recorder.close()
    assert (state.phase, state.pending) == (Phase.BACKWARD, None)


def test_a_pulse_counts_until_the_rank_records_something(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    event, intern = one.recorder.event, one.recorder.intern
    at = one.begin + 4 * STEP_NS
    event(Kind.PULSE, Phase.DATA, intern("data.py:12 in get"), at, at, 9, 5, d=intern("ssl.py:3 in read"))
    state = only(tmp_path)
    assert state.phase is Phase.DATA and state.pulse is not None
    assert (state.pulse.site, state.pulse.frame) == ("data.py:12 in get", "ssl.py:3 in read")
    event(Kind.PHASE, Phase.DATA, 0, at - STEP_NS, at + MS)
    after = only(tmp_path)
    one.recorder.close()
    assert (after.pulse, after.phase, after.did_last) == (None, None, "data")


def test_turns_count_what_was_let_go(tmp_path: Path) -> None:
    folder, steps = tmp_path / "rank-00000", 20_000
    folder.mkdir()
    recorder = recorder_in(folder)
    describe(recorder)
    train(recorder, 0, steps)
    settled(recorder)
    state = only(tmp_path)
    recorder.close()
    assert sum(file.stat().st_size for file in folder.iterdir()) < steps * PER_STEP * RECORD_NBYTES / 2  # most were
    group = next(one for one in state.groups if one.name == "0")
    assert group.turns == 10 * steps
    assert [call.turn for call in group.calls[-2:]] == [10 * steps - 2, 10 * steps - 1]


def test_a_failure_that_the_training_got_over_is_none(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    at = one.begin + 3 * STEP_NS + MS
    one.recorder.event(Kind.DONE, 1, one.recorder.intern("Connection closed by peer"), at, at, 3 * CALLS)
    failed = only(tmp_path)
    assert failed.failure == "all_reduce failed: Connection closed by peer"
    one.step(3)
    over = only(tmp_path)
    one.recorder.close()
    assert over.failure is None


def test_calls_of_steps_that_were_not_recorded_are_not_counted(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    one.recorder.event(Kind.STEP, StepEnd.OPTIMIZER, 0, one.begin, one.begin + STEP_NS, 3, 1)
    state = only(tmp_path)
    one.recorder.close()
    assert not state.counted


def test_ranks_are_compared_as_of_one_time_though_they_are_read_one_after_the_other(tmp_path: Path) -> None:
    """In the middle of step 1, between the launches of its two buckets."""
    one = open_rank(tmp_path)
    one.recorder.close()
    records = RecordReader(one.folder).read()
    first = records.events[records.events["kind"] == Kind.CLOCK][0]
    until_ns = one.begin - int(first["begin"]) + STEP_NS + 55 * MS
    state = rank_state(records, {}, rank=0, zero_unix_ns=int(first["a"]), until_ns=until_ns)
    assert (state.step, len(state.groups[0].calls)) == (1, CALLS + 1)


def test_of_a_restarted_job_the_newest_attempt_with_a_rank_is_meant(tmp_path: Path) -> None:
    for name in ("rank-00000", "attempt-2/rank-00000", "attempt-10/rank-00001", "attempt-11"):
        (tmp_path / name).mkdir(parents=True)
    assert newest_attempt(tmp_path).name == "attempt-10"


def test_a_folder_with_nothing_in_it_is_as_none(tmp_path: Path) -> None:
    Rank(tmp_path).steps(0, 2)
    write_manifest(tmp_path)
    (tmp_path / "rank-00001").mkdir()
    assert [one.rank for one in read_job(tmp_path).ranks] == [0]
    for file in (tmp_path / "rank-00000").iterdir():
        file.unlink()
    with pytest.raises(RunDirectoryError, match=r"no rank has recorded anything in .* its folders are empty"):
        read_job(tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "x"
    if there:
        folder.mkdir()
    with pytest.raises(RunDirectoryError, match=str(folder)):
        read_job(folder)


# Whether its process is there -----------------------------------------------------------------------------------------


def meta(**fields: object) -> dict[str, object]:
    return {"host": socket.gethostname(), "pid": os.getpid()} | fields


def test_a_process_that_recorded_is_found_by_its_number() -> None:
    assert process_of(meta(), time.time_ns()).runs is True


def test_another_process_that_has_its_number_by_now_is_not_taken_for_it() -> None:
    """This one was born long after a record of 1970, and at other ticks than these."""
    assert process_of(meta(), 10**9).runs is False
    assert process_of(meta(started_ticks=1), time.time_ns()).runs is False


def test_the_same_number_on_another_machine_or_before_a_restart_tells_nothing() -> None:
    assert process_of(meta(host="elsewhere"), time.time_ns()).runs is None
    assert process_of(meta(boot_id="another boot"), time.time_ns()).runs is None


def test_a_process_that_ended_and_was_not_waited_for_is_gone() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    until = time.monotonic() + 20
    while (runs := process_of(meta(pid=ended.pid), time.time_ns()).runs) and time.monotonic() < until:
        time.sleep(0.05)
    assert runs is False
    assert Path(f"/proc/{ended.pid}").exists()
    ended.wait()
    assert process_of(meta(pid=ended.pid), time.time_ns()).runs is False


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_process_that_was_killed_a_moment_ago_is_told_from_one_in_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """Neither has its number here. The clock of one that goes on is recorded again."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    one = open_rank(tmp_path)
    write_meta(one.folder, {"schema": SCHEMA_VERSION, "rank": 0} | meta(pid=ended.pid))

    def beat(seconds: float) -> None:
        sleep(seconds)
        if goes_on:
            now = time.perf_counter_ns()
            one.recorder.event(Kind.CLOCK, 0, 0, now, now, time.time_ns())

    sleep = time.sleep
    monkeypatch.setattr(states.time, "sleep", beat)
    monkeypatch.setattr(states, "NEXT_BEAT_NS", 10**9 // 2)
    state = only(tmp_path)
    one.recorder.close()
    assert state.alive is goes_on


def test_ranks_elsewhere_live_while_their_clocks_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_manifest(tmp_path)
    ranks = [Rank(tmp_path, number) for number in (0, 1)]
    assert [one.alive for one in read_job(tmp_path).ranks] == [True, True]
    monkeypatch.setattr(states, "BEAT_NS", 10**9 // 2)
    later = time.perf_counter_ns() + 17 * 10**8
    ranks[0].recorder.event(Kind.CLOCK, 0, 0, later, later, time.time_ns() + 17 * 10**8)
    assert [one.alive for one in read_job(tmp_path).ranks] == [True, False]
    monkeypatch.setattr(states, "LEFT_NS", -(10**12))
    assert [one.alive for one in read_job(tmp_path).ranks] == [None, False]
    for one in ranks:
        one.recorder.close()


# Clocks that are apart ------------------------------------------------------------------------------------------------


@contextmanager
def clock_ahead(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    now = time.time_ns
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: now() + round(seconds * 1e9))
        yield


def own_ticks() -> int:
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[STARTED])


def two_ranks(
    root: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *, ahead: int = 1, **fields: object
) -> list[Rank]:
    """The clock of rank `ahead` is so far ahead."""
    write_manifest(root)
    ranks = []
    for number in (0, 1):
        with clock_ahead(monkeypatch, seconds if number == ahead else 0):
            ranks.append(Rank(root, number))
    for number, one in enumerate(ranks):
        one.steps(0, 3)
        write_meta(one.folder, {"schema": SCHEMA_VERSION, "run_id": RUN_ID, "rank": number} | meta(**fields))
    return ranks


def read_later(root: Path, monkeypatch: pytest.MonkeyPatch, ranks: Sequence[Rank], seconds: int) -> JobState:
    """The job as it is then, when of all its ranks the first alone goes on; they end afterwards."""
    with clock_ahead(monkeypatch, seconds):
        later = time.perf_counter_ns() + seconds * 10**9
        ranks[0].recorder.event(Kind.CLOCK, 0, 0, later, later, time.time_ns())
        found = read_job(root)
    for one in ranks:
        one.recorder.close()
    return found


def beating(monkeypatch: pytest.MonkeyPatch, *ranks: Rank, later_ns: int = 0) -> list[float]:
    """These record their clocks while somebody waits, who waits no time. Returns for how long he meant to."""
    waited: list[float] = []

    def beat(seconds: float) -> None:
        waited.append(seconds)
        for one in ranks:
            now = time.perf_counter_ns() + later_ns
            one.recorder.event(Kind.CLOCK, 0, 0, now, now, time.time_ns())

    monkeypatch.setattr(time, "sleep", beat)
    return waited


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
@pytest.mark.parametrize("seconds", [-3600, -10, 10, 3600])
def test_a_rank_that_goes_on_is_well_however_far_its_clock_is_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, host: str
) -> None:
    ranks = two_ranks(tmp_path, monkeypatch, seconds, host=host, started_ticks=own_ticks())
    waited = beating(monkeypatch, *ranks, later_ns=5 * 10**8)
    found = read_job(tmp_path)
    for one in ranks:
        one.recorder.close()
    assert len(waited) == 1 and waited[0] < 4
    assert [(one.alive, one.step) for one in found.ranks] == [(True, 3), (True, 3)]
    assert found.apart_ns.keys() == {1}
    assert found.apart_ns[1] / 1e9 == pytest.approx(seconds, abs=2)
    told = diagnose(found)
    assert [one.kind for one in told.verdicts] == ["well", "clock"] and told.exit_code == 0
    assert told.verdicts[1].sentence.startswith("the clock of rank 1 is about ")
    assert told.verdicts[1].sentence.count("behind") == (seconds < 0)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_ranks_that_were_killed_at_once_are_told_so_however_far_their_clocks_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, ahead: int
) -> None:
    """Then the calls that both launched tell how far that is."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ranks = two_ranks(tmp_path, monkeypatch, seconds, ahead=ahead, pid=ended.pid)
    beating(monkeypatch)
    told = diagnose(found := read_job(tmp_path))
    for one in ranks:
        one.recorder.close()
    assert [one.alive for one in found.ranks] == [False, False]
    assert [(one.kind, one.absent) for one in told.verdicts] == [("killed", (0, 1)), ("clock", ())]
    assert found.apart_ns.keys() == {ahead} and abs(found.apart_ns[ahead] / 1e9 - seconds) < 2


def test_a_rank_that_was_killed_is_not_taken_for_one_in_time_where_its_clock_is_ahead_by_as_much_as_that_is_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one waits for it."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ranks = two_ranks(tmp_path, monkeypatch, 20)
    write_meta(ranks[1].folder, {"schema": SCHEMA_VERSION, "run_id": RUN_ID, "rank": 1} | meta(pid=ended.pid))
    found = read_later(tmp_path, monkeypatch, ranks, 20)
    assert [one.alive for one in found.ranks] == [True, False]
    assert found.apart_ns[1] / 1e9 == pytest.approx(20, abs=1)
    assert "ago" in (died := diagnose(found).verdicts[0]).sentence and (died.age_ns or 0) > 19 * 10**9


def test_a_rank_that_is_late_by_a_clock_that_agrees_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It launched what the other one launched at the same time, and its clock is not recorded while that one's is."""
    ranks = two_ranks(tmp_path, monkeypatch, 0)
    beating(monkeypatch, ranks[0], later_ns=20 * 10**9)
    found = read_later(tmp_path, monkeypatch, ranks, 20)
    assert not found.apart_ns
    assert [(one.kind, one.absent) for one in diagnose(found).verdicts] == [("held", (1,))]


def test_a_job_whose_clocks_agree_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = two_ranks(tmp_path, monkeypatch, 0)
    waited = beating(monkeypatch)
    read_job(tmp_path)
    for one in ranks:
        one.recorder.close()
    assert waited == []


# Records that are another run's, or were changed ----------------------------------------------------------------------


def odd_call(one: Rank) -> None:
    """What the other rank does not call."""
    event, intern = one.recorder.event, one.recorder.intern
    event(Kind.CALL, CallFlag.SYNC, intern("broadcast"), one.begin, one.begin + MS, 99, 64, 64, intern("0"))


def test_the_calls_of_another_run_are_held_against_nobodys_and_that_is_said(tmp_path: Path) -> None:
    write_manifest(tmp_path)
    ranks = [Rank(tmp_path, 0), Rank(tmp_path, 1, run_id="another")]
    odd_call(ranks[1])
    for one in ranks:
        one.steps(0, 3)
        one.recorder.close()
    told = diagnose(read_job(tmp_path))
    assert [one.kind for one in told.verdicts] == ["ended", "doubt"] and "mismatch" not in str(told)
    assert told.verdicts[0].sentence == "ranks 0 and 1 ended"
    assert told.verdicts[1].sentence.startswith("rank 1: its records have the id of another run")


def test_calls_that_were_changed_after_they_were_written_are_held_against_nobodys_and_that_is_said(
    tmp_path: Path,
) -> None:
    write_manifest(tmp_path)
    ranks = [Rank(tmp_path, number) for number in (0, 1)]
    odd_call(ranks[1])
    for one in ranks:
        one.steps(0, 3)
        one.recorder.close()
    assert diagnose(read_job(tmp_path)).verdicts[0].kind == "mismatch"
    file = ranks[1].folder / "records-00000.bin"
    content = bytearray(file.read_bytes())
    content[5 * RECORD_NBYTES + 40] ^= 1
    file.write_bytes(content)
    told = diagnose(read_job(tmp_path))
    assert [one.kind for one in told.verdicts] == ["ended", "doubt"]
    assert told.verdicts[1].sentence.startswith("rank 1: records-00000.bin was changed after it was written")


def test_a_clock_that_cannot_be_is_passed_over(tmp_path: Path) -> None:
    one = open_rank(tmp_path)
    one.recorder.close()
    events = RecordReader(one.folder).read().events
    damaged = events[events["kind"] == Kind.CLOCK][:1].copy()
    damaged["begin"] = np.iinfo(np.int64).min + 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clock = Clock.of(np.concatenate([damaged, events]), None)
        assert clock.shift_ns == Clock.of(events, None).shift_ns and clock.tie_ns is not None
        assert clock.stepped_ns < 10**9
        assert Clock.of(damaged, None).tie_ns is None
