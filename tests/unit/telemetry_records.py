"""A rank's folder written by the real recorder, with times chosen by hand, for the tests of telemetry.

step       data ── forward ── backward ──────────── optimizer
launches                       bucket 0   bucket 1             loss, as if it were a unit's
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddptrace.record import Recorder, directory
from ddptrace.schema import MANIFEST, SCHEMA_VERSION, CallFlag, Kind, Phase, StepEnd, UnitRole, rank_folder
from ddptrace.trace_options import Keep

RUN_ID = "5f1e" * 8
MS = 1_000_000
STEP_NS = 100 * MS
BUCKETS = 2
CALLS = BUCKETS + 1  # and the loss


class Rank:
    """One rank's folder. Step k runs from k * STEP_NS after `begin`, which is now."""

    def __init__(self, root: Path, rank: int = 0, *, run_id: str = RUN_ID, keep: Keep | None = None) -> None:
        self.folder = root / rank_folder(rank)
        self.folder.mkdir(parents=True)
        directory.write_meta(
            self.folder, {"schema": SCHEMA_VERSION, "run_id": run_id, "rank": rank, "host": "h", "pid": 1}
        )
        self.recorder = Recorder(lambda: self.folder, keep=keep)
        self.begin = time.perf_counter_ns()
        self._describe()

    def _describe(self) -> None:
        parameters = [{"name": f"p{i}", "numel": 250, "nbytes": 1000, "dtype": "float32"} for i in range(2 * BUCKETS)]
        self._tell(Kind.GROUP, {"name": "0", "ranks": [0, 1], "backend": "gloo", "threads": 2})
        self._tell(Kind.REDUCER, {"reducer": 0, "kind": "DistributedDataParallel", "module": "Net", "group": "0",
                                  "bucket_cap_nbytes": 2000, "parameters": parameters})  # fmt: skip
        self._tell(Kind.UNIT, {"unit": 1, "kind": "fsdp", "module": "blocks.0"})
        self._tell(Kind.LAYOUT, {"reducer": 0, "layout": 0, "from_backward": 0, "buckets": [[3, 2], [1, 0]]})

    def _tell(self, kind: Kind, content: dict[str, Any]) -> None:
        self.recorder.event(kind, 0, self.recorder.intern(json.dumps(content)), self.begin, 0)

    def step(self, k: int, *, ended_by: StepEnd = StepEnd.OPTIMIZER) -> None:
        """All records of one step but the completion of its last collective, which comes with `late`."""
        at = self.begin + k * STEP_NS
        event = self.recorder.event
        for phase, begin, end in (
            (Phase.DATA, 0, 5),
            (Phase.FORWARD, 5, 30),
            (Phase.BACKWARD, 30, 80),
            (Phase.OPTIMIZER, 85, 98),
        ):
            event(Kind.PHASE, phase, 0, at + begin * MS, at + end * MS, k)
        self.recorder.ready(0, k, at + 35 * MS, [i * 10 * MS for i in range(4)], [3, 2, 1, 0])
        op, group, dtype = (self.recorder.intern(text) for text in ("all_reduce", "0", "float32"))
        for index in range(BUCKETS):
            launch, seq = at + (46 + 20 * index) * MS, k * CALLS + index + 1
            event(Kind.CALL, CallFlag.NATIVE, op, launch, launch + MS, seq, 2000, 2000, group, 0, 1, dtype)
            event(Kind.DONE, 0, 0, launch + 13 * MS, launch + 13 * MS, seq)
        launch = at + 99 * MS  # still runs in the next step
        event(Kind.CALL, 0, op, launch, launch, k * CALLS + CALLS, 4, 4, group, 0, 0, dtype)
        event(Kind.UNIT_CALL, UnitRole.ALL_REDUCE, 0, launch, launch, k * CALLS + CALLS, 1)
        event(Kind.STEP, ended_by, 0, at, at + STEP_NS, k)

    def late(self, k: int, steps_later: int = 1) -> None:
        done = self.begin + (k + steps_later) * STEP_NS + 3 * MS
        self.recorder.event(Kind.DONE, 0, 0, done, done, k * CALLS + CALLS)

    def steps(self, first: int, last: int) -> None:
        for k in range(first, last):
            self.step(k)
            self.late(k)


def write_manifest(root: Path, run_id: str = RUN_ID) -> None:
    directory.write_json(root / MANIFEST, {"schema": SCHEMA_VERSION, "run_id": run_id, "zero_unix_ns": 0})


@contextmanager
def recording(root: Path, rank: int = 0) -> Iterator[Rank]:
    one = Rank(root, rank)
    try:
        yield one
    finally:
        one.recorder.close()
