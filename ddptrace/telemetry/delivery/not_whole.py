"""Sentences about what is missing in the run itself, so that no delivery can contain it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.live.batch import Losses
from ddptrace.live.run_folders import rank_folders
from ddptrace.record.directory import read_json
from ddptrace.schema import META
from ddptrace.telemetry.delivery.lines import Line

MOST_TOLD: Final = 3
REMOVED: Final = "its folder was moved, replaced or removed before all of it was read"


def of_result(result: Result, run: Path) -> str | None:
    """Describe what an analyzed run lacks. None if it lacks nothing."""
    ranks = {f"rank {row.rank}" for row in result.ranks}
    found = [one for one in result.findings if one.kind.loses_records and one.where in ranks]
    return _told([f"{one.where}: {one.message}" for one in found], run)


def of_lines(lines: Sequence[Line], run: Path) -> str | None:
    """Describe what a followed run lacks. None if it lacks nothing."""
    followers = [line.follower for line in lines]
    known = {who: losses for follower in followers for who, losses in follower.losses().items()}
    removed = {now.identity.rank for follower in followers for now in follower.now() if now.removed}
    lost = [f"rank {rank}: {', '.join(words)}" for (_, rank), losses in known.items() if (words := [*_of(losses)])]
    return _told([*(f"rank {rank}: {REMOVED}" for rank in sorted(removed)), *lost], run)


def of_unplaced(run: Path) -> str | None:
    """Describe the ranks that did not record their host, so that an export of one host leaves them out."""
    found = [rank.folder.name for rank in rank_folders(run) if "host" not in (read_json(rank.folder / META) or {})]
    if not found:
        return None
    more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    folders = f"{', '.join(found[:MOST_TOLD])}{more}"
    return f"{folders} did not record the host, and were not exported; `ddptrace export {run}` delivers them"


def _of(losses: Losses) -> Iterator[str]:
    if losses.records:
        yield f"{losses.records:,} records were lost"
    yield from losses.damaged


def _told(found: Sequence[str], run: Path) -> str | None:
    if not found:
        return None
    more = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return (
        f"the run itself is not whole ({_joined(found)}{more}), and `ddptrace analyze {run}` explains what that means"
    )


def _joined(found: Iterable[str]) -> str:
    return "; ".join(list(found)[:MOST_TOLD])
