"""Process groups by name: told once each, when first met."""

from __future__ import annotations

import json
import time
from typing import Any

import torch
import torch.distributed as dist

from ddptrace.record import Recorder
from ddptrace.schema import Kind


class Groups:
    """Interns a group's name and records its ranks and backend the first time."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ids: dict[str, int] = {}

    def name_id(self, group: Any) -> int:
        name = group.group_name
        known = self._ids.get(name)
        return known if known is not None else self._meet(name, group)

    def _meet(self, name: str, group: Any) -> int:
        number = self._ids[name] = self._recorder.intern(name)
        text = self._recorder.tell(json.dumps(describe(name, group)))
        self._recorder.event(Kind.GROUP, 0, text, time.perf_counter_ns(), 0)
        self._recorder.nudge()  # there may be a store now through which the ranks can agree
        return number


def describe(name: str, group: Any) -> dict[str, Any]:
    """Name, global ranks, backend and its worker threads (None: no queue of its own that we know of)."""
    try:
        ranks = dist.get_process_group_ranks(group)
    except (ValueError, KeyError, RuntimeError):  # a group that torch.distributed does not list
        ranks = list(range(group.size()))
    try:
        backend: str = dist.get_backend(group)
    except (ValueError, RuntimeError):
        backend = str(group.name())
    return {"name": name, "ranks": ranks, "backend": str(backend), "threads": _threads(group)}


def _threads(group: Any) -> int | None:
    try:
        return int(group._get_backend(torch.device("cpu")).options._threads)
    except (AttributeError, RuntimeError):
        return None
