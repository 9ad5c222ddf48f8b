"""Forecasts of a device's steps: of files made by hand, in which the right answer is known. Times in microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ddptrace
from ddptrace.analysis.timeline.build import timeline_of
from ddptrace.analysis.timeline.forecast import TimelinePredictor
from ddptrace.analysis.timeline.graph import Span
from ddptrace.analysis.whatif.answer import forecast_of_device
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.render.whatif.answers import advice_section, whatif_text
from tests.unit.foreign_files import STREAM, Event, event, kernel, launch, nccl, said, write

STEPS, STEP, KERNEL = range(2, 8), 100_000, 80_000


def step_of(number: int, begin: int, length: int) -> Event:
    return said(f"ProfilerStep#{number}", begin, begin + length)


def waiting_for_the_device(computes: int = KERNEL) -> Iterator[Event]:
    """Each step launches one kernel, waits for it, and then works for the rest of 100 ms: the file does not show that
    the device was idle before its first step."""
    for number in STEPS:
        begin = STEP * number
        yield step_of(number, begin, STEP)
        yield launch(number, begin + 10, begin + 20)
        yield kernel("gemm", number, begin + 25, begin + computes)
        yield event("cuda_runtime", "cudaStreamSynchronize", 1, begin + 30, begin + computes + 5)


def test_the_first_step_of_a_window_does_not_dilute_what_a_faster_host_wins(tmp_path: Path) -> None:
    """After the kernel, the host takes 20 ms of each step."""
    predictor = TimelinePredictor(ddptrace.analyze([write(tmp_path / "rank-0.json", list(waiting_for_the_device()))]))
    found = predictor.predict("host twice as fast", Setting(host=2.0))
    assert found.step_ns is not None
    assert predictor.recorded_ns == pytest.approx(1000 * STEP)
    assert predictor.recorded_ns - found.step_ns == pytest.approx(1000 * (STEP - KERNEL) / 2, rel=0.02)


def behind_the_host(nbytes: int) -> Iterator[Event]:
    """A collective that was launched before the file began, and steps whose collective and kernel wait for it."""
    yield kernel("ncclDevKernel_Generic(ncclDevComm*)", 1000, 0, 500, stream=20)
    for place, number in enumerate(range(2, 6)):
        begin = 400 + 1000 * place
        yield step_of(number, begin, 1000)
        about = {"Collective name": "allreduce", "In msg nelems": nbytes // 4, "dtype": "Float", "Group size": 2}
        yield from nccl(2 * number, begin + 10, begin + 100, begin + 1000, **about)
        yield launch(2 * number + 1, begin + 20, begin + 25)
        yield kernel("gemm", 2 * number + 1, begin + 1000, begin + 1100, stream=STREAM)


def test_the_first_step_begins_earlier_if_the_work_before_it_ends_earlier(tmp_path: Path) -> None:
    timeline = timeline_of(ddptrace.analyze([write(tmp_path / "rank-0.json", list(behind_the_host(1 << 24)))]))
    graph, first = timeline.graph, timeline.steps[0]
    at = graph.played(np.where(graph.span == Span.TRANSFER, 0.0, graph.ns))
    assert graph.at_ns[first.before] - graph.at_ns[first.instant] == -1_000_000
    assert graph.at_ns[first.before] - at[first.before] == 500_000


def test_no_step_is_predicted_to_lose_more_than_all_of_it(tmp_path: Path) -> None:
    events = list(waiting_for_the_device(computes=STEP // 20))
    found = TimelinePredictor(ddptrace.analyze([write(tmp_path / "rank-0.json", events)])).predict(
        "", Setting(host=20.0)
    )
    assert found.gain_ratio is not None and found.gain_ratio > 0.8
    assert found.low_ns == 0 and found.gain_high_ratio == 1


def test_what_a_run_cannot_tell_is_told_once_for_each_reason(tmp_path: Path) -> None:
    result = ddptrace.analyze([write(tmp_path / "rank-0.json", list(waiting_for_the_device()))])
    predictor = TimelinePredictor(result)
    said = " ".join(whatif_text(predictor.answer(predictor.usual())).split())
    assert said.count("no collective ran in the profiled steps") == 1
    assert "twice the bandwidth, half the latency, perfect overlap, free network: no collective ran" in said
    assert "exposed communication" not in said  # there is none


def test_the_report_shows_what_would_help_with_its_interval(tmp_path: Path) -> None:
    result = ddptrace.analyze([write(tmp_path / "rank-0.json", list(waiting_for_the_device()))])
    html = advice_section(forecast_of_device(result))
    assert "host twice as fast" in html and "between" in html and "Nothing is predicted" not in html
    assert html.count("have not been compared with runs") == 1


@pytest.mark.parametrize(("nbytes", "shorter"), [(1 << 10, "half the latency"), (1 << 24, "twice the bandwidth")])
def test_a_small_message_is_latency_where_one_size_tells_nothing(tmp_path: Path, nbytes: int, shorter: str) -> None:
    predictor = TimelinePredictor(ddptrace.analyze([write(tmp_path / "rank-0.json", list(behind_the_host(nbytes)))]))
    gains = {
        name: predictor.predict(name, predictor.usual()[name]) for name in ("half the latency", "twice the bandwidth")
    }
    told = {name: one.gain_ratio or 0.0 for name, one in gains.items()}
    assert max(told, key=lambda name: told[name]) == shorter
    assert told.pop(shorter) > 0.02 > max(told.values())
    assert all((one.gain_high_ratio or 0.0) > 0.02 for one in gains.values())  # either may be
