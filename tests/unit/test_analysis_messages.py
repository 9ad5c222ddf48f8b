"""Who sends what to whom, from hand-made records: pairs of ranks, roots, and two ends that disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from analysis_records import call, rank, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.findings.traffic import message_findings
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.traffic.digest import traffic_report
from ddptrace.analysis.traffic.peers import MessageDigest, RootDigest
from ddptrace.findings import RECORDS_LET_GO, Finding, without_silenced
from ddptrace.load.records.calls import CallOrigins
from ddptrace.load.tables import Call, Group

STEPS = [step(0, 0, 100), step(1, 100, 200), step(2, 200, 300)]
WORLD = Group("0", (0, 1, 2, 3), "gloo", 2)


def send(launch: int, nbytes: int, peer: int | None) -> Call:
    return call(launch, launch, op="send", nbytes_in=nbytes, nbytes_out=0, origin="program", peer=peer)


def recv(launch: int, nbytes: int, peer: int | None, op: str = "recv") -> Call:
    return call(launch, launch, op=op, nbytes_in=0, nbytes_out=nbytes, origin="program", peer=peer)


def result_of(*calls: Sequence[Call], group: Group = WORLD) -> Result:
    """Each argument: the calls of one rank."""
    ranks = [rank(number, steps=STEPS, calls=mine, groups=[group]) for number, mine in enumerate(calls)]
    return analyze_run(run(*ranks, world_size=len(ranks)))


def told(result: Result) -> list[Finding]:
    return [finding for finding in result.findings if finding.code == "messages-differ"]


def test_a_message_counts_once_and_where_only_its_receiver_was_recorded_too() -> None:
    sends = [send(10, 999, 1), send(110, 300, 1), send(120, 100, 1), send(210, 400, 2)]
    result = result_of(sends, [recv(15, 999, 0), recv(130, 300, 0), recv(140, 100, 0), recv(150, 60, 3)])
    assert traffic_report(result).messages == (
        MessageDigest(0, 1, 1, 200, 200, 200),  # two messages in two steps that count
        MessageDigest(0, 2, 0.5, 200, 200, None),
        MessageDigest(3, 1, 0.5, 30, None, 30),
    )


def test_each_end_is_a_mean_over_its_own_steps() -> None:
    result = analyze_run(run(
        rank(0, steps=STEPS, calls=[send(110, 300, 1), send(210, 300, 1)], groups=[WORLD]),
        rank(1, steps=STEPS[:2], calls=[recv(110, 300, 0), recv(120, 300, 0)], groups=[WORLD]),
    ))  # fmt: skip
    assert traffic_report(result).messages == (MessageDigest(0, 1, 1, 300, 300, 600),)
    assert not told(result)  # over the whole run the two agree


def test_rows_are_by_peer_and_kinds_are_not() -> None:
    sends = [send(110, 300, 1), send(120, 100, 2), send(130, 100, 2), send(210, 500, 3)]
    result = result_of(sends, [])
    assert [(row.step, row.peer, row.calls, row.nbytes_in, row.sent_nbytes) for row in result.traffic] == [
        (1, 1, 1, 300, 300),
        (1, 2, 2, 200, 200),
        (2, 3, 1, 500, 500),
    ]
    (kind,) = traffic_report(result).kinds
    assert (kind.calls, kind.nbytes_in, kind.nbytes_min, kind.nbytes_max) == (2, 500, 500, 500)
    without = traffic_report(result_of([replace(one, peer=None) for one in sends], []))
    assert without.kinds == (kind,)


def test_an_older_run_has_no_pairs_and_no_roots_and_says_so() -> None:
    calls = [send(110, 300, None), call(120, 120, op="broadcast", nbytes_in=400, nbytes_out=0)]
    report = traffic_report(result_of(calls, [recv(110, 300, None)], [], []))
    assert report.messages == report.roots == ()
    (link,) = report.links
    assert (link.peers_unknown, link.message_nbytes, link.rooted_nbytes) == (True, 150, 150)  # of one call in two steps


@pytest.mark.parametrize(("ranks", "unknown"), [(4, False), (3, True)])
def test_what_comes_from_any_source_is_known_where_all_senders_are(ranks: int, unknown: bool) -> None:
    calls: list[list[Call]] = [[send(110, 300, 1)], [recv(110, 300, None, "recv_any_source")], [], []]
    idle = [call(150, 150, op="barrier", nbytes_in=0, nbytes_out=0)]
    result = result_of(*[[*mine, *idle] for mine in calls[:ranks]])
    report = traffic_report(result)
    assert report.messages == (MessageDigest(0, 1, 0.5, 150, 150, None),)
    assert report.links[0].peers_unknown is unknown
    assert not told(result)


@pytest.mark.parametrize(
    ("op", "nbytes_in", "nbytes_out", "sent"),
    [
        ("broadcast", 8000, 0, 24000),  # to three others
        ("reduce", 8000, 0, 24000),
        ("gather", 2000, 0, 6000),  # three others hand over their part
        ("scatter", 0, 2000, 6000),
    ],
)
def test_an_op_with_a_root_is_told_by_root(op: str, nbytes_in: int, nbytes_out: int, sent: int) -> None:
    """Rank 2 is the root, and rank 3 left no records."""
    plain = call(110, 110, op=op, nbytes_in=nbytes_in, nbytes_out=nbytes_out, origin="program", peer=2)
    at_root = {"gather": {"nbytes_out": 8000}, "scatter": {"nbytes_in": 8000}}.get(op, {})
    calls = [replace(plain, **at_root) if number == 2 else plain for number in range(3)]
    report = traffic_report(result_of(*[[one, replace(one, seq=2, launch_at_ns=210)] for one in calls]))
    assert report.roots == (RootDigest(op, "0", 2, 3, 1, sent),)


@pytest.mark.parametrize(
    ("op", "root", "there", "back"),
    [("broadcast", 1, 0, 1000), ("scatter", 1, 0, 500), ("reduce", 1, 1000, 0), ("gather", 0, 0, 500)],
)
def test_between_two_ranks_an_op_with_a_root_goes_one_way(op: str, root: int, there: int, back: int) -> None:
    one = call(110, 110, op=op, nbytes_in=1000, nbytes_out=0, origin="program", peer=root)
    if op == "scatter":
        one = replace(one, nbytes_in=0, nbytes_out=500)
    if op == "gather":
        one = replace(one, nbytes_in=500, nbytes_out=0)
    calls = [one, replace(one, seq=2, launch_at_ns=210)]
    pair = Group("0", (0, 1), "gloo", 2)
    (link,) = traffic_report(result_of(calls, calls, group=pair)).links
    assert (link.there_nbytes, link.back_nbytes, link.rooted_nbytes) == (there, back, 0)
    (alone,) = traffic_report(result_of(calls, group=pair)).links  # the other rank left no records
    assert (alone.there_nbytes, alone.back_nbytes) == (there, None)


def test_a_message_taken_into_a_larger_tensor_is_a_warning() -> None:
    result = result_of([send(110, 40, 1)], [recv(120, 80, 0)])
    (finding,) = told(result)
    assert finding.severity == "warning"
    assert "rank 0 → rank 1, 1 sent (40 bytes), 1 received (80 bytes)" in finding.message
    assert traffic_report(result).findings[-1] == finding


def test_messages_that_one_end_did_not_record_are_counted_over_the_whole_run() -> None:
    (finding,) = told(result_of([send(10, 40, 1), send(110, 40, 1)], [recv(120, 40, 0)]))
    assert (finding.severity, finding.where) == ("info", "run")
    assert "rank 0 → rank 1, 2 sent (80 bytes), 1 received (40 bytes)" in finding.message
    sent_once = [send(10, 40, 1), send(110, 40, 1)], [recv(120, 40, 0), recv(400, 40, 0)]  # the last after all steps
    assert not told(result_of(*sent_once))


def test_a_rank_that_recorded_nothing_of_it_is_told_and_one_that_is_not_there_is_not() -> None:
    sends = [send(110, 40, number) for number in (1, 2, 3)]
    (finding,) = told(result_of(sends, []))
    assert "rank 0 → rank 1, 1 sent (40 bytes), 0 received (0 bytes)." in finding.message


def test_where_some_peer_is_not_known_the_two_ends_are_not_compared() -> None:
    sends, receives = [send(110, 40, 1), send(120, 40, 1)], [recv(120, 40, 0)]
    assert told(result_of(sends, receives))
    assert not told(result_of([*sends, send(130, 8, None)], receives))
    assert not told(result_of(sends, [*receives, recv(130, 40, None, "recv_any_source")]))


def test_where_records_are_missing_the_two_ends_are_not_compared() -> None:
    result = result_of([send(110, 40, 1)], [])
    (differ,) = message_findings(result)
    assert differ in without_silenced(result.findings)
    assert differ not in without_silenced([*result.findings, RECORDS_LET_GO("rank 1", "")])


def test_where_a_collective_failed_the_two_ends_are_not_compared() -> None:
    """Rank 1 failed before it came to receive."""
    failed = call(100, 100, op="barrier", done_at_ns=140, error="Connection closed by peer.")
    ended = [failed, recv(105, 40, 0)]
    sends = [send(110, 40, 1), send(120, 40, 1)]
    assert told(result_of(sends, [replace(failed, error=None), *ended[1:]]))
    assert not told(result_of(sends, ended))


def test_where_a_part_of_ddptrace_failed_the_counts_are_told_to_lack_something() -> None:
    result = result_of([send(110, 40, 1)], [recv(120, 40, 0)])
    failed = Finding("tap-failed", "warning", "rank 0", "")
    report = traffic_report(replace(result, findings=Table(Finding, [failed])))
    assert report.findings == (failed,)


def test_of_many_pairs_some_are_named_and_the_rest_counted() -> None:
    (finding,) = told(result_of([send(110, 40, 1), send(111, 40, 2), send(112, 40, 3)],
                                [send(110, 40, 2), send(120, 40, 0)], [], []))  # fmt: skip
    assert finding.message.count("→") == 3
    assert "; and 2 more pairs" in finding.message


def origin_record(peer: int) -> tuple[int, ...]:
    return (24, 0, 1, 0, 0, 0, 7, 0, 0, 0, peer, 0, 0)


@pytest.mark.parametrize(
    ("recorded", "group", "peer"),
    [(1, 5, 2), (2, 5, 6), (0, 5, None), (3, 5, None), (1, 9, None)],  # rank in the group + 1; 0: none, or an older run
)
def test_a_peer_is_told_by_its_global_rank(recorded: int, group: int, peer: int | None) -> None:
    texts = {0: "", 5: "pair", 9: "a group that nobody described"}
    sources = CallOrigins([origin_record(recorded)], texts.__getitem__, {"pair": (2, 6)})
    call_record = (3, 0, 0, 0, 0, 0, 7, 0, 0, group, 0, 0, 0)
    assert sources.of(call_record, "send", "float32").peer == peer
