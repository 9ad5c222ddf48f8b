"""Ranks that are not here, or have no part in the run: what the others waited for them is told as nothing else."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddptrace.analysis.analyze import RunHead, analyze_rank, combine
from ddptrace.analysis.ranks.blame import blame_of
from ddptrace.analysis.ranks.critical_path import critical_path
from ddptrace.analysis.ranks.crossings import ComparedRanks, crossings_of
from ddptrace.analysis.ranks.digest import match_digests
from ddptrace.analysis.ranks.replay import disorder_ratio
from ddptrace.analysis.result import Result
from ddptrace.findings import REPLAY_OFF, Finding
from ddptrace.load.run_folder import RecordedRank, read_rank
from ddptrace.load.tables import Group, RankRun
from ddptrace.render.ranks.pages import across_body, across_lines
from tests.unit.made_training import MS, Plan, Player, only, played

LATE = Plan(3, late=only(1, "forward", 20 * MS))
PAIRS = ((0, 1), (2, 3))


def result_of(runs: Sequence[RankRun], world: int = 3) -> Result:
    return combine(RunHead("1.0", "5f1e" * 8, 0, world, ()), [analyze_rank(run) for run in runs])


def without(plan: Plan, *absent: int) -> Result:
    return result_of([run for run in Player(plan).runs() if run.rank not in absent], plan.ranks)


def said(result: Result) -> dict[str, str]:
    return {finding.code: finding.message for finding in result.findings}


def test_a_rank_that_is_here_is_named_and_waited_for() -> None:
    result = without(LATE)
    assert [row.rank for row in result.suspects] == [1]
    assert result.critical_path
    assert match_digests(result).here is None
    assert REPLAY_OFF.code not in said(result)


def test_waiting_for_a_rank_that_is_not_here_is_no_transfer() -> None:
    result = without(LATE, 1)
    assert len(result.matches) > 0
    assert {(row.wait_ns, row.transfer_ns, row.free_wait_ns, row.free_transfer_ns) for row in result.arrivals} == {
        (None, None, None, None)
    }
    assert {(row.last_rank, row.skew_ns, row.aligned_transfer_ns, row.agrees) for row in result.matches} == {
        (None, None, None, None)
    }
    found = match_digests(result)
    assert (found.wait_ratio, found.here) == (None, (2, 3))
    assert all(kind.partial for kind in found.kinds)


def test_who_was_late_and_what_was_waited_for_are_not_told_where_a_rank_is_not_here() -> None:
    """By those that are here rank 2 is late; it may have cost nothing, for the one that is missing came after it."""
    both = Plan(3, late=lambda one, at: {"forward": (0, 20, 9)[one] * MS})
    result = without(both, 1)
    assert (len(result.suspects), len(result.blame), len(result.critical_path)) == (0, 0, 0)
    message = said(result)[REPLAY_OFF.code]
    assert message.startswith("No rank is named as late: only 2 of 3 ranks of group 0 are compared here,")
    assert "late-rank" not in said(result)
    assert "is probably late" not in " ".join(said(result).values())


def test_the_terminal_and_the_report_say_that_ranks_are_not_here() -> None:
    result = without(LATE, 1)
    words = " ".join(" ".join(across_lines(result)).split())
    assert "only 2 of 3 ranks have records here, and waiting for the others counts as transfer" in words
    assert "critical path" not in words and "last to arrive" not in words
    body = "".join(across_body(result, {"matches": "", "path": "", "jitter": ""}))
    assert "2 of 3 ranks have records here" in body
    assert "0 · 0 %" not in body


def test_a_rank_alone_of_its_group_is_not_called_late_beside_others_that_are_alone_too() -> None:
    result = without(Plan(4, late=only(1, "forward", 20 * MS), groups=PAIRS), 0, 2)
    assert "1 of 2 ranks of group 0 is compared here (2 groups miss ranks)" in said(result)[REPLAY_OFF.code]
    assert not result.suspects


def test_groups_smaller_than_the_run_are_whole_where_all_their_ranks_are_here() -> None:
    plan = Plan(4, late=only(1, "forward", 20 * MS), groups=PAIRS)
    assert [row.rank for row in without(plan).suspects] == [1]
    assert [row.rank for row in without(plan, 2, 3).suspects] == [1]
    assert [row.rank for row in without(plan, 3).suspects] == [1], "rank 2 met nobody and nobody waited for it"


def test_groups_of_which_nobody_knows_the_ranks_are_taken_as_whole() -> None:
    runs = [replace(run, groups=(Group("0", (), "gloo", 1),)) for run in Player(LATE).runs() if run.rank != 1]
    result = result_of(runs)
    assert match_digests(result).here is None
    assert REPLAY_OFF.code not in said(result)


@pytest.mark.parametrize(("absent", "named"), [((), [1]), ((1,), [])])
def test_where_only_the_calls_tell_how_many_ranks_there_are_those_that_show_them_are_here(
    absent: tuple[int, ...], named: list[int]
) -> None:
    """As in profiler files."""
    runs = [
        replace(run, groups=(), calls=tuple(replace(call, group_size=3) for call in run.calls))
        for run in Player(LATE).runs() if run.rank not in absent
    ]  # fmt: skip
    result = result_of(runs)
    assert [row.rank for row in result.suspects] == named
    assert (REPLAY_OFF.code in said(result)) == bool(absent)


def test_a_rank_that_met_nobody_is_not_late() -> None:
    """As a copy of a rank, whose groups have names of their own."""
    first, late, last = Player(LATE).runs()
    calls = tuple(replace(call, group="0 of a copy") for call in late.calls)
    copy = replace(late, rank=3, calls=calls, groups=(Group("0 of a copy", (0, 1, 2), "gloo", 1),))
    result, right = result_of([first, late, last, copy], 3), without(LATE)
    assert result.suspects == right.suspects
    assert list(result.critical_path) == list(right.critical_path)


def test_instants_that_cannot_be_are_compared_with_nothing_and_overflow_nothing() -> None:
    tables, matches = played(LATE)
    trail = tables[2].trail
    at = trail.at_ns.copy()
    at[0], at[-1] = -(2**63), 2**63 - 1
    spoiled = [*tables[:2], replace(tables[2], trail=replace(trail, at_ns=at))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert blame_of(ComparedRanks(spoiled, matches)).suspects == ()
        critical_path(ComparedRanks(spoiled, matches))
        crossings = crossings_of(tables, matches)
        assert np.isfinite(disorder_ratio([table.trail for table in spoiled], crossings))


def folder(root: Path, number: int, **meta: object) -> Path:
    path = root / f"rank-{number:05d}"
    path.mkdir()
    (path / "meta.json").write_text(json.dumps({"schema": "1.5", "run_id": "a" * 32, "rank": number, **meta}))
    return path


@pytest.mark.parametrize(
    ("meta", "code", "told"),
    [
        ({"run_id": "b" * 32}, "other-run", "it is compared with no rank of this run"),
        ({"rank": 0}, "other-rank", "it is compared with no other rank, since that one is here too"),
        ({"rank": 7}, "other-rank", "put the ranks' folders back as they were"),
    ],
)
def test_that_a_folder_is_compared_with_no_other_is_told(
    tmp_path: Path, meta: dict[str, object], code: str, told: str
) -> None:
    folder(tmp_path, 0)
    source = RecordedRank(1, folder(tmp_path, 1, **meta), {"schema": "1.5", "run_id": "a" * 32}, 0)
    findings: list[Finding] = []
    read_rank(source, findings)
    assert next(finding.message for finding in findings if finding.code == code).endswith(told)
