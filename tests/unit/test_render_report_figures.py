"""Heat maps, meetings and bandwidths: pictures of many ranks, with numbers that the tables have."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import median

import pytest

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.summary import measured_steps, summarize
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import IdleRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import KINDS, Finding, Section
from ddptrace.render.collectives import bandwidth_figure
from ddptrace.render.figure import RANKS_SHOWN_MAX, parts_figure
from ddptrace.render.ranks.rank_figures import COLUMNS_MAX, ROWS_MAX, bucket_heat, jitter_heat, matches_figure
from ddptrace.render.report import page
from ddptrace.render.step_timeline import timeline_figure
from ddptrace.render.steps import steps_figure
from tests.made import empty_result, make_result
from tests.unit.made_device import KERNELS, make_device_result
from tests.unit.made_exchange import with_exchange
from tests.unit.made_meetings import met_result, with_all
from tests.unit.made_pipeline import with_pipeline
from tests.unit.made_units import Plan, units_run
from tests.unit.test_analysis_transfers import moved
from tests.unit.test_render_report import many_steps, marks
from tests.unit.test_render_traffic import with_traffic


def test_the_heat_map_adds_up_to_what_the_table_of_buckets_says() -> None:
    result = make_result(3, 6, 4)
    figure = bucket_heat(result)
    assert figure is not None
    [heat] = figure.data
    told = {bucket.index: (bucket.exposed_charged_ns or 0) / 1e6 for bucket in summarize(result).buckets}
    assert heat["x"] == [str(index) for index in sorted(told)]
    means = [sum(column) / 3 for column in zip(*heat["z"], strict=True)]
    assert means == pytest.approx([told[index] for index in sorted(told)], abs=1e-3)


def test_more_ranks_and_buckets_than_cells_are_drawn_together_and_the_rest_is_told() -> None:
    one = make_result(1, 2, 1)
    row = next(row for row in one.buckets if row.step == 1)
    buckets = [replace(row, rank=rank, index=index) for rank in range(300) for index in range(130)]
    result = replace(one, steps=Table(StepRow, many_steps(300, 2)), buckets=Table(BucketRow, buckets))
    figure = bucket_heat(result)
    assert figure is not None
    [heat] = figure.data
    assert len(heat["y"]) == 150 <= ROWS_MAX and heat["y"][:2] == ["ranks 0 to 1", "ranks 2 to 3"]
    assert len(heat["x"]) == COLUMNS_MAX
    assert "The 120 most exposed of 130 buckets. Each row is the mean of 2 neighbouring ranks." in figure.caption
    assert {len(row) for row in heat["z"]} == {COLUMNS_MAX}


def test_one_rank_has_no_heat_map() -> None:
    assert bucket_heat(make_result(1, 4, 3)) is None
    assert jitter_heat(make_result(2)) is None and bucket_heat(empty_result()) is None


def test_the_heat_map_of_jitter_has_each_phase_and_the_waits_but_not_their_sum() -> None:
    figure = jitter_heat(with_all(met_result(4)))
    assert figure is not None
    assert figure.data[0]["x"] == ["data", "forward", "backward", "optimizer", "other", "waiting"]
    assert figure.data[0]["z"] == [[1.0] * 6] * 4


def test_ranks_that_come_apart_are_one_row_for_each_bucket_and_not_one_for_each_collective() -> None:
    met = met_result(4, 40, 3)
    rows = [replace(row, skew_ns=(row.skew_ns or 0) // 2) for row in met.matches]  # they come less far apart
    result = replace(met, matches=Table(MatchRow, rows))
    figure = matches_figure(result)
    assert figure is not None
    apart, moved_in = figure.data
    names = figure.layout["yaxis"]["ticktext"]
    assert len(names) == 3
    typical = {row.step for row in measured_steps(result.steps)[0]}
    for name, x in zip(names, apart["x"], strict=True):
        index = int(re.findall(r"bucket (\d+)", name)[0])
        mine = [row.skew_ns or 0 for row in rows if row.bucket == (0, 1, index) and row.step in typical]
        assert x == pytest.approx(median(mine) / 1e6)
    assert moved_in["x"] == pytest.approx([row.transfer_ns / 1e6 for row in result.matches[:3]])


def test_collectives_that_were_queued_when_the_last_rank_came_waited_for_none() -> None:
    met = met_result(4, 40, 3)
    typical = {row.step for row in measured_steps(met.steps)[0]}
    at = next(row.match for row in met.matches if row.step in typical)
    late = [replace(row, first_start_at_ns=(row.last_arrival_at_ns or 0) + (row.match == at)) for row in met.matches]
    told = f" 1 of {3 * len(typical)} collectives were still queued when the last rank arrived: nobody waited for it."
    for rows, expected in ((list(met.matches), ""), (late, told)):
        figure = matches_figure(replace(met, matches=Table(MatchRow, rows)))
        assert figure is not None and figure.caption.endswith(f"not for the network.{expected}")


def test_the_fitted_line_is_drawn_through_its_points_and_told_in_words() -> None:
    result = moved({nbytes: [50_000 + nbytes // 2] for nbytes in (1_000, 100_000, 10_000_000)})
    figure = bandwidth_figure(result)
    assert figure is not None
    points, line = figure.data
    ends = [(line["x"][at], line["y"][at]) for at in (0, -1)]
    assert ends == [pytest.approx((points["x"][at], points["y"][at])) for at in (0, -1)]
    told = "all_reduce on 4 ranks in group default: 50.0 µs latency, then 2.00 GB/s."
    assert f"{told} Below 100 kB a message takes longer to start than to move." in page(result)


def test_where_no_line_can_be_told_the_reason_is() -> None:
    text = page(moved({1_000: [50_000], 10_000_000: [5_050_000]}))
    assert "measured; 2 sizes, a line takes 3" in text and "latency, then" not in text


def test_nine_in_ten_steps_lie_between_the_lines() -> None:
    rows = [replace(row, window_ns=row.window_ns + row.rank * 1_000_000) for row in many_steps(20, 3)]
    figure = steps_figure(rows)
    assert figure is not None
    high, low = (trace["y"] for trace in figure.data if trace["type"] == "scatter")
    lengths = sorted(row.window_ns / 1e6 for row in rows if row.step == 0)
    assert low == pytest.approx([lengths[1]] * 3) and high == pytest.approx([lengths[-2]] * 3)


def test_of_many_ranks_the_slowest_are_drawn_and_the_others_told() -> None:
    rows = [replace(row, compute_ns=row.compute_ns + row.rank * 1_000_000) for row in many_steps(40, 2)]
    figure = parts_figure(rows)
    assert figure is not None
    assert figure.data[0]["y"] == [f"rank {rank}" for rank in range(40 - RANKS_SHOWN_MAX, 40)]
    assert "The 24 slowest of 40 ranks; steps of the others take" in figure.caption


def test_of_many_ranks_the_time_line_shows_those_that_differ_most() -> None:
    result = make_result(12, 4, 3, slow_rank=7)
    figure = timeline_figure(result)
    assert figure is not None and marks(figure) < 2000
    assert "<b>rank 7</b> phases" in figure.layout["yaxis"]["ticktext"]
    assert "3 ranks of 12, by exposed time: the most, the least and the middle." in figure.caption


def test_many_lanes_of_communication_take_no_more_height_than_few() -> None:
    result = make_result(1, 3, 2)
    crowd = [
        replace(row, bucket=None, exec_start_at_ns=row.launch_at_ns + at, exec_end_at_ns=row.launch_at_ns + 10**8)
        for row in result.collectives
        for at in range(20)
    ]
    few, many = timeline_figure(result), timeline_figure(replace(result, collectives=Table(CollectiveRow, crowd)))
    assert few is not None and many is not None
    assert many.height_px < few.height_px + 120


def test_findings_and_all_other_links_lead_to_what_the_page_has() -> None:
    devices = make_device_result(2, 3, (*KERNELS, "m", "a", "o"))
    half = [(row.rank, row.step, row.window_ns // 2) for row in devices.launches]
    held = [IdleRow(rank, step, "data", "next batch", "", 1, ns, ns) for rank, step, ns in half]
    devices = replace(devices, idle=Table(IdleRow, held))
    split = with_pipeline(make_result()), with_exchange(make_result()), analyze_run(units_run(Plan()))
    runs = with_all(met_result(4, 12)), devices, with_traffic(make_result(), "x"), *split
    found = [kind("run", "") for kind in KINDS.values()]
    pages = [page(replace(run, findings=Table(Finding, found))) for run in runs]
    for text in pages:
        assert set(re.findall(' href="#(.*?)"', text)) <= set(re.findall(' id="(.*?)"', text))
    titles = {title for text in pages for title in re.findall("<h2>(.*?)</h2>", text)}
    assert set(Section) - titles <= {"Remote calls"}
