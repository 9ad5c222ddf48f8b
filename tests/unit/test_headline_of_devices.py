"""The first sentence about a device, and what goes with it: of files made by hand. Times in microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.render.headline import headline
from ddptrace.render.terminal import overlap_words
from tests.unit.foreign_files import MAIN, Event, kernel, launch, nccl, node, said, write

STEP = 1000


def steps(computes: int, sends: int = 0, nbytes: int = 1 << 24) -> Iterator[Event]:
    """Four steps, in each of which a kernel runs, and after it a collective."""
    for number in range(2, 6):
        begin = STEP * number
        yield said(f"ProfilerStep#{number}", begin, begin + STEP)
        yield launch(2 * number, begin, begin + 2)
        yield kernel("gemm", 2 * number, begin + 5, begin + 5 + computes)
        if sends:
            about = {"Collective name": "allreduce", "In msg nelems": nbytes // 4, "dtype": "Float", "Group size": 2}
            ran = begin + 5 + computes, begin + 5 + computes + sends
            yield said("DistributedDataParallel.forward", begin + 3, begin + 6)
            yield node(begin + 8, begin + 20, MAIN)
            yield from nccl(2 * number + 1, begin + 10, *ran, **about)


def analyzed(folder: Path, *ranks: list[Event]) -> Result:
    paths = []
    for rank, events in enumerate(ranks):
        told = {"distributedInfo": {"rank": rank, "world_size": len(ranks)}} if len(ranks) > 1 else {}
        paths.append(write(folder / f"rank-{rank}.json", events, **told))
    return ddptrace.analyze(paths)


def first_sentence(result: Result) -> str:
    return headline(result, summarize(result)).text


def test_of_a_device_that_always_computes_only_less_to_compute_shortens_the_step(tmp_path: Path) -> None:
    result = analyzed(tmp_path, list(steps(computes=980)))
    assert "of the typical step the device computes" in first_sentence(result)
    assert headline(result, summarize(result)).calm


def test_a_slow_rank_is_looked_for_only_where_ranks_wait(tmp_path: Path) -> None:
    """Both ranks come to the collective at the same time, which computation is too short to hide."""
    result = analyzed(tmp_path, list(steps(100, 880)), list(steps(100, 880)))
    assert "First step: send less, or over a faster link." in first_sentence(result)
    one = analyzed(tmp_path / "one", list(steps(100, 880)))  # nothing tells whether it waits
    assert "look at what it waits for" in first_sentence(one)


def test_of_small_messages_fewer_are_asked_for_and_no_faster_link(tmp_path: Path) -> None:
    result = analyzed(tmp_path, *([list(steps(100, 880, nbytes=4096))] * 2))
    assert summarize(result).worst is not None
    assert "First step: send fewer, larger messages." in first_sentence(result)


def test_how_much_is_hidden_is_not_told_where_events_leave_open_when_the_device_computed(tmp_path: Path) -> None:
    summary = summarize(analyzed(tmp_path, list(steps(400, 300))))
    assert "is hidden behind compute" in overlap_words(summary)
    unsure = replace(summary, unsure_ns=summary.window_ns)
    assert not unsure.is_sure and "is unknown" in overlap_words(unsure)
