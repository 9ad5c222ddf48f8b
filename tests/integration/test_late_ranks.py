"""Of real ranks that train together, the one that is late is named, with what it is late in."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.tables.ranks import SuspectRow
from tests.launch import torchrun

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("part", ["data", "forward", "backward", "optimizer"])
def test_the_rank_that_sleeps_in_a_phase_is_named_with_the_phase(part: str, tmp_path: Path) -> None:
    torchrun("late.py", tmp_path / "run", part)
    result = ddptrace.analyze(tmp_path / "run")
    first = result.suspects[0]
    assert (first.rank, first.phase, first.cause) == (1, part, part)
    assert next(finding.where for finding in result.findings if finding.code == "late-rank") == "rank 1"


@pytest.fixture(scope="module")
def collecting(tmp_path_factory: pytest.TempPathFactory) -> SuspectRow:
    """The first that is named where rank 0 collects garbage after each step."""
    run = tmp_path_factory.mktemp("collecting") / "run"
    torchrun("late.py", run, "collection", "--rank", 0, has_dynamo=False)  # Dynamo is most of what it looks through
    return ddptrace.analyze(run).suspects[0]


def test_a_rank_that_collects_garbage_after_each_step_is_named_with_where_it_does(collecting: SuspectRow) -> None:
    assert (collecting.rank, collecting.phase) == (0, "other")


def test_a_rank_that_collects_garbage_after_each_step_is_named_with_that(collecting: SuspectRow) -> None:
    assert collecting.cause == "garbage collection"


def test_where_no_rank_is_late_none_is_named_and_the_path_covers_the_run(tmp_path: Path) -> None:
    torchrun("late.py", tmp_path / "run", "nothing")
    result = ddptrace.analyze(tmp_path / "run")
    assert list(result.suspects) == []
    assert {row.rank for row in result.blame} == {0, 1}
    path = result.critical_path
    assert all(one.end_at_ns == following.begin_at_ns for one, following in pairwise(path))
    begins, ends = [row.begin_at_ns for row in result.steps], [row.end_at_ns for row in result.steps]
    assert path[0].begin_at_ns in begins
    assert path[-1].end_at_ns == max(ends)
