"""Two ranks of stock DDP, one of them late before a bucket of each step: their metrics, while they train and
afterwards, and what a real Prometheus server has of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.live import run_follower
from ddptrace.live.run_follower import RunFollower
from ddptrace.telemetry.delivery.exports import totals_of
from ddptrace.telemetry.metrics.instruments import INSTRUMENTS, Instrument, Kind
from ddptrace.telemetry.metrics.prometheus import label_of, name_of, serve, unit_of
from ddptrace.telemetry.metrics.totals import Totals
from tests.launch import torchrun
from tests.prometheus import Prometheus, prometheus
from tests.sums import Sums, summed, sums_of, told_by

STEPS, LATE_S, LATE_RANK, RANKS = 24, 0.05, 1, 2
DEADLINE_S = 200
OF_DDP = [one for one in INSTRUMENTS if not one.name.startswith("ddptrace.unit.")]
"""A bucket has metrics of its own."""


@dataclass(frozen=True)
class Traced:
    run: Path
    result: Result
    looks: list[Sums]  # while it ran, and at its end


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    run = tmp_path_factory.mktemp("metrics") / "run"
    argv = (run, "backward", "--ms", LATE_S * 1e3, "--steps", STEPS, "--rank", LATE_RANK)
    training = threading.Thread(target=torchrun, args=("late.py", *argv), kwargs={"ranks": RANKS})
    training.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_follower, "READ_EVERY_S", 0.1)
        looks = list(_follow(run))
    training.join()
    return Traced(run, ddptrace.analyze(run), looks)


def _follow(run: Path) -> Iterator[Sums]:
    """What the totals are whenever something came."""
    follower, totals, deadline = RunFollower(run), Totals(), time.monotonic() + DEADLINE_S
    while not follower.is_over:
        batches = list(follower.look())
        for batch in batches:
            totals.take(batch)
        for one in follower.now():
            totals.seen(one.identity.run_id, one.identity.rank, one.worked_unix_ns)
        if batches:
            yield told_by(totals)
        assert time.monotonic() < deadline
        time.sleep(0 if follower.is_behind else 0.1)
    yield told_by(totals)


def test_afterwards_all_are_sums_over_the_tables(traced: Traced) -> None:
    told = told_by(totals_of(traced.result, traced.run))
    assert summed(told) == sums_of(traced.result)
    assert {name for name, *_ in told} == {one.name for one in OF_DDP}  # every one of them has a point


def test_following_it_in_many_looks_gives_the_same(traced: Traced) -> None:
    *early, last = traced.looks
    assert len(early) > 2
    assert last == told_by(totals_of(traced.result, traced.run))


def test_counters_only_go_up_while_it_runs(traced: Traced) -> None:
    counters = {one.name for one in INSTRUMENTS if one.kind is not Kind.GAUGE}
    for before, after in zip(traced.looks, traced.looks[1:], strict=False):
        assert not [key for key in before if key[0] in counters and (key not in after or after[key] < before[key])]


def test_what_is_known_of_the_run_and_of_the_moment(traced: Traced) -> None:
    told = told_by(totals_of(traced.result, traced.run))
    for rank in range(RANKS):
        assert told["ddptrace.step.last", rank] == max(row.step for row in traced.result.steps if row.rank == rank)
        (info,) = [key for key in told if key[:2] == ("ddptrace.run.info", rank)]
        assert info[2:4] == (RANKS, "gloo")
        assert all(info[4:6]) and (info[6], info[7][:4]) == ("", "job-")  # host, torch, no name, the launcher's job
        latest = [row for row in traced.result.steps if row.rank == rank and row.comm_ns][-16:]
        ratio = sum(row.hidden_ns for row in latest) / sum(row.comm_ns for row in latest)
        assert told["ddptrace.comm.overlap_ratio", rank] == ratio
        assert 0 < time.time() - told["ddptrace.record.time", rank] < DEADLINE_S
        dropped = {key: value for key, value in told.items() if key[0].endswith(".dropped") and key[1] == rank}
        assert set(dropped.values()) == {0}
        assert {key[2] for key in dropped} == {"no_room", "burst", "unwritable", "torn", "unread"}


def test_the_rank_that_is_late_is_told(traced: Traced) -> None:
    told = traced.looks[-1]
    other = 1 - LATE_RANK
    assert told["ddptrace.collective.last", LATE_RANK] >= STEPS - 6  # of the bucket behind the sleep, in each step
    cost_s = told["ddptrace.collective.lateness", LATE_RANK]
    assert cost_s > 0.7 * STEPS * LATE_S
    assert told["ddptrace.collective.lateness", other] < 0.5 * cost_s
    assert told["ddptrace.collective.wait_for_peers", other] > 0.7 * STEPS * LATE_S
    assert told["ddptrace.collective.wait_for_peers", LATE_RANK] < 0.5 * cost_s
    ((skew, (count, total_s)),) = [(key, value) for key, value in told.items() if key[0] == "ddptrace.collective.skew"]
    assert skew[1] == 0  # told by the lowest rank of the group, once
    assert count == told["ddptrace.collective.last", 0] + told["ddptrace.collective.last", 1]
    assert total_s >= cost_s


@pytest.fixture(scope="module")
def scraped(traced: Traced, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    folder = tmp_path_factory.mktemp("scraped")
    with serve(totals_of(traced.result, traced.run), 0) as server, prometheus(folder, server.url) as one:
        yield one, one.wait_until_scraped()


def test_prometheus_has_exactly_these_values(traced: Traced, scraped: tuple[Prometheus, float]) -> None:
    server, at_s = scraped
    told = told_by(totals_of(traced.result, traced.run))
    for instrument in INSTRUMENTS:
        expected = {tuple(map(str, key[1:])): value for key, value in told.items() if key[0] == instrument.name}
        assert _queried(server, instrument, at_s) == expected, instrument.name


def _queried(server: Prometheus, instrument: Instrument, at_s: float) -> dict[tuple[str, ...], Any]:
    """By rank and the instrument's own attributes."""
    labels = [label_of(one) for one in ("ddptrace.rank", *instrument.attributes)]
    name = name_of(instrument)
    if instrument.kind is not Kind.HISTOGRAM:
        return server.by(name, *labels, at_s=at_s) if len(labels) > 1 else _keyed(server.by(name, *labels, at_s=at_s))
    count, total = (server.by(f"{name}_{part}", *labels, at_s=at_s) for part in ("count", "sum"))
    found = {key: (count[key], total[key]) for key in total}
    return found if len(labels) > 1 else _keyed(found)


def _keyed(found: dict[Any, Any]) -> dict[tuple[str, ...], Any]:
    return {(key,): value for key, value in found.items()}


def test_prometheus_knows_type_and_unit_of_every_metric(scraped: tuple[Prometheus, float]) -> None:
    told = {name: (one["type"], one["unit"], one["help"]) for name, one in scraped[0].metadata().items()}
    assert told == {
        name_of(one).removesuffix("_total"): (one.kind.value, unit_of(one), one.meaning) for one in OF_DDP
    }  # fmt: skip


def test_the_buckets_of_a_histogram_count_what_is_below_their_bounds(
    traced: Traced, scraped: tuple[Prometheus, float]
) -> None:
    server, at_s = scraped
    found = server.by("ddptrace_step_duration_seconds_bucket", "ddptrace_rank", "le", at_s=at_s)
    (duration,) = [one for one in INSTRUMENTS if one.name == "ddptrace.step.duration"]
    assert {float(le) for _, le in found} == {*duration.bounds, float("inf")}
    for (rank, le), count in found.items():
        walls = [row.wall_ns / 1e9 for row in traced.result.steps if row.rank == int(rank)]
        assert count == sum(wall <= float(le) for wall in walls)


def test_every_series_tells_its_run_and_rank(traced: Traced, scraped: tuple[Prometheus, float]) -> None:
    server, at_s = scraped
    found = server.by('count by (ddptrace_run_id, ddptrace_rank) ({__name__=~"ddptrace_.*"})', "ddptrace_run_id",
                      "ddptrace_rank", at_s=at_s)  # fmt: skip
    assert set(found) == {(traced.result.run_id, str(rank)) for rank in range(RANKS)}
