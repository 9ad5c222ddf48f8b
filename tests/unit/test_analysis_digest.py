"""Long tables in short: what is taken together is alike, and nothing is lost or counted twice on the way."""

from __future__ import annotations

import dataclasses

import pytest
from made_device import KERNELS, make_device_result, without_steps

from ddptrace.analysis.collectives.digest import SIZES_APART_MAX, collectives
from ddptrace.analysis.device.digest import device_parts, device_total, launches, scopes, streams
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import measured_steps, summarize
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.device import Population
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.load.tables import Identity
from ddptrace.schema import Evidence
from tests.made import empty_result, make_result


def call(seq: int, nbytes: int = 4000, comm_ns: int | None = 100, **more: object) -> CollectiveRow:
    """A collective of step 1 on rank 0; all but a tenth of it is exposed."""
    known = comm_ns is not None
    hidden = comm_ns // 10 if comm_ns is not None else None
    row = CollectiveRow(
        0, 1, seq, 0, "all_reduce", "g", seq, nbytes, "float32", 0, 0 if known else None, comm_ns, None, None, None,
        comm_ns, hidden, comm_ns - hidden if comm_ns is not None and hidden is not None else None,
        comm_ns - hidden if comm_ns is not None and hidden is not None else None,
        Evidence.DEVICE if known else None, None, 2,
    )  # fmt: skip
    return dataclasses.replace(row, **more)  # type: ignore[arg-type]


def run_of(*rows: CollectiveRow, steps: bool = True) -> Result:
    """One step, ordinal 1, of rank 0, or none."""
    result = make_result(1, 2, 1)
    kept = [row for row in result.steps if row.step == 1] if steps else []
    return dataclasses.replace(result, steps=Table(StepRow, kept), collectives=Table(CollectiveRow, rows))


def test_exposed_time_of_all_kinds_adds_up_to_that_of_the_typical_step() -> None:
    result = make_result(3, 6, 5)
    found = collectives(result)
    exposed = next(part.ns for part in summarize(result).parts if part.name == "exposed_comm")
    assert sum(kind.exposed_ns or 0 for kind in found.kinds) == pytest.approx(exposed, abs=len(found.kinds))
    assert (found.per, found.count) == ("step", len(measured_steps(result.steps)[0]))


def test_a_call_that_ran_in_two_steps_counts_once_with_all_of_its_time() -> None:
    parts = [call(1, comm_ns=60), call(1, comm_ns=40, part=1)]
    [kind] = collectives(run_of(*parts, call(2, comm_ns=300))).kinds
    assert (kind.calls, kind.mean_ns) == (2, 200)


def test_bandwidth_is_all_bytes_over_all_time() -> None:
    # GIVEN 4000 bytes at 1 GB/s, and again at 4 GB/s: 8000 bytes in 4 + 1 microseconds
    rows = [call(1, algbw_bytes_per_s=1e9, busbw_bytes_per_s=1e9), call(2, algbw_bytes_per_s=4e9)]
    [kind] = collectives(run_of(*rows, call(3))).kinds
    assert kind.algbw_bytes_per_s == pytest.approx(1.6e9)
    assert kind.busbw_bytes_per_s == pytest.approx(1e9)


def test_what_was_not_measured_is_none_and_not_nothing() -> None:
    [kind] = collectives(run_of(call(1, comm_ns=None), call(2, comm_ns=None))).kinds
    assert (kind.mean_ns, kind.exposed_ns, kind.hidden_ratio, kind.busbw_bytes_per_s) == (None,) * 4
    assert (kind.calls, kind.evidence) == (2, None)


def test_a_kind_rests_on_the_weakest_of_its_calls() -> None:
    rows = [call(1, identity=Identity.ANNOTATION), call(2, identity=Identity.NAME, evidence=Evidence.HOST), call(3)]
    [kind] = collectives(run_of(*rows)).kinds
    assert (kind.identity, kind.evidence) == (Identity.NAME, Evidence.HOST)


def test_the_most_exposed_kind_comes_first_and_groups_are_kept_apart() -> None:
    rows = [call(1, comm_ns=10), call(2, comm_ns=1000, group="h"), call(3, comm_ns=100, op="broadcast")]
    assert [(kind.op, kind.group) for kind in collectives(run_of(*rows)).kinds] == [
        ("all_reduce", "h"), ("broadcast", "g"), ("all_reduce", "g"),
    ]  # fmt: skip


def test_sizes_that_read_the_same_are_one_kind() -> None:
    [kind] = collectives(run_of(call(1, 4_718_592), call(2, 4_720_640))).kinds
    assert (kind.nbytes_min, kind.nbytes_max) == (4_718_592, 4_720_640)


def test_many_sizes_are_taken_together_by_their_number_of_digits() -> None:
    few = [call(k, 1000 + 100 * k) for k in range(SIZES_APART_MAX)]
    assert len(collectives(run_of(*few)).kinds) == SIZES_APART_MAX
    found = collectives(run_of(*few, call(90, 9_000), call(91, 70_000))).kinds
    assert sorted((kind.nbytes_min, kind.nbytes_max, kind.calls) for kind in found) == [
        (1000, 9000, SIZES_APART_MAX + 1), (70_000, 70_000, 1),
    ]  # fmt: skip


def test_without_steps_all_collectives_are_told_per_rank() -> None:
    rows = [call(k, step=None, rank=k % 2, comm_ns=10 + k) for k in range(6)]
    found = collectives(run_of(*rows, steps=False))
    assert (found.per, found.count, found.kinds[0].calls) == ("rank", 2, 3)


def test_a_run_without_collectives_has_no_kind() -> None:
    assert collectives(empty_result()).kinds == ()


def test_the_parts_of_a_devices_time_are_a_partition_of_its_span() -> None:
    for row in make_device_result(2, 3).ranks:
        assert row.all is not None
        parts = device_parts(row.all)
        assert sum(part.ns for part in parts) == row.all.span_ns
        assert {part.name: part.ns for part in parts}["exposed_comm"] == row.all.exposed_ns == 3 * 2100
        # AND copies beside nothing else: 500 ns a step
        assert {part.name: part.ns for part in parts}["exposed_memory"] == 3 * 500


def test_copies_count_where_nothing_else_ran() -> None:
    known = Population(span_ns=100, idle_ns=20, compute_ns=50, comm_ns=30, memory_ns=40, hidden_ns=10, exposed_ns=20,
                       overlap_ratio=1 / 3)  # fmt: skip
    assert [(part.ns, part.ratio) for part in device_parts(known)] == [(50, 0.5), (20, 0.2), (10, 0.1), (20, 0.2)]


def test_devices_together_are_the_sum_of_the_ranks() -> None:
    result = make_device_result(3, 2)
    one, total = result.ranks[0].all, device_total(result)
    assert one is not None and total is not None
    assert dataclasses.asdict(total) | {"overlap_ratio": None} == {
        name: None if name == "overlap_ratio" else 3 * value for name, value in dataclasses.asdict(one).items()
    }
    assert total.overlap_ratio == pytest.approx(0.3)
    assert device_total(make_result()) is None


def test_a_device_that_did_nothing_for_no_time_has_no_shares() -> None:
    assert [part.ratio for part in device_parts(Population(0, 0, 0, 0, 0, 0, 0, None))] == [0, 0, 0, 0]


def test_streams_are_told_of_the_typical_step_and_else_of_the_whole_windows() -> None:
    result = make_device_result(2, 4)
    [compute, comm, *_] = sorted((one for one in streams(result) if one.rank == 0), key=lambda one: one.comm_ns)
    assert (compute.busy_ns, compute.compute_ns, compute.memory_ns, comm.comm_ns) == (3200, 2700, 500, 3000)
    walls = [row.window_ns for row in measured_steps(result.steps)[0] if row.rank == 0]
    assert (compute.steps, compute.window_ns) == (len(walls), round(sum(walls) / len(walls)))
    whole = streams(without_steps(result))
    assert result.ranks[0].all is not None
    assert next((one.steps, one.window_ns, one.comm_ns) for one in whole if one.comm_ns) == (
        0, result.ranks[0].all.span_ns, 4 * 3000,
    )  # fmt: skip


def test_a_stream_that_worked_in_every_second_step_is_half_as_busy() -> None:
    result = make_device_result(1, 8)
    typical = sorted(row.step for row in measured_steps(result.steps)[0])
    gone = set(typical[: len(typical) // 2])
    rows = [row for row in result.streams if not (row.stream == "0:20" and row.step in gone)]
    found = streams(dataclasses.replace(result, streams=Table(type(rows[0]), rows)))
    share = 1 - len(gone) / len(typical)
    assert {one.stream: one.busy_ns for one in found} == {"0:7": 3200, "0:20": round(3000 * share)}


def test_launches_are_told_by_rank_with_the_steps_that_waited_for_the_host() -> None:
    calm, bound = launches(make_device_result(2, 4))
    assert (calm.bound_steps, bound.bound_steps, bound.steps) == (0, 4, 4)
    assert (calm.launched, calm.late_ratio, calm.delay_p50_ns, calm.delay_p90_ns) == (5, 0.4, 200, 500)
    assert (calm.delay_max_ns, calm.host_idle_ns, calm.idle_ns, calm.window_ns) == (503, 3000, 4000, 10_000)


def test_scopes_are_means_over_the_ranks_with_their_share_of_all_device_time() -> None:
    names = (*KERNELS, "Linear_0", "## forward ##", "aten::linear")
    found = scopes(make_device_result(2, 3, names))
    assert list(found) == ["module", "annotation", "operator"]
    [linear] = found["module"]
    assert (linear.name, linear.events, linear.device_ns) == ("Linear", 15, 8100 + 9000 + 1500)
    # BY HAND: three steps of 500 + 3 x 900 + 3000 ns
    assert linear.ratio == pytest.approx((8100 + 9000 + 1500) / (3 * 6200))
    assert scopes(make_result()) == {}
