"""Two real ranks, one of which comes late in every other step: who waited, how long, and what varied."""

from __future__ import annotations

from statistics import median

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from tests.launch import torchrun
from tests.programs.late_in_turn import LATE_RANK, LATE_S, STEPS, is_late

pytestmark = pytest.mark.alone  # beside other work, a transfer takes as long as the lateness that is planted
LATE_NS = round(LATE_S * 1e9)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    path = tmp_path_factory.mktemp("late") / "run"
    torchrun("late_in_turn.py", path)
    return ddptrace.analyze(path)


def test_the_rank_on_time_waits_for_the_late_one_by_both_estimates(result: Result) -> None:
    late = [row for row in result.matches if row.bucket and row.step is not None and row.step > 1 and is_late(row.step)]
    assert len(late) == STEPS // 2 - 1
    assert sum(row.last_rank == LATE_RANK for row in late) >= 0.9 * len(late)
    rows = {(row.match, row.rank): row for row in result.arrivals}
    waiting = [rows[match.match, 1 - LATE_RANK] for match in late]
    for estimate in ("wait_ns", "free_wait_ns"):
        assert median(getattr(row, estimate) for row in waiting) > 0.8 * LATE_NS
    assert median(row.blame_ns or 0 for row in late) > 0.8 * LATE_NS


def test_waiting_is_no_part_of_the_transfer(result: Result) -> None:
    rows = [row for row in result.arrivals if row.wait_ns is not None]
    assert {row.rank for row in rows} == {0, 1}
    comm = {(row.rank, row.seq): row.comm_ns for row in result.collectives}
    for row in rows:
        assert (row.wait_ns or 0) + (row.transfer_ns or 0) == comm[row.rank, row.seq]
        assert (row.free_wait_ns or 0) + (row.free_transfer_ns or 0) == comm[row.rank, row.seq]
    late = [row for row in result.matches if row.bucket and row.step is not None and row.step > 1 and is_late(row.step)]
    assert median(row.aligned_transfer_ns or 0 for row in late) < LATE_NS / 3
    assert median(row.transfer_ns for row in late) < LATE_NS / 3


def test_on_the_late_rank_what_varies_is_its_sleep_and_on_the_other_the_waiting(result: Result) -> None:
    shares = {(row.rank, row.part): row.share_ratio for row in result.jitter}
    for rank in (0, 1):
        own = [share for (number, _), share in shares.items() if number == rank and share is not None]
        assert sum(own) == pytest.approx(1)
    assert (shares[1 - LATE_RANK, "waiting"] or 0) > 0.5
    assert (shares[LATE_RANK, "waiting"] or 0) < 0.5
