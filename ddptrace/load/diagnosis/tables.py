"""The last that a job recorded, as plain records: what analysis knows of a job that may hang. They are read from a run
directory, or from dumps of torch's Flight Recorder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddptrace.findings import Finding
from ddptrace.load.tables import Pulse
from ddptrace.schema import Phase


@dataclass(frozen=True, slots=True)
class LastCall:
    """One of the last collectives that a rank called, or messages that it sent or received."""

    # k-th of its group from 0, sends and receives left out; of a message: k-th to this peer, or from it; of a dump:
    # torch's sequence number, by which all ranks of the group know the collective
    turn: int
    seq: int  # its place among all calls of the rank
    op: str
    nbytes: int  # of the larger side
    dtype: str
    peer: int | None  # as in `Call`
    origin: str | None
    site: str | None
    through: str | None
    module: str | None
    bucket_of: str | None  # kind of the reducer whose bucket it carries
    launch_at_ns: int
    is_sync: bool
    done: bool | None  # False: it failed, or the host is still in it; None where nothing tells
    error: str | None
    started: bool | None = None  # its kernel has begun; None where nothing tells


@dataclass(frozen=True, slots=True)
class Messages:
    """What a rank sent to another rank in a group, or received from it."""

    peer: int
    is_send: bool
    count: int
    calls: tuple[LastCall, ...]  # the last ones, in order of launch


@dataclass(frozen=True, slots=True)
class GroupState:
    """How far one rank is in a process group."""

    name: str
    ranks: tuple[int, ...]  # () where they are not known
    turns: int  # collectives called so far; of a dump: the highest sequence number, -1 where it does not tell
    calls: tuple[LastCall, ...]  # the last ones, in order of launch
    messages: tuple[Messages, ...] = ()
    label: str = ""  # what the program calls it


@dataclass(frozen=True, slots=True)
class RankState:
    """The last known state of a rank, while it runs or afterwards."""

    rank: int
    host: str
    pid: int
    alive: bool | None  # its process; None where nothing tells
    stopped: bool  # its process is held, by a signal or a debugger
    closed: bool  # it recorded that it ended
    counted: bool  # all its calls were recorded, so that they can be compared with other ranks'
    step: int | None  # that it is in
    step_ns: int | None  # median of its last steps
    phase: Phase | None  # that it is in
    did_last: str  # what it has ended last: "data", "forward", "backward", "optimizer", "wait", "end of a step" or ""
    pending: LastCall | None  # the call that it is in, or that failed and so ended it
    pending_group: str
    pulse: Pulse | None  # where its training thread is, which has recorded nothing since
    last_at_ns: int  # it recorded something of its training
    beat_at_ns: int  # it recorded anything
    failure: str | None  # the exception that ended it, else what its first failed collective failed with
    failed_at_ns: int | None
    groups: tuple[GroupState, ...]


@dataclass(frozen=True, slots=True)
class JobState:
    """The last known state of all ranks of a run. `now_at_ns`: time of the look, or if no process is visible, of the
    newest record. `apart_ns`: by rank, how far its clock is ahead, if that is much; its instants are corrected by it.
    `doubts`: by rank, why its records may belong to another run, or may differ from what it wrote."""

    ranks: tuple[RankState, ...]
    world_size: int | None
    now_at_ns: int
    silent_ns: int  # from the last that any of them recorded to when somebody looked
    apart_ns: Mapping[int, int] = field(default_factory=dict)
    doubts: Mapping[int, tuple[Finding, ...]] = field(default_factory=dict)
    foreign: frozenset[int] = frozenset()  # ranks whose folder holds records of another run, or of another rank
    dumped: bool = False  # it is known from dumps of the Flight Recorder, which hold neither clocks nor processes


BEAT_NS = 2 * 10**9
"""Interval between two clock records of a rank whose interpreter runs."""
BEATS = 3
"""This many clock records in a row do not all come late."""
