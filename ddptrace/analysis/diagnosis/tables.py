"""What `ddptrace diagnose` says, as plain records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that is wrong, or that nothing is.

    `kind`, gravest first: "mismatch": ranks called different things at one turn of a group; "failed": an exception
    ended ranks; "died"; "stuck": ranks wait for others; "message": one waits for another's send or receive; "held":
    a process is stopped; "failed-after": for want of a peer; "killed": the whole job at once; "missing": of ranks of
    a job that is over nothing is here; "left": nobody writes any more; "ended"; "well": it goes on, or starts; "slow":
    some wait, not for long yet; "unseen": of ranks nothing is here, while others go on; "doubt": a rank's records may
    be another run's, or were changed; "clock": that of a rank is apart."""

    kind: str
    sentence: str
    likely: str = ""
    group: str = ""
    turn: int | None = None  # k-th collective of the group from 0; of a message, k-th between the two
    op: str = ""
    nbytes: int | None = None
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()  # ranks that are to blame, or did not come
    where: tuple[str, ...] = ()  # these are, each
    age_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The last that is known of one rank, in words."""

    rank: int
    host: str
    pid: int
    status: str  # "runs", "stopped", "held", "died", "failed", "ended", or "unknown" where its process is not in sight
    step: int | None
    phase: str | None
    doing: str  # "in all_reduce #7 (16 B) of group 0"
    site: str | None  # "train.py:42 in step"
    since_ns: int  # it recorded nothing of its training
    failure: str | None
    through: str | None = None  # the line of the library that issued the collective it is in
    innermost: str | None = None  # the line of a library that `site` has led to, where it is in no collective


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`verdicts`: what explains the most first. `exit_code`: 0 nothing is wrong, 3 ranks wait or differ, 4 a rank died,
    failed, or left nothing here."""

    verdicts: tuple[Verdict, ...]
    ranks: tuple[RankPlace, ...]
    exit_code: int
