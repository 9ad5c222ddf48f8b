"""A run that grows, exported by two threads: only the run that is meant, and until nobody writes it any more."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from telemetry_records import RUN_ID, Rank, recording, write_manifest

from ddptrace.record import directory
from ddptrace.schema import META
from ddptrace.telemetry.delivery.delivery import ACCEPTED, Delivery, Outcome, Patience, points
from ddptrace.telemetry.delivery.exports import Following, RunEnded
from ddptrace.telemetry.delivery.reports import complaint
from ddptrace.telemetry.delivery.targets import Targets

STEPS = 5


class Kept:
    name = "the collector"

    def __init__(self, takes_spans: bool = True) -> None:
        self.got: list[ReadableSpan] = []
        self.data: list[MetricsData] = []
        self._takes_spans = takes_spans

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome:
        self.got += batch if self._takes_spans else ()
        return ACCEPTED if self._takes_spans else Outcome(False, why="down")

    def metrics(self, data: MetricsData) -> Outcome:
        self.data.append(data)
        return ACCEPTED

    def close(self) -> None:
        pass


def steps(kept: Kept) -> Counter[tuple[object, object]]:
    found = [one.attributes or {} for one in kept.got if one.name.startswith("step ")]
    return Counter((one["ddptrace.run.id"], one["ddptrace.rank"]) for one in found)


def follow(root: Path, kept: Kept, *, run_id: str | None = None) -> Following:
    stop = threading.Event()
    patience = Patience(1.0, ended=lambda: True, stop=stop)
    following = Following(root, Targets((kept,), (kept,)), patience, lambda said: None, run_id=run_id)
    following.start(lambda follower: all(one.closed for one in follower.now()) and not follower.is_behind, stop)
    assert following.wait(60)
    assert following.error is None
    return following


def test_another_run_in_the_directory_is_none_of_ours(tmp_path: Path) -> None:
    """That of an earlier job, or of the next attempt: each is exported by whoever began with it."""
    other = "ab" * 16
    for root, run_id in ((tmp_path, RUN_ID), (tmp_path / "attempt-1", other)):
        rank = Rank(root, run_id=run_id)
        rank.steps(0, STEPS)
        rank.recorder.close()
        write_manifest(root, run_id)
    both, one = Kept(), Kept()
    follow(tmp_path, both)
    assert steps(both) == {(RUN_ID, 0): STEPS, (other, 0): STEPS}
    follow(tmp_path, one, run_id=RUN_ID)
    assert steps(one) == {(RUN_ID, 0): STEPS}


def test_metrics_go_out_whatever_becomes_of_the_spans(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, STEPS)
    write_manifest(tmp_path)
    kept = Kept(takes_spans=False)
    spans, numbers = follow(tmp_path, kept).deliveries
    assert (spans.sent, numbers.lost) == (0, 0)
    assert spans.lost > STEPS
    assert numbers.sent == points(kept.data[-1]) > 0


def test_the_newest_record_is_that_of_the_training_so_that_its_age_grows_while_a_job_hangs(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, STEPS)
        time.sleep(0.01)
        rank.recorder.clock()  # goes on whatever the training does
    write_manifest(tmp_path)
    kept = Kept()
    metrics = follow(tmp_path, kept).lines[1]
    (now,) = metrics.follower.now()
    assert now.worked_unix_ns < now.beat_unix_ns - 1_000_000
    told = [
        point.value
        for one in kept.data[-1].resource_metrics for scope in one.scope_metrics for metric in scope.metrics
        if metric.name == "ddptrace.record.time" for point in metric.data.data_points
    ]  # fmt: skip
    assert told == [pytest.approx(now.worked_unix_ns / 1e9, abs=1e-6)]


def test_a_run_has_ended_when_its_processes_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddptrace.telemetry.delivery.exports.ASK_EVERY_S", 0.0)
    ended = RunEnded(tmp_path, None)
    assert not ended()  # it has not begun
    for rank in (0, 1):
        with recording(tmp_path, rank):
            pass
    tell(tmp_path, 0, host=socket.gethostname(), pid=os.getpid())
    tell(tmp_path, 1, host=socket.gethostname(), pid=2**22 + 1)
    assert not ended()
    tell(tmp_path, 0, host=socket.gethostname(), pid=2**22 + 2)
    assert ended()
    assert not RunEnded(tmp_path, "elsewhere")()


def test_processes_that_cannot_be_asked_are_judged_by_what_they_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(tmp_path):
        pass
    tell(tmp_path, 0, host="elsewhere")
    assert not RunEnded(tmp_path, None)()
    for file in (tmp_path / "rank-00000").iterdir():
        os.utime(file, (time.time() - 90, time.time() - 90))
    assert RunEnded(tmp_path, None)()


def tell(root: Path, rank: int, **more: object) -> None:
    folder = root / f"rank-0000{rank}"
    directory.write_meta(folder, (directory.read_json(folder / META) or {}) | more)


class Stuck(Kept):
    """An attempt that does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()
        self.is_free = threading.Event()

    def spans(self, batch: Sequence[ReadableSpan]) -> Outcome:
        self.is_asked.set()
        self.is_free.wait(60)
        return ACCEPTED


def test_what_is_under_way_when_nobody_waits_any_longer_counts_as_missing(tmp_path: Path) -> None:
    with recording(tmp_path) as rank:
        rank.steps(0, STEPS)
    write_manifest(tmp_path)
    stuck, stop = Stuck(), threading.Event()
    following = Following(tmp_path, Targets((stuck,)), Patience(1.0, ended=lambda: True, stop=stop), lambda said: None)
    following.start(lambda follower: True, stop)
    assert stuck.is_asked.wait(60)
    following.give_up()
    made = following.lines[0].made
    told = complaint(following.deliveries, tmp_path, is_counted=False)
    stuck.is_free.set()
    assert following.wait(60)
    assert made > STEPS
    assert told == (
        f"at least {made} of {made} spans were not delivered to the collector (there was no time left); "
        f"`ddptrace export {tmp_path}` delivers it from the directory"
    )


def test_that_something_may_be_missing_is_said_even_where_none_of_it_is_known(tmp_path: Path) -> None:
    one = Delivery(Kept(), "spans", Patience(1.0, ended=lambda: True, stop=threading.Event()), lambda said: None)
    assert complaint([one], tmp_path) is None
    told = "not all telemetry was delivered (there was no time left to count what is missing); `ddptrace export"
    assert str(complaint([one], tmp_path, is_counted=False)).startswith(told)
