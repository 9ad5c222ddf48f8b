"""The last of every rank, made by hand. Times in seconds since the run's zero."""

from __future__ import annotations

from typing import Any

from ddptrace.analysis.diagnosis.diagnose import diagnose
from ddptrace.analysis.diagnosis.tables import Verdict
from ddptrace.load.diagnosis.tables import GroupState, JobState, LastCall, Messages, RankState
from ddptrace.render.diagnosis import diagnosis_text

S = 10**9
NOW = 100 * S
STEP_NS = S // 10


def call(turn: int, op: str = "all_reduce", *, at: float = 60, **fields: Any) -> LastCall:
    known: dict[str, Any] = {
        "seq": turn + 1, "nbytes": 16, "dtype": "float32", "peer": None, "origin": "program", "site": "t.py:7 in f",
        "through": None, "module": None, "bucket_of": None, "is_sync": True, "done": False, "error": None,
    }  # fmt: skip
    return LastCall(turn=turn, op=op, launch_at_ns=round(at * S), **(known | fields))


def group(
    *calls: LastCall, name: str = "0", ranks: tuple[int, ...] = (0, 1), turns: int | None = None, **fields: Any
) -> GroupState:
    end = calls[-1].turn + 1 if calls else 0
    return GroupState(name, ranks, end if turns is None else turns, calls, **fields)


def done(count: int) -> list[LastCall]:
    return [call(turn, done=True, at=50) for turn in range(count)]


def rank(number: int, *groups: GroupState, **fields: Any) -> RankState:
    """One that runs and recorded its training last at second 60. It is in its newest call, if that is not done."""
    newest = [(one.name, last) for one in groups for last in one.calls[-1:] if last.done is False]
    name, pending = max(newest, key=lambda one: one[1].launch_at_ns, default=("", None))
    known: dict[str, Any] = {
        "host": "node0", "pid": 100 + number, "alive": True, "stopped": False, "closed": False, "counted": True,
        "step": 5, "step_ns": STEP_NS, "phase": None, "did_last": "", "pending": pending, "pending_group": name,
        "pulse": None, "last_at_ns": 60 * S, "beat_at_ns": NOW - S, "failure": None, "failed_at_ns": None,
    }  # fmt: skip
    return RankState(rank=number, groups=groups, **(known | fields))


def job(*ranks: RankState, now: int = NOW, size: int | None = None) -> JobState:
    return JobState(ranks, len(ranks) if size is None else size, now, 0)


def verdicts(*ranks: RankState, **fields: Any) -> tuple[list[Verdict], int]:
    found = diagnose(job(*ranks, **fields))
    return list(found.verdicts), found.exit_code


def messages(peer: int, *calls: LastCall) -> Messages:
    return Messages(peer, calls[0].op == "send", calls[-1].turn + 1, calls)


def said(*ranks: RankState, **fields: Any) -> list[str]:
    """Lines on the terminal."""
    return diagnosis_text(diagnose(job(*ranks, **fields))).splitlines()
