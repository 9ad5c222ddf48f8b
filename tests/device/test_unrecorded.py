"""A run of which collectives were not recorded: the kernels of the profiler's file still communicate."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.analysis.savings import EXPOSED
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.render.headline import NO_COMM, headline
from ddptrace.schema import Evidence
from tests.device.conftest import RunProgram
from tests.device.truth import PARTS, Json, ends_of_steps, entries_of, file_of, parts, told_by, work_of

RANKS, ACTIVE = 2, 3


@dataclass(frozen=True)
class Unrecorded:
    """`run/` and what the program told."""

    out: Path

    @functools.cached_property
    def result(self) -> Result:
        return ddptrace.analyze(self.out / "run", align=False)

    def file(self, rank: int) -> Json:
        return file_of(self.out / "run" / f"rank-{rank:05d}" / "kineto-0.json.gz")

    def profiled(self, rank: int) -> list[StepRow]:
        return [row for row in self.result.steps if row.rank == rank and row.profiled]

    def zero_ns(self, rank: int) -> int:
        """The instant from which ddptrace counts."""
        (work,) = self.result.activity[rank].device
        return min(one["begin_ns"] for one in entries_of(self.file(rank))) - int(work.begin_at_ns.min())


@pytest.fixture(scope="module")
def unrecorded(on_any_device: RunProgram, tmp_path_factory: pytest.TempPathFactory) -> Unrecorded:
    out = tmp_path_factory.mktemp("unrecorded")
    on_any_device("unrecorded.py", out / "run", out, ranks=RANKS)
    return Unrecorded(out)


@pytest.mark.parametrize("rank", range(RANKS))
def test_kernels_of_no_recorded_call_are_communication_of_profiled_steps(unrecorded: Unrecorded, rank: int) -> None:
    rows, work = unrecorded.profiled(rank), work_of(told_by(unrecorded.out, rank)["ledger"], unrecorded.file(rank))
    hosts = [unrecorded.zero_ns(rank) + row.end_at_ns for row in rows]
    expected = [parts(work, *span) for span in itertools.pairwise(ends_of_steps(work, hosts))]
    assert [{name: getattr(row, name) for name in PARTS} for row in rows[1:]] == expected
    assert len(rows) == ACTIVE and all(one["comm_ns"] > 0 for one in expected)
    assert {row.evidence for row in rows} == {Evidence.DEVICE}
    assert not {row.step for row in unrecorded.result.collectives} & {row.step for row in rows}


@pytest.mark.parametrize("rank", range(RANKS))
def test_what_they_expose_is_of_an_unknown_dimension(unrecorded: Unrecorded, rank: int) -> None:
    for row in unrecorded.profiled(rank):
        (one,) = [one for one in unrecorded.result.dimensions if (one.rank, one.step) == (rank, row.step)]
        assert (one.dimension, one.calls, one.nbytes, one.comm_ns) == ("unknown", None, None, row.comm_ns)
        assert one.exposed_charged_ns == one.unmatched_ns == row.exposed_comm_ns
        assert one.peer_wait_ns == one.transfer_ns == one.bubble_ns == 0


def test_steps_that_no_window_shows_are_unknown(unrecorded: Unrecorded) -> None:
    others = [row for row in unrecorded.result.steps if not row.profiled]
    assert others and {(row.compute_ns, row.comm_ns, row.wait_ns) for row in others} == {(None, None, None)}


def test_verdicts_agree_that_it_communicates_and_say_what_is_not_known(unrecorded: Unrecorded) -> None:
    result, summary = unrecorded.result, summarize(unrecorded.result)
    assert {"surface-failed", "exec-unclaimed", "collectives-missing"} <= {one.code for one in result.findings}
    exposed = summary.part("exposed_comm")
    assert exposed is not None and exposed.ns > 0
    assert {row.cause: row.cost_ns for row in result.savings}[EXPOSED] == exposed.ns
    assert NO_COMM not in headline(result, summary).words
    refusal = ddptrace.whatif(unrecorded.out / "run").predictions[-1].refusal
    assert refusal is not None and "no collective of the profiled steps was recorded" in refusal
