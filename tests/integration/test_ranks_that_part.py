"""Real ranks of which the last does not call what the others call."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from tests.launch import PROGRAMS, torchrun

PROGRAM = "parting.py"
LINES = (PROGRAMS / PROGRAM).read_text().splitlines()


def site(text: str) -> str:
    """Of the one line that holds it, as far as it can be told from the text."""
    (number,) = [number for number, line in enumerate(LINES, 1) if text in line]
    return f"{PROGRAM}:{number} in "


def parted(path: Path, how: str, ranks: int) -> Result:
    torchrun(PROGRAM, path / "run", how, ranks=ranks)
    return ddptrace.analyze(path / "run")


LOG, BARRIER = "dist.all_reduce(loss)", "dist.barrier()"


@pytest.mark.parametrize(
    ("how", "ranks", "kind", "own", "expected"),
    [
        ("skip", 3, "missing", BARRIER, LOG),
        ("size", 2, "size", LOG, LOG),
        ("dtype", 2, "dtype", LOG, LOG),
        ("extra", 3, "extra", "torch.ones(3)", BARRIER),
        ("order", 3, "order", "counted first", "torch.ones(7)"),
    ],
)
def test_the_rank_its_call_and_that_of_the_others_are_told(
    how: str, ranks: int, kind: str, own: str, expected: str, tmp_path: Path
) -> None:
    result = parted(tmp_path, how, ranks)
    (row,) = result.desyncs
    assert (row.rank, row.kind, row.expected_rank) == (ranks - 1, kind, 0)
    assert row.site is not None and row.site.startswith(site(own))
    assert row.expected_site is not None and row.expected_site.startswith(site(expected))
    (finding,) = [finding for finding in result.findings if finding.code == "desync"]
    assert row.site in finding.message and row.expected_site in finding.message
    assert max(match.ordinal for match in result.matches) < row.turn
    if kind == "size":
        assert "of 8 bytes on rank 1" in finding.message and "of 4 bytes on rank 0" in finding.message
    if kind == "dtype":
        assert "of int32 on rank 1" in finding.message and "of float32 on rank 0" in finding.message


def test_ranks_that_call_the_same_do_not_part(tmp_path: Path) -> None:
    result = parted(tmp_path, "not", 4)
    assert not result.desyncs
    assert not {"desync", "rank-behind", "match-refused"} & {finding.code for finding in result.findings}
    barriers = [match for match in result.matches if match.op == "barrier"]
    assert all(match.ranks == (0, 1, 2, 3) for match in result.matches) and len(barriers) <= 6
    assert len([match for match in result.matches if match.op == "all_reduce"]) >= 6
