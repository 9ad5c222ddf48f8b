"""The test device for Python. Importing this module makes `torch.device("testdev")`, `torch.testdev` and the c10d
backend `testccl`."""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from tests.device import native

NAME: Final = "testdev"
BACKEND: Final = "testccl"
BACKENDS: Final = f"cpu:gloo,{NAME}:{BACKEND}"  # for init_process_group
_native: Final = native.load()


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger says of one thing that ran on a stream. Times are ns since the Unix epoch."""

    kind: str  # "kernel", "collective", "copy", "wait" (for an event) or "event" (recorded: it takes no time)
    name: str
    stream: int
    launched_ns: int  # when the host put it on the stream
    begin_ns: int
    end_ns: int
    correlation: int  # the same for its launch, in a profiler file
    called_ns: int = 0  # begin and end of the host's call that launched it
    returned_ns: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the runtime by the host. Names are CUDA's."""

    name: str
    thread: int  # the system's id
    begin_ns: int
    end_ns: int
    correlation: int


strays: Final[set[str]] = set()
"""Threads of ddptrace that asked for an event without choosing the device: on CUDA, that takes memory of the first."""
_calls: Final[list[Call]] = []
_uuid = ""  # of the device; empty: that of the process


def take_ledger() -> list[Entry]:
    """Return everything that has run since the last call, in order of its end, once all streams are idle."""
    _native.drain()
    entries = [Entry(*row) for row in _native.take_ledger()]
    new = [Call(name, thread, begin, end, number) for _, name, thread, _, begin, end, number in _native.take_calls()]
    _calls.extend(new)
    by_number = {call.correlation: call for call in new}
    return [_with_call(entry, by_number.get(entry.correlation)) for entry in entries]


def take_calls() -> list[Call]:
    """Return the host's calls up to the last `take_ledger`, without those that were returned before."""
    taken = list(_calls)
    _calls.clear()
    return taken


def _with_call(entry: Entry, call: Call | None) -> Entry:
    return entry if call is None else dataclasses.replace(entry, called_ns=call.begin_ns, returned_ns=call.end_ns)


def spend(ns: int) -> None:
    """Launch a kernel that takes at least `ns` nanoseconds on the current stream."""
    torch.ops.testdev.spend(_on, ns)


def set_floors_ns(kernel: int = 0, collective: int = 0) -> None:
    """Make every kernel take at least this many nanoseconds, and every collective from when its ranks have come."""
    _native.set_floors_ns(kernel, collective)


def take_turns(slice_ns: int, nth: int, of: int) -> None:
    """Share the device with other processes from now on: it serves this one in the `nth` of each `of` slices of time,
    and finishes what began in one."""
    global _uuid
    _uuid = f"{NAME}-shared"
    _native.take_turns(slice_ns, nth, of)


def overwrite_freed(overwrite: bool) -> None:
    """Overwrite the memory of a freed tensor when its stream allocates the next one, which would get that memory on
    CUDA. A kernel of another stream that still uses the tensor, without `record_stream`, then reads NaN."""
    _native.set_overwrites_freed(overwrite)


def _backend(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("testdev-gloo", store), rank, size, timeout)
    return _native.backend(gloo, rank, size)


class Stream(torch.Stream):
    """A stream from the pool, or (`known`: its numbers) one that exists. Its methods are written as those of
    `torch.cuda.Stream`, which end in `Event.wait`."""

    def __new__(cls, device: Any = None, priority: int = 0, **known: int) -> Stream:
        return super().__new__(cls, **known) if known else super().__new__(cls, device=NAME, priority=priority)

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event


class Event(torch.Event):
    """As `torch.cuda.Event`."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        return super().__new__(cls, NAME, enable_timing=enable_timing)

    def wait(self, stream: Any = None) -> None:
        super().wait(_current_stream() if stream is None else stream)

    def query(self) -> bool:
        name = threading.current_thread().name
        if name.startswith("ddptrace") and not OneDevice.depth():
            strays.add(name)
        over: bool = super().query()
        return over

    def elapsed_time(self, end_event: Any) -> float:
        elapsed_ms: float = _native.elapsed_ms(self.event_id, end_event.event_id)
        return elapsed_ms


def _current_stream(device: Any = None) -> Stream:
    known = torch.accelerator.current_stream()
    return Stream(stream_id=known.stream_id, device_index=known.device_index, device_type=known.device_type)


class OneDevice:
    """The context manager that chooses a device: there is one."""

    chosen: Final = threading.local()

    def __init__(self, device: Any) -> None: ...

    def __enter__(self) -> None:
        OneDevice.chosen.depth = OneDevice.depth() + 1

    def __exit__(self, *error: object) -> None:
        OneDevice.chosen.depth -= 1

    @staticmethod
    def depth() -> int:
        depth: int = getattr(OneDevice.chosen, "depth", 0)
        return depth


def _module() -> types.ModuleType:
    """Make what `torch.cuda` is for CUDA, as far as torch asks for it."""
    module = types.ModuleType(f"torch.{NAME}")
    members: dict[str, Callable[..., Any]] = {
        "Stream": Stream,
        "Event": Event,
        "device": OneDevice,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_properties": lambda device=0: types.SimpleNamespace(uuid=_uuid or f"{NAME}-{os.getpid()}"),
        "synchronize": lambda device=None: _native.synchronize(),
        "current_stream": _current_stream,
        "set_stream": torch.accelerator.set_stream,
        "stream": lambda stream: stream,  # a stream is a context manager
        "manual_seed": _native.manual_seed,
        "manual_seed_all": _native.manual_seed,
        "get_rng_state": lambda device=NAME: torch.get_rng_state(),
        "set_rng_state": lambda state, device=NAME: None,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }
    for name, member in members.items():
        setattr(module, name, member)
    return module


torch.utils.rename_privateuse1_backend(NAME)
torch._register_device_module(NAME, _module())
torch.utils.generate_methods_for_privateuse1_backend()
dist.Backend.register_backend(BACKEND, _backend, devices=[NAME])
_on: Final = torch.empty(0, device=NAME)
torch.empty(
    0, device="meta"
).neg()  # torch takes a second before its first meta kernel: once for all ranks to be forked
atexit.register(_native.drain)  # before Python and torch take down what kernels use
