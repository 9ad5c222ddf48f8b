"""What `ddptrace diagnose` says, as plain records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that is wrong, or that nothing is.

    `kind`, gravest first: "mismatch": ranks called different things at one turn of a group; "failed": an exception
    ended ranks; "died"; "device": a rank's device does not go on; "stuck": ranks wait for others; "message": one waits
    for another's send or receive; "held": a process is stopped; "failed-after": for want of a peer; "killed": the whole
    job at once; "missing": ranks of a job that is over left nothing; "left": nobody writes any more; "ended"; "well":
    it goes on, or starts; "slow": some wait, not for long yet; "unseen": ranks left nothing yet, while others go on;
    "doubt": a rank's records may be another run's, or were changed, or do not tell what they could; "clock": the clock
    of a rank is apart."""

    kind: str  # see above
    sentence: str  # what is wrong
    likely: str = ""  # the likely reason
    group: str = ""  # process group
    turn: int | None = None  # k-th collective of the group from 0, or message between the two; torch's number in a dump
    op: str = ""  # operation
    nbytes: int | None = None  # of the call
    waiting: tuple[int, ...] = ()  # ranks that wait
    absent: tuple[int, ...] = ()  # ranks that are to blame, or did not come
    where: tuple[str, ...] = ()  # where these ranks are, one each
    age_ns: int | None = None  # for how long


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The last that is known of one rank."""

    rank: int  # global rank
    host: str  # its host
    pid: int  # its process
    status: str  # "runs", "stopped", "held", "died", "failed", "ended"; "unknown": not in sight; "dumped": by its dump
    step: int | None  # ordinal of the step that it is in
    phase: str | None  # phase that it is in
    doing: str  # as in "in all_reduce #7 (16 B) of group 0"
    site: str | None  # line of the program, as in "train.py:42 in step"
    since_ns: int | None  # for how long it has recorded nothing of its training; None where that is not known
    failure: str | None  # what ended it
    through: str | None = None  # line of the library that issued the collective that it is in
    innermost: str | None = None  # line of a library that `site` has led to, where it is in no collective


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a job does or did; the verdict that explains most comes first."""

    verdicts: tuple[Verdict, ...]  # one or more
    ranks: tuple[RankPlace, ...]  # each rank
    exit_code: int  # 0 nothing is wrong, 3 ranks wait or differ, 4 a rank died, failed, or left nothing
