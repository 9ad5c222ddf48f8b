"""Bytes per second of a collective, by the definitions of nccl-tests."""

from __future__ import annotations

import pytest
from analysis_records import call, hook, rank, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.load.tables import Call, Group, Identity
from ddptrace.ops import FACTORS

GB = 1_000_000_000


def row_of(one: Call, groups: tuple[Group, ...] = ()) -> CollectiveRow:
    return analyze_run(run(rank(calls=[one], groups=groups))).collectives[0]


def sized(op: str, nbytes_in: int, nbytes_out: int, size: int | None = 4) -> CollectiveRow:
    """It ran for a microsecond."""
    return row_of(call(1, 0, ran=(5, 1005), op=op, nbytes_in=nbytes_in, nbytes_out=nbytes_out, group_size=size))


@pytest.mark.parametrize(
    ("op", "nbytes_in", "nbytes_out", "algbw", "factor"),
    [
        ("all_reduce", 8000, 8000, 8 * GB, 2 * 3 / 4),
        ("all_gather_into_tensor", 2000, 8000, 8 * GB, 3 / 4),
        ("all_gather", 2000, 0, 8 * GB, 3 / 4),  # the whole is four times a rank's part
        ("reduce_scatter_tensor", 8000, 2000, 8 * GB, 3 / 4),
        ("reduce_scatter", 0, 2000, 8 * GB, 3 / 4),
        ("all_to_all_single", 8000, 8000, 8 * GB, 3 / 4),
        ("gather", 2000, 0, 8 * GB, 3 / 4),  # not the root: it sends a part
        ("scatter", 0, 2000, 8 * GB, 3 / 4),
        ("broadcast", 8000, 8000, 8 * GB, 1),
        ("reduce", 8000, 8000, 8 * GB, 1),
        ("send", 8000, 0, 8 * GB, 1),
        ("recv", 0, 8000, 8 * GB, 1),
    ],
)
def test_bus_bandwidth_is_algorithm_bandwidth_times_the_ops_factor(
    op: str, nbytes_in: int, nbytes_out: int, algbw: float, factor: float
) -> None:
    row = sized(op, nbytes_in, nbytes_out)
    assert row.algbw_bytes_per_s == pytest.approx(algbw)
    assert row.busbw_bytes_per_s == pytest.approx(algbw * factor)
    assert op in FACTORS


def test_what_is_not_known_has_no_bandwidth() -> None:
    for row in (
        sized("barrier", 0, 0),
        sized("all_reduce", 0, 0),
        sized("dispatch", 8000, 8000),
        row_of(call(1, 0, ran=(5, 5), group_size=4)),
        row_of(call(1, 0, group_size=4)),
    ):
        assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s) == (None, None)


def test_without_a_group_size_only_what_does_not_need_it_is_known() -> None:
    row = sized("all_reduce", 8000, 8000, size=None)
    assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s, row.group_size) == (8 * GB, None, None)
    part = sized("all_gather", 2000, 0, size=None)
    assert part.algbw_bytes_per_s is None


def test_the_group_size_is_the_calls_own_or_its_groups() -> None:
    groups = (Group("0", (0, 1, 2), "nccl", None), Group("unknown", (), "nccl", None))
    assert row_of(call(1, 0, ran=(5, 6)), groups).group_size == 3
    assert row_of(call(1, 0, ran=(5, 6), group_size=8), groups).group_size == 8
    assert row_of(call(1, 0, ran=(5, 6), group="unknown"), groups).group_size is None


def test_a_collective_across_two_steps_has_its_bandwidth_once_and_of_all_its_time() -> None:
    one = call(1, 0, ran=(5, 15), nbytes_in=100, nbytes_out=100)
    first, second = analyze_run(run(rank(steps=[step(0, 0, 10), step(1, 10, 20)], calls=[one]))).collectives
    assert (first.algbw_bytes_per_s, second.algbw_bytes_per_s) == (10 * GB, None)
    assert (first.busbw_bytes_per_s, second.busbw_bytes_per_s) == (10 * GB, None)
    assert (first.group_size, second.group_size) == (2, 2)


def test_a_row_tells_its_lane_and_what_tells_which_collective_it_was() -> None:
    row = row_of(call(1, 0, ran=(5, 6), identity=Identity.NAME))
    assert (row.lane, row.identity) == ("worker", Identity.NAME)
    hooked = analyze_run(run(rank(hooks=[hook(1, 0, 5, 9)]))).collectives[0]
    assert (hooked.lane, hooked.identity, hooked.algbw_bytes_per_s) == (None, Identity.RECORDED, None)
