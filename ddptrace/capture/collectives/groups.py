"""Process groups, each recorded once by its name, and the bytes that an all-to-all sends to each rank of its group."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ddptrace.capture.collectives.tap import Operator
from ddptrace.capture.surface import Patches
from ddptrace.record import Recorder
from ddptrace.schema import Kind

SPLIT: Final = int(Kind.SPLIT)


class Groups:
    """Interns a group's name and records its ranks and backend the first time.

    Once a program has destroyed the default group, torch uses the same names again, perhaps for other ranks. Records
    distinguish them: "0", then "0 #2".
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ids: dict[str, int] = {}
        self._times = 1
        self._has_default = dist.is_initialized()

    def install(self, patches: Patches) -> None:
        if hasattr(c10d, "_update_default_pg"):
            patches.replace(c10d, "_update_default_pg", self._update)

    def name_id(self, group: Any) -> int:
        name = name_of(group)
        known = self._ids.get(name)
        return known if known is not None else self._meet(name, group)

    def name(self, name: str) -> str:
        """Return the name in the records of a group that torch calls `name`."""
        return name if self._times == 1 else f"{name} #{self._times}"

    def _meet(self, name: str, group: Any) -> int:
        recorded = self.name(name)
        number = self._ids[name] = self._recorder.intern(recorded)
        self._recorder.describe(Kind.GROUP, json.dumps(describe(recorded, group)))
        self._recorder.nudge()  # there may be a store now through which the ranks can agree
        return number

    def _update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _update_default_pg(group: Any) -> Any:
            if self._has_default:
                self._times += 1
                self._ids = {}
            self._has_default = group is not None
            return original(group)

        return _update_default_pg


def name_of(group: Any) -> str:
    """Return what torch calls a group. A group that Python code of the program has made may have no name."""
    try:
        return str(group.group_name)
    except RuntimeError:
        return "unnamed"


def describe(name: str, group: Any) -> dict[str, Any]:
    """Return name, global ranks (empty if torch.distributed does not list the group), size, backend, the number of the
    backend's worker threads (None: it has no queue that we know of), and what the program calls the group."""
    try:
        ranks = dist.get_process_group_ranks(group)
    except (ValueError, KeyError, RuntimeError):
        ranks = []
    try:
        backend: str = dist.get_backend(group)
    except (ValueError, RuntimeError):
        backend = str(group.name())
    except TypeError:  # torch 2.4 does not know it, and asking the group itself would end the process there
        backend = ""
    return {
        "name": name,
        "ranks": ranks,
        "size": group.size(),
        "backend": str(backend),
        "threads": _threads(group),
        "description": _description(group),
    }


def _description(group: Any) -> str:
    """Return what the program, or its DeviceMesh, calls a group; empty where torch does not tell."""
    try:
        return str(group.group_desc)
    except (AttributeError, RuntimeError):
        return ""


def _threads(group: Any) -> int | None:
    try:
        return int(group._get_backend(torch.device("cpu")).options._threads)
    except (AttributeError, RuntimeError):
        return None


def sent_to_each(op: Operator, args: tuple[Any, ...], nbytes: int) -> list[int]:
    """Return the bytes for each rank of the group; nothing where the call does not tell, or a compiler traces it with
    sizes that are symbols. `nbytes`: of all of it."""
    if type(nbytes) is not int:  # to compare symbols would change what is compiled
        return []
    given = args[op.inputs[0]]
    if isinstance(given, list | tuple):
        return [tensor.nbytes for tensor in given]
    if op.splits is None or any(type(count) is not int for count in args[op.splits]):
        return []
    rows = args[op.splits]
    if rows:
        total = sum(rows)
        return [nbytes * count // total for count in rows] if total else [0] * len(rows)
    size = dist.ProcessGroup.unbox(args[op.group]).size()
    return [nbytes // size] * size


def write_splits(recorder: Recorder, seq: int, launch: int, sent: Sequence[int]) -> None:
    """Record the bytes that a call sends to each rank."""
    ranks = len(sent)
    if ranks and min(sent) == max(sent):
        recorder.event(SPLIT, 1, 0, launch, launch, seq, sent[0], 0, 0, ranks)
        return
    for place in range(0, ranks, 2):
        second = sent[place + 1] if place + 1 < ranks else 0
        recorder.event(SPLIT, 0, 0, launch, launch, seq, sent[place], second, place, ranks)
