"""Who is named and why, on plans played by hand with the noise of real steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ddptrace.analysis.findings.ranks import blame_findings
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.ranks.blame import Blame, blame_of
from ddptrace.analysis.ranks.causes import Held, Lateness, cause_of
from ddptrace.analysis.ranks.crossings import ComparedRanks
from ddptrace.analysis.ranks.links import fast_of_its_kind, slow_host
from ddptrace.analysis.ranks.replay import Costs
from ddptrace.analysis.ranks.suspects import average, costs_of_suspects
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.findings import Finding
from ddptrace.load.tables import GcPause, HostLoad, HostMark, LinkSample, Throttle
from ddptrace.units import duration, percent
from tests.unit.made_training import MS, Late, Plan, Player, only, played

Loads = dict[int, HostLoad]
PARTS = ("data", "forward", "backward 0", "backward 1", "optimizer", "other")


def noisy(late: Callable[[int, int], Late], seed: int = 0, most_ns: int = MS) -> Callable[[int, int], Late]:
    """Each part of each step takes up to `most_ns` longer, now and then much longer, by chance."""

    def both(one: int, at: int) -> Late:
        rng = random.Random(f"{seed}/{one}/{at}")
        planted = late(one, at)
        chance = {part: rng.randint(0, most_ns) * (12 if rng.random() < 0.01 else 1) for part in PARTS}
        return {part: chance[part] + planted.get(part, 0) for part in PARTS}

    return both


def nobody(one: int, at: int) -> Late:
    return {}


def blame(plan: Plan, loads: Loads | None = None, hosts: Sequence[str] = ()) -> Blame:
    tables, matches = played(plan)
    return blame_of(ComparedRanks([_with(table, loads or {}, hosts) for table in tables], matches))


def told(found: Blame) -> list[Finding]:
    """What is said of it, for ranks of one host."""
    return list(blame_findings(found, hosts=1))


def _with(table: RankTables, loads: Loads, hosts: Sequence[str]) -> RankTables:
    host = hosts[table.row.rank] if hosts else table.row.host
    return replace(table, load=loads.get(table.row.rank, table.load), row=replace(table.row, host=host))


def step_spans(plan: Plan, who: int) -> list[tuple[int, int]]:
    tables, _ = played(plan)
    return [(row.begin_at_ns, row.end_at_ns) for row in tables[who].steps]


def watched(plan: Plan, who: int, cpu_ns: int, queued_ns: int = 0) -> HostLoad:
    return HostLoad(marks=tuple(HostMark(b, e, cpu_ns, queued_ns, 0) for b, e in step_spans(plan, who)))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("part", ["data", "forward", "backward 0", "optimizer", "other"])
def test_the_rank_that_is_late_is_named_with_its_phase_and_what_it_costs(part: str, ranks: int) -> None:
    plan = Plan(ranks, 80, late=noisy(only(1, part, 5 * MS)))
    (one,) = blame(plan).suspects
    assert (one.rank, one.phase, one.cause) == (1, part.split()[0], part.split()[0])
    longer = Player(plan).step_ns() - Player(replace(plan, late=noisy(nobody))).step_ns()
    assert one.low_ns < longer < one.high_ns
    assert one.cost_ns == pytest.approx(longer, rel=0.1)
    assert one.persistent
    assert one.steps == 78


@pytest.mark.parametrize("part", ["optimizer", "other"])
def test_a_rank_that_is_waited_for_in_a_collective_nobody_saw_running_is_named(part: str) -> None:
    # the averaging of a loss: ranks wait for each other there, and no longer in backward
    plan = Plan(2, 80, loss=MS // 10, late=noisy(only(1, part, 5 * MS)))
    (one,) = blame(plan).suspects
    assert (one.rank, one.phase, one.cause) == (1, part, part)
    longer = Player(plan).step_ns() - Player(replace(plan, late=noisy(nobody))).step_ns()
    assert one.cost_ns == pytest.approx(longer, rel=0.1)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [2, 4])
def test_on_a_healthy_run_nobody_is_named(seed: int, ranks: int) -> None:
    found = blame(Plan(ranks, 62, late=noisy(nobody, seed)))
    assert found.rows
    assert (found.suspects, told(found)) == ((), [])


def test_a_rank_that_is_late_in_every_second_block_of_steps_is_named_as_late_in_some() -> None:
    plan = Plan(2, 122, late=noisy(only(1, "forward", 8 * MS, lambda at: at // 5 % 2 == 1)))
    (one,) = blame(plan).suspects
    assert (one.rank, one.cause, one.persistent) == (1, "forward", False)
    longer = Player(plan).step_ns() - Player(replace(plan, late=noisy(nobody))).step_ns()
    assert one.cost_ns == pytest.approx(longer, rel=0.1)


def test_what_costs_less_than_a_twenty_fifth_of_a_step_is_not_named() -> None:
    named = [bool(blame(Plan(2, 80, late=only(1, "forward", ns))).suspects) for ns in (700_000, 900_000)]
    assert named == [False, True], "of a step of 19.7 or 19.9 ms"


def test_a_short_run_names_a_rank_only_where_it_costs_much() -> None:
    for late_ms, count in ((2, 0), (6, 1)):
        assert len(blame(Plan(2, 14, late=only(1, "data", late_ms * MS))).suspects) == count


def test_a_short_run_in_which_a_rank_may_cost_something_says_that_it_is_too_short() -> None:
    (finding,) = told(blame(Plan(2, 14, late=only(1, "data", MS))))
    assert (finding.code, finding.severity, finding.where) == ("run-too-short", "info", "rank 1")
    assert (
        "1.00 ms of a step" in finding.message
        and "12 steps are too few" in finding.message
        and "trace 42 or more" in finding.message
    )
    assert told(blame(Plan(2, 14, late=noisy(nobody)))) == [], "chance is not told"
    assert told(blame(Plan(2, 14, late=only(1, "data", 300_000)))) == [], "no longer run would name it"


def test_a_run_of_a_few_steps_names_nobody_and_shows_the_costs() -> None:
    found = blame(Plan(2, 8, late=only(1, "data", 20 * MS)))
    assert found.suspects == ()
    assert [one.code for one in told(found)] == ["run-too-short"]
    assert {row.cost_ns for row in found.rows if row.rank == 1 and row.phase == "data"} == {20 * MS}


def test_a_cost_of_all_phases_is_not_said_to_be_of_one() -> None:
    everywhere: Late = {"data": 3 * MS, "forward": 3 * MS, "backward 0": 4 * MS, "optimizer": 3 * MS}
    for late, whole, said in ((everywhere, True, "its own work, mostly its backward phase, costs"),
                              ({"backward 0": 4 * MS}, False, "its backward phase costs")):  # fmt: skip
        found = blame(Plan(2, 80, late=noisy(lambda one, at, late=late: late if one else {})))
        assert [(one.phase, one.all_phases) for one in found.suspects] == [("backward", whole)]
        assert said in told(found)[0].message


def test_the_dearest_comes_first_and_one_that_costs_little_beside_it_is_not_named() -> None:
    def late(one: int, at: int) -> Late:
        return {0: {"data": 20 * MS}, 1: {"backward 1": 12 * MS}, 2: {"backward 2": 3 * MS}}.get(one, {})

    # each is the only one late in its part of the step, and all wait for each other after each part of backward
    found = blame(Plan(4, 80, backward=(4 * MS, 4 * MS, 4 * MS), late=late, is_sync=True))
    assert [(one.rank, one.phase) for one in found.suspects] == [(0, "data"), (1, "backward")]
    assert found.suspects[0].cost_ns > found.suspects[1].cost_ns


def test_rows_are_told_by_step_and_the_dearest_first() -> None:
    rows = blame(Plan(2, 20, late=noisy(only(1, "data", 5 * MS)))).rows
    assert [(row.step, -row.cost_ns) for row in rows] == sorted((row.step, -row.cost_ns) for row in rows)
    assert {row.phase for row in rows} == {"data", "forward", "backward", "optimizer", "other", "all"}
    assert len(rows) == 18 * 2 * 6


def test_garbage_collection_is_named_where_it_holds_the_rank() -> None:
    plan = Plan(2, 80, late=noisy(only(1, "other", 6 * MS)))
    spans = step_spans(plan, 1)
    half = [GcPause(end - 5 * MS, end, 2) for _, end in spans]
    (one,) = blame(plan, {1: HostLoad(collections=tuple(half))}).suspects
    assert (one.rank, one.phase, one.cause) == (1, "other", "garbage collection")
    assert "5.00 ms of a step longer" in one.evidence
    little = [GcPause(end - 2 * MS, end, 2) for _, end in spans]
    assert [s.cause for s in blame(plan, {1: HostLoad(collections=tuple(little))}).suspects] == ["other"]
    both = {who: HostLoad(collections=tuple(half)) for who in (0, 1)}
    assert [s.cause for s in blame(plan, both).suspects] == ["other"], "the others collect as long"


def test_seldom_collections_name_a_rank_that_chance_might_have_made_late() -> None:
    # GIVEN 60 ms in one step of 25: two blocks of ten in five have one
    seldom = only(1, "other", 60 * MS, lambda at: at % 25 == 20)
    plan = Plan(2, 202, late=seldom)
    assert blame(plan).suspects == ()
    pauses = tuple(GcPause(e - 60 * MS, e, 2) for at, (_, e) in enumerate(step_spans(plan, 1)) if at % 25 == 20)
    (one,) = blame(plan, {1: HostLoad(collections=pauses)}).suspects
    assert (one.rank, one.cause, one.persistent) == (1, "garbage collection", False)


def test_a_processor_quota_is_named_before_the_contention_that_comes_with_it() -> None:
    plan = Plan(2, 80, late=only(1, "forward", 6 * MS))
    begin, end = step_spans(plan, 1)[0][0], step_spans(plan, 1)[-1][1]
    throttles = (Throttle(begin, 7 * MS, 0.5), Throttle(end, 7 * MS + 80 * 5 * MS, 0.5))
    held = replace(watched(plan, 1, 8 * MS, queued_ns=5 * MS), throttles=throttles)
    (one,) = blame(plan, {0: watched(plan, 0, 8 * MS), 1: held}).suspects
    assert one.cause == "processor quota"
    assert "5.00 ms" in one.evidence


def test_contention_is_named_where_the_rank_waits_for_a_processor_longer_than_the_others() -> None:
    plan = Plan(2, 80, late=only(1, "forward", 6 * MS))
    loads = {0: watched(plan, 0, 8 * MS, MS), 1: watched(plan, 1, 8 * MS, 5 * MS)}
    (one,) = blame(plan, loads).suspects
    assert one.cause == "processor contention"


def test_one_long_stall_is_not_the_cause_of_what_a_rank_does_in_every_step() -> None:
    def late(one: int, at: int) -> Late:
        return {"data": 6 * MS, "optimizer": 600 * MS if at == 40 else 0} if one == 1 else {}

    plan = Plan(2, 80, late=late)
    queued = [600 * MS if at == 40 else 0 for at in range(80)]
    marks = tuple(HostMark(b, e, 8 * MS, ns, 0) for (b, e), ns in zip(step_spans(plan, 1), queued, strict=True))
    (one,) = blame(plan, {0: watched(plan, 0, 8 * MS), 1: HostLoad(marks=marks)}).suspects
    assert (one.rank, one.phase, one.cause) == (1, "data", "data")
    assert one.cost_ns == pytest.approx(6 * MS, rel=0.05), "of that phase alone"
    assert "6.00 ms of a step longer" in one.evidence


def test_a_collection_counts_for_no_more_than_the_step_it_began_in() -> None:
    plan = Plan(2, 80, late=only(1, "forward", 6 * MS))
    spans = step_spans(plan, 1)
    absurd = HostLoad(collections=(GcPause(spans[40][0], spans[40][0] + 10**17, 2),))
    (one,) = blame(plan, {1: absurd}).suspects
    assert one.cause == "forward"


def test_a_few_stalls_are_not_what_all_ranks_wait_for_in_a_step() -> None:
    def stalls(one: int, at: int) -> Late:
        return {"other": 300 * MS} if at % 20 == 7 else {}

    plan = Plan(2, 80, late=stalls)
    queued = [300 * MS if at % 20 == 7 else 0 for at in range(80)]
    loads = {
        who: HostLoad(
            marks=tuple(HostMark(b, e, MS, ns, 0) for (b, e), ns in zip(step_spans(plan, who), queued, strict=True))
        )
        for who in (0, 1)
    }
    assert told(blame(plan, loads)) == []


def test_a_device_is_slow_where_all_that_computes_takes_longer_alike() -> None:
    def late(one: int, at: int) -> Late:
        slower = {"forward": 5 * MS, "backward 0": 4 * MS, "backward 1": 4 * MS, "optimizer": 2 * MS}
        return {part: ns // 2 for part, ns in slower.items()} if one == 1 else {}

    plan = Plan(4, 80, late=late)
    loads = {who: watched(plan, who, (22 if who == 1 else 15) * MS) for who in range(4)}
    (one,) = blame(plan, loads).suspects
    assert (one.rank, one.cause) == (1, "slow device")
    assert one.cost_ns == pytest.approx(7.5 * MS, rel=0.01), "of all phases together"
    asleep = {who: watched(plan, who, 15 * MS) for who in range(4)}
    assert [s.cause for s in blame(plan, asleep).suspects] == ["backward"], "it does not compute longer"


def test_a_rank_that_sleeps_is_told_apart_from_one_that_computes() -> None:
    plan = Plan(2, 80, late=only(1, "forward", 6 * MS))
    for cpu_ms, said in ((15, "sleeps or is blocked"), (20, "it computes in most of that")):
        loads = {0: watched(plan, 0, 15 * MS), 1: watched(plan, 1, cpu_ms * MS)}
        (one,) = blame(plan, loads).suspects
        assert one.cause == "forward"
        assert said in one.evidence


def test_a_machine_on_which_all_ranks_wait_for_a_processor_is_told_and_nobody_is_named() -> None:
    plan = Plan(2, 80, late=noisy(nobody))
    found = blame(plan, {who: watched(plan, who, 8 * MS, 5 * MS) for who in (0, 1)})
    assert found.suspects == ()
    assert [finding.code for finding in told(found)] == ["processors-crowded"]


def sent(own: str, peer: str, mbytes: int, busy_ms: int) -> HostLoad:
    """Two looks at a connection; what counts is the last."""
    first = LinkSample(0, own, peer, mbytes * 500_000, busy_ms * MS, 0, 0)
    return HostLoad(links=(first, LinkSample(10, own, peer, mbytes * 1_000_000, busy_ms * MS, 0, 0)))


def test_the_host_with_a_slow_link_is_named_where_no_rank_is_late() -> None:
    # GIVEN a step of 1 + 5 + 4 ms, then 20 ms twice on the wire; the link at a quarter of the others' speed
    plan = Plan(4, 80, transfer=20 * MS)
    hosts = ("a", "a", "b", "c")
    loads = {
        0: sent("10.0.0.1", "10.0.0.2", 300, 3000), 1: sent("10.0.0.1", "10.0.0.3", 300, 3000),
        2: sent("10.0.0.2", "10.0.0.3", 100, 4000), 3: sent("10.0.0.3", "10.0.0.1", 300, 3000),
    }  # fmt: skip
    found = blame(plan, loads, hosts)
    (one,) = found.suspects
    assert (one.rank, one.host, one.phase, one.cause) == (2, "b", "transfer", "slow link")
    assert one.cost_ns == 2 * 15 * MS, "a quarter of 20 ms twice"
    assert "25.0 MB/s" in one.evidence
    assert [(finding.code, finding.where) for finding in told(found)] == [("slow-link", "host b")]


def test_a_link_is_not_slow_that_is_seldom_busy_or_stays_on_its_host_or_is_nearly_as_fast() -> None:
    tables, _ = played(Plan(2, 80, transfer=20 * MS))

    def found(*loads: HostLoad) -> object:
        named = [_with(table, dict(enumerate(loads)), ("a", "b")) for table in tables]
        return slow_host(named)

    fast, slow = sent("1", "2", 300, 3000), sent("2", "1", 100, 4000)
    assert found(fast, slow) is not None
    assert found(fast, sent("2", "1", 10, 400)) is None, "busy for 0.4 of the 3.2 s of communication"
    assert found(fast, sent("2", "1", 300, 4900)) is None, "61 MB/s beside 100"
    assert found(fast, sent("2", "2", 100, 4000)) is None, "its own address"
    assert found(fast, HostLoad()) is None


def linked(*loads: HostLoad) -> list[RankTables]:
    """A host each, of ranks that communicate for 40 of 50 ms in 80 steps."""
    tables, _ = played(Plan(len(loads), 80, transfer=20 * MS))
    return [_with(table, dict(enumerate(loads)), tuple("abcd")) for table in tables]


def test_the_slow_host_is_the_one_that_slow_connections_have_in_common() -> None:
    # the host sends to `a` and acknowledges what `c` sends to it: that comes slower than its own
    ring = (sent("1", "2", 300, 3000), sent("2", "3", 300, 3100), sent("3", "4", 100, 4500), sent("4", "1", 100, 4000))
    found = slow_host(linked(*ring))
    assert found is not None
    assert (found.host, found.bytes_per_s) == ("d", 100e9 / 4500)
    assert found.others_bytes_per_s == (300e9 / 3000 + 300e9 / 3100) / 2, "of those that do not touch it"


def test_a_connection_that_carries_little_tells_of_its_delay_and_nothing_of_its_rate() -> None:
    both = sent("1", "2", 300, 3000).links + sent("1", "3", 3, 3000).links
    hosts = HostLoad(links=both), sent("2", "1", 100, 3900), sent("3", "2", 300, 3000)
    found = slow_host(linked(*hosts))
    assert found is not None
    assert found.host == "b", "and not a, which takes 3 s for 3 MB"


@pytest.mark.parametrize(
    ("later_ms", "unsure_ms", "named"), [(12, 0, "b"), (3, 0, None), (12, 9, None), (-12, 0, None)]
)
def test_of_two_hosts_the_slow_one_is_told_by_the_other_that_ends_later(
    later_ms: int, unsure_ms: int, named: str | None
) -> None:
    # GIVEN transfers of 20 and 36 ms, and links of which one is a little slower
    loads = sent("1", "2", 110, 4000), sent("2", "1", 100, 4000)
    tables, matches = played(Plan(2, 80, transfer=20 * MS))
    # WHEN rank 0 ends each of them later
    rows = [
        replace(row, exec_end_at_ns=row.exec_end_at_ns + later_ms * MS) if row.exec_end_at_ns else row
        for row in tables[0].collectives
    ]
    tables = [replace(tables[0], rows={**tables[0].rows, "collectives": tuple(rows)}), tables[1]]
    tables = [_with(table, dict(enumerate(loads)), ("a", "b")) for table in tables]
    unsure = [replace(row, uncertainty_ns=unsure_ms * MS, last_arrival_at_ns=row.last_start_at_ns) for row in matches]
    found = slow_host(tables, unsure)
    assert (found.host if found else None) == named


def test_a_link_that_is_slow_now_and_then_costs_what_slow_transfers_take_beyond_the_fast_ones() -> None:
    # GIVEN transfers of 20 ms and of 30 in turn, by bucket, and 60 ms more in every second block of 10
    _, matches = played(Plan(2, 40))
    kinds = [replace(row, bucket=(0, 0, at % 2)) for at, row in enumerate(matches)]
    plain = np.array([(20 + 10 * (at % 2)) * MS for at in range(80)])
    slow = plain + np.array([60 * MS * (at // 10 % 2) for at in range(80)])
    assert fast_of_its_kind(kinds, slow).tolist() == plain.tolist()


def test_a_late_rank_on_another_host_goes_before_a_slow_link() -> None:
    plan = Plan(2, 80, transfer=20 * MS, late=only(0, "data", 9 * MS))
    loads = {0: sent("1", "2", 300, 3000), 1: sent("2", "1", 100, 4000)}
    assert [one.cause for one in blame(plan, loads, ("a", "b")).suspects] == ["data"]
    assert [one.cause for one in blame(plan, loads, ("b", "a")).suspects] == ["data"]
    same = blame(replace(plan, late=only(1, "data", 9 * MS)), loads, ("a", "b")).suspects
    assert [one.cause for one in same] == ["slow link"], "9 ms is less than a third of the 30"


def test_clocks_that_contradict_who_waited_for_whom_name_nobody() -> None:
    tables, matches = played(Plan(2, 80, late=only(1, "forward", 8 * MS)))
    trail = tables[1].trail
    apart = replace(tables[1], trail=replace(trail, at_ns=trail.at_ns + 12 * MS))
    found = blame_of(ComparedRanks([tables[0], apart], matches))
    assert (found.rows, found.suspects) == ((), ())
    assert [finding.code for finding in told(found)] == ["replay-off"]


def test_a_late_rank_is_told_in_one_finding_with_rank_phase_and_cost() -> None:
    (finding,) = told(blame(Plan(2, 80, late=only(1, "forward", 8 * MS))))
    assert (finding.code, finding.severity, finding.where) == ("late-rank", "warning", "rank 1")
    assert finding.message.startswith(
        "Rank 1 makes the others wait: its forward phase costs every rank 8.00 ms of a step"
    )


def test_the_share_of_a_late_rank_names_the_typical_step_that_it_is_of() -> None:
    found = blame(Plan(2, 80, late=only(1, "forward", 8 * MS)))
    (one,), (finding,) = found.suspects, told(found)
    base = duration(one.cost_ns / one.cost_ratio)
    assert f"({percent(one.cost_ratio)} of the typical step of {base}; 95 %" in finding.message


@pytest.mark.parametrize(("cpu_ms", "queued_ms", "is_counted"), [(2, 6, False), (12, 400, True)])
def test_no_rank_waits_for_a_processor_while_it_runs_and_a_count_beyond_that_is_told(
    cpu_ms: int, queued_ms: int, is_counted: bool
) -> None:
    plan = Plan(2, 80, late=nobody)
    found = blame(plan, {who: watched(plan, who, cpu_ms * MS, queued_ms * MS) for who in (0, 1)})
    assert found.crowding is not None
    step_ns = found.crowding.step_ns
    assert found.crowding.queued_ns == pytest.approx(min(queued_ms * MS, step_ns - cpu_ms * MS))
    assert found.crowding.counted_ns == queued_ms * MS
    (finding,) = told(found)
    assert (finding.code, "400 ms" in finding.message) == ("processors-crowded", is_counted)
    assert f"of {duration(step_ns)}" in finding.message and "as compute and communication" in finding.message


@pytest.mark.parametrize(("idle_ms", "told_ms"), [(1, None), (5, 5), (50, 6), (None, None)])
def test_on_a_device_waiting_for_a_processor_counts_as_far_as_the_device_is_idle(
    idle_ms: int | None, told_ms: int | None
) -> None:
    plan = Plan(2, 80, late=nobody)
    loads = {who: watched(plan, who, 2 * MS, 6 * MS) for who in (0, 1)}
    tables, matches = played(plan)
    idle = None if idle_ms is None else idle_ms * MS
    on_device = [
        replace(
            table,
            load=loads[table.row.rank],
            trail=replace(table.trail, on_device=True),
            rows={**table.rows, "steps": tuple(replace(row, idle_ns=idle) for row in table.steps)},
        )
        for table in tables
    ]
    found = blame_of(ComparedRanks(on_device, matches))
    if told_ms is None:
        assert found.crowding is None
    else:
        assert found.crowding is not None and found.crowding.queued_ns == pytest.approx(told_ms * MS)
        assert "devices are idle" in told(found)[0].message


def test_the_interval_of_a_mean_holds_it_in_nineteen_of_twenty_samples() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        one = average(rng.normal(1e6, 4e5, 100).astype(np.int64))
        held += one.low <= 1e6 <= one.high
    assert 0.92 <= held / 400 <= 0.98


def test_of_phases_of_which_none_is_sure_one_stall_does_not_name_another_than_all_steps_do() -> None:
    # rank 1 takes 30 to 130 ms longer outside of its phases; in three steps its backward stands still for a second
    chance, count, all_of = np.random.default_rng(3), 30, len(LOCAL_PHASES)
    excess = np.zeros((1, all_of + 1, count), np.int64)
    excess[0, LOCAL_PHASES.index("other")] = chance.integers(-60 * MS, 160 * MS, count)
    excess[0, LOCAL_PHASES.index("backward"), [4, 5, 6]] = 1000 * MS
    excess[0, all_of] = excess[0].sum(axis=0)
    costs = Costs(np.arange(count), np.full(count, 300 * MS), (1,), excess, excess)
    held = [Held(400.0 * MS, None, None, None), Held(500.0 * MS, None, None, None)]
    own = np.full((all_of, 2), 100 * MS)
    mean = excess.mean(axis=2)[0]
    assert mean[LOCAL_PHASES.index("backward")] > mean[LOCAL_PHASES.index("other")]
    assert [one.phase for one in costs_of_suspects(costs, own, lambda steps: held)] == ["other"]


ASLEEP = "it sleeps or is blocked for these 20.0 ms, and uses the processor for no longer than the others"


def test_time_that_nobody_feels_is_not_told_as_none() -> None:
    late = Lateness(1, "forward", 20.0 * MS, 20.0 * MS, np.full((len(LOCAL_PHASES), 2), 100 * MS))
    for cpu_ns, said in ((10_000.0, ASLEEP), (-3.0 * MS, ASLEEP),
                         (200_000.0, "of these 20.0 ms it uses the processor for 200 µs; the rest it sleeps or is"
                          " blocked")):  # fmt: skip
        held = [Held(0.0, None, None, 0.0), Held(0.0, None, None, cpu_ns)]
        assert cause_of(late, held).evidence.endswith(f"; {said}")


def test_what_a_late_rank_queues_is_not_called_sleep_and_all_phases_are_named_where_they_are_meant() -> None:
    late = Lateness(1, "forward", 20.0 * MS, 30.0 * MS, np.full((len(LOCAL_PHASES), 2), 100 * MS))
    held = [Held(0.0, None, 1.0 * MS, 10.0 * MS), Held(0.0, None, 9.0 * MS, 14.0 * MS)]
    said = cause_of(late, held).evidence
    assert "the 30.0 ms of all its phases" in said
    assert "4.00 ms and waits for a processor for 8.00 ms; the rest" in said


@pytest.mark.parametrize(
    ("queued_ms", "cpu_ms", "cause"),
    [
        ((300, 760), (438, 894), "backward"),  # a batch 2.5 times as large on a crowded machine
        ((200, 700), (438, 894), "backward"),  # it queues more for its work than the others, but not mainly
        ((300, 800), (438, 438), "processor contention"),
        ((300, 800), (438, 480), "processor contention"),
        ((0, 500), (438, 300), "processor contention"),
        ((0, 500), (0, 40), "processor contention"),
    ],
)
def test_more_work_that_queues_longer_on_a_crowded_machine_is_no_contention(
    queued_ms: tuple[int, int], cpu_ms: tuple[int, int], cause: str
) -> None:
    late = Lateness(1, "backward", 900.0 * MS, 900.0 * MS, np.full((len(LOCAL_PHASES), 2), 100 * MS))
    held = [Held(0.0, None, float(q * MS), float(c * MS)) for q, c in zip(queued_ms, cpu_ms, strict=True)]
    assert cause_of(late, held).name == cause
