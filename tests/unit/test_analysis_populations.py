"""The two populations of a rank's device work. Real traces are in test_analysis_real_traces.py."""

from __future__ import annotations

from analysis_records import Piece, comm_piece, device_work, gpu_window, rank, run, window

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.device.rows import population
from ddptrace.analysis.tables.device import Population
from ddptrace.load.tables import Work


def test_work_without_a_launch_counts_in_one_population_only() -> None:
    work = device_work(
        Piece(0, 10), Piece(20, 40, (15, 16)), comm_piece(30, 60, (17, 18)), Piece(70, 72, (65, 66), Work.MEMORY)
    )
    assert population([work], launched_only=False) == Population(72, 20, 30, 30, 2, 10, 20, 10 / 30)
    assert population([work], launched_only=True) == Population(52, 10, 20, 30, 2, 10, 20, 10 / 30)


def test_windows_add_up_without_the_time_between_them() -> None:
    works = [device_work(Piece(0, 10), Piece(15, 20)), device_work(Piece(1000, 1010))]
    assert population(works, launched_only=False) == Population(30, 5, 25, 0, 0, 0, 0, None)


def test_a_window_without_such_work_adds_nothing_and_none_at_all_is_not_measured() -> None:
    queued = device_work(Piece(0, 10))
    assert population([queued, device_work(Piece(50, 60, (40, 41)))], launched_only=True) == Population(
        10, 0, 10, 0, 0, 0, 0, None
    )
    assert population([queued], launched_only=True) is None
    assert population([], launched_only=False) is None


def test_a_rank_tells_its_first_file_and_counts_of_all_windows() -> None:
    first = gpu_window(0, 50, Piece(0, 10), Piece(20, 30, (1, 2)), file="a.json")
    second = gpu_window(60, 90, Piece(61, 70, (60, 61)), file="b.json")
    row = analyze_run(run(rank(windows=[first, second]))).ranks[0]
    assert (row.file, row.gpu_events, row.gpu_events_with_launch) == ("a.json", 3, 2)
    assert row.all == population([w.device for w in (first, second) if w.device], launched_only=False)
    assert row.with_launch is not None
    assert row.with_launch.compute_ns == 19


def test_a_rank_whose_device_was_not_seen_has_no_population() -> None:
    on_cpu = analyze_run(run(rank(windows=[window(0, 10, (0, 5))]))).ranks[0]
    assert (on_cpu.gpu_events, on_cpu.all, on_cpu.with_launch) == (0, None, None)
    assert analyze_run(run(rank())).ranks[0].gpu_events is None
