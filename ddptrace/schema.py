"""THE FORMAT: what training writes and everything else reads.

A rank writes `records-<k>.bin` segments of 64-byte little-endian records. A record is one of three shapes, told apart
by its first byte, and ends in a guard that is written last: a record without it was torn by a death mid-write.
Segments are allocated ahead, so zero bytes (`Kind.NONE`) mean "not written". A segment that was finished ends in a
TRAILER record with its checksum; the trailer of the last one is the rank's clean-close mark.

    shape   bytes 0..8                         8..60                                                       60..64
    EVENT   kind flags thread name             begin end a b c (i64) d e (u32) f g (u16)                   guard
    READY   kind count reducer backward        base (i64), 7 deltas (u32), 7 parameters (u16), 2 unused     guard
    STRING  kind count chunk id                52 bytes of UTF-8                                            guard

Instants in records are the rank's own monotonic clock in nanoseconds; `CLOCK` records tie it to Unix time.
Version rule: minor when a field or kind is added, major when one changes. Readers refuse another major.
"""

from __future__ import annotations

import enum
import os
import struct
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from ddptrace.errors import RunDirectoryError

SCHEMA_VERSION: Final = "1.11"

MANIFEST: Final = "manifest.json"
META: Final = "meta.json"
ANALYSIS: Final = "analysis"
PROFILE_REQUEST: Final = "profile-request.json"
PROFILE_ANSWER: Final = "profile-answer.json"
"""`ddptrace profile` writes the first into the run directory, and a rank answers by the second."""


def run_path(path: object) -> Path:
    """Return the path that a caller gave. Raises RunDirectoryError if it is not a path."""
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path) or not os.fspath(path):
        raise RunDirectoryError(f"{path!r} is not the path of a run directory; give a string or a pathlib.Path")
    return Path(path)


def rank_folder(rank: int) -> str:
    return f"rank-{rank:05d}"


def segment_name(index: int) -> str:
    return f"records-{index:05d}.bin"


def segment_index(name: str) -> int:
    """Return the index of the segment of this name; -1 if the name is not a segment's."""
    number = name.removeprefix("records-").removesuffix(".bin")
    return int(number) if number.isdecimal() and len(number) < len(name) else -1


RECORD_NBYTES: Final = 64
GUARD: Final = 0x7DD97DD9
READY_PER_RECORD: Final = 7
TEXT_PER_RECORD: Final = 52
DELTA_MAX_NS: Final = 2**32 - 1

EVENT: Final = struct.Struct("<BBHIqqqqqIIHHI")
READY: Final = struct.Struct("<BBHIq7I7HHI")
STRING: Final = struct.Struct("<BBHI52sI")

EVENT_DTYPE: Final = np.dtype(
    [
        ("kind", "u1"), ("flags", "u1"), ("thread", "<u2"), ("name", "<u4"), ("begin", "<i8"), ("end", "<i8"),
        ("a", "<i8"), ("b", "<i8"), ("c", "<i8"), ("d", "<u4"), ("e", "<u4"), ("f", "<u2"), ("g", "<u2"),
        ("guard", "<u4"),
    ]
)  # fmt: skip
READY_DTYPE: Final = np.dtype(
    [
        ("kind", "u1"), ("count", "u1"), ("reducer", "<u2"), ("backward", "<u4"), ("base", "<i8"),
        ("deltas", "<u4", 7), ("parameters", "<u2", 7), ("unused", "<u2"), ("guard", "<u4"),
    ]
)  # fmt: skip


class Kind(enum.IntEnum):
    """What a record tells. `name`, `d` and `g` are string ids where not said otherwise; 0 is the empty string."""

    NONE = 0
    STRING = 1  # `id`'s text, in chunks; the last chunk is shorter than 52 bytes
    CLOCK = 2  # begin: monotonic; a: Unix ns at that instant; b: width of the bracket it was read in
    CALL = 3  # a collective. name: op; begin: launch; end: the call returned; a: seq; b, c: bytes in, out; d: group;
    #           e: seq of the hook that issued it, 0 none; f: reducer + 1, 0 none; g: dtype; flags: CallFlag
    DONE = 4  # a call's or hook's future completed. begin: when; a: seq; thread: where, in a profiler window, and
    #           elsewhere who wrote it; flags: 1 when it failed, and name: with what
    WAIT = 5  # the host blocked on a Work, begin to end; a: seq, 0 unknown
    PHASE = 6  # flags: Phase; begin, end; a: ordinal of the backward in the rank, for Phase.BACKWARD
    STEP = 7  # flags: StepEnd; a: ordinal; begin, end. A later record of the same ordinal and StepEnd replaces this
    #           Since 1.2, b: 1 where the rest of it was not recorded, as `ddptrace.Keep` had it
    #           Since 1.4, of StepEnd.OPTIMIZER, name: the optimizer that updated last; e: a bit for each that did, in
    #           the order of their first updates, and the highest for all from the 32nd on
    READY = 8  # gradients accumulated, in this order, base + delta each
    HOOK = 9  # a user's communication hook ran on the host. name: hook; begin, end; a: seq; b: nbytes; c: backward;
    #           d: bucket index (a number); f: reducer + 1; g: dtype
    REDUCER = 10  # name: JSON of a reducer and its parameters
    LAYOUT = 11  # name: JSON of a bucket layout and the first backward that used it
    GROUP = 12  # name: JSON of a process group
    WINDOW = 13  # a profiler window, begin to end; name: its file in the rank's folder; flags: 1 when the user's own
    PAUSE = 14  # ddptrace itself held the training thread, begin to end; name: why
    NOTE = 15  # name: JSON {"code", "message"}: what was seen or lost, for the findings
    THREAD = 16  # thread: its number in these records; a: the system's thread id; name: its name
    TRAILER = (
        17  # the segment's last record. a: records dropped so far; b: records in it; c: their CRC-32; flags: 1 final
    )
    #    Since 1.4, of those dropped so far, d: for want of room; e: because they came faster than files were made
    # Since 1.1. A message number counts a rank's received RPC messages; RPC bytes are -1 where nothing tells them.
    RPC = 18  # a remote call. name: function; begin; end: the host may go on; a: call id; b: bytes out; c: bytes of
    #           arguments that want a gradient; d: callee's worker name; f: RpcOp; flags: RpcFlag
    RPC_DONE = 19  # its result is here, or its failure. begin: when; name: the error, empty where it succeeded; a: call
    #                id; b: bytes back; c: message number of the result
    RPC_RUN = 20  # the callee ran the function, begin to end. name; a: call id, 0 unknown; b: bytes in; c: message
    #               number; d: caller's worker name, empty where unknown; flags: RpcFlag
    RPC_ANSWER = 21  # what a run gave. begin: when; a: the run's message number; b: bytes back; flags: 1 when it raised
    RPC_GRADIENT = 22  # distributed backward sent a received message's gradients. begin; a: message number; b: bytes
    RPC_WORKER = 23  # name: JSON {"name", "id"} of this rank as a worker
    # Since 1.2.
    ORIGIN = 24  # where a collective comes from, where its CALL alone does not tell. begin: launch; a: seq; name: its
    #              call site; d: the module; flags: Origin. Since 1.3, e: 1 + the rank, in its group, that it sends to
    #              or receives from, or that is its root; 0 none, or unknown; and flags UNKNOWN_ORIGIN where
    #              nobody looked. Since 1.4, written before the CALL, which a crash in it leaves out; b, c: bytes in,
    #              out; f: op; g: group; 0 where their ids have no room. Since 1.7, name may be two lines with `THROUGH`
    #              between: the program's, and that of the library which issued it
    RPC_WAIT = 25  # the host was blocked on the future of remote calls, or on other workers in a distributed backward,
    #                begin to end. A reference's own methods block from RPC's end to RPC_DONE
    LET_GO = 26  # here stood `a` records, written from begin to end, that were let go to stay within `ddptrace.Keep`.
    #              With d, of them the calls of this group: a, of these the ones that are no send or receive: b. A file
    #              whose first record is one with flags 1, which adds up all others, stands for itself and all before it
    #              Since 1.4, that first one's b: so many REDUCER, LAYOUT and NOTE records went as well
    # Since 1.3.
    FILE_LET_GO = 27  # a profiler window's file was let go as well. name: as its WINDOW has it; begin: when; a: so many
    #                   were by then
    # Since 1.4. What the host did to a rank, for the causes of lateness.
    HOST = 28  # the training thread between two ends of steps, begin to end. a: ns in which it could have run and no
    #            processor was free; b: its processor time, ns; c: how often it was made to give its processor up
    GC = 29  # Python's garbage collector held the training thread, begin to end. a: generation; b: objects collected
    CGROUP = 30  # begin: when. a: ns for which a processor quota held this process's group so far; b: periods in which
    #              it did; c: the quota, ns of processor time per second
    LINK = 31  # what went over this process's TCP connections between two addresses so far. begin: when; name:
    #            "own>peer"; a: bytes sent and acknowledged; b: ns in which data was under way; c: least round trip, ns;
    #            d: segments sent anew (a number)
    PULSE = 32  # the training thread has written nothing for a while. begin: when; name: the program's line it is at;
    #             d: the innermost line; flags: the Phase it is in, 0 none; a: seq of its last call; b: its CPU ns
    # Since 1.8. Timed events on a device's streams. Instants of the device are of its own clock, in ns, and never 0.
    DEVICE_CLOCK = 33  # an event that ended between two instants of the host, begin and end. name: the device; a: when
    DEVICE_MARK = (
        34  # the compute stream came to a place. begin: when the host put it there; flags: DeviceMark; a: when;
    )
    #         end: of STILL, until when the host launched nothing
    DEVICE_CALL = 35  # a collective on the device. begin: launch; a: seq; b: when its inputs were ready; c: when it
    #                   ended, 0 where only a stream that waits for it may tell; d: how long it took by its backend (a
    #                   number), 0 unknown; flags: 1 issued on the stream of the marks
    DEVICE_WAIT = (
        36  # a stream waited for a collective that no reducer issued. begin: when the host had it wait; a: seq, 0 where
    )
    #                   it waited for an event; b: when the stream came there; c: when it went on; flags: 1 on the
    #                   stream of the marks
    # Since 1.9. A unit is what one decision of the program communicates together: the parameters of one `fully_shard`,
    # a pipeline's stage. Its number counts the units of the process from 1
    UNIT = 37  # name: JSON of a unit, its parameters and process groups
    UNIT_CALL = 38  # a collective is of a unit. begin: launch; a: seq; b: unit; c: turn of the pipeline + 1, 0 none;
    #                 flags: UnitRole; e: Phase that it is for, 0 unknown; f: microbatch + 1, 0 none
    UNIT_MARK = 39  # something happened to a unit, begin to end. a: unit; flags: UnitMark; c: turn of the
    #                 pipeline + 1, 0 none; e: Phase, 0 unknown; f: microbatch + 1, 0 none
    SPLIT = (
        40  # how many bytes an all-to-all sends to two ranks of its group. begin: launch; a: seq; b, c: bytes; d: the
    )
    #             first one's place in the group (a number); e: ranks of the group; flags: 1 where all get as many as b


class CallFlag(enum.IntFlag):
    SYNC = 1  # issued with async_op=False: the caller waits at once
    NATIVE = 2  # issued by a reducer for its buckets (DDP's C++, BucketedDataParallel), not by the program
    PROFILED = 4  # since 1.5: a profiler was on, which was told `RANGE_PREFIX` and its seq as the name of its range
    DEVICE = 8  # since 1.6: its tensors are a device's: a wait for it only orders streams, and tells no end


class Origin(enum.IntEnum):
    """Who wanted a collective: the program itself or a library of which nothing more is known, or else a part of torch,
    of ddptrace or of a known library on its behalf."""

    PROGRAM = 0
    GRADIENTS = 1  # a reducer, for a bucket
    HOOK = 2  # a communication hook, for a bucket
    BUFFERS = 3  # DDP, at forward
    CONSTRUCTION = 4  # the making of a data-parallel wrapper: parameters are compared and broadcast
    REBUILD = 5  # DDP, when it makes new buckets
    UNUSED_PARAMETERS = 6  # the bitmap of parameters that got a gradient
    AGREEMENT = 7  # a few numbers that ranks compare: BucketedDataParallel's pulse, DDP's join()
    FSDP = 8
    OPTIMIZER = 9  # one that is sharded over the ranks
    PIPELINE = 10  # a pipeline schedule's activations and their gradients
    DTENSOR = 11  # an operator on sharded tensors, as in tensor parallelism
    # Since 1.7.
    ZERO = 12  # DeepSpeed, for its gradients and parameters, whatever its ZeRO stage
    MOE = 13  # a mixture of experts: tokens on their way to experts and back, and their gradients
    CHECKPOINT = 14  # the saving or loading of a checkpoint
    # No recorder writes these two: they are read out of traces that others recorded.
    TENSOR_PARALLEL = 15  # a layer whose tensors are divided among ranks
    EMBEDDINGS = 16  # embedding tables that are divided among ranks: ids to the tables, vectors back, their gradients

    @cached_property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


UNKNOWN_ORIGIN: Final = 255
"""In an ORIGIN record instead of an `Origin`."""

THROUGH: Final = ", through "
"""Between the program's line and the library's, in an ORIGIN record."""


def line_words(site: str | None, through: str | None) -> str | None:
    """As in "train.py:42 in step, through deepspeed/runtime/engine.py:13 in reduce"; None if no line is known."""
    return f"{site}{THROUGH}{through}" if through else site


class RpcOp(enum.IntEnum):
    """How a remote call was made. `BACKWARD` is that of a remote reference."""

    RPC_SYNC = 1
    RPC_ASYNC = 2
    REMOTE = 3
    TO_HERE = 4
    BACKWARD = 5


class RpcFlag(enum.IntFlag):
    INTERNAL = 1  # torch's own: shutdown's agreement, the type of a remote reference
    ASYNC_EXECUTION = 2  # the function gives a future: its run ends before its result is there
    NATIVE = 4  # a builtin operator or TorchScript: the callee runs it without Python


CALL_BITS: Final = 48
"""Low bits of a call id: the caller's own count. Above them is the caller's worker id."""


class Phase(enum.IntEnum):
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


class DeviceMark(enum.IntEnum):
    """A place in the work of the compute stream."""

    FORWARD_BEGIN = 1
    FORWARD_END = 2
    BACKWARD_BEGIN = 3
    WAIT_BEGIN = 4  # from here to the end of backward, it waits for the backward's collectives
    BACKWARD_END = 5
    UPDATE_BEGIN = 6
    UPDATE_END = 7
    UNTIMED = 8  # something here was not timed: a graph was being captured, or too many events were under way
    STILL = 9  # since 1.11: the host put it there and launched nothing until the record's end


class UnitRole(enum.IntEnum):
    """What a collective does for its unit."""

    OTHER = 0  # its operation alone says it
    UNSHARD = 1  # gathers the unit's parameters
    REDUCE_SCATTER = 2  # reduces its gradients, so that each rank gets its shard of them
    ALL_REDUCE = 3  # reduces them among the ranks that hold the same shard, or all of them

    @cached_property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


class UnitMark(enum.IntEnum):
    """What happens to a unit beside its collectives."""

    USE = 1  # its forward or backward needs its parameters, from when it asks for them until they are there
    READY = 2  # all its gradients are there; until they are on their way
    FREED = 3  # its whole parameters are let go
    COMPUTED = 4  # a pipeline's stage has computed its forward or backward of a microbatch, or a part of that
    COMPUTED_INPUTS = 5  # of its backward, the gradients of its inputs alone
    COMPUTED_WEIGHTS = 6  # of its backward, the gradients of its parameters alone


class StepEnd(enum.IntEnum):
    """What ended a step. The strongest kind present in a rank's records wins: said, then optimizer, then backward."""

    BACKWARD = 1
    OPTIMIZER = 2
    SAID = 3


class Evidence(enum.StrEnum):
    """Where an exec interval comes from, strongest first."""

    DEVICE = "device"  # kernels, linked by correlation
    BACKEND = "backend"  # the backend's own range in a profiler window
    EVENT = "event"  # end measured by an event on the device; begin told by the backend, or inferred from the queue
    CALLBACK = "callback"  # end measured, start inferred from the queue's order: overlap is approximate
    HOST = "host"  # launch to end of wait: an upper bound

    @property
    def weakness(self) -> int:
        return list(Evidence).index(self)

    @property
    def tells_arrival(self) -> bool:
        """Whether the begin is when the rank came to the collective: measured, or on a device the latest of measured
        instants, as its inputs were ready and its stream was free. Otherwise it follows from the launch."""
        return self in (Evidence.DEVICE, Evidence.BACKEND, Evidence.EVENT)


RANGE_PREFIX: Final = "ddptrace#"
"""A collective's range in a profiler window is named by this and its seq, so that events are linked by id."""
