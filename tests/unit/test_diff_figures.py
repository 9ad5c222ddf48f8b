"""What is compared of a run is what its own summary tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddptrace.analysis.diff.one_run import BLOCK_STEPS, MOST_BLOCKS, RunFigures, figures_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.table import Table
from ddptrace.schema import Evidence
from tests.made import empty_result, make_result

RUN = make_result(ranks=2, steps=40, buckets=5)


def figures(result: Result = RUN) -> RunFigures:
    found = figures_of(result, "run", {"torch": "2.13.0"})
    assert found is not None
    return found


def values(found: RunFigures) -> dict[tuple[object, ...], int]:
    return {
        (one.kind, one.name, one.bucket.index if one.bucket else one.rank): round(value)
        for one, value in zip(found.quantities, found.values, strict=True)
    }


def test_the_step_its_parts_and_phases_are_those_of_the_summary() -> None:
    summary, found = summarize(RUN), values(figures())
    assert found["step", "step", None] == summary.window_ns
    assert {share.name: found["part", share.name, None] for share in summary.parts} == {
        share.name: share.ns for share in summary.parts
    }
    assert [found["phase", share.name, None] for share in summary.phases] == [share.ns for share in summary.phases]
    assert found["total", "comm", None] == summary.comm_ns


def test_buckets_and_ranks_are_those_of_the_summary() -> None:
    summary, found = summarize(RUN), values(figures())
    for bucket in summary.buckets:
        assert found["bucket", "exposed", bucket.index] == bucket.exposed_charged_ns
        assert found["bucket", "comm", bucket.index] == bucket.comm_ns
    for rank in summary.ranks:
        assert found["rank", "compute", rank.rank] == rank.compute_ns
        assert found["rank", "exposed_comm", rank.rank] == rank.exposed_comm_ns


def test_blocks_hold_all_steady_steps_once_and_each_its_own_typical_ones() -> None:
    found = figures()
    assert found.blocks.shape == (39 // BLOCK_STEPS, len(found.quantities))
    parts = [at for at, one in enumerate(found.quantities) if one.kind == "part"]
    assert np.allclose(found.blocks[:, parts].sum(axis=1), found.blocks[:, 0])


def test_one_step_that_takes_long_is_in_no_block() -> None:
    rows = [
        replace(row, window_ns=row.window_ns + 10**10, wall_ns=row.wall_ns + 10**10, idle_ns=row.idle_ns + 10**10)
        if row.step == 20 else row
        for row in RUN.steps
    ]  # fmt: skip
    found = figures(replace(RUN, steps=Table(RUN.steps.row_type, rows)))
    assert found.blocks[:, 0].max() < 10**9


def test_a_few_steps_with_weaker_evidence_are_no_other_kind_of_measurement() -> None:
    weaker = [replace(row, evidence=Evidence.HOST) if row.step % 8 == 3 else row for row in RUN.steps]
    found = figures(replace(RUN, steps=Table(RUN.steps.row_type, weaker)))
    assert found.evidence == figures().evidence != Evidence.HOST


def test_buckets_are_in_the_order_of_their_launch() -> None:
    backwards = replace(RUN, buckets=Table(BucketRow, list(RUN.buckets)[::-1]))
    told = [one.bucket.index for one in figures(backwards).quantities if one.bucket and one.name == "comm"]
    assert told == [0, 1, 2, 3, 4]


def test_a_long_run_has_a_bounded_number_of_blocks_and_a_short_one_none() -> None:
    assert len(figures(make_result(ranks=1, steps=400, buckets=1)).blocks) == MOST_BLOCKS
    assert len(figures(make_result(steps=6)).blocks) == 0


def test_the_host_is_told_apart_where_the_window_is_another() -> None:
    assert ("total", "wall", None) not in values(figures())
    rows = [replace(row, wall_ns=row.wall_ns + 5, other_ns=row.other_ns + 5) for row in RUN.steps]
    apart = values(figures(replace(RUN, steps=Table(RUN.steps.row_type, rows))))
    assert apart["total", "wall", None] == apart["step", "step", None] + 5


def test_a_bucket_that_is_sent_twice_in_a_step_counts_with_its_sum_and_one_of_unknown_time_not_at_all() -> None:
    rows = [*RUN.buckets, *(row for row in RUN.buckets if row.index == 2)]
    rows = [replace(row, comm_ns=None, exposed_charged_ns=None) if row.index == 3 else row for row in rows]
    once, twice = values(figures()), values(figures(replace(RUN, buckets=Table(BucketRow, rows))))
    assert twice["bucket", "comm", 2] == pytest.approx(2 * once["bucket", "comm", 2], abs=1)
    assert ("bucket", "comm", 3) not in twice


def test_a_run_without_a_step_cannot_be_compared() -> None:
    assert figures_of(empty_result(), "run", {}) is None


def test_how_a_run_was_set_up_is_told_in_words() -> None:
    settings = figures().settings
    assert settings["buckets of reducer 0"] == "5 of 4.20 MB each"
    assert settings["compute is taken from"] == "profiler windows"
    assert settings["torch"] == "2.13.0"
    hooked = [replace(row, hook="fp16_compress_hook") for row in RUN.buckets]
    assert (
        figures(replace(RUN, buckets=Table(BucketRow, hooked))).settings["communication hook"] == "fp16_compress_hook"
    )
