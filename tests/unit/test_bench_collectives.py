"""The parts of `bench collectives` that need no ranks: sizes, repeats, memory, fits, traced rows, sentences."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ddptrace.analysis.collectives.transfers import line
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.bench.experiment import Repeats
from ddptrace.bench.experiments.collectives import EXPERIMENT, Options, by_size
from ddptrace.bench.experiments.collectives_ops import (
    BATCH_MAX,
    CELL_BUDGET_NS,
    OPS,
    batch,
    divisible,
    host_available,
    parse_sizes,
    repeats_for,
    shortage,
)
from ddptrace.bench.experiments.collectives_sheet import (
    CALLED,
    Fit,
    busbw,
    fit,
    fit_words,
    op_words,
    short_words,
    traced_words,
)
from ddptrace.cli.bench import OPS as OFFERED
from ddptrace.errors import DdptraceError
from ddptrace.schema import Evidence

SIZES = (4_000, 64_000, 1_000_000, 16_000_000)


def made(start_ns: float, rate: float, noise: float = 0.0, sizes: tuple[int, ...] = SIZES) -> Fit | None:
    chance = random.Random(1)
    return fit(
        {
            size: [(start_ns + size / rate * 1e9) * (1 + noise * chance.uniform(-1, 1)) for _ in range(7)]
            for size in sizes
        }
    )


def fitted(start_ns: float, rate: float, noise: float = 0.0) -> Fit:
    found = made(start_ns, rate, noise)
    assert found is not None
    return found


def test_every_list_of_the_collectives_names_the_same() -> None:
    assert set(OPS) == set(CALLED) == set(OFFERED.split(",")) and len(OPS) == 9


def test_sizes_are_decimal_ascending_and_each_once() -> None:
    asked = ("1GB", "4kB", "1.5 mb", "16", "64KB", "1000MB", "100b")
    assert parse_sizes(asked) == (100, 4_000, 64_000, 1_500_000, 16_000_000, 1_000_000_000)


@pytest.mark.parametrize("asked", ["x", "4TiB", "-1MB", "0MB", "1e9", ""])
def test_what_is_no_size_is_one_sentence(asked: str) -> None:
    with pytest.raises(DdptraceError, match="is not a size; give bytes as in 4kB"):
        Options(sizes=("1MB", asked))


def test_an_unknown_collective_and_a_single_rank_are_one_sentence_each() -> None:
    with pytest.raises(DdptraceError, match="no collective is called 'allreduce'; choose from: all_reduce"):
        Options(ops=("allreduce",))
    with pytest.raises(DdptraceError, match="at least 2 ranks"):
        Options(ranks=(2, 1))


def test_a_measured_size_can_be_shared_out_among_the_ranks() -> None:
    assert [divisible(1_000_000, ranks) for ranks in (2, 3, 6)] == [1_000_000, 999_996, 999_984]
    assert divisible(1, 6) == 24


def test_small_calls_are_timed_in_batches_and_large_ones_alone() -> None:
    assert (batch(100), batch(500_000), batch(700_000), batch(10**9)) == (BATCH_MAX, 4, 3, 1)


def test_repeats_are_as_asked_until_the_budget_is_spent_and_never_fewer_than_three_rounds() -> None:
    asked = Repeats(7, 4, 2)
    planned = [repeats_for(ms * 1_000_000, asked) for ms in (1, 95, 96, 300, 700, 5_000)]
    assert planned[:2] == [asked, asked]
    assert planned[-1] == Repeats(3, 1, 0)
    assert repeats_for(10**10, Repeats(2, 4, 2)) == Repeats(2, 1, 0), "no more than asked"
    spent = [
        ms * 1_000_000 * one.rounds * (one.steps + one.warmup)
        for ms, one in zip((1, 95, 96, 300, 700), planned, strict=False)
    ]
    assert all(ns <= CELL_BUDGET_NS for ns in spent)
    counts = [one.rounds * one.steps for one in planned]
    assert counts == sorted(counts, reverse=True)


def test_the_ranks_of_a_host_share_its_memory_and_those_of_another_do_not() -> None:
    free = 1_000
    assert shortage(100, [("a", free, 4.0), ("a", free, 4.0)]) is None
    assert shortage(101, [("a", free, 4.0), ("a", free - 1, 4.0)]) == (808, 999)
    assert shortage(101, [("a", free, 4.0), ("b", free, 4.0)]) is None
    assert shortage(10**15, [("a", None, 4.0)]) is None, "nobody knows, so nothing is refused"


def test_what_a_rank_needs_is_what_it_holds_and_what_the_backend_copies() -> None:
    assert OPS["all_to_all"].need_ratio(1, 4) == pytest.approx(2.1)
    assert OPS["all_gather"].need_ratio(3, 4) == pytest.approx(1 + 0.25 + 1.1)
    assert OPS["gather"].need_ratio(0, 4) == pytest.approx(1 + 0.25 + 1.1)
    assert OPS["gather"].need_ratio(1, 4) < 0.5


def test_a_control_group_can_leave_less_than_the_machine_has(tmp_path: Path) -> None:
    proc, group = tmp_path / "meminfo", tmp_path / "group"
    proc.write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    assert host_available(proc, group) == 8000 * 1024
    group.mkdir()
    for name, text in (
        ("memory.max", "3000000"),
        ("memory.current", "2500000"),
        ("memory.stat", "inactive_file 500000\n"),
    ):
        (group / name).write_text(text)
    assert host_available(proc, group) == 1_000_000
    (group / "memory.max").write_text("max\n")
    assert host_available(proc, group) == 8000 * 1024
    assert host_available(tmp_path / "none", group) is None


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
    ],
)
def test_busbw_is_bytes_per_second_times_the_factor_of_the_op_over_four_ranks(op: str, factor: float) -> None:
    assert busbw(op, 4, 2_000_000, 1e6) == pytest.approx(2e9 * factor)


def test_a_fit_finds_the_start_and_the_rate_that_made_the_times() -> None:
    found = fitted(90_000, 2e9)
    assert found.start_ns == pytest.approx(90_000) and found.rate == pytest.approx(2e9)
    assert found.half_nbytes == pytest.approx(180_000)
    assert found.worst_ratio < 1e-9 and found.start_is_seen


def test_a_fit_weighs_errors_by_their_share_so_that_large_messages_do_not_drown_small_ones() -> None:
    times = [92_000, 122_000, 590_000, 1.1 * 8_090_000]  # the largest is off by a tenth
    start, _ = line(SIZES, times)
    assert start == pytest.approx(90_000, rel=0.02)


def test_a_fit_says_how_far_it_is_off_and_its_interval_holds_the_truth() -> None:
    found = fitted(90_000, 2e9, noise=0.2)
    assert 0.001 < found.rms_ratio <= found.worst_ratio < 0.2
    assert found.start_low_ns < 90_000 < found.start_high_ns and found.start_low_ns < found.start_high_ns
    assert found.rate_low is not None and found.rate_high is not None and found.rate_low < 2e9 < found.rate_high


@pytest.mark.parametrize("sizes", [(1_000, 1_000_000), (1_000_000, 2_000_000, 4_000_000)])
def test_too_few_or_too_close_sizes_are_not_fitted(sizes: tuple[int, ...]) -> None:
    assert made(90_000, 2e9, sizes=sizes) is None
    assert fit({size: [1.0 + size, 2.0 + size] for size in SIZES}) is None, "two rounds have no interval"


def test_neither_start_nor_slope_is_ever_below_zero() -> None:
    assert line((1_000, 100_000), (5, 1_000)) == (0.0, pytest.approx((1000 / 5 + 100_000 / 1000) / (200**2 + 100**2)))
    start, slope = line((1_000, 100_000), (1_000, 500))
    assert slope == 0 and 500 < start < 1_000


def test_the_words_tell_start_rate_and_where_the_start_is_half() -> None:
    words = op_words("all_reduce", {2: fitted(90_000, 2e9), 4: fitted(300_000, 1e9)})
    assert words.startswith(
        "An all-reduce over 2 ranks starts in about 90.0 µs (90.0 µs to 90.0 µs) and then moves 2.00 GB/s"
    )
    assert "up to about 180 kB (180 kB to 180 kB) the start takes more than half" in words
    assert "; over 4 ranks starts in about 300 µs" in words


def test_the_words_claim_no_start_that_the_sizes_cannot_show() -> None:
    words = op_words("broadcast", {2: fitted(90, 2e9, noise=0.1)})
    assert "too short to measure" in words and "from 4.00 kB" in words and "starts in" not in words


@pytest.mark.parametrize(
    ("start_ns", "said"), [(1_000, "the start takes less than half"), (9e8, "the start takes more than half")]
)
def test_the_words_tell_no_half_beyond_the_sizes_that_were_measured(start_ns: float, said: str) -> None:
    words = op_words("reduce", {2: fitted(start_ns, 2e9)})
    assert f"at every measured size {said}" in words and "up to about" not in words


def test_the_words_claim_no_rate_where_time_does_not_grow_with_size() -> None:
    flat = fit({size: [1e6, 1.2e6, 0.8e6, 1.1e6, 0.9e6] for size in SIZES})
    assert flat is not None and flat.rate is None and flat.half_nbytes is None
    assert "has no rate" in op_words("gather", {2: flat})


def test_the_words_call_a_bad_fit_bad_and_a_missing_one_missing() -> None:
    bent = fit({size: [time] * 3 for size, time in zip(SIZES, (1e5, 5e6, 1e5, 5e7), strict=True)})
    assert "does not follow one start and one rate" in op_words("scatter", {2: bent})
    assert "over 4 ranks has too few measurements" in op_words("scatter", {2: fitted(9e4, 2e9), 4: None})


def test_ops_that_are_not_fitted_are_named_in_one_sentence() -> None:
    told = fit_words({"scatter": {2: None}, "reduce": {2: fitted(9e4, 2e9)}, "gather": {2: None, 4: None}})
    assert len(told) == 2 and told[0].startswith("A reduce over 2 ranks starts")
    assert told[1].startswith(
        "Start and rate are not fitted for scatter, gather: a fit needs 3 sizes or more, 16 times"
    )
    assert fit_words({"reduce": {2: fitted(9e4, 2e9)}}) == told[:1]


def test_cells_that_had_time_for_few_rounds_only_are_counted() -> None:
    (words,) = short_words([7, 3, 3, 7, 6])
    assert words.startswith("2 of 5 cells had time for fewer than 6 rounds: ")
    assert short_words([7, 6]) == short_words([3, 3]) == [], "all are alike: the head of the column tells"


def test_the_words_on_traces_tell_the_middle_and_the_ends() -> None:
    (words,) = traced_words([(50, 100.0), (None, 1.0), (90, 100.0), (120, 100.0)], ["backend"])
    assert "0.90 times" in words and "3 cells (0.50 to 1.20)" in words and "evidence: backend" in words
    assert traced_words([(None, 1.0)], []) == ["No traced run shows when a collective itself ran."]


def row(
    rank: int, step: int | None, seq: int, op: str, ns: int, evidence: Evidence = Evidence.BACKEND
) -> CollectiveRow:
    return CollectiveRow(
        rank, step, seq, 0, op, "0", seq, 8, "float32", 0, 0, ns, ns, None, None, ns, 0, ns, ns, evidence, None
    )


def test_traced_times_are_the_slowest_ranks_by_place_in_the_step_and_the_median_over_steps() -> None:
    rows = [
        row(rank, step, 10 * step + at, "reduce", 100 * at + 10 * step + rank)
        for rank in (0, 1)
        for step in (1, 2, 3)
        for at in (2, 1)
    ]
    rows += [row(0, 1, 15, "barrier", 9_999), row(0, 4, 41, "reduce", 9_999), row(0, None, 51, "reduce", 9_999)]
    rows += [row(0, 5, 60 + at, "reduce", 9_999, Evidence.HOST) for at in (1, 2)]
    assert by_size(rows, ("reduce",), (4_000, 8_000)) == {4_000: (121, "backend"), 8_000: (221, "backend")}


def test_the_sheet_divides_batches_by_their_calls_and_says_what_was_skipped() -> None:
    def job(ranks: int) -> dict[str, object]:
        cells = [
            {
                "op": "all_reduce",
                "nbytes": size,
                "calls": 4,
                "times_ns": [[4 * size, 4 * size]] * 3,
                "exec_ns": size // 2,
                "evidence": "backend",
            }
            for size in SIZES
        ]
        return {
            "setup": {"ranks": str(ranks), "backend": "gloo"},
            "ranks": ranks,
            "cells": cells,
            "skipped": [f"No {ranks}."],
        }

    sheet = EXPERIMENT.sheet(Options(), [job(2), job(4)])
    assert sheet.setup == (("ranks", "2; 4"), ("backend", "gloo")) and sheet.words[-2:] == ("No 2.", "No 4.")
    first = dict(zip(sheet.grids[0].heads, sheet.grids[0].rows[6], strict=True))
    assert (first["workers"], first["time"], first["algbw"], first["busbw"]) == (
        "4",
        "1.00 ms",
        "1.00 GB/s",
        "1.50 GB/s",
    )
    assert "range of the rounds" in first and not any("95 %" in head for head in sheet.grids[0].heads)
    assert (first["exec by trace"], first["timed"]) == ("500 µs", "6 × 4")
    chart = sheet.charts[0]
    assert [line.name for line in chart.lines] == ["all_reduce, 2", "all_reduce, 4"] and chart.log_x and chart.log_y
    assert chart.lines[1].y == pytest.approx([1_500] * 4) and chart.lines[1].x == pytest.approx(
        [s / 1e6 for s in SIZES]
    )
