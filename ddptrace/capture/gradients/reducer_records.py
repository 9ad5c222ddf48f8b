"""Records of gradient reducers, of stock DDP and of our own alike: who they are, their layouts, ready times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from ddptrace.capture.collectives.groups import Groups
from ddptrace.capture.gradients.ready_times import ReadyTimes
from ddptrace.record import Recorder
from ddptrace.schema import DELTA_MAX_NS, READY_PER_RECORD, Kind


class ReducerRecords:
    """Numbers the reducers of a process from 1: in records, 0 means no reducer."""

    def __init__(self, recorder: Recorder, groups: Groups) -> None:
        self.count = 0
        self._recorder = recorder
        self._groups = groups

    def number(self) -> int:
        """Return the number of a new reducer."""
        self.count += 1
        return self.count

    def reducer(self, number: int, content: dict[str, Any]) -> None:
        """`content`: kind, module, group, bucket_cap_nbytes and parameters, as `described` gives these."""
        group = self._groups.name(content["group"])
        self._write(Kind.REDUCER, {"reducer": number - 1} | content | {"group": group})

    def layout(self, number: int, layout: int, buckets: Sequence[Sequence[int]], *, from_backward: int) -> None:
        """`buckets`: parameter indices; `from_backward`: ordinal of the first backward that uses them."""
        content = {"reducer": number - 1, "layout": layout, "from_backward": from_backward, "buckets": buckets}
        self._write(Kind.LAYOUT, content)

    def ready(self, number: int, backward: int, ready: ReadyTimes) -> None:
        """The gradients of one backward, if there were any."""
        order, ats = ready.in_order()
        begin = 0
        while begin < len(order):
            end, base = begin + READY_PER_RECORD, ats[begin]
            run = ats[begin:end]
            while run[-1] - base > DELTA_MAX_NS:
                run.pop()
            end = begin + len(run)
            self._recorder.ready(number - 1, backward, base, list(map(base.__rsub__, run)), order[begin:end])
            begin = end

    def _write(self, kind: Kind, content: dict[str, Any]) -> None:
        self._recorder.describe(kind, json.dumps(content))


def described(named: Iterable[tuple[str, Tensor]]) -> list[dict[str, Any]]:
    """A reducer's parameters, in its own order."""
    return [
        {
            "name": name,
            "numel": tensor.numel(),
            "nbytes": tensor.numel() * tensor.element_size(),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        for name, tensor in named
    ]
