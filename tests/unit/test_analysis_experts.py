"""What all-to-alls send to whom, and what an uneven one costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_exchange import exchanges

from ddptrace.analysis.experts.digest import layer_digests
from ddptrace.analysis.findings.parallelism import expert_findings
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.parallelism import ExchangeRow
from ddptrace.analysis.tables.table import Table
from ddptrace.load.foreign.identity import Groups, described
from ddptrace.load.kineto.args import split_sizes
from ddptrace.load.kineto.events import CollectiveArgs, FileFacts
from ddptrace.load.records.calls import splits_by_call
from ddptrace.load.tables import Identity
from ddptrace.schema import EVENT_DTYPE, Kind
from tests.made import MS, make_result


def uneven(wait: int, to_last: int = 300) -> Result:
    """A step in which rank 1 gets `to_last` of 400 bytes of each rank, and comes late to the next all-to-all."""
    rows = exchanges(0, [(400 - to_last, to_last)] * 2, [10, 10])
    rows += exchanges(1, [(400 - to_last,) * 2, (to_last,) * 2], [100, 100 + wait])
    return replace(make_result(2, 4, 1), exchanges=Table(ExchangeRow, rows))


def test_each_rank_gets_what_the_others_send() -> None:
    one, other = exchanges(0, [(1, 2), (3, 4)], [5, 9])
    assert (one.received_nbytes, other.received_nbytes) == ((1, 3), (2, 4))
    assert one.largest_rank == other.largest_rank == 1 and one.imbalance_ratio == 6 / 5
    assert (one.waited_ns, other.waited_ns) == (4, 0)


def test_an_imbalance_of_one_to_three_is_told_with_its_cost() -> None:
    result = uneven(8 * MS)
    (digest,) = layer_digests(result)
    assert (digest.imbalance_ratio, digest.largest_rank, digest.cost_ns) == (1.5, 1, 4 * MS)
    assert digest.received_nbytes == (200, 600)
    (finding,) = expert_findings(result, summarize(result))
    assert "gets 1.50 times the mean of 400 B, most often rank 1" in finding.message
    assert "4.00 ms of a step on average" in finding.message and "capacity factor" in finding.message


@pytest.mark.parametrize(("wait", "to_last"), [(8 * MS, 200), (1, 300)])
def test_nothing_is_advised_where_it_is_even_or_costs_nothing(wait: int, to_last: int) -> None:
    result = uneven(wait, to_last)
    assert list(expert_findings(result, summarize(result))) == []


def test_a_wait_for_another_rank_is_not_charged_to_the_imbalance() -> None:
    result = uneven(-8 * MS)
    assert layer_digests(result)[0].cost_ns == 0


def test_records_of_splits_are_put_together() -> None:
    slots = [(7, 0, 3, (10, 20), 0), (7, 0, 3, (30, 0), 2), (8, 1, 2, (5, 0), 0), (9, 0, 4, (1, 2), 0)]
    rows = []
    for seq, flags, ranks, (b, c), place in slots:
        row = dict.fromkeys(EVENT_DTYPE.names or (), 0)
        row |= {"kind": int(Kind.SPLIT), "flags": flags, "a": seq, "b": b, "c": c, "d": place, "e": ranks}
        rows.append(tuple(row.values()))
    assert splits_by_call(rows) == {7: (10, 20, 30), 8: (5, 5)}


@pytest.mark.parametrize(
    ("told", "sent"),
    [("[1, 3]", (100, 300)), ([1, 3], (100, 300)), ("[]", (200, 200)), ("[1, 3, ...]", None), (None, None)],
)
def test_a_foreign_trace_tells_the_splits(told: object, sent: tuple[int, ...] | None) -> None:
    arguments = CollectiveArgs(group="0", group_size=2, nelems_in=100, dtype="Float", splits=split_sizes(told))
    found = described("all_to_all_single", arguments, Groups(FileFacts(), alone=True), Identity.ARGUMENTS)
    assert found.sent_nbytes == sent
